"""Randomness as a pure function of its name: coupled noise for seeded requests, streams for the others."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_KEY_BITS = 128


class Purpose(IntEnum):
    """What a stream is for. Streams of different purposes are independent, as exactness demands."""

    DRAFT = 1
    ACCEPTANCE = 2
    RESIDUAL = 3


def coupled_uniforms(seed: int, position: int, size: int) -> Floats:
    """Uniforms strictly inside (0, 1) behind the coupled noise of ids 0 .. size-1. [size]

    Philox is counter-based (Salmon et al. 2011): the seed is the key and the position is a high word of
    the counter, which leaves 2^64 blocks of four ids to each position. Raw words are used in order, so a
    larger vocabulary only appends values: tiers that pad differently still share their noise.
    """
    generator = np.random.Philox(key=seed % 2**_KEY_BITS, counter=[0, position, 0, 0])
    raw: npt.NDArray[np.uint64] = generator.random_raw(size)
    # 52 bits plus a half: float64 holds that exactly, so neither 0 nor 1 occurs and the noise is finite.
    return ((raw >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def to_gumbel(uniforms: Floats) -> Floats:
    """Standard Gumbel values of uniforms, element by element."""
    noise: Floats = -np.log(-np.log(uniforms))
    return noise


def gumbel(seed: int, position: int, size: int) -> Floats:
    """Coupled noise g(seed, absolute position, id) of ids 0 .. size-1. [size]"""
    return to_gumbel(coupled_uniforms(seed, position, size))


def stream(entropy: int, purpose: Purpose, tier: int, round: int) -> np.random.Generator:
    """The random stream of one purpose in one round of one tier of an unseeded request.

    Equal names give equal streams, so a retried call repeats itself; different names give independent
    ones: the drafter's noise must not reappear in acceptance or in the residual draw.
    """
    words = (entropy % 2**_KEY_BITS, int(purpose), tier, round)
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))
