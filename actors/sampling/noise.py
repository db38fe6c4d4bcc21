"""Randomness as a pure function of its name: coupled noise for seeded requests, streams for the others."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]

_KEY_BITS = 128
_BLOCK_WORDS = 4  # what one step of the generator's counter yields
_FEW_IDS = 48  # up to here, jumping from block to block is faster than running through all


class Purpose(IntEnum):
    """What a stream is for. Streams of different purposes are independent, as exactness demands."""

    DRAFT = 1
    ACCEPTANCE = 2
    RESIDUAL = 3
    BRANCH = 4  # drafts for the outcomes of a pass under way


def coupled_words(seed: int, position: int, size: int) -> Words:
    """The random words behind the coupled noise of ids 0 .. size-1. [size]

    Philox is counter-based (Salmon et al. 2011): the seed is the key and the position is a high word of
    the counter, which leaves 2^64 blocks of four ids to each position. Raw words are used in order, so a
    larger vocabulary only appends values: tiers that pad differently still share their noise.
    """
    words: Words = _philox(seed, position).random_raw(size)
    return words


def coupled_words_at(seed: int, position: int, ids: npt.NDArray[np.int64]) -> Words:
    """`coupled_words` of the given ids alone, which must ascend. [len(ids)]"""
    if len(ids) == 0:
        return np.empty(0, np.uint64)
    if len(ids) > _FEW_IDS:
        return coupled_words(seed, position, int(ids[-1]) + 1)[ids]
    generator = _philox(seed, position)
    words = np.empty(len(ids), np.uint64)
    next_block = 0
    block: Words = words
    for i, token in enumerate(ids.tolist()):
        wanted = token // _BLOCK_WORDS
        if wanted >= next_block:
            generator.advance(wanted - next_block)
            block = generator.random_raw(_BLOCK_WORDS)
            next_block = wanted + 1
        words[i] = block[token % _BLOCK_WORDS]
    return words


def to_uniforms(words: Words) -> Floats:
    """Uniforms strictly inside (0, 1), element by element.

    52 bits plus a half: float64 holds that exactly, so neither 0 nor 1 occurs and the noise is finite.
    """
    uniforms: Floats = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return uniforms


def least_word(uniform: float) -> np.uint64:
    """A word so small that every word with a uniform of at least `uniform` reaches it."""
    return np.uint64(max(int(uniform * 2.0**52) - 1, 0) << 12)


def to_gumbel(uniforms: Floats) -> Floats:
    """Standard Gumbel values of uniforms, element by element."""
    noise: Floats = -np.log(-np.log(uniforms))
    return noise


def gumbel(seed: int, position: int, size: int) -> Floats:
    """Coupled noise g(seed, absolute position, id) of ids 0 .. size-1. [size]"""
    return to_gumbel(to_uniforms(coupled_words(seed, position, size)))


def stream(entropy: int, purpose: Purpose, tier: int, round: int) -> np.random.Generator:
    """The random stream of one purpose in one round of one tier of an unseeded request.

    Equal names give equal streams, so a retried call repeats itself; different names give independent
    ones: the drafter's noise must not reappear in acceptance or in the residual draw.
    """
    words = (entropy % 2**_KEY_BITS, int(purpose), tier, round)
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))


def branch_stream(entropy: int, tier: int, round: int, verify_round: int, branch: int) -> np.random.Generator:
    """`stream` of one of the drafts made ahead by the call `round` for the outcomes of the pass `verify_round`.

    Each is independent of the others, and of whatever else the sequence drafts.
    """
    words = (entropy % 2**_KEY_BITS, int(Purpose.BRANCH), tier, round, verify_round % 2**64, branch)
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))


def _philox(seed: int, position: int) -> np.random.Philox:
    return np.random.Philox(key=seed % 2**_KEY_BITS, counter=[0, position, 0, 0])
