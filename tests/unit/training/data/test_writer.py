"""What the target writes has its own law, and depends on nothing but prompt and seed."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from actors.engine.packing import Part, pack
from actors.messages import Ids
from actors.training.data.writer import Writer
from tests.models import VOCAB, tiny_runner, tiny_spec

PROMPT = np.array([5, 17, 3, 88], np.int32)
END = 1


def _writer(num_parallel: int) -> Writer:
    return Writer(tiny_runner("llama"), tiny_spec(max_sequences=num_parallel, max_batch_tokens=64), 256, {END})


def _write(writer: Writer, seeds: range, max_tokens: int, temperature: float) -> list[Ids]:
    found: dict[int, Ids] = {}
    waiting = list(seeds)
    while waiting or writer.num_active:
        while waiting and writer.num_active < writer.num_parallel:
            seed = waiting.pop(0)
            writer.start(PROMPT, max_tokens, temperature, seed, lambda text, seed=seed: found.update({seed: text}))  # type: ignore[misc]
        writer.step()
    return [found[seed] for seed in seeds]


def _law(prefix: Ids, temperature: float) -> np.ndarray:
    pages = np.arange(8, dtype=np.int32)
    logits = tiny_runner("llama").forward(pack([Part(prefix, 0, pages, 1)], 64))
    law: np.ndarray = (logits[0].double() / temperature).softmax(-1).numpy()
    return law


@pytest.mark.exactness
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_texts_have_the_law_of_the_target(temperature: float) -> None:
    texts = _write(_writer(16), range(3000), 2, temperature)
    first = np.array([text[0] for text in texts])
    _check(first, _law(PROMPT, temperature))
    common = int(np.bincount(first[first != END]).argmax())  # and so has the second token, given the first
    second = np.array([text[1] for text in texts if text[0] == common])
    _check(second, _law(np.append(PROMPT, common).astype(np.int32), temperature))


def _check(drawn: np.ndarray, law: np.ndarray) -> None:
    """Chi-square over groups of tokens, of about equal law, that are each expected at least eight times."""
    order = np.argsort(-law)
    group = np.minimum((law[order].cumsum() - law[order]) * len(drawn) // 8, len(drawn) // 8 - 1).astype(int)
    places = np.empty(VOCAB, int)
    places[order] = np.unique(group, return_inverse=True)[1]
    counts, means = np.bincount(places[drawn], minlength=places.max() + 1), np.bincount(places, law * len(drawn))
    assert len(counts) > 5
    assert stats.chisquare(counts, means * counts.sum() / means.sum()).pvalue > 1e-4


def test_a_text_is_the_same_beside_any_others() -> None:
    alone, beside = (_write(_writer(count), range(6), 30, 1.0) for count in (1, 5))
    assert all(np.array_equal(a, b) for a, b in zip(alone, beside, strict=True))
    assert len({text.tobytes() for text in alone}) == 6


def test_a_text_ends_with_its_end_or_when_it_is_long_enough() -> None:
    texts = _write(_writer(8), range(60), 24, 1.0)
    assert all(END not in text[:-1] for text in texts)
    assert all(len(text) == 24 or text[-1] == END for text in texts)


def test_a_greedy_text_stops_where_it_loops() -> None:
    texts = _write(_writer(1), range(1), 240, 0.0)
    assert len(texts[0]) < 240  # a random model's greedy text always turns in circles
