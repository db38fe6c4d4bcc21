"""What crosses between actors: dataclasses of numpy arrays and token ids, never tensors.

Calls name the truth instead of deltas: a `Context` says which tokens a sequence consists of, and the
actor truncates its KV cache to the common prefix and catches up. Rollback is therefore implicit and
a retry is harmless.

No message is ever changed. Those of every round are not declared frozen all the same: a frozen one is made field by
field through calls, which takes twice as long between two passes, when the caches are cold.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from actors.sampling.params import SamplingParams

Ids = npt.NDArray[np.int32]
Probs = npt.NDArray[np.float32]
Halves = npt.NDArray[np.float16]


class Origin(StrEnum):
    """Where a committed token came from."""

    ACCEPTED = "accepted"  # drafted below, kept by the verifier
    RECOVERED = "recovered"  # put where the first rejected draft token stood
    BONUS = "bonus"  # the extra token after a fully accepted draft
    PLAIN = "plain"  # no draft was checked in this pass


@dataclass(frozen=True, slots=True)
class Features:
    """Hidden states of the target at consecutive positions of a sequence: what feature-based drafters draft from.

    A row is the residual stream after each of the target's `feature_layers`, side by side.
    """

    start: int  # position of the first row
    rows: Halves  # [num_positions, num_layers * hidden]

    @property
    def end(self) -> int:
        """Position after the last row."""
        return self.start + len(self.rows)


@dataclass(slots=True)
class Context:
    """The tokens a sequence consists of, from `start` on; `[0, start)` is as the actor last held it."""

    sequence_id: str
    start: int  # tokens
    tokens: Ids  # [num_tokens - start]
    num_prompt_tokens: int
    num_committed: int  # tokens decided by the target; only those may enter a prefix cache
    sampling: SamplingParams
    round: int  # grows with every call of this sequence; stale calls are refused, noise is keyed by it
    features: Features | None = None  # propose: of the target, up to the position before the last token
    features_from: int = -1  # verify: answer the features from this position on; -1: none are wanted
    num_plain: int = 1  # verify: without a draft, decode up to so many tokens; their noise is keyed by `round`, `round`
    # + 1, ...

    @property
    def num_tokens(self) -> int:
        """Length of the whole sequence."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Laws:
    """The law each token of a draft was really drawn from, as (id, probability) pairs.

    A law may be truncated (top-m, renormalised): exactness needs only that the token was drawn from
    *it*. Ragged: position i owns `[cu_len[i], cu_len[i + 1])`.
    """

    ids: Ids  # [sum of supports]
    probs: Probs  # [sum of supports], float32; each position sums to 1
    cu_len: Ids  # [num_tokens + 1]

    @property
    def num_tokens(self) -> int:
        """Number of positions."""
        return len(self.cu_len) - 1

    def at(self, position: int) -> tuple[Ids, Probs]:
        """Support and probabilities of one position."""
        a, b = int(self.cu_len[position]), int(self.cu_len[position + 1])
        return self.ids[a:b], self.probs[a:b]


@dataclass(frozen=True, slots=True)
class DraftShape:
    """How much a drafter is asked to propose: a chain of `num_tokens`, a comb, or a tree.

    A tree is *static* when `widths` is given (children per node of each level) and *dynamic* when `num_nodes`
    is: grown where the product of the drafter's probabilities along the path is largest (EAGLE-2, 2406.16858).
    """

    num_tokens: int  # longest path
    num_nodes: int = 0  # of a dynamic tree; 0: no such tree
    widths: tuple[int, ...] = ()  # [depth of a static tree], each at least 1
    siblings: int = 0  # of a comb: next best tokens beside each token of a chain, which cost the drafter nothing

    @property
    def grows(self) -> bool:
        """Whether more than one path gets children, so that the drafter's passes have a row for each."""
        return self.num_nodes > 0 or bool(self.widths)

    @property
    def is_chain(self) -> bool:
        """Whether nothing branches."""
        return not self.grows and self.siblings == 0


@dataclass(slots=True)
class Draft:
    """Proposed tokens. `laws` is None when ids suffice (greedy, coupled) or for a deterministic drafter.

    With `parents` the tokens form a tree: siblings stand in the order in which they were drawn, and a sibling's law is
    the one that it was drawn from after those before it (the same again with replacement, renormalised without).
    """

    tokens: Ids  # [num_draft_tokens], possibly empty
    laws: Laws | None = None
    tier: int = 0
    seconds: float = 0.0  # wall time spent drafting, queue included
    error: str | None = None  # why the draft is empty although one was asked for
    prefix_missing: bool = False  # the actor does not hold [0, start): call again with start = 0
    model_seconds: float = 0.0  # of `seconds`: while a forward pass of the replica ran, this call's or another's
    num_cached_tokens: int = 0  # of the context when the sequence was opened: found in the prefix cache
    parents: Ids | None = None  # [num_draft_tokens] index of each token's parent, smaller than its own; -1: follows
    # the context. None: a chain
    pass_rows: int = 0  # rows of the last forward pass that this call took part in, other sequences' included
    pass_seconds: float = 0.0  # of that pass
    features_missing: int = -1  # of an empty draft: the first position whose features the drafter lacks; -1: none


@dataclass(frozen=True, slots=True)
class AheadPlan:
    """What to draft for the outcomes of a verify pass that is still under way."""

    shape: DraftShape  # of each branch, the verifier's own token not counted
    num_branches: int  # at most; the likeliest outcomes are taken
    num_guesses: int  # of the verifier's own token, for one and the same number of accepted tokens
    max_total_tokens: int  # no branch, with its context, gets longer than this
    time_s: float  # no pass begins later than this after the call came: what is there by then is the answer
    acceptance: float = 0.0  # share of the drafter's tokens that the verifier has accepted of late; 0: not known


@dataclass(frozen=True, slots=True)
class Branch:
    """What follows one outcome: the draft up to and with `node` is accepted, and then `token` is the verifier's own."""

    node: int  # index in the draft under verification; -1: none of it is accepted
    token: int
    draft: Draft


@dataclass(frozen=True, slots=True)
class Enumeration:
    """Drafts for the likely outcomes of the verify pass of `round`, likeliest first, at most one for an outcome."""

    round: int  # `Context.round` of the verify call whose outcomes these are
    branches: tuple[Branch, ...] = ()
    tier: int = 0
    seconds: float = 0.0  # wall time spent on it, queue included
    model_seconds: float = 0.0
    error: str | None = None  # why there are no branches although some were asked for
    prefix_missing: bool = False

    def find(self, node: int, token: int) -> Branch | None:
        """The branch of an outcome."""
        return next((b for b in self.branches if b.node == node and b.token == token), None)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities of the verifier's unmodified softmax at one committed token."""

    logprob: float
    top_ids: Ids  # [num_logprobs]
    top_logprobs: npt.NDArray[np.float32]  # [num_logprobs]


@dataclass(slots=True)
class Verdict:
    """Outcome of one verify pass: accepted draft tokens followed by exactly one token of the verifier.

    Without a draft there may be several of the latter (`Context.num_plain`), all of them plain.

    A verdict of a middle tier is a legal draft for the next one (`as_draft`): its tokens are
    distributed as that tier's model.
    """

    tokens: Ids  # [num_accepted + num_own]; empty if `error` or `prefix_missing`
    num_accepted: int
    num_draft: int  # draft tokens checked
    last: Origin  # RECOVERED, BONUS or PLAIN
    tier: int = 0
    draft_tiers: tuple[int, ...] = ()  # [num_draft] tier that proposed each draft token (of a tree: every node's)
    laws: Laws | None = None  # this tier's law of each of `tokens`; rejection modes, middle tiers only
    logprobs: tuple[TokenLogprobs, ...] | None = None  # one per token when asked for
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0  # queue and forward pass in the verifier
    error: str | None = None  # the request cannot go on (e.g. NaN logits in the target)
    prefix_missing: bool = False
    draft_error: str | None = None  # the draft came empty for this reason
    num_cached_tokens: int = 0  # of the context when the sequence was opened: found in the prefix cache
    draft_model_seconds: float = 0.0  # of `draft_seconds`: inside forward passes
    verify_model_seconds: float = 0.0  # of `verify_seconds`: inside forward passes
    path: tuple[int, ...] | None = None  # [num_accepted] accepted nodes of a tree, from its root; None: a chain
    pass_rows: int = 0  # as in `Draft`, of this pass
    pass_seconds: float = 0.0
    draft_pass_rows: int = 0  # `pass_rows` and `pass_seconds` of the draft that was verified
    draft_pass_seconds: float = 0.0
    missed: bool = False  # of an enumeration: none of its branches fits the outcome, nothing was verified
    rejected: bool = False  # with `error`: this model cannot serve such a request at all (e.g. it is too long)
    features: Features | None = None  # from `Context.features_from` to the last accepted token
    num_relaxed: int = 0  # accepted tokens that only a lossy policy has kept (`SamplingParams.lossy`)

    @property
    def num_own(self) -> int:
        """The verifier's own tokens, each of a pass."""
        return len(self.tokens) - self.num_accepted

    @property
    def last_node(self) -> int:
        """Index of the last accepted token in the draft; -1: none of it is accepted."""
        if self.path is None:
            return self.num_accepted - 1
        return self.path[-1] if self.path else -1

    def as_draft(self) -> Draft:
        """This verdict read as the next tier's draft."""
        return Draft(
            tokens=self.tokens, laws=self.laws, tier=self.tier, error=self.error,
            prefix_missing=self.prefix_missing, seconds=self.draft_seconds + self.verify_seconds,
            model_seconds=self.draft_model_seconds + self.verify_model_seconds,
        )


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """What a replica says of itself when it is ready."""

    tier: int
    model: str
    vocab_size: int  # rows of the output head, padding included
    max_context_tokens: int
    num_pages: int
    page_tokens: int
    tokenizer_fingerprint: str  # equal fingerprints: equal id <-> text mapping
    eos_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaStats:
    """Counters of a replica, for tests, autoscaling and telemetry."""

    num_sequences: int
    num_free_pages: int
    num_cached_pages: int
    num_pages: int
    num_steps: int
    num_rows: int
    extra: dict[str, float] = field(default_factory=dict)
