"""Generators of perfect mazes: functions (height, width, integers) -> walls."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from mazeenv import grid
from mazeenv.integers import Integers, mix64

Generator = Callable[[int, int, Integers], bytes]
"""`(height, width, integers)` -> walls, `height·width` bytes, 1 wall and 0 floor; the board is connected."""

_LAST = 1 << 62  # marks the end of a word of 31 arrows


@lru_cache(maxsize=64)
def arrows(height: int, width: int) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """Return for each room what its four arrows (two random bits each) point at: the neighbour's number, and the door's cell.

    A room with two neighbours has each twice; with three, the fourth arrow points at the room itself: a cycle of length
    one, popped like any other cycle, so that the neighbours stay equally likely.
    """
    around: list[list[tuple[int, int]]] = [[] for _ in grid.rooms(height, width)]
    for door, a, b in grid.doors(height, width):
        around[a].append((b, door))
        around[b].append((a, door))
    for room, near in enumerate(around):
        near *= 2 if len(near) == 2 else 4 if len(near) == 1 else 1
        near += [(room, 0)] * (4 - len(near))
    return tuple(tuple(n for n, _ in near) for near in around), tuple(tuple(d for _, d in near) for near in around)


def root_room(height: int, width: int) -> int:
    """Return the room in the middle, where Wilson's tree begins (any room gives the same distribution)."""
    across = width // 2
    return (height // 4) * across + across // 2


def wilson(height: int, width: int, integers: Integers) -> bytes:
    """Draw a uniform spanning tree by loop-erased random walks (Wilson, STOC 1996).

    Room u has a stack of arrows, the bits of its word, then of the word's successors. Which tree is left when all cycles
    are popped depends on the stacks only, never on the order of popping; `mazeenv.batch` pops them for many mazes at
    once and gets the same trees.
    """
    targets, passages = arrows(height, width)
    count = len(targets)
    fresh = list(integers.words(count))
    words = [word & (_LAST - 1) | _LAST for word in fresh]
    walls = bytearray(grid.closed(height, width))
    in_tree = bytearray(count)
    in_tree[root_room(height, width)] = 1
    arrow = [0] * count
    for first in range(count):
        room = first
        while not in_tree[room]:
            word = words[room]
            if word == 1:
                fresh[room] = mix64(fresh[room])
                word = fresh[room] & (_LAST - 1) | _LAST
            arrow[room] = word & 3
            words[room] = word >> 2
            room = targets[room][word & 3]
        room = first
        while not in_tree[room]:
            in_tree[room] = 1
            walls[passages[room][arrow[room]]] = 0
            room = targets[room][arrow[room]]
    return bytes(walls)
