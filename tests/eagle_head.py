"""A draft head that has learned what a tiny target says: its drafts are accepted often enough to be a test."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from actors.heads.eagle import EagleHead, eagle_config
from actors.heads.vocab import DraftVocabulary, most_frequent
from tests.models import VOCAB, tiny_model

LENGTH = 60
SEEDS = tuple(range(0, 70, 7))  # of the prompts that it has seen gone on with greedily


def target_texts(prompts: torch.Tensor, temperature: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts [batch, n] gone on with to `LENGTH` tokens by the tiny target, and its hidden states after all layers."""
    model: Any = tiny_model("llama")
    ids = prompts
    with torch.no_grad():
        while ids.shape[1] < LENGTH:
            logits = model(ids).logits[:, -1]
            best = logits.argmax(-1, keepdim=True)
            ids = torch.cat([ids, best if not temperature else (logits / temperature).softmax(-1).multinomial(1)], 1)
        kept: list[torch.Tensor] = []
        hooks = [layer.register_forward_hook(lambda _, __, out: kept.append(out)) for layer in model.model.layers]
        model(ids)
        for hook in hooks:
            hook.remove()
    return ids, torch.stack(kept, 2)  # [batch, length, layers, hidden]


@functools.cache
def trained_head(num_steps: int = 50) -> EagleHead:
    """Drafts half the vocabulary; trained on the target's own texts, three steps of own states deep."""
    model: Any = tiny_model("llama")
    torch.manual_seed(0)
    prompts = torch.from_numpy(np.stack([np.random.default_rng(seed).integers(2, VOCAB, 20) for seed in SEEDS]))
    greedy, sampled = target_texts(prompts), target_texts(prompts, 0.9)
    ids, states = torch.cat([greedy[0], sampled[0]]), torch.cat([greedy[1], sampled[1]])
    vocabulary = DraftVocabulary(most_frequent(np.bincount(ids.flatten(), minlength=VOCAB), VOCAB // 2), VOCAB)
    config = eagle_config(model.config, len(vocabulary.ids), feature_layers=(1, 3), name="tiny")
    head = EagleHead.fresh(config, model.model.embed_tokens.weight, model.lm_head.weight, vocabulary, scale=0.1)
    features = states[:, :, [0, 2]].flatten(2)
    optimiser = torch.optim.Adam(head.parameters(), 3e-3)
    for _ in range(num_steps):
        loss = torch.zeros(())
        for step, hidden in enumerate(head(ids, features, 3)):
            labels = vocabulary.places(ids[:, step + 1 :])
            logits = head.logits(hidden)[:, :-1]
            loss = loss + functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-1)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return head.requires_grad_(False)
