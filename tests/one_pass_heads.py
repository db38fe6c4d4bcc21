"""Medusa heads and a block head that have learned what a tiny target says."""

from __future__ import annotations

import copy
import functools
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from actors.heads.block import BlockHead, block_config
from actors.heads.medusa import MedusaHeads, medusa_config
from actors.heads.vocab import DraftVocabulary, most_frequent
from tests.eagle_head import LENGTH, SEEDS, target_texts
from tests.models import VOCAB, tiny_model

BLOCK = 6
Head = MedusaHeads | BlockHead


@functools.cache
def _texts() -> tuple[torch.Tensor, torch.Tensor, DraftVocabulary]:
    """The target's own texts, its hidden states after all layers, and half the vocabulary."""
    torch.manual_seed(0)
    prompts = torch.from_numpy(np.stack([np.random.default_rng(seed).integers(2, VOCAB, 20) for seed in SEEDS]))
    greedy, sampled = target_texts(prompts), target_texts(prompts, 0.9)
    ids, states = torch.cat([greedy[0], sampled[0]]), torch.cat([greedy[1], sampled[1]])
    counts = np.bincount(ids.flatten(), minlength=VOCAB)
    return ids, states, DraftVocabulary(most_frequent(counts, VOCAB // 2), VOCAB)


def medusa_loss(heads: MedusaHeads) -> torch.Tensor:
    """Mean over heads of the cross-entropy on the texts; head k tells the token k + 2 after its row."""
    ids, states, vocabulary = _texts()
    logits = heads(states[:, :, -1])
    losses = []
    for k in range(heads.config.num_heads):
        labels = vocabulary.places(ids[:, k + 2 :])
        losses.append(functional.cross_entropy(
            logits[:, : -k - 2, k].flatten(0, 1), labels.flatten(), ignore_index=-1
        ))
    return torch.stack(losses).mean()


def block_loss(head: BlockHead, generator: torch.Generator) -> torch.Tensor:
    """Cross-entropy of blocks anywhere in the texts."""
    ids, states, vocabulary = _texts()
    anchors = torch.randperm(LENGTH - BLOCK, generator=generator)[:16] + 1
    logits = head(ids, states[:, :, [0, 2]].flatten(2), anchors)
    places = anchors[:, None] + torch.arange(1, BLOCK)
    return functional.cross_entropy(
        logits.flatten(0, 2), vocabulary.places(ids[:, places]).flatten(), ignore_index=-1
    )


@functools.cache
def _trained(kind: str, num_steps: int) -> tuple[Head, list[float]]:
    model: Any = tiny_model("llama")
    vocabulary = _texts()[2]
    torch.manual_seed(0)
    output, generator = model.lm_head.weight, torch.Generator().manual_seed(0)
    head: Head
    if kind == "medusa":
        config = medusa_config(model.config, len(vocabulary.ids), num_heads=5, name="tiny")
        head = MedusaHeads.fresh(config, model.model.norm.weight, output, vocabulary)
    else:
        sizes = block_config(model.config, len(vocabulary.ids), (1, 3), num_layers=2, block_size=BLOCK, name="tiny")
        head = BlockHead.fresh(sizes, model.model.embed_tokens.weight, output, vocabulary, scale=0.1)
    optimiser = torch.optim.Adam(head.parameters(), 3e-3)
    losses = []
    for _ in range(num_steps):
        loss = medusa_loss(head) if isinstance(head, MedusaHeads) else block_loss(head, generator)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(float(loss.detach()))
    return head.requires_grad_(False), losses


def trained(kind: str, num_steps: int = 60) -> Head:
    """Of "medusa" or "block", for the tiny target: a head of one's own, to be made ready or changed."""
    return copy.deepcopy(_trained(kind, num_steps)[0])


def losses(kind: str, num_steps: int = 60) -> list[float]:
    """Of its training, step by step."""
    return _trained(kind, num_steps)[1]
