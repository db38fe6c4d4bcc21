"""Memory is counted once, keys and values apart, and what somebody else holds is not counted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from actors.engine.native.kv import NativeKV
from cluster.bench.drafters.memory import held


@dataclass
class Thing:
    first: Any = None
    second: Any = None
    parts: dict[str, Any] = field(default_factory=dict)


class Slotted:
    __slots__ = ("inner", "unset")

    def __init__(self, inner: Any) -> None:
        self.inner = inner


def test_a_tensor_and_its_views_are_one() -> None:
    tensor, array = torch.zeros(1000), np.zeros(500, np.float32)
    thing = Thing(tensor, tensor[10:20], {"a": array, "b": array[3:], "c": [tensor]})
    assert held(thing).weights == 4000 + 2000
    assert held(Slotted((tensor,))).weights == 4000


def test_what_is_shared_is_left_out() -> None:
    shared, own = torch.zeros(1000), torch.zeros(10)
    assert held(Thing(shared, own), apart_from=[Thing(shared)]).weights == 40
    loop = Thing()
    loop.first, loop.second = loop, own
    assert held(loop).weights == 40


def test_keys_and_values_are_told_apart() -> None:
    kv = NativeKV([(2, 16)], 4, 16, "float32")
    found = held(Thing(kv, torch.zeros(10)))
    assert found.weights == 40
    assert found.kv == 2 * 5 * 2 * 16 * 16 * 4
    assert found.total == found.weights + found.kv + found.python


def test_python_objects_count_without_leading_out_of_the_object() -> None:
    table = {(i, i + 1): [i] for i in range(1000)}
    found = held(Thing(parts=table, first=Thing, second=held))
    assert 100_000 < found.python < 400_000
