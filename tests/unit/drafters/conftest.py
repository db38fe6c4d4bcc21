"""Drafters over a tiny model, and what is asked of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from actors.drafters.copies import Copies
from actors.drafters.model import ModelDrafter
from actors.engine.engine import Engine
from actors.engine.make import make_runner
from actors.messages import Context, Ids, ReplicaInfo
from actors.sampling.params import SamplingParams
from tests.models import VOCAB, tiny_model, tiny_spec

PAGE = 16
PROMPT = (np.arange(37, dtype=np.int32) * 7) % VOCAB
GREEDY = SamplingParams()
COUPLED = SamplingParams(temperature=1.0, seed=5)
REJECTION = SamplingParams(temperature=1.0, entropy=9, block_verification=False)

Make = Callable[..., ModelDrafter]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes drafters over one tiny model; afterwards none has leaked a page."""
    made: list[ModelDrafter] = []

    def build(max_context_tokens: int = 512, copies: Copies | None = None, **changes: object) -> ModelDrafter:
        spec = tiny_spec(tier=0, page_tokens=PAGE, **changes)
        engine = Engine(make_runner(tiny_model("llama"), spec), spec, max_context_tokens)
        info = ReplicaInfo(0, "tiny", VOCAB, max_context_tokens, spec.num_pages, PAGE, "")
        made.append(ModelDrafter(engine, info, 64, copies))
        return made[-1]

    yield build
    for drafter in made:
        drafter.engine.check_integrity()
        for name in ("a", "b"):
            drafter.close(name)
        drafter.engine.check_integrity()
        stats = drafter.stats()
        assert stats.num_sequences == 0
        assert stats.num_free_pages == stats.num_pages
        drafter.shutdown()


def context(ids: Ids, round: int, sampling: SamplingParams = GREEDY, name: str = "a", start: int = 0) -> Context:
    """A sequence of `ids`, told from `start` on; all of it is committed."""
    return Context(name, start, ids[start:].astype(np.int32), len(PROMPT), len(ids), sampling, round)
