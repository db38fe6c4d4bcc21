"""Table models (logits as a function of the prefix) and the generation loop that the law tests share."""

from __future__ import annotations

import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from actors.messages import Laws
from actors.sampling import draw as draw_module
from actors.sampling import laws as law_tools
from actors.sampling import positions as positions_module
from actors.sampling import siblings as siblings_module
from actors.sampling.draw import draw
from actors.sampling.noise import Purpose, stream
from actors.sampling.params import SamplingParams
from actors.sampling.processors import LogWeights, process, weigh
from actors.sampling.rows import LogitRows
from actors.sampling.verify import Verified, verify

PROMPT = (0, 1)


@dataclass(frozen=True)
class Table:
    """A random model whose logits depend on the last two ids; `support` masks the other ids."""

    seed: int
    vocab_size: int
    scale: float = 1.5
    support: tuple[int, ...] | None = None
    _rows: dict[tuple[int, ...], torch.Tensor] = field(default_factory=dict, compare=False, hash=False)

    def logits(self, prefix: Sequence[int]) -> torch.Tensor:
        key = tuple(int(token) for token in prefix[-2:])
        if key not in self._rows:
            rng = np.random.default_rng([self.seed, *(token + 10 for token in key)])
            row = torch.from_numpy((rng.standard_normal(self.vocab_size) * self.scale).astype(np.float32))
            if self.support is not None:
                masked = [i for i in range(self.vocab_size) if i not in self.support]
                row[masked] = -torch.inf
            self._rows[key] = row
        return self._rows[key]

    def rows(self, prefix: Sequence[int], drafted: Sequence[int]) -> torch.Tensor:
        """[k + 1, V]"""
        return torch.stack([self.logits([*prefix, *drafted[:i]]) for i in range(len(drafted) + 1)])


@contextmanager
def remembered_processing() -> Iterator[None]:
    """Memoises `weigh` and `truncate`, pure functions, so that tens of thousands of samples take seconds.

    For requests of one kind at a time: they may differ in seed and entropy alone, which processing ignores.
    """
    known: dict[tuple[bytes, bytes], LogWeights] = {}

    def remembered(
        logits: LogitRows, index: int, params: SamplingParams, history: Sequence[int], num_prompt: int
    ) -> LogWeights:
        key = (logits.row(index).tobytes(), np.asarray(history, np.int32).tobytes())
        if key not in known:
            known[key] = weigh(logits, index, params, history, num_prompt)
        return known[key]

    truncated: dict[tuple[int, int], law_tools.SparseLaw] = {}  # by identity: `known` keeps its laws alive

    def truncate(law: LogWeights, support: int) -> law_tools.SparseLaw:
        key = (id(law), support)
        if key not in truncated:
            truncated[key] = law_tools.truncate(law, support)
        return truncated[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(positions_module, "weigh", remembered)
        for drawing in (draw_module, siblings_module):
            patch.setattr(drawing, "weigh", remembered)
            patch.setattr(drawing, "truncate", truncate)
        patch.setattr(draw_module, "coupled_words", functools.lru_cache(64)(draw_module.coupled_words))
        yield


@dataclass
class Drafted:
    tokens: np.ndarray
    laws: Laws | None


def propose(
    model: Table, params: SamplingParams, prefix: Sequence[int], k: int, round_: int, support: int,
    deterministic: bool = False,
) -> Drafted:
    """Draft `k` tokens; `deterministic` takes the argmax and sends no law, as a lookup drafter does."""
    text, laws = list(prefix), []
    rng = stream(params.entropy, Purpose.DRAFT, 0, round_)
    for _ in range(k):
        if deterministic:
            text.append(int(model.logits(text).argmax()))
            continue
        drawn = draw(LogitRows(model.logits(text)[None]), 0, params, text, len(PROMPT), rng, support)
        text.append(drawn.token)
        if drawn.law is not None:
            laws.append(drawn.law)
    tokens = np.array(text[len(prefix) :], np.int32)
    with_laws = bool(laws) or (k == 0 and params.seed is None and params.temperature > 0)
    return Drafted(tokens, law_tools.build(laws) if with_laws and not deterministic else None)


def check(
    model: Table, params: SamplingParams, prefix: Sequence[int], draft: Drafted, round_: int,
    tier: int = 1, want_laws: bool = False, support: int = 0,
) -> Verified:
    rows = model.rows(prefix, [int(token) for token in draft.tokens])
    return verify(
        draft.tokens, draft.laws, LogitRows(rows), params, np.array(prefix, np.int32), len(PROMPT),
        tier, round_, want_laws, support,
    )


def one_round(
    ladder: Sequence[Table], params: SamplingParams, text: Sequence[int], rounds: Iterator[int], k: int = 2,
    support: int = 0, deterministic: bool = False, window: int = 3,
) -> tuple[Verified, int]:
    """One round of the last tier after `text`; returns its verdict and the draft tokens checked.

    Each tier between collects verified tokens from below until it has `window` of them. `rounds` numbers
    the calls; `support` truncates the laws of every tier but the last.
    """

    def collect(tier: int, prefix: list[int]) -> Drafted:
        if tier == 0:
            return propose(ladder[0], params, prefix, k, next(rounds), support, deterministic)
        tokens: list[int] = []
        laws: list[Laws] = []
        while len(tokens) < window:
            before = [*prefix, *tokens]
            below = collect(tier - 1, before)
            verdict = check(ladder[tier], params, before, below, next(rounds), tier, True, support)
            tokens.extend(verdict.tokens.tolist())
            if verdict.laws is not None:
                assert verdict.laws.num_tokens == len(verdict.tokens)
                laws.append(verdict.laws)
        return Drafted(np.array(tokens, np.int32), law_tools.concat(laws) if laws else None)

    draft = collect(len(ladder) - 2, list(text))
    return check(ladder[-1], params, text, draft, next(rounds), len(ladder) - 1), len(draft.tokens)


def generate(
    ladder: Sequence[Table], params: SamplingParams, num_tokens: int, **how: Any
) -> tuple[tuple[int, ...], float]:
    """Rounds until `num_tokens` are committed; returns the text and the accepted tokens per draft token."""
    text, rounds = list(PROMPT), itertools.count()
    accepted = drafted = 0
    while len(text) < len(PROMPT) + num_tokens:
        verdict, num_draft = one_round(ladder, params, text, rounds, **how)
        accepted += verdict.num_accepted
        drafted += num_draft
        text.extend(verdict.tokens.tolist())
    return tuple(text[len(PROMPT) : len(PROMPT) + num_tokens]), accepted / max(drafted, 1)


Law = dict[tuple[int, ...], float]  # texts and their probabilities


def joint_law(model: Table, params: SamplingParams, num_tokens: int, start: Law | None = None) -> Law:
    """The law of the first `num_tokens` tokens when `model` alone continues `start` (default: nothing)."""
    law: defaultdict[tuple[int, ...], float] = defaultdict(float)
    for text, mass in (start or {(): 1.0}).items():
        law[text[:num_tokens]] += mass
    for _ in range(num_tokens):
        longer: defaultdict[tuple[int, ...], float] = defaultdict(float)
        for text, mass in law.items():
            if len(text) == num_tokens:
                longer[text] += mass
                continue
            history = [*PROMPT, *text]
            probs = process(model.logits(history), params, history, len(PROMPT)).double().exp()
            for token, prob in enumerate(probs.tolist()):
                if prob > 0:
                    longer[(*text, token)] += mass * prob
        law = longer
    return law


def p_value(counts: Counter[tuple[int, ...]], law: Law) -> float:
    """Chi-square p-value of `counts` under `law`; cells expected fewer than 5 times are pooled.

    0 if something was seen that the law excludes.
    """
    if set(counts) - set(law):
        return 0.0
    total = counts.total()
    scale = total / sum(law.values())
    observed, expected, rest = [], [], [0.0, 0.0]
    for text, prob in law.items():
        if prob * scale >= 5:
            observed.append(float(counts[text]))
            expected.append(prob * scale)
        else:
            rest[0] += counts[text]
            rest[1] += prob * scale
    if rest[1] >= 5:
        observed.append(rest[0])
        expected.append(rest[1])
    else:  # too rare for a cell of its own
        observed[-1] += rest[0]
        expected[-1] += rest[1]
    return float(stats.chisquare(observed, expected).pvalue)


def sampled(
    text_of: Callable[[SamplingParams], tuple[tuple[int, ...], float]], params: SamplingParams, samples: int
) -> tuple[Counter[tuple[int, ...]], float]:
    """Texts of `samples` requests that differ in entropy or seed alone, and the mean acceptance."""
    counts: Counter[tuple[int, ...]] = Counter()
    accepted = 0.0
    with remembered_processing():
        for i in range(samples):
            seed = None if params.seed is None else params.seed + i
            text, rate = text_of(replace(params, seed=seed, entropy=i))
            counts[text] += 1
            accepted += rate
    return counts, accepted / samples
