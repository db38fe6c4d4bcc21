"""Runs packed steps on one (shard of a) transformers model with paged keys and values."""

from __future__ import annotations

import logging
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from actors.engine import attention
from actors.engine.step import StepInput
from actors.spec import ModelSpec

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class UnsupportedAttention(ValueError):
    """The model's attention does something that the paged path cannot reproduce."""


class LocalRunner:
    """The `ModelRunner` of one process. Owns the KV tensors; knows nothing of sequences or pages' owners.

    `model` must have its linear layers replaced already (`actors.engine.linear`, or the sharded ones).
    """

    def __init__(self, model: Any, spec: ModelSpec) -> None:
        config = model.config.get_text_config()
        if getattr(config, "attn_logit_softcapping", None):
            raise UnsupportedAttention(
                f"{spec.model}: attention soft-capping (Gemma 2) is not supported; use a model without it"
            )
        _warn_of_odd_widths(model, spec)
        attention.register()
        model.set_attn_implementation(attention.NAME)
        self._model = model
        self._device = spec.device
        self._dtype = DTYPES[spec.dtype]
        self.num_pages = max(1, spec.kv_tokens // spec.page_tokens)
        self.vocab_size = int(config.vocab_size)
        self.kv = attention.PagedKV(
            _probe_kv_geometry(model, spec.device), self.num_pages, spec.page_tokens, self._dtype, spec.device
        )

    @torch.inference_mode()
    def forward(self, step: StepInput) -> torch.Tensor:
        """One packed pass: logits of `step.logit_rows`, [num_logits, vocab_size] float32 on CPU."""
        if len(step.copies):
            pages = torch.from_numpy(step.copies).long().to(self._device)
            self.kv.copy_pages(pages[:, 0], pages[:, 1])
        plan = attention.StepPlan(step, self.kv, self._dtype, self._device)
        output = self._model(
            input_ids=torch.from_numpy(step.input_ids).long()[None].to(self._device),
            position_ids=torch.from_numpy(step.positions).long()[None].to(self._device),
            use_cache=False,
            logits_to_keep=torch.from_numpy(step.logit_rows).long().to(self._device),
            plan=plan,
        )
        logits: torch.Tensor = output.logits[0].float().cpu()
        return logits



def _warn_of_odd_widths(model: Any, spec: ModelSpec) -> None:
    """Elementwise kernels treat a tail of less than 16 values differently, so there rows could see each other."""
    head = model.get_output_embeddings()
    odd = {m.out_features for m in model.modules() if m is not head and getattr(m, "out_features", 0) % 16}
    if odd and spec.device == "cpu":
        log.warning(
            "%s: layer widths %s are not multiples of 16 (on this rank): logits may differ in the last bit with the "
            "number of rows, so equal ids hold only up to near ties",
            spec.model, sorted(odd),
        )


def _probe_kv_geometry(model: Any, device: str) -> list[tuple[int, int]]:
    """(num_kv_heads, head_dim) of every layer, as this shard really has them.

    Read from a one-token pass instead of the config: after tensor-parallel sharding the config no longer
    tells, and the split of heads over ranks may be uneven.
    """
    seen: dict[int, tuple[int, int]] = {}

    def spy(
        module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, None]:
        seen[int(module.layer_idx)] = (key.shape[1], key.shape[3])  # type: ignore[arg-type]
        return torch.zeros_like(query).transpose(1, 2).contiguous(), None

    name = attention.NAME + "_probe"
    AttentionInterface.register(name, spy)
    AttentionMaskInterface.register(name, attention._no_mask)
    model.set_attn_implementation(name)
    with torch.inference_mode():
        one = torch.zeros(1, 1, dtype=torch.long, device=device)
        model(input_ids=one, position_ids=one, use_cache=False)
    model.set_attn_implementation(attention.NAME)
    return [seen[i] for i in range(len(seen))]
