"""The board: blocks as bit masks, their moves, and shortest solutions. Bit row·columns + column stands for a square."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

MOVES = ("up", "down", "left", "right")
LETTERS = "ABCDEFGHIJKL"
FREE = "."
SEARCHED = 400_000  # positions after which a search gives up

Blocks = tuple[int, ...]


class Position(NamedTuple):
    """A board being played. The first block is the red one, two by two; the others are numbered in the order of the start.

    Example of the letters of a start: `BAAC`, `BAAC`, `DEEF`, `DGHF`, `I..J`.
    """

    rows: int
    columns: int
    blocks: Blocks  # one mask each
    moves: int  # actions used so far
    limit: int  # actions allowed

    @property
    def goal(self) -> int:
        """Where the red block must come to: the middle of the bottom edge (left of it when the middle is between two)."""
        return corner_block(self.columns, self.rows - 2, (self.columns - 2) // 2, 2, 2)


def corner_block(columns: int, row: int, column: int, height: int, width: int) -> int:
    """Return the mask of a block by its upper left corner."""
    line = ((1 << width) - 1) << column
    return sum(line << columns * (row + down) for down in range(height))


def slide(mask: int, move: int, rows: int, columns: int) -> int:
    """Return a block moved by one square, 0 where the edge is in the way. Moves: 0 up, 1 down, 2 left, 3 right."""
    edges = _edges(rows, columns)
    if mask & edges[move]:
        return 0
    return (mask >> columns, mask << columns, mask >> 1, mask << 1)[move]


@lru_cache(maxsize=32)
def _edges(rows: int, columns: int) -> tuple[int, int, int, int]:
    line = (1 << columns) - 1
    left = sum(1 << row * columns for row in range(rows))
    return line, line << (rows - 1) * columns, left, left << (columns - 1)


def moved(blocks: Blocks, block: int, move: int, rows: int, columns: int) -> Blocks | None:
    """Return the blocks after a move, None where something is in the way."""
    to = slide(blocks[block], move, rows, columns)
    if not to or to & (sum(blocks) - blocks[block]):
        return None
    return (*blocks[:block], to, *blocks[block + 1 :])


def shape(mask: int) -> int:
    """Return a block's mask, moved into the upper left corner."""
    return mask >> (mask & -mask).bit_length() - 1


class Search:
    """Breadth-first search over positions, from one or several of the same blocks.

    Positions are told apart by an integer: for each shape, the first squares of its blocks as bits, so which of two equal
    blocks stands where does not matter. The blocks themselves are kept as they were first met, so actions fit together.
    """

    def __init__(self, rows: int, columns: int, starts: Sequence[Blocks]) -> None:
        size, shapes = rows * columns, [shape(mask) for mask in starts[0]]
        self._edges, self._columns = _edges(rows, columns), columns
        self._places = [sorted(set(shapes)).index(kind) * size for kind in shapes]  # where each block's bits begin
        keys = [sum((mask & -mask) << place for mask, place in zip(blocks, self._places, strict=True)) for blocks in starts]
        self._came: dict[int, tuple[int, int]] = dict.fromkeys(keys, (-1, -1))  # position -> the one before, and the action
        self.ring = list(zip(starts, keys, strict=True))  # positions at the present distance from the nearest start

    def __len__(self) -> int:
        return len(self._came)

    def advance(self, goal: int) -> int | None:
        """Go one move further; return the position in which the red block is at the goal as soon as there is one."""
        came, columns, reached = self._came, self._columns, []
        for here, key in self.ring:
            taken = sum(here)
            for block, mask in enumerate(here):
                place = self._places[block]
                others, rest = taken ^ mask, key - ((mask & -mask) << place)
                for move, to in enumerate((mask >> columns, mask << columns, mask >> 1, mask << 1)):
                    if mask & self._edges[move] or to & others:
                        continue
                    there = rest + ((to & -to) << place)
                    if there in came:
                        continue
                    came[there] = (key, 4 * block + move)
                    if not block and to == goal:
                        return there
                    reached.append(((*here[:block], to, *here[block + 1 :]), there))
        self.ring = reached
        return None

    def way(self, at: int) -> tuple[int, ...]:
        """Return the actions from the start to a position."""
        actions: list[int] = []
        while at >= 0:
            at, action = self._came[at]
            actions.append(action)
        return tuple(actions[-2::-1])


@lru_cache(maxsize=4096)
def solution(rows: int, columns: int, blocks: Blocks, goal: int) -> tuple[int, ...] | None:
    """Return a shortest sequence of actions that brings the red block to the goal; None: there is none.

    Raises:
        ValueError: the search was given up.
    """
    if blocks[0] == goal:
        return ()
    search = Search(rows, columns, (blocks,))
    while search.ring:
        found = search.advance(goal)
        if found is not None:
            return search.way(found)
        if len(search) > SEARCHED:
            raise ValueError(f"no solution among {SEARCHED:,} positions of a board of {rows}×{columns}")
    return None


def letters(position: Position) -> str:
    """Return the board as rows of letters: `A` is the red block, `.` a free square."""
    cells = [FREE] * (position.rows * position.columns)
    for block, mask in enumerate(position.blocks):
        for square in range(len(cells)):
            if mask >> square & 1:
                cells[square] = LETTERS[block]
    return "\n".join("".join(cells[at : at + position.columns]) for at in range(0, len(cells), position.columns))


def read_letters(text: str) -> tuple[int, int, Blocks]:
    """Read a board back: rows, columns, blocks.

    Raises:
        ValueError: names the rule that is broken: shape, letters, one red block of two by two, blocks of at most two squares.
    """
    lines = text.split("\n")
    rows, columns = len(lines), len(lines[0])
    if any(len(line) != columns for line in lines):
        raise ValueError("rows of unequal length: a board is a rectangle")
    joined = "".join(lines)
    found = sorted(set(joined) - {FREE})
    if not found or found != list(LETTERS[: len(found)]):
        raise ValueError(f"the blocks must be lettered {LETTERS[0]}, {LETTERS[1]}, … without a gap, got {''.join(found)!r}")
    blocks = tuple(sum(1 << square for square, cell in enumerate(joined) if cell == letter) for letter in found)
    line, column = 3, 1 | 1 << columns
    allowed = [{line | line << columns}, *[{1, line, column}] * (len(blocks) - 1)]
    for letter, mask, shapes in zip(found, blocks, allowed, strict=True):
        low = (mask & -mask).bit_length() - 1
        if mask >> low not in shapes or (mask >> low != column and mask >> low != 1 and low % columns == columns - 1):
            raise ValueError(f"block {letter}: {'two by two squares' if letter == 'A' else 'one or two squares'} are needed")
    return rows, columns, blocks
