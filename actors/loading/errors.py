"""Errors of loading; each message is one line that names the fix."""

from __future__ import annotations


class ModelNotFound(ValueError):
    """The name leads to no checkpoint or tokenizer."""


class UnsupportedModel(ValueError):
    """The model cannot be served exactly."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, for use inside another one."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
