"""The truth of one sequence, and what each replica is known to hold of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from actors.messages import Context, Ids
from cluster.coordinator.request import GenerationRequest
from cluster.coordinator.tier import NO_TOKENS


@dataclass(frozen=True, slots=True)
class Held:
    """What a replica acknowledged: `num_committed` tokens of the truth, then `tail`.

    Committed tokens never change, so the first part stays a prefix of the truth for ever. `tail` holds
    tokens a middle tier had decided and the target had not: they may have been rejected since.
    """

    num_committed: int
    tail: Ids = field(default_factory=lambda: NO_TOKENS)

    def certain(self) -> Held:
        """The part that holds whatever became of a later call (one that failed may or may not have run).

        A call names at least the tokens committed before it, so no call takes those from a replica.
        """
        return Held(self.num_committed)


class Sequence:
    """Prompt and committed tokens of one request; makes the contexts of its calls."""

    def __init__(self, request: GenerationRequest) -> None:
        self._request = request
        self._num_prompt = len(request.prompt_ids)
        self._ids = np.empty(self._num_prompt + request.max_tokens, np.int32)
        self._ids[: self._num_prompt] = request.prompt_ids
        self._num_tokens = self._num_prompt
        self._round = 0

    @property
    def sequence_id(self) -> str:
        """Its name in every tier."""
        return self._request.request_id

    @property
    def tokens(self) -> Ids:
        """Prompt and committed tokens. [num_tokens], a view: committed tokens never change."""
        return self._ids[: self._num_tokens]

    @property
    def num_tokens(self) -> int:
        """Prompt and committed tokens."""
        return self._num_tokens

    @property
    def num_generated(self) -> int:
        """Committed tokens after the prompt."""
        return self._num_tokens - self._num_prompt

    @property
    def remaining(self) -> int:
        """Tokens that may still be committed."""
        return len(self._ids) - self._num_tokens

    def commit(self, tokens: Ids) -> None:
        """Append decided tokens; at most `remaining`."""
        self._ids[self._num_tokens : self._num_tokens + len(tokens)] = tokens
        self._num_tokens += len(tokens)

    def context(self, held: Held | None, pending: Ids = NO_TOKENS) -> Context:
        """The truth followed by `pending`, as a call to a replica that holds `held`.

        Every context gets a new round number: replicas refuse stale calls by it, and a pass that is
        repeated draws fresh noise.
        """
        start = self._common(held, pending)
        request = self._request
        # A copy, as later commits write into the same buffer.
        tokens = np.concatenate(
            [self._ids[start : self._num_tokens], pending[max(0, start - self._num_tokens) :]]
        )
        return Context(
            sequence_id=request.request_id, start=start, tokens=tokens,
            num_prompt_tokens=self._num_prompt, num_committed=self._num_tokens,
            sampling=request.sampling, round=self.next_round(),
        )

    def next_round(self) -> int:
        """A round number that no call of this sequence has had."""
        self._round += 1
        return self._round

    def _common(self, held: Held | None, pending: Ids) -> int:
        """Length of what `held` shares with truth + `pending`; leaves at least one token to send."""
        if held is None:
            return 0
        common = held.num_committed
        if len(held.tail):
            now = np.concatenate([self._ids[common : self._num_tokens], pending])
            length = min(len(now), len(held.tail))
            differs = np.flatnonzero(now[:length] != held.tail[:length])
            common += int(differs[0]) if len(differs) else length
        return min(common, self._num_tokens + len(pending) - 1)
