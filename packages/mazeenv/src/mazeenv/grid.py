"""Plain functions on a board of cells: neighbours and distances."""

from __future__ import annotations

from functools import lru_cache

UP, DOWN, LEFT, RIGHT, STOP = range(5)
WORDS = ("up", "down", "left", "right", "stop")
UNREACHABLE = -1


def steps(width: int) -> tuple[int, int, int, int]:
    """Return what each move adds to a cell index, in the order up, down, left, right."""
    return (-width, width, -1, 1)


def open_actions(walls: bytes, width: int, cell: int) -> tuple[int, ...]:
    """Return the moves that are not blocked at an open cell."""
    return tuple(action for action, step in enumerate((-width, width, -1, 1)) if not walls[cell + step])


def distances(walls: bytes, width: int, source: int) -> list[int]:
    """Return the moves from `source` to every cell by breadth-first search; `UNREACHABLE` for walls and cells cut off."""
    field = [UNREACHABLE] * len(walls)
    field[source] = 0
    ring, moves = [source], 0
    while ring:
        moves += 1
        reached = []
        for cell in ring:
            for near in (cell - width, cell + width, cell - 1, cell + 1):
                if not walls[near] and field[near] < 0:
                    field[near] = moves
                    reached.append(near)
        ring = reached
    return field


@lru_cache(maxsize=64)
def rooms(height: int, width: int) -> tuple[int, ...]:
    """Return the cells of the rooms, row by row."""
    return tuple(row * width + column for row in range(1, height, 2) for column in range(1, width, 2))


@lru_cache(maxsize=64)
def closed(height: int, width: int) -> bytes:
    """Return the walls of a board whose rooms are all closed."""
    walls = bytearray(b"\1" * (height * width))
    for cell in rooms(height, width):
        walls[cell] = 0
    return bytes(walls)


@lru_cache(maxsize=64)
def doors(height: int, width: int) -> tuple[tuple[int, int, int], ...]:
    """Return (door cell, room number, room number) for each pair of neighbouring rooms."""
    across, down = width // 2, height // 2
    found = []
    for room, cell in enumerate(rooms(height, width)):
        if room % across < across - 1:
            found.append((cell + 1, room, room + 1))
        if room // across < down - 1:
            found.append((cell + width, room, room + across))
    return tuple(found)
