"""The service that these tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import TinyModel
from tests.e2e.secure.service import Secured, secured_service


@pytest.fixture(scope="package")
def secured(tmp_path_factory: pytest.TempPathFactory, tiny_model: TinyModel) -> Iterator[Secured]:
    """Started once; down after the last test in here."""
    with secured_service(tmp_path_factory.mktemp("secured"), tiny_model()) as running:
        yield running
