"""Unit tests run on one thread: tiny tensors gain nothing from more, and waiting threads spin on busy machines."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)
