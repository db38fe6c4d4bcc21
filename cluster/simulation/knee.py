"""Where more devices stop paying: two definitions, both of which a plan reports."""

from __future__ import annotations

from collections.abc import Sequence

CLEAR = 0.01  # a bend less clear than this is none


def smallest_within(sizes: Sequence[int], rates: Sequence[float], share: float) -> int:
    """The smallest of `sizes` whose rate is at least `1 - share` of the best one: what to order."""
    if len(sizes) != len(rates) or not sizes:
        raise ValueError(f"{len(sizes)} sizes and {len(rates)} rates: give one rate per size, at least one")
    if not 0 <= share < 1:
        raise ValueError(f"share is {share}: choose it in [0, 1)")
    best = max(rates)
    return min(size for size, rate in zip(sizes, rates, strict=True) if rate >= (1 - share) * best)


def bend(sizes: Sequence[int], rates: Sequence[float]) -> int | None:
    """The size whose rate lies furthest above the chord from the smallest to the largest size.

    "Kneedle" (Satopää et al. 2011) without its smoothing: simulated curves have no noise to smooth away. Scaling
    the axes moves no maximum, so it is left out. None when no point lies above the chord by `CLEAR` of the best
    rate: nothing bends down.
    """
    if len(sizes) != len(rates):
        raise ValueError(f"{len(sizes)} sizes and {len(rates)} rates: give one rate per size")
    points = sorted(zip(sizes, rates, strict=True))
    if len(points) < 3:
        return None
    (first, low), (last, high) = points[0], points[-1]
    above = [
        ((rate - low) - (high - low) * (size - first) / (last - first), size) for size, rate in points[1:-1]
    ]
    distance, size = max(above, key=lambda point: (point[0], -point[1]))
    return size if distance > CLEAR * max(rates) else None
