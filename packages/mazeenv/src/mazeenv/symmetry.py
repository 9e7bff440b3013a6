"""The 8 symmetries of the square (4 of a rectangle, and 4 onto its turned shape) and what stays the same under them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from operator import itemgetter

from mazeenv.maze import Maze


@lru_cache(maxsize=32)
def _symmetries(height: int, width: int) -> tuple[tuple[int, Callable[[bytes], tuple[int, ...]], tuple[int, ...]], ...]:
    """Return for each symmetry: the image's width, a function cells -> cells of the image, and cell -> cell of the image."""
    found = []
    for turned in (False, True):
        rows, columns = (width, height) if turned else (height, width)
        for flip_rows in (False, True):
            for flip_columns in (False, True):
                source = []
                for row in range(rows):
                    for column in range(columns):
                        r = rows - 1 - row if flip_rows else row
                        c = columns - 1 - column if flip_columns else column
                        source.append(c * width + r if turned else r * width + c)
                goes_to = [0] * len(source)
                for target, cell in enumerate(source):
                    goes_to[cell] = target
                found.append((columns, itemgetter(*source), tuple(goes_to)))
    return tuple(found)


def images(maze: Maze) -> tuple[Maze, ...]:
    """Return the maze in its 8 orientations, itself first."""
    return tuple(
        Maze(bytes(take(maze.walls)), width, goes_to[maze.start], goes_to[maze.goal])
        for width, take, goes_to in _symmetries(maze.height, maze.width)
    )


def canonical_walls(walls: bytes, width: int) -> bytes:
    """Return the smallest of the walls' 8 images, after one byte for the width: equal exactly for boards that are images."""
    return min(bytes((w & 255, *take(walls))) for w, take, _ in _symmetries(len(walls) // width, width))


@lru_cache(maxsize=4096)
def walls_hash(walls: bytes, width: int) -> str:
    """Return the sha256 of the canonical walls: the class of a tree (or of a braided maze), start and goal left out."""
    return hashlib.sha256(b"walls" + canonical_walls(walls, width)).hexdigest()


def canonical_hash(maze: Maze) -> str:
    """Return the sha256 of the smallest image of walls, start and goal: equal exactly for mazes that are images."""
    width, height = maze.width, maze.height
    best = min(
        (w, bytes(take(maze.walls)), goes_to[maze.start], goes_to[maze.goal]) for w, take, goes_to in _symmetries(height, width)
    )
    return hashlib.sha256(repr(best).encode("ascii")).hexdigest()


def nearby(walls: bytes, width: int) -> Iterator[bytes]:
    """Yield every board that differs in one cell inside the rim."""
    board = bytearray(walls)
    for row in range(1, len(walls) // width - 1):
        for cell in range(row * width + 1, (row + 1) * width - 1):
            board[cell] ^= 1
            yield bytes(board)
            board[cell] ^= 1
