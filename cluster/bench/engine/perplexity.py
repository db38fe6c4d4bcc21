"""Perplexity of a fixed text through the engine's own passes: chunked, over paged keys and values."""

from __future__ import annotations

import torch

from actors.engine.step import ModelRunner
from actors.messages import Ids
from cluster.bench.engine.feed import TextFeed
from cluster.bench.stats import perplexity

CHUNK_TOKENS = 128  # small enough that most rows read keys which an earlier pass has stored


def text_perplexity(runner: ModelRunner, ids: Ids, page_tokens: int) -> float:
    """exp of the mean negative log-likelihood of ids[1:], each given all ids before it."""
    feed = TextFeed(runner, ids, page_tokens)
    losses: list[float] = []
    last = len(ids) - 1  # its own logits would predict what is not there
    for start in range(0, last, CHUNK_TOKENS):
        end = min(start + CHUNK_TOKENS, last)
        losses += token_losses(feed.run(start, end), torch.from_numpy(ids[start + 1 : end + 1]))
    return perplexity(losses)


def token_losses(logits: torch.Tensor, next_ids: torch.Tensor) -> list[float]:
    """Negative log-likelihood (nats) of each next id [num_rows] under logits [num_rows, vocab]."""
    log_probs = torch.log_softmax(logits.double(), dim=-1)
    losses: list[float] = (-log_probs.gather(1, next_ids.long()[:, None])[:, 0]).tolist()
    return losses
