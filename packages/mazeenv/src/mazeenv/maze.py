"""The maze itself: a frozen record with a text form and a hash. Nothing here draws, generates or plays."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from mazeenv.grid import UNREACHABLE, distances, open_actions

WALL, FLOOR, START, GOAL = "#", ".", "S", "G"
_TO_TEXT = bytes.maketrans(b"\0\1", b".#")


@dataclass(frozen=True)
class Maze:
    """Walls, a start and a goal on a board of `height` × `width` cells; cells are counted row by row from 0.

    Rooms stand on odd rows and odd columns; a cell between two rooms is a wall or a passage; the rim is wall. Boards with
    flipped cells have rooms that are filled and pillars that are gone.

    Example: `Maze.from_text("#####\\n#S..#\\n###.#\\n#G..#\\n#####")`.
    """

    walls: bytes  # height·width cells, row by row: 1 wall, 0 floor
    width: int  # cells per row, the rim included
    start: int  # cell index
    goal: int  # cell index

    def __hash__(self) -> int:
        return hash((self.walls, self.start, self.goal))  # the width follows from the walls but for odd cases

    @property
    def height(self) -> int:
        return len(self.walls) // self.width

    def position(self, cell: int) -> tuple[int, int]:
        """Return (row, column) of a cell."""
        return divmod(cell, self.width)

    @cached_property
    def to_goal(self) -> tuple[int, ...]:
        """Moves from each cell to the goal; `UNREACHABLE` (−1) for walls and for cells cut off."""
        return tuple(distances(self.walls, self.width, self.goal))

    @property
    def shortest(self) -> int:
        """Moves from the start to the goal."""
        return self.to_goal[self.start]

    def optimal_actions(self, cell: int) -> tuple[int, ...]:
        """Return every move that brings `cell` one step nearer to the goal; none at the goal."""
        field, here = self.to_goal, self.to_goal[cell]
        steps = (-self.width, self.width, -1, 1)
        return tuple(a for a in open_actions(self.walls, self.width, cell) if field[cell + steps[a]] == here - 1)

    def solution(self, cell: int | None = None) -> tuple[int, ...]:
        """Return a shortest sequence of moves from `cell` (the start by default); of equal ones the first in action order."""
        cell = self.start if cell is None else cell
        steps, moves = (-self.width, self.width, -1, 1), []
        while cell != self.goal:
            moves.append(self.optimal_actions(cell)[0])
            cell += steps[moves[-1]]
        return tuple(moves)

    @cached_property
    def text(self) -> str:
        """The maze as rows of `#`, `.`, `S` and `G`, joined by newlines; `Maze.from_text` reads it back."""
        cells = bytearray(self.walls.translate(_TO_TEXT))
        cells[self.start], cells[self.goal] = ord(START), ord(GOAL)
        width = self.width
        return "\n".join(cells[at : at + width].decode("ascii") for at in range(0, len(cells), width))

    @cached_property
    def sha256(self) -> str:
        """Sha256 of the text form, in hex."""
        return hashlib.sha256(self.text.encode("ascii")).hexdigest()

    @staticmethod
    def from_text(text: str | Sequence[str]) -> Maze:
        """Read a maze from its rows (a space counts as floor).

        Raises:
            ValueError: names the rule that is broken: shape, characters, one start and one goal, a closed rim, rooms
                open, a way from start to goal.
        """
        rows = text.strip("\n").split("\n") if isinstance(text, str) else list(text)
        joined = "".join(rows).replace(" ", FLOOR)
        width = len(rows[0])
        if any(len(row) != width for row in rows):
            raise ValueError("rows of unequal length: a maze is a rectangle")
        check_size(len(rows), width)
        odd = sorted(set(joined) - set(WALL + FLOOR + START + GOAL))
        if odd:
            raise ValueError(f"unknown character {odd[0]!r}: a maze is made of '#', '.', 'S' and 'G'")
        for letter, name in ((START, "start 'S'"), (GOAL, "goal 'G'")):
            if joined.count(letter) != 1:
                raise ValueError(f"{joined.count(letter)} cells for the {name}: there must be exactly one")
        maze = Maze(bytes(c == WALL for c in joined), width, joined.index(START), joined.index(GOAL))
        check(maze)
        return maze


def check_size(height: int, width: int) -> None:
    """Refuse a board that holds no maze.

    Raises:
        ValueError: a side is even or under 3, or there are fewer than two rooms.
    """
    for side in (height, width):
        if isinstance(side, bool) or not isinstance(side, int) or side < 3 or side % 2 == 0:
            raise ValueError(f"size {height}×{width}: each side must be an odd whole number of cells, 3 or more")
    if height * width < 15:
        raise ValueError(f"size {height}×{width}: a maze needs two rooms, so at least 3×5 cells")
    if height * width > 1 << 22:
        raise ValueError(f"size {height}×{width}: more than 4,194,304 cells")


def check(maze: Maze) -> None:
    """Refuse a maze that cannot be played.

    Raises:
        ValueError: names the broken rule and the cell.
    """
    height, width, walls = maze.height, maze.width, maze.walls
    check_size(height, width)
    for cell, wall in enumerate(walls):
        row, column = divmod(cell, width)
        if (row in (0, height - 1) or column in (0, width - 1)) and not wall:
            raise ValueError(f"open border at row {row}, column {column}: the rim must be wall")
    for name, cell in (("start", maze.start), ("goal", maze.goal)):
        if not 0 <= cell < len(walls) or walls[cell]:
            raise ValueError(f"the {name} is not on an open cell")
    if maze.start == maze.goal:
        raise ValueError("the start is the goal")
    if maze.shortest == UNREACHABLE:
        raise ValueError("unreachable goal: no way leads from the start to it")
