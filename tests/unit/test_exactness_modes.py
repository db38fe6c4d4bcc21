"""The promise in every mode at once: ladders of two to four tiers, overlapped and not, chains and trees, inline tiers
and the controller, in the same engines, while replicas stall, reorder, forget, drain and die by a seeded schedule.

Most of it runs on models that are hashes of their prefix (`tests.soft_model`), below the real engine: fast, and any
slip of KV memory is an error or another word. The last part repeats it on tiny real models, against transformers, too.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from actors.drafter_specs import NgramSpec
from actors.drafters.cascade import CascadeDrafter
from actors.drafters.chain import ChainJob
from actors.drafters.growth import Growth
from actors.drafters.model import ModelDrafter
from actors.drafters.ngram import NgramDrafter
from actors.inline import InlineVerifier, RelayVerifier
from actors.messages import Draft, Ids
from actors.sampling import laws as law_tools
from actors.sampling import tree as tree_module
from actors.sampling import verify as verify_module
from actors.sampling.laws import SparseLaw
from actors.sampling.params import SamplingParams, VerifyMode
from actors.sampling.positions import Rows
from actors.verifier import Verifier
from cluster.bench.local import local_drafter, local_verifier
from cluster.coordinator.control.controller import Controller
from cluster.coordinator.control.plan import ControlLimits, TreeKind
from cluster.coordinator.generate import generate
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.request import Finish, FinishReason, GenerationRequest, TokenEvent
from cluster.coordinator.settings import CoordinatorSettings, OverlapSettings, TreeSettings
from tests.faulty import DRAFT_FAULTS, MIDDLE_FAULTS, TARGET_FAULTS, FaultyTier, Meetings, Schedule
from tests.laws import Evidence, Told, of_soft_texts
from tests.local_tier import RandomDrafter, model_drafter, verifier
from tests.models import VOCAB as TINY_VOCAB
from tests.models import tiny_model, tiny_runner, tiny_spec
from tests.soft_model import MAX_CONTEXT_TOKENS, ShortMemory, SoftLaws, SoftRunner, soft_spec

pytestmark = pytest.mark.exactness

VOCAB = 40
MAX_TOKENS = 40
NO_FAULTS = 0.0
BOUNDS = CoordinatorSettings(
    draft_timeout_s=0.2, catch_up_token_s=0.0, verify_timeout_s=0.5, target_wait_s=60.0, max_target_moves=500,
    lease_grace_s=0.2, backoff_s=0.001, backoff_max_s=0.01, avoid_lost_s=0.2, avoid_slow_s=0.05, release_timeout_s=5.0,
)
PATIENT = replace(BOUNDS, draft_timeout_s=60.0, verify_timeout_s=300.0)
OVERLAP = OverlapSettings(num_branches=8, num_guesses=2, num_tokens=4)
STATIC, DYNAMIC = TreeSettings(widths=(3, 2, 1, 1)), TreeSettings(num_nodes=10)
CHAINS = ("two", "three", "four", "inline", "cascade", "relay", "copying", "random")
CONTROLLED = ("controlled-two", "controlled-three")
TREES = ("two-static", "two-dynamic")
OVERLAPS = ("two-ahead", "two-static-ahead", "two-dynamic-ahead", "relay-ahead", "copying-ahead", "cascade-ahead")
HOPELESS = ("copying", "copying-ahead", "random")  # hashes do not repeat themselves
MODES = (*CHAINS, *CONTROLLED, *TREES, *OVERLAPS)


@dataclass(frozen=True)
class Workers:
    """One set of tiers, without what carries their calls."""

    draft: ModelDrafter
    small: Verifier
    medium: Verifier
    target: Verifier

    @property
    def all(self) -> tuple[ModelDrafter | Verifier, ...]:
        return (self.draft, self.small, self.medium, self.target)


def soft_workers(
    vocab_size: int = VOCAB, scale: float = 8.0, apart: float = 0.12, kind: type[SoftRunner] = SoftRunner
) -> Workers:
    """`apart`: how little the draft has in common with the target; the tiers between have more."""

    def runner(tier: int, apart: float) -> tuple[SoftRunner, Any, int]:
        spec = soft_spec(tier)
        return kind(spec, SoftLaws(vocab_size, apart, tier + 1, scale)), spec, MAX_CONTEXT_TOKENS

    return Workers(
        local_drafter(*runner(0, apart)), local_verifier(*runner(1, 0.7 * apart)),
        local_verifier(*runner(2, 0.4 * apart)), local_verifier(*runner(3, 0.0)),
    )


class Street:
    """Replicas of every tier, and each mode's way through them; closed and checked after each test."""

    def __init__(self, workers: Sequence[Workers], vocab_size: int) -> None:
        self._workers = workers
        self._ngrams = [NgramDrafter(NgramSpec()) for _ in workers]
        self._random = [RandomDrafter(vocab_size) for _ in workers]
        self.tiers: list[FaultyTier] = []

    def ladders(self, schedule: Schedule, settings: CoordinatorSettings = BOUNDS) -> dict[str, Ladder]:
        """By mode, over the same engines."""
        meetings = Meetings()

        def pool(name: str, workers: Sequence[Any]) -> FaultyTier:
            kinds = TARGET_FAULTS if "target" in name else MIDDLE_FAULTS if name[0] == "m" else DRAFT_FAULTS
            tier = FaultyTier(name, workers, kinds, schedule, meetings)
            self.tiers.append(tier)
            return tier

        sets = self._workers
        draft = pool("draft", [w.draft for w in sets])
        small, medium = pool("m1", [w.small for w in sets]), pool("m2", [w.medium for w in sets])
        target = pool("target", [w.target for w in sets])
        inline = pool("inline target", [InlineVerifier(w.draft, w.target) for w in sets])
        relay = pool("relay target", [RelayVerifier(w.medium, w.target) for w in sets])
        cascade = pool("cascade", [CascadeDrafter(w.draft, w.small, 3) for w in sets])
        copying, guessing = pool("copying", self._ngrams), pool("random", self._random)
        ahead = replace(settings, overlap=OVERLAP)
        static, dynamic = replace(settings, tree=STATIC), replace(settings, tree=DYNAMIC)
        two = ControlLimits(num_tiers=2, max_branches=8, trees=TreeKind.DYNAMIC, max_tree_nodes=12)
        return {
            "plain": Ladder([target], settings=settings),
            "two": Ladder([draft, target], settings=settings),
            "two-ahead": Ladder([draft, target], settings=ahead),
            "two-static": Ladder([draft, target], settings=static),
            "two-static-ahead": Ladder([draft, target], settings=replace(static, overlap=OVERLAP)),
            "two-dynamic": Ladder([draft, target], settings=dynamic),
            "two-dynamic-ahead": Ladder([draft, target], settings=replace(dynamic, overlap=OVERLAP)),
            "three": Ladder([draft, medium, target], [5], settings),
            "four": Ladder([draft, small, medium, target], [3, 6], settings),
            "controlled-two": Ladder([draft, target], settings=ahead, controller=Controller(two)),
            "controlled-three": Ladder(
                [draft, medium, target], [5], ahead, Controller(replace(two, num_tiers=3, trees=TreeKind.STATIC))
            ),
            "inline": Ladder([inline], settings=settings, target_drafts=True),
            "cascade": Ladder([cascade, target], settings=settings),
            "cascade-ahead": Ladder([cascade, target], settings=ahead),
            "relay": Ladder([draft, relay], settings=settings),
            "relay-ahead": Ladder([draft, relay], settings=ahead),
            "copying": Ladder([copying, target], settings=settings),
            "copying-ahead": Ladder([copying, target], settings=ahead),
            "random": Ladder([guessing, target], settings=settings),
        }

    def check_empty(self) -> None:
        """Nobody holds anything: no lease, sequence, branch, page or enumeration."""
        for tier in self.tiers:
            assert tier.leases == [], tier.name
        self.tiers.clear()
        for worker in (w for each in self._workers for w in each.all):
            worker.engine.check_integrity()
            batch = worker.engine._batch
            assert batch.sequence_ids == []
            assert batch._table.branches == []
            assert batch.kv.num_free == batch.kv.num_pages
            if isinstance(worker, Verifier):
                assert worker._outcomes._waiting == {}

    def close(self) -> None:
        for each in self._workers:
            for worker in each.all:
                worker.shutdown()


@dataclass(frozen=True)
class Ask:
    """One request, how it is to be served, and when its reader leaves."""

    mode: str
    request: GenerationRequest
    leaves_after: int | None = None  # events


@dataclass
class Tally:
    """What happened in all, so that no check passes for want of drafts."""

    modes: Counter[str] = field(default_factory=Counter)  # accepted tokens
    drafted: int = 0
    ahead: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)
    degraded: Counter[str] = field(default_factory=Counter)  # modes

    def add(self, mode: str, finish: Finish) -> None:
        figures = finish.figures
        self.modes[mode] += figures.accepted
        self.drafted += figures.drafted
        self.ahead.update(figures.ahead)
        self.hits[mode] += figures.ahead.get("hit", 0)
        self.degraded[mode] += sum(figures.degraded.values())


async def serve(ladder: Ladder, ask: Ask, tally: Tally) -> tuple[list[int], Finish | None]:
    """Committed ids, and how the stream ended; None: its reader left."""
    ids: list[int] = []
    async with aclosing(generate(ask.request, ladder)) as stream:
        num_events = 0
        async for event in stream:
            if isinstance(event, Finish):
                tally.add(ask.mode, event)
                return ids, event
            assert isinstance(event, TokenEvent)
            ids += event.token_ids.tolist()
            num_events += 1
            if num_events == ask.leaves_after:
                return ids, None
    raise AssertionError("the stream ended without a finish")


def serve_all(ladders: dict[str, Ladder], asks: Sequence[Ask], tally: Tally) -> list[tuple[list[int], Finish | None]]:
    async def together() -> list[tuple[list[int], Finish | None]]:
        return list(await asyncio.gather(*(serve(ladders[ask.mode], ask, tally) for ask in asks)))

    return asyncio.run(together())


def prompt(number: int, vocab_size: int = VOCAB) -> Ids:
    """Prompts come in families that share their beginning, so that pages are shared, too."""
    shared = np.random.default_rng(number // 3).integers(2, vocab_size, 13)
    own = np.random.default_rng(1000 + number).integers(2, vocab_size, 1 + number % 7)
    return np.append(shared, own).astype(np.int32)


SAMPLINGS = (
    SamplingParams(),
    SamplingParams(repetition_penalty=1.3),
    SamplingParams(temperature=1.0, seed=1),
    SamplingParams(temperature=0.7, seed=2**40 + 3, top_k=20, presence_penalty=0.4),
    SamplingParams(temperature=1.4, seed=77, top_p=0.9, min_p=0.02),
)


def question(name: str, number: int, vocab_size: int = VOCAB, **changes: Any) -> GenerationRequest:
    values: dict[str, Any] = {"sampling": SAMPLINGS[number % len(SAMPLINGS)], "max_tokens": MAX_TOKENS, **changes}
    return GenerationRequest(name, prompt(number, vocab_size), **values)


class Alone:
    """What the target writes by itself, in plain steps of the same engines."""

    def __init__(self, street: Street, numbers: int, vocab_size: int, max_tokens: int = MAX_TOKENS) -> None:
        ladders = street.ladders(Schedule(0, NO_FAULTS), PATIENT)
        asks = [Ask("plain", question(f"alone-{n}", n, vocab_size, max_tokens=max_tokens)) for n in range(numbers)]
        tally = Tally()
        self.texts = [ids for ids, _ in serve_all(ladders, asks, tally)]
        assert tally.drafted == 0
        street.check_empty()

    def expected(self, number: int, max_tokens: int, stop_ids: frozenset[int]) -> list[int]:
        text = self.texts[number][:max_tokens]
        stop_at = next((i for i, token in enumerate(text) if token in stop_ids), None)
        return text if stop_at is None else text[: stop_at + 1]


NUMBERS = 30


@pytest.fixture(scope="module")
def street() -> Iterator[Street]:
    torch.set_num_threads(1)
    made = Street([soft_workers() for _ in range(2)], VOCAB)
    yield made
    made.close()


@pytest.fixture(scope="module")
def alone(street: Street) -> Alone:
    return Alone(street, NUMBERS, VOCAB)


def test_plain_steps_say_what_the_laws_say(alone: Alone) -> None:
    """No KV memory, no engine: a greedy text is the best token after each prefix."""
    laws = SoftLaws(VOCAB)
    for number in (0, 5, 10):
        ids = prompt(number).tolist()
        for token in alone.texts[number]:
            assert token == int(laws.after(ids).argmax())
            ids.append(token)


@pytest.mark.parametrize("k", [1, 3, 8, 16])
def test_every_mode_says_what_the_target_says_alone(street: Street, alone: Alone, k: int) -> None:
    """All modes at once, two sequences each, on replicas that do nothing wrong."""
    ladders = street.ladders(Schedule(0, NO_FAULTS), PATIENT)
    asks = [
        Ask(mode, question(
            f"{mode}-{i}", (5 * i + place + k) % NUMBERS, lookahead=None if mode in CONTROLLED else k
        ))
        for place, mode in enumerate(MODES) for i in range(2)
    ]
    tally = Tally()
    answers = serve_all(ladders, asks, tally)
    for ask, (ids, _) in zip(asks, answers, strict=True):
        assert ids == text_of(alone, ask), ask
    street.check_empty()
    tally.degraded.pop("cascade-ahead")  # drafts of several tiers are not made ahead: each round says so
    assert not +tally.degraded, "nothing went wrong here"
    for mode in MODES:
        assert tally.modes[mode] > 0 or mode in HOPELESS, f"{mode}: no draft was accepted: inconclusive"
    assert sum(tally.hits[mode] > 0 for mode in OVERLAPS) >= 2, f"hardly a round overlapped: inconclusive: {tally.hits}"


def text_of(alone: Alone, ask: Ask) -> list[int]:
    request = ask.request
    number = next(n for n in range(NUMBERS) if np.array_equal(prompt(n), request.prompt_ids))
    return alone.expected(number, request.max_tokens, request.stop_ids)


def random_asks(alone: Alone, seed: int, count: int) -> list[Ask]:
    """Any mode, any k, short and long, some that stop in the middle, some whose readers leave, some unseeded."""
    chance = random.Random(seed)
    asks = []
    for i in range(count):
        mode, number = chance.choice(MODES), chance.randrange(NUMBERS)
        changes: dict[str, Any] = {
            "lookahead": None if mode in CONTROLLED else chance.choice((1, 3, 8, 16)),
            "max_tokens": chance.choice((1, 2, 3, 7, 19, MAX_TOKENS, MAX_TOKENS, MAX_TOKENS)),
        }
        if chance.random() < 0.2:
            changes["stop_ids"] = frozenset({chance.choice(alone.texts[number])})
        if chance.random() < 0.15:
            changes["sampling"] = SamplingParams(
                temperature=1.0, entropy=chance.randrange(2**60), block_verification=chance.random() < 0.5
            )
        leaves = chance.randrange(1, 6) if chance.random() < 0.2 else None
        asks.append(Ask(mode, question(f"{seed}-{i}-{mode}", number, **changes), leaves))
    return asks


SCHEDULES = tuple((seed, (0.03, 0.1, 0.3)[seed % 3]) for seed in range(9))


def test_no_schedule_of_faults_changes_a_token_or_leaves_anything_behind(street: Street, alone: Alone) -> None:
    tally, injected = Tally(), Counter[str]()
    for seed, rate in SCHEDULES:
        schedule = Schedule(seed, rate)
        ladders = street.ladders(schedule)
        asks = random_asks(alone, seed, 16)
        for ask, (ids, finish) in zip(asks, serve_all(ladders, asks, tally), strict=True):
            expected = text_of(alone, ask)
            if ask.request.sampling.mode in (VerifyMode.REJECTION, VerifyMode.BLOCK):
                assert finish is None or finish.reason is FinishReason.STOP or len(ids) == ask.request.max_tokens
            elif finish is None:
                assert ids == expected[: len(ids)], (seed, ask)
            else:
                assert ids == expected, (seed, ask)
        street.check_empty()
        injected += schedule.injected
    assert tally.drafted > 500 and sum(tally.modes.values()) > 200
    assert tally.ahead["hit"] > 20, "hardly a round overlapped: inconclusive"
    for kinds in (DRAFT_FAULTS, MIDDLE_FAULTS, TARGET_FAULTS):
        for kind, faults in kinds.items():
            assert any(injected[f"{kind}:{fault}"] for fault in faults), kind


def test_calls_that_raise_cost_no_more_than_what_they_were_for(street: Street, alone: Alone) -> None:
    """Every third one does, the target's own passes over branches among them."""
    others = frozenset(itertools.chain(*DRAFT_FAULTS.values(), *MIDDLE_FAULTS.values(), *TARGET_FAULTS.values()))
    schedule = Schedule(1, 0.3, without=others - {"raise"})
    ladders, tally = street.ladders(schedule), Tally()
    asks = [Ask(OVERLAPS[i % 4], question(f"raise-{i}", i, lookahead=4)) for i in range(12)]
    for ask, (ids, _) in zip(asks, serve_all(ladders, asks, tally), strict=True):
        assert ids == text_of(alone, ask), ask
    assert schedule.injected["verify_ahead:raise"] > 0 and tally.ahead["hit"] > 0, "inconclusive"
    street.check_empty()


def test_a_stop_at_any_place_of_an_overlap_ends_the_text_there(street: Street, alone: Alone) -> None:
    """And so does the limit of tokens."""
    ladders = street.ladders(Schedule(0, NO_FAULTS), PATIENT)
    asks = []
    for place in range(16):
        mode, number = OVERLAPS[place % 4], (0, 2)[place % 2]
        stop = frozenset({alone.texts[number][place]})
        asks.append(Ask(mode, question(f"stop-{place}", number, lookahead=4, stop_ids=stop)))
        asks.append(Ask(mode, question(f"limit-{place}", number, lookahead=4, max_tokens=1 + place)))
    tally = Tally()
    for ask, (ids, finish) in zip(asks, serve_all(ladders, asks, tally), strict=True):
        assert ids == text_of(alone, ask), ask
        assert finish is not None
        assert finish.reason is (FinishReason.STOP if ask.request.stop_ids else FinishReason.LENGTH)
    assert tally.ahead["hit"] > 0, "no round overlapped: inconclusive"
    street.check_empty()


def test_requests_cancelled_at_any_moment_leave_nothing_behind(street: Street) -> None:
    """Beside them others go on, which are cancelled later."""
    ladders = street.ladders(Schedule(0, NO_FAULTS), PATIENT)
    tally = Tally()

    async def cancelled(i: int) -> None:
        ask = Ask(MODES[i % len(MODES)], question(f"cancelled-{i}", i % NUMBERS, lookahead=4))
        if ask.mode in CONTROLLED:
            ask = replace(ask, request=replace(ask.request, lookahead=None))
        stream = asyncio.create_task(serve(ladders[ask.mode], ask, tally))
        for _ in range(5 * i):
            await asyncio.sleep(0)
        stream.cancel()
        await asyncio.wait({stream})

    async def all_of_them() -> None:
        await asyncio.gather(*(cancelled(i) for i in range(60)))

    asyncio.run(all_of_them())
    street.check_empty()


# --- unseeded requests: the law of the text, not the text, is the target's -----------------------------------------

FEW, SCALE, APART = 5, 3.5, 0.7
P_MIN = 1e-5
LAW_SEQUENCES, LAW_TOKENS = 16, 130
LAW_AHEAD = OverlapSettings(num_branches=5, num_guesses=2, num_tokens=2)
LAW_WAYS: dict[str, tuple[str, bool, dict[str, Any]]] = {  # mode, block verification or token by token, settings
    "chain-ahead-block": ("two", True, {"overlap": LAW_AHEAD}),
    "chain-ahead-tokenwise": ("two", False, {"overlap": LAW_AHEAD}),
    "static": ("two", True, {"tree": TreeSettings(widths=(2, 2))}),
    "dynamic": ("two", False, {"tree": TreeSettings(num_nodes=5)}),
    "static-ahead": ("two", False, {"tree": TreeSettings(widths=(2, 1)), "overlap": LAW_AHEAD}),
    "dynamic-ahead": ("two", True, {"tree": TreeSettings(num_nodes=4), "overlap": LAW_AHEAD}),
    "three": ("three", True, {}),
    "relay-ahead": ("relay", False, {"overlap": LAW_AHEAD}),
}


class Alley(Street):
    """A street whose workers' laws are kept."""

    def __init__(self, workers: Workers) -> None:
        super().__init__([workers], FEW)
        self.told = Told(workers.draft, workers.small, workers.medium)


@pytest.fixture(scope="module")
def alley() -> Iterator[Alley]:
    """Few words, short memories, and drafts that are often wrong."""
    torch.set_num_threads(1)
    made = Alley(soft_workers(FEW, SCALE, APART, ShortMemory))
    yield made
    made.close()


def law_texts(alley: Alley, way: str, num_tokens: int = LAW_TOKENS) -> tuple[Evidence, Evidence, Tally]:
    """Real noise, many rounds; answers fail, change places and are forgotten meanwhile.

    Returns what speaks against the law of the texts, and against those that the drafts came with.
    """
    mode, block, changes = LAW_WAYS[way]
    params = SamplingParams(temperature=0.9, block_verification=block)
    schedule = Schedule(3, 0.05, without=frozenset({"stall", "hang", "die", "die_after", "lost"}))
    ladders = {mode: replace(alley.ladders(schedule)[mode], settings=replace(PATIENT, **changes))}
    asks = [
        Ask(mode, GenerationRequest(
            f"{way}-{i}", prompt(i, FEW), replace(params, entropy=7919 * i + 1), num_tokens, lookahead=1 + i % 3
        )) for i in range(LAW_SEQUENCES)
    ]
    tally = Tally()
    texts = [ids for ids, _ in serve_all(ladders, asks, tally)]
    alley.check_empty()
    drafters = (SoftLaws(FEW, APART, 1, SCALE), SoftLaws(FEW, 0.4 * APART, 3, SCALE))
    return of_soft_texts(texts, params, SoftLaws(FEW, scale=SCALE), *drafters), alley.told.evidence(FEW), tally


@pytest.mark.parametrize("way", LAW_WAYS)
def test_the_law_of_an_unseeded_text_is_the_targets(alley: Alley, way: str) -> None:
    text, told, tally = law_texts(alley, way)
    assert text.p_value > P_MIN, text.p_values()
    assert told.p_value > P_MIN, told.p_values()
    mode = LAW_WAYS[way][0]
    assert tally.modes[mode] > 500 and len(told) > 1000, "hardly a draft was accepted: inconclusive"
    if way.endswith("ahead") or "-ahead-" in way:
        assert tally.ahead["hit"] > 50 or mode == "relay", "hardly a round overlapped: inconclusive"


def _told_other(patch: pytest.MonkeyPatch, other: Callable[[list[SparseLaw]], list[SparseLaw]]) -> None:
    """Drafts come with other laws than their tokens were drawn from."""
    for kind in (ChainJob, Growth):
        def draft(self: Any, *given: Any, made: Any = kind.draft) -> Draft:
            whole: Draft = made(self, *given)
            if whole.laws is None:
                return whole
            laws = other([whole.laws.at(i) for i in range(whole.laws.num_tokens)])
            return replace(whole, laws=law_tools.build(laws))

        patch.setattr(kind, "draft", draft)


def plant_another_scale(patch: pytest.MonkeyPatch) -> None:
    """As if the drafter's temperature were a third higher than what it tells."""
    def scaled(law: SparseLaw) -> SparseLaw:
        probs = law[1].astype(np.float64) ** 1.33
        return law[0], (probs / probs.sum()).astype(np.float32)

    _told_other(patch, lambda laws: [scaled(law) for law in laws])


def plant_the_next_position(patch: pytest.MonkeyPatch) -> None:
    """Each token comes with the law of the one after it."""
    _told_other(patch, lambda laws: laws[1:] + laws[-1:])


def plant_one_token_more(patch: pytest.MonkeyPatch) -> None:
    """The first token that is refused is kept."""
    def more(rule: Any) -> Any:
        def judge(rows: Rows, uniforms: Any, residual: float) -> list[int]:
            tokens: list[int] = rule(rows, uniforms, residual)
            kept = len(tokens)
            if kept > rows.num_draft:
                return tokens
            return [*rows.draft[:kept], law_tools.sample(rows.p(kept), residual)]

        return judge

    patch.setattr(verify_module, "_token_wise", more(verify_module._token_wise))
    patch.setattr(verify_module, "_block", more(verify_module._block))


def plant_a_token_of_p(patch: pytest.MonkeyPatch) -> None:
    """Where a draft was refused stands a token of p, not of what is left of it."""
    for module in (verify_module, tree_module):
        patch.setattr(module, "residual_weights", lambda p, pi, ids, q: p)


@pytest.mark.parametrize(
    ("plant", "way"),
    [
        (plant_another_scale, "chain-ahead-block"), (plant_another_scale, "dynamic"),
        (plant_the_next_position, "chain-ahead-tokenwise"), (plant_the_next_position, "static"),
        (plant_one_token_more, "chain-ahead-block"), (plant_one_token_more, "three"),
        (plant_a_token_of_p, "chain-ahead-tokenwise"), (plant_a_token_of_p, "static"),
    ],
)
def test_faults_that_are_planted_are_seen(
    alley: Alley, plant: Callable[[pytest.MonkeyPatch], None], way: str
) -> None:
    """The test above would fail; fewer tokens are enough for that."""
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        text, told, _ = law_texts(alley, way, 200)
    assert min(text.p_value, told.p_value) < P_MIN, (text.p_values(), told.p_values())


# --- tiny real models ------------------------------------------------------------------------------------------------

REAL_NUMBERS, REAL_TOKENS, REAL_KV = 10, 24, 8192
REAL_MODES = tuple(mode for mode in MODES if mode != "random")


def real_workers() -> Workers:
    def runner(tier: int, weights: str) -> tuple[Any, Any]:
        kv_tokens = REAL_KV + 64 * tier  # runners are cached: each has its own KV memory
        return tiny_runner("llama", weights=weights, kv_tokens=kv_tokens), tiny_spec(tier=tier, kv_tokens=kv_tokens)

    return Workers(
        model_drafter(*runner(0, "int4")), verifier(*runner(1, "w8a8")), verifier(*runner(2, "int8")),
        verifier(*runner(3, "fp32")),
    )


@pytest.fixture(scope="module")
def real_street() -> Iterator[Street]:
    torch.set_num_threads(1)
    made = Street([real_workers()], TINY_VOCAB)
    yield made
    made.close()


def test_real_models_in_every_mode_say_what_the_target_says_alone(real_street: Street) -> None:
    """All in one batch; drafts lie, fail, stall and forget, and replicas die meanwhile."""
    alone = Alone(real_street, REAL_NUMBERS, TINY_VOCAB, REAL_TOKENS)
    tally, injected = Tally(), Counter[str]()
    for seed, rate in ((1, NO_FAULTS), (2, 0.06)):
        schedule = Schedule(seed, rate)
        ladders = real_street.ladders(schedule, BOUNDS if rate else PATIENT)
        asks = [
            Ask(mode, question(
                f"{mode}-{seed}", (i + 3 * seed) % REAL_NUMBERS, TINY_VOCAB, max_tokens=REAL_TOKENS,
                lookahead=None if mode in CONTROLLED else (3, 8, 1, 16)[i % 4],
            )) for i, mode in enumerate(REAL_MODES)
        ]
        for i, (ids, _) in enumerate(serve_all(ladders, asks, tally)):
            assert ids == alone.texts[(i + 3 * seed) % REAL_NUMBERS], (rate, asks[i])
        real_street.check_empty()
        injected += schedule.injected
    assert sum(tally.modes.values()) > 100 and tally.ahead["hit"] > 0, "inconclusive"
    assert injected
    assert near_ties(alone) <= 2


def near_ties(alone: Alone) -> int:
    """Places where plain transformers says another word than the greedy texts, whose two best lie close together."""
    model, count = tiny_model("llama"), 0
    for number in range(0, REAL_NUMBERS, len(SAMPLINGS)):
        ids = prompt(number, TINY_VOCAB).tolist()
        for token in alone.texts[number]:
            with torch.inference_mode():
                best = model(torch.tensor([ids])).logits[0, -1].topk(2)
            if best.indices[0] != token:
                assert best.values[0] - best.values[1] < 1e-3
                count += 1
            ids.append(token)
    return count
