"""The target as training needs it: whole passes over padded batches, with the hidden states of chosen layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from actors.loading.checkpoint import UnsupportedModel, load_model
from actors.loading.tokenizer import load_tokenizer
from actors.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Run:
    """What one pass of the target leaves behind."""

    features: torch.Tensor  # [B, T, num_layers * hidden] residual stream after each wanted layer, side by side
    hidden: torch.Tensor  # [B, T, hidden] after the final norm


class Target:
    """A causal LM of transformers, frozen. Not an `nn.Module`, so a trainee that keeps it does not own its weights."""

    def __init__(self, model: Any, name: str, tokenizer: Any = None) -> None:
        """Raises `UnsupportedModel` when the decoder layers cannot be found."""
        self.model = model
        self.name = name
        self.tokenizer = tokenizer
        self.config: Any = model.config.get_text_config()
        self.body: Any = model.get_decoder() if hasattr(model, "get_decoder") else model.base_model
        self.layers = decoder_layers(self.body, int(self.config.num_hidden_layers), name)
        self._scale = float(getattr(self.config, "logit_scale", 1.0) or 1.0)
        self._cap = float(getattr(self.config, "final_logit_softcapping", None) or 0.0)

    @classmethod
    def load(cls, name: str, dtype: str = "float32", device: str = "cpu") -> Target:
        """Load and freeze. Raises `ModelNotFound`, `UnsupportedModel`."""
        model = load_model(ModelSpec(tier=1, model=name, dtype=dtype, device=device))
        target = cls(model, name, load_tokenizer(name))
        target.check()
        return target

    @torch.no_grad()
    def check(self) -> None:
        """Prove on a few tokens that `run` and `logits` say what the model says. Raises `UnsupportedModel`."""
        ids = torch.arange(4, device=self.device)[None] % self.vocab_size
        own, model = self.logits(self.run(ids).hidden), self.model(input_ids=ids, use_cache=False).logits.float()
        if not torch.allclose(own, model, rtol=0.02, atol=0.02 * float(model.abs().max())):
            raise UnsupportedModel(
                f"{self.name} makes its logits in a way of its own, so its laws cannot be had for training"
            )

    @property
    def body_prefix(self) -> str:
        """Before the names of the body's weights in the names of the whole model's."""
        return next(f"{name}." for name, module in self.model.named_modules() if module is self.body)

    @property
    def has_output_extras(self) -> bool:
        """Whether logits are more than states times the head."""
        return self._cap > 0 or self._scale != 1.0 or self.model.get_output_embeddings().bias is not None

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return int(self.config.hidden_size)

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return len(self.layers)

    @property
    def vocab_size(self) -> int:
        """Rows of the output head."""
        return len(self.head)

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.embedding.device

    @property
    def embedding(self) -> torch.Tensor:
        """[V, hidden] input embedding (not scaled)."""
        weight: torch.Tensor = self.model.get_input_embeddings().weight
        return weight

    @property
    def head(self) -> torch.Tensor:
        """[V, hidden] output head."""
        weight: torch.Tensor = self.model.get_output_embeddings().weight
        return weight

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """[..., hidden] as the first layer gets it (scaled where the model scales)."""
        embedded: torch.Tensor = self.model.get_input_embeddings()(ids)
        return embedded

    def logits(self, hidden: torch.Tensor, ids: torch.Tensor | None = None) -> torch.Tensor:
        """Float32 logits of states after the final norm: [..., V], or [..., V'] of the vocabulary `ids` alone."""
        head = self.model.get_output_embeddings()
        weight = head.weight if ids is None else head.weight[ids]
        bias = None if head.bias is None else head.bias if ids is None else head.bias[ids]
        logits = nn.functional.linear(hidden.to(weight.dtype), weight, bias).float() * self._scale
        return torch.tanh(logits / self._cap) * self._cap if self._cap else logits

    def run(self, ids: torch.Tensor, feature_layers: Sequence[int] = (), grad: bool = False) -> Run:
        """A pass over `ids` [B, T], padded on the right. With `grad` the graph is kept (for kinds that train it)."""
        kept: dict[int, torch.Tensor] = {}
        hooks = [self.layers[layer - 1].register_forward_hook(_keep(kept, layer)) for layer in set(feature_layers)]
        try:
            with torch.set_grad_enabled(grad):
                output = self.body(input_ids=ids, use_cache=False)
        finally:
            for hook in hooks:
                hook.remove()
        hidden: torch.Tensor = output.last_hidden_state
        parts = [kept[layer] for layer in feature_layers]
        return Run(torch.cat(parts, dim=-1) if parts else hidden[..., :0], hidden)


def _keep(kept: dict[int, torch.Tensor], layer: int) -> Any:
    def hook(module: nn.Module, inputs: Any, output: Any) -> None:
        kept[layer] = output[0] if isinstance(output, tuple) else output

    return hook


def decoder_layers(body: Any, count: int, name: str) -> nn.ModuleList:
    """The list of decoder layers, wherever the architecture keeps it."""
    for module in body.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise UnsupportedModel(f"{name}: cannot find its {count} decoder layers, so nothing can be trained from it")
