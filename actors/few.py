"""A few token ids, as most calls bring them, looked at as plain numbers.

Between two passes of a model the caches are cold: then a library function costs by the code that it runs through, which
for arrays is ten times that of a list.
"""

from __future__ import annotations

from actors.messages import Ids

FEW = 32


def within(ids: Ids, vocab_size: int) -> bool:
    """Whether all of `ids` lie in `[0, vocab_size)`."""
    if len(ids) == 0:
        return True
    if len(ids) <= FEW:
        numbers: list[int] = ids.tolist()
        return min(numbers) >= 0 and max(numbers) < vocab_size
    return int(ids.min()) >= 0 and int(ids.max()) < vocab_size
