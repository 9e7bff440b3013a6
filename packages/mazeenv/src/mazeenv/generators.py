"""Generators of perfect mazes: functions (height, width, integers) -> walls."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from mazeenv import grid
from vismaze_hooks.integers import Integers, mix64

Generator = Callable[[int, int, Integers], bytes]
"""`(height, width, integers)` -> walls, `height·width` bytes, 1 wall and 0 floor; the board is connected."""

_LAST = 1 << 62  # marks the end of a word of 31 arrows


@lru_cache(maxsize=64)
def arrows(height: int, width: int) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """Return for each room what its four arrows (two random bits each) point at: the neighbour's number, and the door's cell.

    A room with two neighbours has each twice; with three, the fourth arrow points at the room itself: a cycle of length
    one, popped like any other cycle, so that the neighbours stay equally likely.
    """
    around = [list(near) for near in neighbours(height, width)]
    for room, near in enumerate(around):
        near *= {1: 4, 2: 2}.get(len(near), 1)
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


def depth_first(height: int, width: int, integers: Integers) -> bytes:
    """Carve long corridors: walk to unvisited rooms at random, go back at dead ends. Not uniform over spanning trees."""
    near = neighbours(height, width)
    walls = bytearray(grid.closed(height, width))
    room = integers.below(len(near))
    visited, path = {room}, [room]
    while path:
        fresh = [(other, door) for other, door in near[path[-1]] if other not in visited]
        if not fresh:
            path.pop()
            continue
        room, door = fresh[integers.below(len(fresh))]
        walls[door] = 0
        visited.add(room)
        path.append(room)
    return bytes(walls)


def prim(height: int, width: int, integers: Integers) -> bytes:
    """Grow from a room by random walls of its rim (Prim's algorithm on random weights, drawn as needed); short dead ends."""
    near = neighbours(height, width)
    walls = bytearray(grid.closed(height, width))
    room = integers.below(len(near))
    visited, rim = {room}, list(near[room])
    while rim:
        at = integers.below(len(rim))
        rim[at], rim[-1] = rim[-1], rim[at]
        room, door = rim.pop()
        if room not in visited:
            walls[door] = 0
            visited.add(room)
            rim += [(other, wall) for other, wall in near[room] if other not in visited]
    return bytes(walls)


def kruskal(height: int, width: int, integers: Integers) -> bytes:
    """Open walls in random order wherever they join two parts (Kruskal's algorithm on random weights)."""
    doors = list(grid.doors(height, width))
    integers.shuffle(doors)
    walls = bytearray(grid.closed(height, width))
    parent = list(range(len(grid.rooms(height, width))))

    def part(room: int) -> int:
        while parent[room] != room:
            parent[room] = room = parent[parent[room]]
        return room

    for door, a, b in doors:
        a, b = part(a), part(b)
        if a != b:
            parent[a] = b
            walls[door] = 0
    return bytes(walls)


def division(height: int, width: int, integers: Integers) -> bytes:
    """Begin with an empty hall and build walls across it, each with one gap (recursive division); long straight walls."""
    walls = bytearray(grid.closed(height, width))
    for door, _, _ in grid.doors(height, width):
        walls[door] = 0
    halls = [(0, 0, height // 2, width // 2)]  # first room's row and column, rows and columns of rooms
    while halls:
        top, left, rows, columns = halls.pop()
        if rows == 1 or columns == 1:
            continue
        if rows > columns or (rows == columns and integers.below(2)):
            cut, gap = integers.below(rows - 1), integers.below(columns)
            for column in range(columns):
                walls[(2 * (top + cut) + 2) * width + 2 * (left + column) + 1] = column != gap
            halls += [(top, left, cut + 1, columns), (top + cut + 1, left, rows - cut - 1, columns)]
        else:
            cut, gap = integers.below(columns - 1), integers.below(rows)
            for row in range(rows):
                walls[(2 * (top + row) + 1) * width + 2 * (left + cut) + 2] = row != gap
            halls += [(top, left, rows, cut + 1), (top, left + cut + 1, rows, columns - cut - 1)]
    return bytes(walls)


@lru_cache(maxsize=64)
def neighbours(height: int, width: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return for each room its neighbours as (room, door cell)."""
    near: list[list[tuple[int, int]]] = [[] for _ in grid.rooms(height, width)]
    for door, a, b in grid.doors(height, width):
        near[a].append((b, door))
        near[b].append((a, door))
    return tuple(tuple(around) for around in near)
