"""Errors of the page bookkeeping."""

from __future__ import annotations


class IntegrityError(RuntimeError):
    """The books do not add up: a page leaked, is owned twice, or a cached page was changed."""


class UnknownSequence(KeyError):
    """No sequence of this id is open."""

    def __init__(self, sequence_id: str) -> None:
        super().__init__(sequence_id)
        self.sequence_id = sequence_id

    def __str__(self) -> str:
        return f"sequence {self.sequence_id!r} is not open: call open() or fork() first"
