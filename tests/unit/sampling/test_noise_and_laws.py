"""Noise is a function of its name; laws that travel are exactly what was drawn from."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from actors.sampling import laws as law_tools
from actors.sampling.draw import coupled_argmax, draw
from actors.sampling.noise import Purpose, coupled_words, coupled_words_at, gumbel, stream
from actors.sampling.params import SamplingParams
from actors.sampling.processors import LogWeights, weigh
from actors.sampling.rows import LogitRows

pytestmark = pytest.mark.exactness

PINNED = [1.337277978532959, -0.2570777754220879, -0.4994426199476144]  # gumbel(42, 5, 3)


def test_coupled_noise_of_a_larger_vocabulary_begins_with_that_of_a_smaller_one() -> None:
    for small in (1, 3, 4, 5, 997):
        np.testing.assert_array_equal(gumbel(9, 17, small), gumbel(9, 17, 1000)[:small])


def test_coupled_noise_is_pinned_so_that_seeds_keep_their_texts_across_releases() -> None:
    raw = np.random.Philox(key=42, counter=[0, 5, 0, 0]).random_raw(3)
    expected = [-np.log(-np.log(((int(word) >> 12) + 0.5) / 2**52)) for word in raw]
    np.testing.assert_allclose(gumbel(42, 5, 3), expected, rtol=1e-14)
    np.testing.assert_allclose(gumbel(42, 5, 3), PINNED, rtol=1e-12)


def test_coupled_noise_differs_by_seed_and_position_and_follows_gumbel() -> None:
    rows = [gumbel(seed, position, 5000) for seed in (0, 1, -1) for position in (0, 1)]
    for a, b in itertools.combinations(rows, 2):
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.06
    assert stats.kstest(np.concatenate(rows), "gumbel_r").pvalue > 1e-3


def test_streams_repeat_by_name_and_differ_by_every_part_of_it() -> None:
    names = list(itertools.product([0, 1, 2**70], Purpose, [0, 1], [0, 1, 2]))
    draws = {name: tuple(stream(*name).random(3)) for name in names}
    assert len(set(draws.values())) == len(names)
    assert all(tuple(stream(*name).random(3)) == value for name, value in draws.items())


def test_streams_of_two_purposes_are_uncorrelated() -> None:
    values = np.array([[stream(i, purpose, 0, 0).random() for purpose in Purpose] for i in range(4000)])
    assert np.abs(np.corrcoef(values.T) - np.eye(len(Purpose))).max() < 0.07


@pytest.mark.parametrize("count", [1, 2, 7, 40, 48, 49, 300])
def test_noise_of_single_ids_is_that_of_the_whole_vocabulary(count: int) -> None:
    rng = np.random.default_rng(count)
    for seed in (0, 5, 2**100 + 3):
        whole = coupled_words(seed, 9, 5000)
        ids = np.sort(rng.choice(5000, count, replace=False))
        np.testing.assert_array_equal(coupled_words_at(seed, 9, ids), whole[ids])
    np.testing.assert_array_equal(coupled_words_at(1, 2, np.arange(9)), coupled_words(1, 2, 9))
    assert len(coupled_words_at(1, 2, np.empty(0, np.int64))) == 0


@pytest.mark.parametrize("scale", [0.0, 0.1, 3.0, 20.0])
def test_the_fast_coupled_argmax_equals_its_definition(scale: float) -> None:
    rng = np.random.default_rng(3)
    for position in range(60):
        logs = (rng.standard_normal(3000) * scale).astype(np.float32)
        logs[::7] = -np.inf
        logs -= logs.max()
        noise = gumbel(11, position, 3000)
        params = SamplingParams(temperature=1.0, seed=11)
        plain = int(np.argmax(logs.astype(np.float64) + noise))
        assert coupled_argmax(LogWeights(3000, None, logs), params, position) == plain
        for size in (1, 5, 200):
            ids = np.sort(rng.choice(np.flatnonzero(logs > -np.inf), size, replace=False))
            plain = int(ids[np.argmax(logs[ids].astype(np.float64) + noise[ids])])
            assert coupled_argmax(LogWeights(3000, ids, logs[ids]), params, position) == plain


def law_of(probs: list[float]) -> LogWeights:
    row = torch.tensor(probs).log()
    return weigh(LogitRows(row[None]), 0, SamplingParams(temperature=1.0), [], 0)


def test_a_truncated_law_keeps_the_likeliest_and_is_renormalised() -> None:
    law = law_of([0.1, 0.4, 0.1, 0.4])
    ids, probs = law_tools.truncate(law, 3)
    assert ids.tolist() == [1, 3, 0]
    assert probs.dtype == np.float32
    assert probs.tolist() == pytest.approx([4 / 9, 4 / 9, 1 / 9])
    assert law_tools.truncate(law_of([1.0, 0.0]), 0)[0].tolist() == [0]
    assert law_tools.truncate(law_of([1.0, 0.0, 0.0]), 2)[0].tolist() == [0]


def test_a_drafted_token_is_drawn_from_the_law_that_travels() -> None:
    row = torch.randn(40, generator=torch.Generator().manual_seed(2))
    params = SamplingParams(temperature=0.9, top_p=0.95)
    rng = np.random.default_rng(1)
    drawn = [draw(LogitRows(row[None]), 0, params, [0], 1, rng, 6) for _ in range(2000)]
    assert all(one.law is not None for one in drawn)
    ids, probs = drawn[0].law or (None, None)
    assert ids is not None
    counts = np.array([sum(one.token == token for one in drawn) for token in ids])
    assert counts.sum() == 2000  # nothing outside the law
    assert stats.chisquare(counts, law_tools.normalised(probs) * 2000).pvalue > 1e-3


def test_sampling_never_returns_an_index_of_weight_zero() -> None:
    weights = np.array([0.0, 0.25, 0.0, 0.75, 0.0])
    for uniform in (0.0, 0.25, np.nextafter(0.25, 0), np.nextafter(1.0, 0)):
        assert weights[law_tools.sample(weights, float(uniform))] > 0


def test_sampling_a_long_law_inverts_the_same_sum() -> None:
    rng = np.random.default_rng(4)
    weights = rng.random(3001) ** 8
    weights[rng.random(3001) < 0.4] = 0.0
    weights[512:1024] = 0.0  # two whole blocks
    edges = weights.cumsum() / weights.sum()
    for uniform in [0.0, *rng.random(500), np.nextafter(1.0, 0), edges[2000], edges[-2]]:
        index = law_tools.sample(weights, float(uniform))
        assert weights[index] > 0
        assert edges[index] >= uniform - 1e-12
        assert edges[index] - weights[index] / weights.sum() <= uniform + 1e-12


def test_laws_survive_concat_and_cut() -> None:
    entries = [(np.arange(n, dtype=np.int32), np.full(n, 1 / n, np.float32)) for n in (1, 3, 2, 4)]
    whole = law_tools.build(entries)
    again = law_tools.concat([law_tools.cut(whole, 0, 1), law_tools.build([]), law_tools.cut(whole, 1, 9)])
    assert again.num_tokens == 4
    for i, (ids, probs) in enumerate(entries):
        np.testing.assert_array_equal(again.at(i)[0], ids)
        np.testing.assert_array_equal(again.at(i)[1], probs)
    assert law_tools.cut(whole, 2, 2).num_tokens == 0
    assert whole.ids.dtype == whole.cu_len.dtype == np.int32


def test_a_rejection_draft_without_noise_and_a_coupled_one_without_seed_are_refused() -> None:
    with pytest.raises(ValueError, match="needs noise"):
        draw(LogitRows(torch.zeros(1, 3)), 0, SamplingParams(temperature=1.0), [0], 1, None, 4)
    with pytest.raises(ValueError, match="needs a seed"):
        coupled_argmax(law_of([0.5, 0.5]), SamplingParams(temperature=1.0), 1)
