"""Decoding, speculation and perplexity of the bench are what plain transformers gives on the same tiny model."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from actors.verifier import Verifier
from cluster.bench.engine.decode import DecodingFailed, decode, slices
from cluster.bench.engine.feed import TextFeed
from cluster.bench.engine.ladder import climb
from cluster.bench.engine.peers import PlainTransformers
from cluster.bench.engine.perplexity import text_perplexity
from cluster.bench.local import local_drafter, local_verifier
from tests.models import VOCAB, tiny_model, tiny_runner, tiny_spec

CONTEXT = 1024
PROMPT = np.arange(2, 26, dtype=np.int32)


@pytest.fixture
def verifier() -> Iterator[Verifier]:
    worker = local_verifier(tiny_runner("llama"), tiny_spec(), CONTEXT)
    yield worker
    worker.engine.check_integrity()
    assert worker.stats().num_sequences == 0
    worker.shutdown()


def test_the_engine_and_plain_transformers_say_the_same(verifier: Verifier) -> None:
    ours = decode(verifier, [PROMPT], 24).streams[0]
    plain = PlainTransformers(tiny_model("llama")).generate(PROMPT, 24)
    assert tuple(ours.ids) == plain.ids
    assert len(ours.times) == plain.num_rounds == 24
    assert plain.seconds_per_token > 0


def test_sequences_that_decode_together_say_what_each_says_alone(verifier: Verifier) -> None:
    prompts = slices(np.arange(90, dtype=np.int32), 5, 12)
    together = decode(verifier, prompts, 12)
    assert together.tokens_per_s > 0
    for prompt, stream in zip(prompts, together.streams, strict=True):
        assert decode(verifier, [prompt], 12).streams[0].ids == stream.ids


def test_a_pass_that_fails_ends_the_run_with_its_reason(verifier: Verifier) -> None:
    with pytest.raises(DecodingFailed, match="vocabulary"):
        decode(verifier, [np.array([VOCAB + 5], np.int32)], 4)


def test_the_ladder_and_assisted_generation_say_what_the_target_says_alone(verifier: Verifier) -> None:
    drafter = local_drafter(tiny_runner("llama", seed=0, kv_tokens=1024), tiny_spec(tier=0, kv_tokens=1024), CONTEXT)
    alone = climb(None, verifier, PROMPT, 20, 4)
    ours = climb(drafter, verifier, PROMPT, 20, 4)
    model = tiny_model("llama")
    theirs = PlainTransformers(model, tiny_model("llama"), 4).generate(PROMPT, 20)
    assert alone.ids == ours.ids == theirs.ids
    assert (alone.num_rounds, alone.num_drafted) == (20, 0)
    assert ours.num_accepted == ours.num_drafted > 0  # the draft is the target itself
    assert ours.mat == theirs.mat == 5.0
    drafter.engine.check_integrity()
    drafter.shutdown()


def test_perplexity_is_that_of_one_plain_pass() -> None:
    ids = np.random.default_rng(0).integers(0, VOCAB, 300).astype(np.int32)
    runner = tiny_runner("llama")
    with torch.inference_mode():
        logits = tiny_model("llama")(torch.from_numpy(ids).long()[None]).logits[0]
    loss = torch.nn.functional.cross_entropy(logits[:-1].double(), torch.from_numpy(ids[1:]).long())
    assert text_perplexity(runner, ids, 64) == pytest.approx(math.exp(loss.item()), rel=1e-4)


def test_a_stretch_of_text_gives_the_same_logits_however_often_it_is_run() -> None:
    ids = np.random.default_rng(1).integers(0, VOCAB, 200).astype(np.int32)
    feed = TextFeed(tiny_runner("llama"), ids, 64)
    feed.prefill(120)
    first = feed.run(70, 75)
    feed.run(100, 101)
    assert torch.equal(feed.run(70, 75), first)
    assert feed.run(70, 75, num_logits=2).shape == (2, VOCAB)
