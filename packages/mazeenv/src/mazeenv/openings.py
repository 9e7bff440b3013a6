"""Changing a perfect maze: dead ends braided away, loops added, passages walled up, cells flipped."""

from __future__ import annotations

from mazeenv import grid
from vismaze_hooks.integers import MASK, Integers


def braid(walls: bytes, height: int, width: int, fraction: float, integers: Integers) -> bytes:
    """Open each dead end with the given chance, through one of its walls drawn at random."""
    board = bytearray(walls)
    around: dict[int, list[int]] = {}
    for door, a, b in grid.doors(height, width):
        around.setdefault(a, []).append(door)
        around.setdefault(b, []).append(door)
    threshold = round(fraction * (MASK + 1))
    order = list(around)
    integers.shuffle(order)
    for room in order:
        shut = [door for door in around[room] if board[door]]
        dead_end = len(around[room]) - len(shut) == 1
        if dead_end and shut and integers.words(1)[0] < threshold:
            board[shut[integers.below(len(shut))]] = 0
    return bytes(board)


def open_loops(walls: bytes, height: int, width: int, count: int, integers: Integers) -> bytes:
    """Open `count` more walls between neighbouring rooms, drawn at random; all of them when fewer are left."""
    board = bytearray(walls)
    shut = [door for door, _, _ in grid.doors(height, width) if board[door]]
    integers.shuffle(shut)
    for door in shut[:count]:
        board[door] = 0
    return bytes(board)


def block(walls: bytes, height: int, width: int, count: int, integers: Integers) -> bytes:
    """Wall up `count` passages between neighbouring rooms, drawn at random; all of them when there are fewer."""
    board = bytearray(walls)
    passages = [door for door, _, _ in grid.doors(height, width) if not board[door]]
    integers.shuffle(passages)
    for door in passages[:count]:
        board[door] = 1
    return bytes(board)


def flip(walls: bytes, height: int, width: int, count: int, integers: Integers) -> bytes:
    """Turn `count` cells inside the rim from wall to floor or from floor to wall, drawn at random; rooms and the pillars
    between them too."""
    board = bytearray(walls)
    inside = [row * width + column for row in range(1, height - 1) for column in range(1, width - 1)]
    integers.shuffle(inside)
    for cell in inside[:count]:
        board[cell] ^= 1
    return bytes(board)
