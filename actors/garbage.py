"""Python's collector, kept from what a process has for good."""

from __future__ import annotations

import gc


def settle() -> None:
    """What there is now stays: the collector need not look at it again. For the end of loading.

    A model's process holds several hundred thousand objects of its libraries; to look through them takes a tenth of a
    second, in which nobody is answered, and would be done again whenever a quarter as many new ones have come.
    """
    gc.collect()
    gc.freeze()
