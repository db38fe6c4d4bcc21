"""The residual stream after some layers, kept beside keys and values: what feature-based drafters read."""

from __future__ import annotations

import numpy as np
import torch

from actors.engine.jobs import NoFeatures
from actors.engine.step import Int32s
from actors.messages import Halves
from actors.spec import ModelSpec

_LARGEST = 65504.0  # of float16: what is larger is clipped


class FeaturePlane:
    """Float16 [num_slots, num_layers * hidden], whose memory is taken as slots are first written (on a CPU).

    Rows share the slots of the KV pages, so they are copied, moved and forked with them, and found again with pages
    of the prefix cache.
    """

    def __init__(
        self, layers: tuple[int, ...], hidden: int, num_slots: int, page_tokens: int, device: str = "cpu"
    ) -> None:
        """`layers`: after which, 1: the first; the layers' parts of a row stand in this order."""
        self.layers = layers
        self.hidden = hidden
        self.page_tokens = page_tokens
        self.rows = torch.zeros(num_slots, len(layers) * hidden, dtype=torch.float16, device=device)
        self._device = device

    @property
    def width(self) -> int:
        """Of a row."""
        return int(self.rows.shape[1])

    def put(self, place: int, slots: torch.Tensor, hidden: torch.Tensor) -> None:
        """Keep `hidden` [num_rows, hidden], the residual stream after `layers[place]`, of `slots` [num_rows] int64."""
        part = self.rows[:, place * self.hidden : (place + 1) * self.hidden]
        part.index_copy_(0, slots, hidden.float().clamp(-_LARGEST, _LARGEST).to(torch.float16))

    def rearrange(self, moves: Int32s, copies: Int32s) -> None:
        """What a step does first: `moves` [num_moves, 2] of slots, each ascending along its text, then `copies`
        [num_copies, 2] of pages, all at once."""
        if len(moves):
            slots = torch.from_numpy(moves).long().to(self._device)
            self.rows[slots[:, 1]] = self.rows[slots[:, 0]]
        if len(copies):
            pages = torch.from_numpy(copies).long().to(self._device)
            paged = self.rows.view(-1, self.page_tokens, self.width)
            paged[pages[:, 1]] = paged[pages[:, 0]]

    def read(self, slots: Int32s) -> Halves:
        """[len(slots), width], a copy."""
        rows = self.rows.index_select(0, torch.from_numpy(slots).long().to(self._device)).cpu()
        return np.asarray(rows.numpy(), np.float16)


class WithPlane:
    """A runner that may keep a plane (`actors.engine.step.KeepsFeatures`)."""

    plane: FeaturePlane | None = None

    @property
    def features_kept(self) -> int:
        """Width of a row; 0: no plane."""
        return 0 if self.plane is None else self.plane.width

    def features_at(self, slots: Int32s) -> Halves:
        """[len(slots), width] float16, a copy: what the passes so far have left there."""
        if self.plane is None:
            raise NoFeatures("this model keeps no features: give it feature_layers")
        return self.plane.read(slots)


def make_plane(spec: ModelSpec, num_layers: int, hidden: int, num_slots: int) -> FeaturePlane | None:
    """The plane that `spec.feature_layers` asks for in a model of `num_layers`; None: none is asked for.

    Raises:
        ValueError: the model has no such layer.
    """
    layers = spec.feature_layers
    if not layers:
        return None
    if not 1 <= min(layers) <= max(layers) <= num_layers or len(set(layers)) < len(layers):
        raise ValueError(
            f"{spec.model}: feature_layers {list(layers)} must be different ones of its layers 1 to {num_layers}: "
            "use a head that was trained for this model"
        )
    return FeaturePlane(layers, hidden, num_slots, spec.page_tokens, spec.device)
