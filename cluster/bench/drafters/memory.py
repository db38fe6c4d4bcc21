"""How many bytes an object of this process holds: tensors, arrays and containers that can be reached from it."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from actors.engine.attention import PagedKV
from actors.engine.native.kv import NativeKV

KV_STORES: tuple[type, ...] = (NativeKV, PagedKV)
_FOREIGN = ("threading", "_thread", "concurrent", "asyncio", "logging", "queue", "ctypes", "_ctypes")


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes, each counted once."""

    weights: int  # tensors and arrays that are no keys and values
    kv: int  # stores of keys and values, as large as they were made
    python: int  # everything else: look-up tables made of Python objects, for example

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.kv + self.python


def held(root: object, apart_from: Iterable[object] = ()) -> Held:
    """What `root` holds that none of `apart_from` holds as well."""
    shared: set[int] = set()
    for other in apart_from:
        _walk(other, shared)
    return _walk(root, shared)


def _walk(root: object, seen: set[int]) -> Held:
    sizes = {"weights": 0, "kv": 0, "python": 0}
    waiting: deque[tuple[object, bool]] = deque([(root, False)])
    keep: list[object] = []  # an id is unique only as long as its object lives
    while waiting:
        value, in_kv = waiting.popleft()
        if id(value) in seen or _is_foreign(value):
            continue
        seen.add(id(value))
        keep.append(value)
        if isinstance(value, torch.Tensor | np.ndarray):
            place, size = _buffer(value)
            if place not in seen:
                seen.add(place)
                sizes["kv" if in_kv else "weights"] += size
        else:
            sizes["python"] += sys.getsizeof(value, 0)
        in_kv = in_kv or isinstance(value, KV_STORES)
        waiting.extend((part, in_kv) for part in _parts(value))
    return Held(**sizes)


def _buffer(value: torch.Tensor | np.ndarray[Any, Any]) -> tuple[int, int]:
    """Address (negative: never that of a Python object) and size of what a tensor or array is a view of."""
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        return -storage.data_ptr() - 1, storage.nbytes()
    base: Any = value
    while isinstance(base.base, np.ndarray):
        base = base.base
    return -int(base.__array_interface__["data"][0]) - 1, int(base.nbytes)


def _parts(value: object) -> Iterator[object]:
    match value:
        case torch.Tensor() | np.ndarray() | str() | bytes() | bytearray():
            return
        case Mapping():
            yield from value.keys()
            yield from value.values()
        case list() | tuple() | set() | frozenset() | deque():
            yield from value
        case _:
            yield from getattr(value, "__dict__", {}).values()
            for kind in type(value).__mro__:
                slots = kind.__dict__.get("__slots__", ())
                for name in (slots,) if isinstance(slots, str) else slots:
                    if hasattr(value, name):
                        yield getattr(value, name)


def _is_foreign(value: object) -> bool:
    """Whether it leads out of the object: classes, modules, functions, threads and what carries futures."""
    return isinstance(value, type | ModuleType | FunctionType) or type(value).__module__.startswith(_FOREIGN)
