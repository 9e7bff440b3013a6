"""Random integers that stay the same for years: SHAKE-128 of a key, so no promise of NumPy's `Generator` is needed."""

from __future__ import annotations

import struct
from collections.abc import MutableSequence
from hashlib import shake_128
from typing import Any

MASK = (1 << 64) - 1
_BUFFER = 16  # words fetched at a time for single draws


def mix64(word: int) -> int:
    """Return the successor of a 64-bit word: one step of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    word = (word + 0x9E3779B97F4A7C15) & MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


class Integers:
    """A stream of integers, a pure function of `(seed, lane)`.

    Block k of the stream is SHAKE-128 of the three little-endian words seed, lane, k, cut to the wanted length.
    """

    __slots__ = ("_block", "_buffer", "_lane", "_seed")

    def __init__(self, seed: int, lane: int = 0) -> None:
        self._seed, self._lane, self._block = seed & MASK, lane, 0
        self._buffer: list[int] = []

    def words(self, count: int) -> tuple[int, ...]:
        """Return the next block of `count` words of 64 bits."""
        key = struct.pack("<QQQ", self._seed, self._lane, self._block)
        self._block += 1
        return struct.unpack(f"<{count}Q", shake_128(key).digest(8 * count))

    def below(self, bound: int) -> int:
        """Return an integer in [0, bound); for the bounds of a maze the bias stays under 2⁻⁴⁸."""
        if not self._buffer:
            self._buffer = list(self.words(_BUFFER))
        return self._buffer.pop() % bound

    def shuffle(self, items: MutableSequence[Any]) -> None:
        """Shuffle in place (Fisher and Yates)."""
        for last in range(len(items) - 1, 0, -1):
            other = self.below(last + 1)
            items[last], items[other] = items[other], items[last]
