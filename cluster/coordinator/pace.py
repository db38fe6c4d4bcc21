"""How long the parts of an overlapped round take, learnt from the rounds before it."""

from __future__ import annotations

import math
from dataclasses import dataclass

FORGET = 0.2  # weight of the newest sample
COLD_ACCEPTANCE = 0.8  # as long as nothing was checked


@dataclass(slots=True)
class Average:
    """An exponential moving average; None before the first sample."""

    value: float | None = None

    def add(self, sample: float, weight: float = 1.0) -> None:
        """Take a sample in, as if it had come `weight` times."""
        if self.value is None:
            self.value = sample
        else:
            self.value += (1.0 - (1.0 - FORGET) ** weight) * (sample - self.value)


class Pace:
    """Seconds, of one pair of pools; shared by all requests of a coordinator."""

    def __init__(self) -> None:
        self._verify = Average()  # from sending a pass to its verdict
        self._transfer = Average()  # of a call to the drafter and its answer, without the drafter's own time
        self._draft_pass = Average()
        self._accepted = Average()
        self._margin = 0.25  # draft passes

    def note_verify(self, wall_s: float) -> None:
        """A verify pass that was sent when it could begin at once has been answered."""
        self._verify.add(wall_s)

    def note_transfer(self, wall_s: float, own_s: float) -> None:
        """The drafter answered after `wall_s`, of which it needed `own_s` itself."""
        self._transfer.add(max(0.0, wall_s - own_s))

    def note_draft_pass(self, seconds: float) -> None:
        """A pass of the drafter."""
        self._draft_pass.add(seconds)

    def note_punctual(self, punctual: bool) -> None:
        """Whether an enumeration that was to be there before the verdict was: if not, the next ones end earlier."""
        self._margin = max(0.1, 0.97 * self._margin) if punctual else min(4.0, self._margin + 0.4)

    def note_check(self, num_draft: int, num_accepted: int) -> None:
        """The target accepted so many draft tokens."""
        num_checked = min(num_draft, num_accepted + 1)
        if num_checked:
            self._accepted.add(num_accepted / num_checked, num_checked)

    @property
    def acceptance(self) -> float:
        """Share of the checked draft tokens that were accepted; 0: not known."""
        return self._accepted.value or 0.0

    def ahead_s(self, num_tokens: int) -> float:
        """How long after a call for an enumeration of branches of `num_tokens` tokens its last pass may begin.

        Either so that the target has it when it needs it: the call leaves with the verify pass, two transfers before
        its answer could be back, so what is left of the pass is its wall time less two transfers. Or, where the drafter
        is too slow for branches worth verifying, without a bound: then the target waits for the draft, which is made
        faster by what was drafted ahead. The better of the two by E(a, k) / seconds of a round (Leviathan 2211.17192).
        """
        verify_s, pass_s = self._verify.value, self._draft_pass.value
        if verify_s is None or not pass_s:
            return math.inf
        transfer_s = self._transfer.value or 0.0
        window_s = max(0.0, verify_s - 2.0 * transfer_s - (1.0 + self._margin) * pass_s)
        in_time = min(num_tokens, int(window_s / pass_s))  # the first pass only tells what the branches begin with
        if in_time == num_tokens:
            return window_s
        accepted = min(self._accepted.value or COLD_ACCEPTANCE, 0.99)
        late_s = max(verify_s, (num_tokens + 1) * pass_s) + 2.0 * transfer_s
        if committed(accepted, in_time) / verify_s >= committed(accepted, num_tokens) / late_s:
            return window_s
        return math.inf


def committed(accepted: float, num_tokens: int) -> float:
    """E(a, k): mean tokens of a round whose draft has `num_tokens`, each accepted with probability `accepted`."""
    return float((1.0 - accepted ** (num_tokens + 1)) / (1.0 - accepted))
