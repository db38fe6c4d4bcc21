"""Rows of which only some ids can come say the same of them in less time, and nothing of the others."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from actors.heads.vocab import DraftVocabulary
from actors.sampling.draw import draw
from actors.sampling.params import SamplingParams
from actors.sampling.processors import greedy_argmax, weigh
from actors.sampling.rows import LogitRows, concat

VOCAB = 4000
IDS = np.sort(np.random.default_rng(0).permutation(VOCAB)[:900]).astype(np.int32)
HISTORY = np.concatenate([IDS[3:40], np.arange(30)]).astype(np.int32)
ADJUSTED = {
    "repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2, "min_tokens": 80,
    "eos_ids": (int(IDS[5]), 7), "logit_bias": ((int(IDS[7]), 2.0), (int(np.setdiff1d(np.arange(99), IDS)[0]), 50.0)),
}
LAWS = [
    {"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9}, {"temperature": 1.3, "top_k": 20},
    {"temperature": 1.0, "top_k": 2000}, {"temperature": 1.0, "min_p": 0.05}, {"temperature": 0.9, **ADJUSTED},
    {"temperature": 0.9, "top_p": 0.8, "top_k": 50, "min_p": 0.01, **ADJUSTED},
]


def rows(count: int = 3) -> tuple[LogitRows, LogitRows]:
    vocabulary = DraftVocabulary(IDS, VOCAB)
    torch.manual_seed(1)
    wide = vocabulary.widen(3 * torch.randn(count, len(IDS)))
    return LogitRows(wide), LogitRows(wide, vocabulary.known_ids)


@pytest.mark.parametrize("settings", LAWS)
def test_laws_are_the_same(settings: dict[str, object]) -> None:
    plain, supported = rows()
    params = SamplingParams(**settings)  # type: ignore[arg-type]
    for index in range(3):
        whole, part = (weigh(r, index, params, HISTORY, 30) for r in (plain, supported))
        assert part.ids is not None and set(part.ids.tolist()) <= set(IDS.tolist())
        assert (np.diff(part.ids) > 0).all() and (part.logs > -np.inf).all()
        assert np.allclose(part.scatter(part.probabilities()), whole.scatter(whole.probabilities()), rtol=1e-6, atol=0)


@pytest.mark.parametrize("settings", LAWS)
@pytest.mark.parametrize("mode", [{}, {"seed": 4}])
def test_draws_are_the_same(settings: dict[str, object], mode: dict[str, int]) -> None:
    plain, supported = rows()
    params = SamplingParams(**settings, **mode)  # type: ignore[arg-type]
    for index in range(3):
        one, other = (draw(r, index, params, HISTORY, 30, np.random.default_rng(2), 64) for r in (plain, supported))
        assert one.token == other.token
        assert (one.law is None) == (other.law is None)


def test_greedy_takes_no_other_id_whatever_is_added_to_it() -> None:
    plain, supported = rows()
    foreign = int(np.setdiff1d(np.arange(VOCAB), IDS)[0])
    params = SamplingParams(logit_bias=((foreign, 3e4),))
    assert greedy_argmax(plain, 0, params, HISTORY, 30) == foreign
    assert greedy_argmax(supported, 0, params, HISTORY, 30) == supported.best(0)


def test_parts_and_copies_keep_it() -> None:
    supported = rows()[1]
    assert supported.part(1, 3).support is supported.support
    assert concat([supported.part(0, 1), supported.part(2, 3)]).support is supported.support
