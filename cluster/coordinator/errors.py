"""How a request can fail, and the coordinator's own signals between its parts."""

from __future__ import annotations

from enum import StrEnum

from cluster.coordinator.request import Finish
from cluster.coordinator.tier import DraftLost, ReplicaLost


class FailureCode(StrEnum):
    """What an ingress needs to choose a status code."""

    UNAVAILABLE = "unavailable"  # replicas were lost; a retry with the same seed gives the same text
    EXHAUSTED = "exhausted"  # no target replica was free in time; retry later
    INVALID = "invalid"  # the target can never serve this request (e.g. too long for its KV memory)
    INTERNAL = "internal"  # the target cannot go on with this request (e.g. NaN logits)


class GenerationFailed(Exception):
    """The request cannot go on. `str(error)` is one sentence for the user.

    `finish` holds the usage and figures of what had been committed (set by `generate`).
    """

    def __init__(self, message: str, code: FailureCode = FailureCode.INTERNAL) -> None:
        super().__init__(message)
        self.code = code
        self.finish: Finish | None = None


class DeadlinePassed(Exception):
    """The request's deadline passed while its coordinator waited (internal: `generate` ends the stream)."""


class DraftLate(DraftLost):
    """A draft was not ready within its bound."""


class ReplicaLate(ReplicaLost):
    """A verify pass took longer than its bound."""
