"""Drafting with the first layers of the target and an exit after them (LayerSkip, 2404.16710; Kangaroo, 2404.18911).

The exit is a trained one (`actors.heads.exit`), or the target's own final norm and head, which most models were not
trained to be used with so early.
"""

from __future__ import annotations

import numpy as np
import torch

from actors.drafter_specs import EarlyExitSpec
from actors.drafters.copies import Copies
from actors.drafters.layer_cost import pass_cost
from actors.drafters.shallow import ShallowDrafter
from actors.engine.shallow import Shallow
from actors.heads.exit import ExitConfig, ExitHead
from actors.heads.format import check_fits, load_config
from actors.heads.serving import make_ready, precision
from actors.loading import checkpoint
from actors.loading.ends import load_ends
from actors.spec import ModelSpec
from actors.verifier import Verifier


class ServedExit:
    """A trained exit over rows of many sequences."""

    def __init__(self, head: ExitHead, spec: ModelSpec) -> None:
        """`head` is made ready in place, to run as `spec`, the target's, says."""
        self._vocabulary = head.vocabulary
        self.known_ids = self._vocabulary.known_ids
        self._spec = spec
        self._head = head
        make_ready(head, spec)

    @torch.inference_mode()
    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Residual stream [num_rows, hidden] float32 on the CPU -> logits [num_rows, vocab_size], so too."""
        with precision(self._spec):
            logits = self._head(hidden.to(self._spec.device))
        return self._vocabulary.widen(logits.float().cpu())


def early_exit_drafter(drafter: EarlyExitSpec, host: Verifier, tier: int) -> ShallowDrafter:
    """A drafter in the engine of `host`. Raises `BadHead`, and `ValueError` for a layer that is none to exit after."""
    spec = host.engine.spec
    config = checkpoint.load_config(spec.model)
    num_layers = int(config.get_text_config().num_hidden_layers)
    exit_layer, head = drafter.exit_layer, None
    if drafter.head:
        check_fits(load_config(drafter.head, ExitConfig), config, drafter.head, spec.model)
        head = ExitHead.load(drafter.head, load_ends(spec).output)
        exit_layer = head.config.exit_layer
    if not 1 <= exit_layer < num_layers:
        raise ValueError(
            f"exit_layer {exit_layer}: {spec.model} has {num_layers} layers, and an exit comes after one of the first "
            f"{num_layers - 1}; choose 1 to {num_layers - 1}"
        )
    layers = np.arange(exit_layer, dtype=np.int32)
    if head is None:
        shallow = Shallow(layers, pass_cost(config, exit_layer))
    else:
        size = sum(parameter.numel() for parameter in head.parameters())
        served = ServedExit(head, spec)
        shallow = Shallow(layers, pass_cost(config, exit_layer, size), served, served.known_ids)
    return ShallowDrafter(host, tier, drafter.law_support, shallow, Copies() if drafter.copying else None)
