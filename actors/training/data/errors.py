"""What may be wrong with data; one line that names the fix."""

from __future__ import annotations


class BadData(ValueError):
    """A corpus, prompt file or template that cannot be used."""
