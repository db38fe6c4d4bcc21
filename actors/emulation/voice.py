"""What an emulated model says after a prefix: a pure function of the prefix's hash.

The voices of a ladder follow each other: the target chooses freely; a tier below says what the tier it follows says as
often as its `agreement` tells. All of it is decided by hashes, so every replica of every tier agrees on who says what,
and knows nothing but the prefix.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from actors.spec import Voice

ROOT = 0x51A7_0D5E_ED0C_0DE5  # hash of the empty prefix
_MASK = 2**64 - 1
GOLDEN = 0x9E37_79B9_7F4A_7C15
MULTIPLIERS = (0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB)
_UNIT = 2.0**-32
MIN_WORDS = 64  # fewer, and the law of a doubtful voice could have its peak anywhere


def mix(value: int) -> int:
    """A 64-bit hash of a 64-bit integer (the finaliser of SplitMix64, Steele et al. 2014)."""
    value &= _MASK
    value = (value ^ (value >> 30)) * MULTIPLIERS[0] & _MASK
    value = (value ^ (value >> 27)) * MULTIPLIERS[1] & _MASK
    return value ^ (value >> 31)


def extend(prefix: int, token: int) -> int:
    """Hash of a prefix (`ROOT`: the empty one) followed by `token`."""
    return mix(prefix + (token + 1) * GOLDEN)


@dataclass(frozen=True, slots=True)
class Choice:
    """The best words after a prefix, as indices of words, and how far they are trusted."""

    words: tuple[int, ...]  # best first, all different
    chances: tuple[float, ...]  # of each, that it is what the followed voice says if no better one is: the agreement,
    # then the further guesses; 1 for a voice that follows nobody

    @property
    def best(self) -> int:
        """The word that is said."""
        return self.words[0]


def shares(chances: Sequence[float]) -> list[float]:
    """How often the word of each rank is right, when `chances` say how often it is where no better one is."""
    found, left = [], 1.0
    for chance in chances:
        found.append(left * chance)
        left -= found[-1]
    return found


class Speaker:
    """A voice together with those it follows."""

    def __init__(self, voices: Sequence[Voice], num_words: int) -> None:
        """`voices`: this speaker's own, the one that it follows, and so on up to one that follows nobody."""
        if num_words < MIN_WORDS:
            raise ValueError(f"{num_words} words are too few to speak in: at least {MIN_WORDS} are needed")
        self._voices = tuple(voices)
        self._salts = tuple(_salt(voice) for voice in voices)
        self._num_words = num_words
        self.counts_own = len(voices[0].agreement) > 1  # whether `position` matters at all

    def choose(self, prefix: int, position: int = 0) -> Choice:
        """What is said after the prefix of that hash, `position` own words into a draft."""
        followed = mix(prefix ^ self._salts[-1]) % self._num_words
        choice = Choice((followed,), (1.0,))
        for level in range(len(self._voices) - 2, -1, -1):
            choice = self._follow(level, prefix, position, choice.best)
        return choice

    def _follow(self, level: int, prefix: int, position: int, followed: int) -> Choice:
        voice, count = self._voices[level], self._num_words
        agreement = voice.agreement[min(position if level == 0 else 0, len(voice.agreement) - 1)]
        chances = (agreement, *voice.further_guesses)
        distances: list[int] = []  # of the words from the followed one; only its own is 0
        draw = mix(prefix ^ self._salts[level])
        while len(distances) < len(chances):
            if 0 not in distances and (draw >> 32) * _UNIT < chances[len(distances)]:
                distances.append(0)
            else:
                distances.append(_other_than(distances, draw & 0xFFFF_FFFF, count))
                draw = mix(draw + GOLDEN)
        return Choice(tuple([(followed + distance) % count for distance in distances]), chances)


def _other_than(distances: list[int], draw: int, count: int) -> int:
    """A distance from 1 below `count` that is not among `distances`, all of them equally likely."""
    taken = sorted(distance for distance in distances if distance)
    distance = 1 + draw % (count - 1 - len(taken))
    for other in taken:
        distance += distance >= other
    return distance


def _salt(voice: Voice) -> int:
    digest = hashlib.blake2b(f"{voice.seed}/{voice.name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
