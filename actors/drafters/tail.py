"""What a draft leaves behind in its sequence: the tokens that were drawn."""

from __future__ import annotations

from dataclasses import dataclass, field

from actors.messages import Context
from actors.sampling.draw import Drawn
from actors.sampling.laws import SparseLaw
from actors.sampling.params import SamplingParams, VerifyMode


@dataclass(slots=True)
class Tail:
    """The tokens drafted after `[0, start)`. A cache: whoever finds none drafts again, to the same effect."""

    start: int  # tokens
    sampling: SamplingParams
    tokens: list[int] = field(default_factory=list)
    laws: list[SparseLaw] = field(default_factory=list)  # one per token in the rejection modes, else none
    siblings: list[tuple[Drawn, ...]] = field(default_factory=list)  # of each token, if any were wanted
    shown: bool = False  # whether anybody was told these tokens

    def after(self, context: Context, num_common: int) -> Tail:
        """What is left of it after `context`, of which the first `num_common` tokens are as they were.

        Greedy and coupled drafts are functions of their context, so any end of one is the draft after what comes
        before it. A sampled token may be proposed only once: what has been checked with it has made it a sample
        of another law. So those are taken only whole, and if nobody has seen them.
        """
        rest = Tail(context.num_tokens, context.sampling)
        num_passed = context.num_tokens - self.start
        if num_common < context.num_tokens or num_passed < 0 or self.sampling != context.sampling:
            return rest
        is_sampled = self.sampling.mode in (VerifyMode.REJECTION, VerifyMode.BLOCK)
        if is_sampled and (num_passed > 0 or self.shown):
            return rest
        rest.tokens = self.tokens[num_passed:]
        rest.laws = self.laws[num_passed:]
        rest.siblings = self.siblings[num_passed:]
        return rest
