"""A tiny target whose next token hangs on more than the last one."""

from __future__ import annotations

import pytest

from actors.training.target import Target
from tests.conftest import TinyModel


@pytest.fixture(scope="session")
def target(tiny_model: TinyModel) -> Target:
    return Target.load(str(tiny_model(vocab_size=260)))
