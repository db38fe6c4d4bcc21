"""Where the bench's services come from: the command line starts them, a test may bring its own."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from cluster.bench.serve.service import Service
from cluster.config import Config


class Stage(Protocol):
    """Puts services on one Ray, which all sections share: starting it takes longer than most measurements."""

    def services(self, configs: Mapping[str, Config]) -> AbstractContextManager[Mapping[str, Service]]:
        """One service per configuration, side by side and ready; gone at the end of the block."""
