"""A tier that verifies: the plain class behind a target or middle-tier actor."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from actors.answer import Answer
from actors.drafters.model import ModelDrafter
from actors.engine.backed import EngineBacked
from actors.engine.engine import Engine
from actors.engine.jobs import Job, PrefixMissing, ReplicaFull, SequenceRejected
from actors.engine.tree import depths
from actors.few import within
from actors.messages import (
    AheadPlan,
    Context,
    Draft,
    DraftShape,
    Enumeration,
    Features,
    Ids,
    Laws,
    Origin,
    ReplicaInfo,
    Verdict,
)
from actors.outcomes import Outcomes
from actors.sampling import laws as draft_laws
from actors.sampling.lossy import verify_lossy
from actors.sampling.rows import LogitRows, concat
from actors.sampling.tree import VerifiedTree, check_parents, verify_tree
from actors.sampling.validate import BadDraft


class VerifyJob(Job):
    """Feeds the context's tail and a draft, a chain or a tree, then decides (`actors.sampling.verify`, `tree`)."""

    future: Future[Verdict]

    def __init__(
        self, context: Context, drafts: Sequence[Draft], tier: int, law_support: int, want_laws: bool
    ) -> None:
        """Raises `BadDraft` when a tree comes with other pieces."""
        super().__init__(context, Answer())
        self._tier = tier
        self._law_support = law_support
        self._want_laws = want_laws
        self._run: list[VerifiedTree] = []  # of a plain call for several tokens: those decided so far
        self._take(drafts)

    def begin(self, drafts: Sequence[Draft]) -> None:
        """Of a job that was made without drafts, ahead of its time: here they are. Raises as the constructor does."""
        self.created_s = time.monotonic()
        self._take(drafts)

    def _take(self, drafts: Sequence[Draft]) -> None:
        self._ids, self._laws, self._draft_tiers = concat_drafts(drafts)
        self._parents = the_parents(drafts)
        self._draft_seconds = sum(d.seconds for d in drafts)
        self._draft_model_seconds = sum(d.model_seconds for d in drafts)
        self._draft_pass = (drafts[-1].pass_rows, drafts[-1].pass_seconds) if drafts else (0, 0.0)
        self._draft_error = next((d.error for d in drafts if d.error), None)
        self._num_fed = len(self._ids)
        self._fed = self._ids
        self._nodes: npt.NDArray[np.int64] = np.arange(len(self._ids))  # of a tree: those that were not clipped away
        if self._parents is not None:
            try:
                check_parents(self._parents, len(self._ids))
                check_laws(self._laws, len(self._ids))
            except BadDraft as error:
                self._refuse_draft(error)

    def draft_ids(self) -> Ids:
        """The drafted ids that are fed, [num_fed] int32."""
        return self._fed[: self._num_fed]

    def draft_parents(self) -> Ids | None:
        """Of a tree."""
        return self._parents

    def clip(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` draft tokens, of a tree its first levels (a limit known before any was drawn)."""
        if self._parents is not None:
            self._keep_nodes(np.flatnonzero(depths(self._parents) < num_tokens))
        elif len(self._ids) > num_tokens:
            self._ids = self._fed = self._ids[:num_tokens]
            self._num_fed = min(self._num_fed, num_tokens)
            self._draft_tiers = self._draft_tiers[:num_tokens]
            if self._laws is not None:
                self._laws = draft_laws.cut(self._laws, 0, num_tokens)

    def clip_tree(self, num_nodes: int) -> None:
        """Keep at most the first `num_nodes` of a tree: the tail of its drawing order, by a limit known before.

        Whole levels would not do: how many nodes a level has may have followed from tokens further down.
        """
        if self._parents is not None and len(self._ids) > num_nodes:
            self._keep_nodes(np.arange(num_nodes))

    def _keep_nodes(self, nodes: npt.NDArray[np.int64]) -> None:
        """Of a tree keep `nodes`, ascending, their ancestors among them."""
        assert self._parents is not None
        if len(nodes) == len(self._ids):
            return
        renamed = np.full(len(self._ids) + 1, -1, np.int32)  # the last one: no parent
        renamed[nodes] = np.arange(len(nodes))
        self._ids = self._fed = self._ids[nodes]
        self._num_fed = len(nodes)
        self._parents = renamed[self._parents[nodes]] if len(nodes) else None
        self._nodes = self._nodes[nodes]
        if self._laws is not None:
            self._laws = draft_laws.build([self._laws.at(int(node)) for node in nodes])

    def _refuse_draft(self, error: BadDraft) -> None:
        """The drafter's fault, not the request's: a plain step that says so."""
        self._parents = None
        self.clip(0)
        self._draft_error = f"{error}"

    def stop_at_foreign_id(self, vocab_size: int) -> None:
        """An id outside the vocabulary cannot be fed, but it still has to be *rejected*, not dropped.

        Its p is 0, so verification always stops there, with the residual of that position: dropping it by
        looking at it would bias the text (papers: truncating on a token's value). In a tree another id is fed in its
        place, for its rows, which nobody will look at, have siblings behind them.
        """
        if within(self._ids, vocab_size):
            return
        foreign = (self._ids < 0) | (self._ids >= vocab_size)
        if self._parents is not None:
            self._fed = np.where(foreign, np.int32(0), self._ids)
        else:
            first = int(np.argmax(foreign))
            self.clip(first + 1)
            self._num_fed = first

    def on_logits(self, logits: LogitRows, history_ids: Ids) -> int | None:
        """Verify, answer, done."""
        context = self.context
        if self._num_fed < len(self._ids):  # the row after a foreign id is never looked at
            logits = concat([logits, logits.part(self._num_fed, self._num_fed + 1)])
        try:
            verified = self._decide(logits, history_ids)
        except BadDraft as error:
            self._refuse_draft(error)
            self._laws = None
            verified = self._decide(logits.part(0, 1), history_ids)
        if not self._num_fed and self._is_run():
            self._run.append(verified)
            last = int(verified.tokens[0])
            if len(self._run) < context.num_plain and last not in context.sampling.eos_ids:
                return last
            verified = _joined(self._run)
        path: tuple[int, ...] | None = None
        if self._parents is not None:
            self.path = verified.path
            path = tuple(self._nodes[list(verified.path)].tolist())  # as the drafter numbers them
        self.num_decided = context.num_tokens + len(verified.tokens) - 1
        features = None
        if context.features_from >= 0:
            accepted = context.num_tokens + np.array(verified.path, np.int32)
            places = np.append(np.arange(context.num_tokens, dtype=np.int32), accepted)
            features = Features(context.features_from, self.read_features(places[context.features_from :]))
        self.future.set_result(
            Verdict(
                tokens=verified.tokens, num_accepted=verified.num_accepted, num_draft=len(self._ids),
                last=verified.last, tier=self._tier, draft_tiers=self._draft_tiers, laws=verified.laws,
                logprobs=verified.logprobs, draft_seconds=self._draft_seconds,
                verify_seconds=self.seconds, draft_error=self._draft_error,
                num_cached_tokens=self.num_cached_tokens, draft_model_seconds=self._draft_model_seconds,
                verify_model_seconds=self.model_seconds, pass_rows=self.pass_rows, pass_seconds=self.pass_seconds,
                path=path, draft_pass_rows=self._draft_pass[0],
                draft_pass_seconds=self._draft_pass[1], num_relaxed=verified.num_relaxed,
                features=features,
            )
        )
        return None

    def _decide(self, logits: LogitRows, history_ids: Ids) -> VerifiedTree:
        """By the exact rule, unless the request allows a lossy one; tokens that go up with laws always exactly."""
        context = self.context
        decide: Callable[..., VerifiedTree] = verify_lossy
        if context.sampling.lossy is None or self._want_laws:
            decide = partial(verify_tree, want_laws=self._want_laws, law_support=self._law_support)
        return decide(
            draft_ids=self._ids, parents=self._parents, laws=self._laws, logits=logits, params=context.sampling,
            history_ids=history_ids, num_prompt_tokens=context.num_prompt_tokens, tier=self._tier,
            round=context.round + len(self._run),
        )

    def _is_run(self) -> bool:
        """Whether several plain tokens are wanted, and nothing that comes with one alone."""
        context = self.context
        return context.num_plain > 1 and not len(self._ids) and not self._want_laws and context.features_from < 0

    def fail(self, error: Exception) -> None:
        """An error verdict; a missing prefix is told apart, for it only asks for a fuller call.

        A full replica is an exception: the request can go on, only not here and now.
        """
        if self.future.done():
            return
        if isinstance(error, ReplicaFull):
            self.future.set_exception(error)
        else:
            missing = isinstance(error, PrefixMissing)
            self.future.set_result(
                Verdict(
                    tokens=np.empty(0, np.int32), num_accepted=0, num_draft=len(self._ids), last=Origin.PLAIN,
                    tier=self._tier, prefix_missing=missing, error=None if missing else f"{error}",
                    rejected=isinstance(error, SequenceRejected),
                    verify_seconds=self.seconds, draft_error=self._draft_error,
                )
            )


def _joined(run: Sequence[VerifiedTree]) -> VerifiedTree:
    """The plain tokens of several passes as one verdict."""
    logprobs = None if run[0].logprobs is None else tuple(each for v in run for each in v.logprobs or ())
    return replace(run[-1], tokens=np.concatenate([v.tokens for v in run]), logprobs=logprobs)


def concat_drafts(drafts: Sequence[Draft]) -> tuple[Ids, Laws | None, tuple[int, ...]]:
    """One draft of several pieces: ids, laws, and the tier each id came from.

    When only some pieces carry laws (a deterministic drafter beside a sampled one), the others' laws are
    one-hot.
    """
    if len(drafts) == 1 and drafts[0].tokens.dtype == np.int32:
        (draft,) = drafts
        return draft.tokens, draft.laws, (draft.tier,) * len(draft.tokens)
    tiers = tuple(d.tier for d in drafts for _ in range(len(d.tokens)))
    ids = np.concatenate([d.tokens for d in drafts]) if drafts else np.empty(0, np.int32)
    laws = None
    if any(d.laws is not None for d in drafts):
        laws = draft_laws.concat([d.laws if d.laws is not None else _one_hot(d.tokens) for d in drafts])
    return ids.astype(np.int32), laws, tiers


def the_parents(drafts: Sequence[Draft]) -> Ids | None:
    """Parents of a draft that is a tree; None: a chain of all pieces, or nothing.

    Raises:
        BadDraft: a tree has no one end that another piece could follow, nor does it follow one.
    """
    pieces = [d for d in drafts if len(d.tokens)]
    trees = [d for d in pieces if d.parents is not None]
    if trees and len(pieces) > 1:
        raise BadDraft(f"a tree came with {len(pieces) - 1} other drafts; send it alone, only chains can be joined")
    return trees[0].parents if trees else None


def check_laws(laws: Laws | None, num_draft: int) -> None:
    """Raise `BadDraft` unless every draft token has a law, or none has."""
    if laws is not None and laws.num_tokens != num_draft:
        raise BadDraft(f"{num_draft} draft tokens came with {laws.num_tokens} laws; send one each")


def _one_hot(ids: Ids) -> Laws:
    return Laws(ids=ids, probs=np.ones(len(ids), np.float32), cu_len=np.arange(len(ids) + 1, dtype=np.int32))


class Verifier(EngineBacked):
    """Verifies drafts of many sequences in one engine."""

    def __init__(self, engine: Engine, info: ReplicaInfo, law_support: int) -> None:
        super().__init__(engine, info)
        self._law_support = law_support
        self._drafter = ModelDrafter(engine, info, law_support)
        self._outcomes = Outcomes(
            lambda context, draft: self.verify(context, [draft]), 2 * engine.spec.max_sequences, info.tier
        )

    def verify(self, context: Context, drafts: Sequence[Draft], want_laws: bool = False) -> Future[Verdict]:
        """Queue one verify pass over the concatenated drafts; none means a plain step."""
        return self._submit(VerifyJob(context, drafts, self._info.tier, self._law_support, want_laws))

    def expect(self, context: Context, want_laws: bool) -> Callable[[Sequence[Draft]], Future[Verdict]]:
        """`verify`, of drafts that are under way: what does not depend on them is done already."""
        self.engine.expect(context)
        job = VerifyJob(context, (), self._info.tier, self._law_support, want_laws)

        def begin(drafts: Sequence[Draft]) -> Future[Verdict]:
            job.begin(drafts)
            return self._submit(job)

        return begin

    def _submit(self, job: VerifyJob) -> Future[Verdict]:
        context = job.context
        job.clip(max(0, self._info.max_context_tokens - context.num_tokens))
        job.clip_tree(self._most_nodes(context))
        job.stop_at_foreign_id(self.engine.vocab_size)
        if context.features_from >= 0 and not self.engine.features_kept:
            job.fail(SequenceRejected(
                f"features were asked for, and tier {self._info.tier} ({self._info.model}) keeps none: give it the "
                "feature_layers of the drafter"
            ))
            return job.future
        self._outcomes.begin(context)
        job.future.add_done_callback(partial(self._outcomes.decided, context))
        self.engine.submit(job)
        return job.future

    def propose(self, context: Context, shape: DraftShape) -> Future[Draft]:
        """Queue a proposal of this tier's own model: the lowest tier that a plan uses drafts, whichever it is."""
        return self._drafter.propose(context, shape)

    def enumerate(self, context: Context, draft: Draft, verify_round: int, plan: AheadPlan) -> Future[Enumeration]:
        """Queue drafts of this tier's own model for the outcomes of a pass of the tier above."""
        return self._drafter.enumerate(context, draft, verify_round, plan)

    def verify_ahead(self, sequence_id: str, round: int, enumeration: Enumeration) -> Future[Verdict]:
        """Once the pass of `enumeration.round` is decided, verify the branch that fits, as `round`, in the next step.

        The verdict is `missed`, at once, when no branch fits or the pass is not known here.
        """
        answer: Answer[Verdict] = Answer()
        self._outcomes.meet(sequence_id, round, enumeration, answer)
        return answer

    def close(self, sequence_id: str, truth: Ids | None = None) -> None:
        """Forget a sequence and free its pages; unknown ids are ignored. `truth`: see `Engine.close`."""
        super().close(sequence_id, truth)
        self._outcomes.forget(sequence_id)

    def _most_nodes(self, context: Context) -> int:
        """Nodes of a tree that one step and KV memory have room for."""
        left = self._info.num_pages * self._info.page_tokens - context.num_tokens
        return max(0, min(self.engine.spec.tree_rows, left))
