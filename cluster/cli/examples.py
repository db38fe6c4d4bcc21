"""Examples below a command's `--help`."""

from __future__ import annotations


def examples(*lines: str) -> str:
    """An epilog with command lines, as they would be typed."""
    return "\n".join(("Examples:" if len(lines) > 1 else "Example:", *(f"  {line}" for line in lines)))


def unwrapped(epilog: str) -> str:
    """The same for help that is not drawn by rich, which would run the lines together but for this mark."""
    return f"\b\n{epilog}"
