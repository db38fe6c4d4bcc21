"""Some of a transformers model's decoder layers at a time: the others hand the residual stream on as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from actors.engine.probe import UnsupportedAttention
from actors.engine.step import Int32s


class LayerChoice:
    """Takes the layers of `model` over; `run` says which of them run, until it says otherwise.

    Layers keep their indices, and so their keys and values, whichever others run.
    """

    def __init__(self, model: Any, name: str) -> None:
        """`name` is for messages."""
        self._why_not: UnsupportedAttention | None = None  # for most models nobody will ask
        layers: Iterable[nn.Module] = ()
        try:
            layers = find_layers(model, name)
        except UnsupportedAttention as error:
            self._why_not = error
        self._returns_tuple = False
        self._chosen: frozenset[int] | None = None
        self.num_layers = int(model.config.get_text_config().num_hidden_layers)
        self._last = self.num_layers - 1
        self._seen_by: dict[int, list[Callable[[torch.Tensor], None]]] = {}
        self.hidden = torch.empty(0)  # [1, num_rows, hidden] residual stream after the last layer that ran
        for index, layer in enumerate(layers):
            layer.forward = self._choosing(index, layer.forward)

    def run(self, layers: Int32s) -> None:
        """Run `layers` (0: the first) in the passes to come; empty: all. Raises `UnsupportedAttention`."""
        if len(layers):
            self._check()
        self._chosen = frozenset(layers.tolist()) if len(layers) else None
        self._last = max(self._chosen) if self._chosen is not None else self.num_layers - 1

    def show(self, layer: int, see: Callable[[torch.Tensor], None]) -> None:
        """From now on show `see` the residual stream [1, num_rows, hidden] after `layer` (0: the first) in each pass
        that runs it. Raises `UnsupportedAttention`."""
        self._check()
        self._seen_by.setdefault(layer, []).append(see)

    def _check(self) -> None:
        if self._why_not is not None:
            raise self._why_not

    def _choosing(self, index: int, forward: Callable[..., Any]) -> Callable[..., Any]:
        def run_or_pass(*args: Any, **kwargs: Any) -> Any:
            if self._chosen is not None and index not in self._chosen:
                hidden = args[0] if args else kwargs["hidden_states"]
                return (hidden,) if self._returns_tuple else hidden
            output = forward(*args, **kwargs)
            self._returns_tuple = isinstance(output, tuple)
            hidden = output[0] if self._returns_tuple else output
            if index == self._last:
                self.hidden = hidden
            for see in self._seen_by.get(index, ()):
                see(hidden)
            return output

        return run_or_pass


def find_layers(model: Any, name: str) -> nn.ModuleList:
    """The list of decoder layers, wherever the architecture keeps it. Raises `UnsupportedAttention`."""
    count = int(model.config.get_text_config().num_hidden_layers)
    for module in model.modules():
        if not isinstance(module, nn.ModuleList) or not len(module) == count > 0:
            continue
        if any(hasattr(part, "layer_idx") for part in module[0].modules()):
            return module
    raise UnsupportedAttention(
        f"{name}: its {count} decoder layers cannot be found, so none can be left out or listened to: choose a drafter "
        "with a model of its own"
    )
