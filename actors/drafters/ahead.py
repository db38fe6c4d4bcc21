"""Drafting for the likely outcomes of a verify pass that is still under way, on forked KV (DESIGN 4; SpecBranch,
2506.01979; SSD, "speculative speculative decoding").

The call itself runs the whole draft once more, in one pass: what may follow its last token is not known before, so a
pass is due anyway, and one that has all logits costs less than keeping guesses of every token of every branch. Each
outcome is then a branch: a sibling of the sequence that begins on its pages and goes on with the verifier's supposed
token. All branches run in the same passes.

Where rows read the state of the row before (`TakesFeatures`) a draft is run again token by token, in small passes.
"""

from __future__ import annotations

import itertools
from concurrent.futures import Future
from dataclasses import replace

import numpy as np

from actors.answer import Answer
from actors.drafters.chain import ChainJob
from actors.drafters.copies import Copies
from actors.drafters.growth import Growth
from actors.drafters.guesses import Guesses, guess
from actors.drafters.outcomes import Outcome, likely_outcomes
from actors.drafters.tail import Tail
from actors.engine.jobs import Fork, Job, PrefixMissing, ReplicaFull, StaleCall, TimeUp
from actors.engine.sequences import branch_id
from actors.messages import AheadPlan, Branch, Context, Draft, Enumeration, Ids
from actors.sampling.noise import branch_stream
from actors.sampling.params import VerifyMode
from actors.sampling.rows import LogitRows


class AheadJob(Job):
    """Finds the outcomes, runs a branch for each, and answers when all have ended, by themselves or not.

    A later call of the sequence, or the end of the plan's time, ends all of them at once.
    """

    future: Future[Enumeration]

    def __init__(
        self, context: Context, draft: Draft, verify_round: int, plan: AheadPlan, tier: int, law_support: int,
        max_context_tokens: int, one_by_one: bool = False, copies: Copies | None = None,
    ) -> None:
        """`one_by_one`: the draft, a chain, must be run token by token."""
        self._num_taken = 0  # draft tokens that are taken for granted
        if plan.num_branches == 1 and draft.parents is None:
            # One branch is for full acceptance, and what follows the draft is known from its last token alone.
            self._num_taken = len(draft.tokens)
            context = replace(context, tokens=np.concatenate([context.tokens, draft.tokens]).astype(np.int32))
            draft = replace(draft, tokens=draft.tokens[:0], laws=None)
        super().__init__(context, Answer())
        self._one_by_one = one_by_one
        self.extends = one_by_one and self._num_taken > 0  # only the last row is due then
        self.deadline_s = self.created_s + plan.time_s
        self._ids = draft.tokens.astype(np.int32)
        self._tokens: list[int] = draft.tokens.tolist()
        self._tree = draft.parents
        self._parents: list[int] = list(range(-1, len(self._ids) - 1))
        if draft.parents is not None:
            self._parents = draft.parents.tolist()
        self._round = verify_round
        self._plan = plan
        self._tier = tier
        self._law_support = law_support
        self._copies = copies
        # With the draft: the plan leaves room for the verifier's token after it, the model need not run its last one.
        self._max_drafted = min(plan.max_total_tokens - 1, max_context_tokens + 1)
        self._tail = Tail(context.num_tokens, context.sampling, shown=True)
        self._guesses: list[Guesses] = []  # entry i + 1 follows node i
        self._branches: list[BranchJob | BranchTreeJob] = []
        self._num_running = 1  # branches that have not ended, and the call's own pass
        self._error: Exception | None = None
        self._is_superseded = False

    def draft_ids(self) -> Ids:
        """The draft under verification."""
        return self._ids[:0] if self._one_by_one else self._ids

    def draft_parents(self) -> Ids | None:
        """Of a tree."""
        return self._tree

    def recall(self, notes: object | None, num_common: int) -> object | None:
        """What was left here is of no use: all of the draft is run again."""
        return self._tail

    def on_logits(self, logits: LogitRows, history_ids: Ids) -> int | None:
        """Guess what follows every node, and start the branches."""
        context, copies = self.context, self._copies
        if copies is not None and not self._guesses:
            copies.learn(context, history_ids)
        for row in range(len(logits)):
            history = history_ids if self._one_by_one else np.concatenate([history_ids, self._ids[self._path(row - 1)]])
            one = logits.part(row, row + 1)
            if copies is not None:
                one = copies.mix(logits, row, context.sampling, history)
            self._guesses.append(
                guess(one, 0, context.sampling, history, context.num_prompt_tokens, self._law_support)
            )
        if len(self._guesses) <= len(self._tokens):
            return self._tokens[len(self._guesses) - 1]
        nodes = self._path(len(self._tokens) - 1) if self._tree is None else self._likeliest_path()
        if self._tree is not None:
            self.path = tuple(nodes)
        for node, before in zip(nodes, [-1, *nodes], strict=False):
            if self._guesses[before + 1].ids[:1] != (self._tokens[node],):
                break  # not what would be drafted here; the draft may have come from elsewhere
            self._tail.tokens.append(self._tokens[node])
        outcomes = likely_outcomes(
            self._tokens, self._parents, self._guesses, self._plan.num_branches, self._plan.num_guesses,
            self._plan.acceptance,
        )
        for outcome in outcomes:
            if self._num_tokens(outcome) > 0:
                branch = self._branch(outcome)
                self._branches.append(branch)
                self.spawned.append(branch)
                self._num_running += 1
        self._end_one()
        return None

    def fail(self, error: Exception) -> None:
        """The call's own pass ends here; what has been drafted is the answer."""
        if self.future.done():
            return
        self._note(error)
        self._end_one()

    def end_branch(self, error: Exception | None) -> None:
        """One of the branches has ended, with or without all its tokens."""
        if isinstance(error, PrefixMissing):
            error = ReplicaFull("the pages that a branch was to begin on went to others; raise kv_tokens")
        if error is not None:
            self._note(error)
        self._end_one()

    def told_as(self, outcome: Outcome) -> int:
        """The node of an outcome in the draft as it came."""
        return outcome.node + self._num_taken

    def _note(self, error: Exception) -> None:
        self._is_superseded |= isinstance(error, StaleCall)
        if not isinstance(error, TimeUp):
            self._error = self._error or error

    def _num_tokens(self, outcome: Outcome) -> int:
        """How long the draft after an outcome may be."""
        num_before = self.context.num_tokens + len(self._path(outcome.node)) + 1  # with the verifier's token
        return min(self._plan.shape.num_tokens, self._max_drafted - num_before)

    def _branch(self, outcome: Outcome) -> BranchJob | BranchTreeJob:
        context, number = self.context, len(self._branches)
        sequence_id = context.sequence_id
        nodes = self._path(outcome.node)
        num_kept = len(nodes)
        if self._tree is not None:  # of a tree only one path stays, the others run what they do not share with it
            pairs = zip(nodes, self.path, strict=False)
            num_kept = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        num_shared = context.num_tokens + num_kept
        rng = None
        if context.sampling.mode in (VerifyMode.REJECTION, VerifyMode.BLOCK):
            rng = branch_stream(context.sampling.entropy, self._tier, context.round, self._round, number)
        name = branch_id(sequence_id, f"{context.round}.{number}")
        tokens = np.append(self._ids[nodes[num_kept:]], np.int32(outcome.token))
        told = replace(context, sequence_id=name, start=num_shared, tokens=tokens)
        branch: BranchJob | BranchTreeJob
        if not self._plan.shape.grows:
            branch = BranchJob(
                self, outcome, told, self._num_tokens(outcome), self._tier, self._law_support, rng,
                self._plan.shape.siblings, self._copies,
            )
        else:
            growth = Growth(
                told, self._plan.shape, self._num_tokens(outcome), self._tier, self._law_support, rng, self.end_branch,
                self._copies,
            )
            branch = BranchTreeJob(self, outcome, told, growth)
        branch.fork = Fork(sequence_id, num_shared)
        branch.deadline_s = self.deadline_s
        return branch

    def _path(self, node: int) -> list[int]:
        """The nodes from the root to `node`, with it."""
        nodes: list[int] = []
        while node >= 0:
            nodes.append(node)
            node = self._parents[node]
        return nodes[::-1]

    def _likeliest_path(self) -> list[int]:
        """Of a tree's KV one path stays, from which most branches leave."""
        node, nodes = -1, list[int]()
        guesses = self._guesses
        while children := [i for i, parent in enumerate(self._parents) if parent == node]:
            node = max(children, key=lambda child: guesses[node + 1].prob(self._tokens[child]))
            nodes.append(node)
        return nodes

    def _end_one(self) -> None:
        self._num_running -= 1
        if self._num_running > 0 or self.future.done():
            return
        drafted = [branch for branch in self._branches if branch.has_tokens]
        drafted.sort(key=lambda branch: -branch.outcome.chance)
        if not self._is_superseded:  # otherwise the call that came may go on with one of them
            for branch in drafted:
                branch.show()
        error = None if drafted else self._error
        missing = isinstance(error, PrefixMissing)
        self.future.set_result(
            Enumeration(
                round=self._round, branches=tuple(branch.result() for branch in drafted), tier=self._tier,
                seconds=self.seconds, model_seconds=self._model_seconds(),
                error=f"{error}" if error is not None and not missing else None, prefix_missing=missing,
            )
        )

    def _model_seconds(self) -> float:
        """Inside passes; branches share theirs, which began after the call's own."""
        return self.model_seconds + max((branch.pass_s for branch in self._branches), default=0.0)


class BranchJob(ChainJob):
    """Drafts after one outcome."""

    def __init__(
        self, ahead: AheadJob, outcome: Outcome, context: Context, num_tokens: int, tier: int, law_support: int,
        rng: np.random.Generator | None, num_siblings: int, copies: Copies | None,
    ) -> None:
        super().__init__(context, num_tokens, tier, law_support, rng, num_siblings, copies)
        self.outcome = outcome
        self._ahead = ahead

    @property
    def pass_s(self) -> float:
        """Inside forward passes, in seconds."""
        return self.model_seconds

    @property
    def has_tokens(self) -> bool:
        """Whether anything was drafted."""
        return bool(self._tail.tokens)

    def show(self) -> None:
        """Its tokens are about to be told."""
        self._tail.shown = True

    def result(self) -> Branch:
        """The branch as far as it got."""
        return Branch(self._ahead.told_as(self.outcome), self.outcome.token, self.draft())

    def answer(self) -> None:
        """All tokens are there."""
        self.future.set_result(None)
        self._ahead.end_branch(None)

    def fail(self, error: Exception) -> None:
        """What has been drafted so far is the branch."""
        if not self.future.done():
            self.future.set_result(None)
            self._ahead.end_branch(error)


class BranchTreeJob(Job):
    """Grows a tree after one outcome."""

    def __init__(self, ahead: AheadJob, outcome: Outcome, context: Context, growth: Growth) -> None:
        super().__init__(context, Answer())
        self.outcome = outcome
        self._ahead = ahead
        self._growth = growth

    @property
    def pass_s(self) -> float:
        """Inside forward passes, in seconds."""
        return self.model_seconds + self._growth.model_seconds

    @property
    def has_tokens(self) -> bool:
        """Whether anything was drafted."""
        return self._growth.has_tokens

    def show(self) -> None:
        """Trees are not gone on with, so nobody needs to know."""

    def result(self) -> Branch:
        """The branch as far as it got."""
        return Branch(self._ahead.told_as(self.outcome), self.outcome.token, self._growth.draft(self))

    def draft_ids(self) -> Ids:
        """Nothing is fed beyond the context."""
        return np.empty(0, np.int32)

    def recall(self, notes: object | None, num_common: int) -> object | None:
        """Should this become the sequence, its tree is drafted again."""
        self._growth.deadline_s = self.deadline_s
        return Tail(self.context.num_tokens, self.context.sampling)

    def on_logits(self, logits: LogitRows, history_ids: Ids) -> int | None:
        """The first level; the others run on branches of the branch."""
        self.future.set_result(None)
        self.spawned.extend(self._growth.feed(-1, logits, history_ids, self))
        return None

    def fail(self, error: Exception) -> None:
        """Nothing has been drafted."""
        if not self.future.done():
            self.future.set_result(None)
            self._ahead.end_branch(error)
