"""Memory of weights: the values stay, and stay apart, whatever the sizes."""

from __future__ import annotations

import errno
import gc
import mmap
import threading
import weakref

import pytest
import torch

from actors.engine.native import large_pages
from actors.engine.native.large_pages import LargePages


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_pages, "_CHUNK_BYTES", 4096)


def test_copies_have_the_values_and_neither_overlap_nor_end_with_the_memory_they_came_from() -> None:
    memory = LargePages()
    generator = torch.Generator().manual_seed(0)
    originals = [
        torch.randint(0, 100, shape, generator=generator).to(dtype)
        for dtype in (torch.float32, torch.bfloat16, torch.int8, torch.uint8, torch.int32)
        for shape in ((1,), (7, 3), (64, 64), (300, 70))
    ]
    copies = [memory.copy(tensor) for tensor in originals]
    del memory
    gc.collect()
    for original, copy in zip(originals, copies, strict=True):
        assert copy.dtype == original.dtype and torch.equal(copy, original) and copy.is_contiguous()
        assert copy.data_ptr() % 64 == 0
    places = sorted((c.data_ptr(), c.data_ptr() + c.numel() * c.element_size()) for c in copies)
    assert all(end <= start for (_, end), (start, _) in zip(places, places[1:], strict=False))


def test_a_view_is_copied_in_its_own_order_and_nothing_needs_no_memory() -> None:
    memory = LargePages()
    view = torch.arange(12).view(3, 4).T
    assert torch.equal(memory.copy(view), view)
    assert memory.copy(torch.empty(0, 5)).shape == (0, 5)


def test_what_is_large_goes_with_its_tensor() -> None:
    memory = LargePages()
    small = memory.copy(torch.ones(8))
    large = memory.copy(torch.ones(4096))
    chunk = weakref.ref(large.untyped_storage())
    assert memory.copy(torch.ones(8)).data_ptr() - small.data_ptr() == 64  # the chunk goes on
    del large
    gc.collect()
    assert chunk() is None


def test_a_system_without_large_pages_gives_others(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(mmap.mmap):
        def madvise(self, *args: int) -> None:
            raise OSError(errno.EINVAL, "no such advice")

    monkeypatch.setattr(large_pages.mmap, "mmap", Refusing)
    assert torch.equal(LargePages().copy(torch.arange(5)), torch.arange(5))
    assert LargePages().copy(torch.tensor(3.0)).item() == 3.0


def test_threads_that_load_at_once_get_memory_of_their_own() -> None:
    memory = LargePages()
    found: list[tuple[int, torch.Tensor]] = []

    def load(value: int) -> None:
        for _ in range(50):
            found.append((value, memory.copy(torch.full((100,), value))))

    threads = [threading.Thread(target=load, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 200
    assert all((tensor == value).all() for value, tensor in found)
