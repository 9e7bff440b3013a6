"""Drawing a whole maze from a seed: generator, openings, start, goal, and how far apart they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mazeenv import grid
from mazeenv.generators import Generator, wilson
from mazeenv.maze import Maze, check_size
from mazeenv.openings import block, braid, flip, open_loops
from vismaze_hooks.integers import Integers

ATTEMPTS = 20_000  # draws before a request counts as impossible


@dataclass(frozen=True)
class Level:
    """What kind of maze is drawn."""

    height: int = 9
    width: int = 9
    generator: Generator = field(default=wilson)
    braid: float = 0.0  # chance of each dead end to be opened
    loops: int = 0  # further walls to open
    blocked: int = 0  # passages to wall up afterwards
    flipped: int = 0  # cells inside the rim that change between wall and floor last of all
    ends: Literal["rooms", "corners"] = "rooms"  # start and goal: any two rooms, or opposite corners
    shortest: tuple[int, int] | None = None  # fewest and most moves from start to goal

    def __post_init__(self) -> None:
        """Refuse what no maze can be.

        Raises:
            ValueError: names the option, and the longest path that a board of this size can have.
        """
        check_size(self.height, self.width)
        if isinstance(self.braid, bool) or not isinstance(self.braid, int | float) or not 0.0 <= self.braid <= 1.0:
            raise ValueError(f"braid={self.braid!r}: must be a fraction between 0 and 1")
        walls = len(grid.doors(self.height, self.width)) - len(grid.rooms(self.height, self.width)) + 1
        if isinstance(self.loops, bool) or not isinstance(self.loops, int) or not 0 <= self.loops <= walls:
            raise ValueError(f"loops={self.loops!r}: must be a whole number from 0 to {walls}, the walls that a tree leaves")
        if isinstance(self.blocked, bool) or not isinstance(self.blocked, int) or self.blocked < 0:
            raise ValueError(f"blocked={self.blocked!r}: must be a whole number, 0 or more")
        if isinstance(self.flipped, bool) or not isinstance(self.flipped, int) or self.flipped < 0:
            raise ValueError(f"flipped={self.flipped!r}: must be a whole number, 0 or more")
        if self.ends not in ("rooms", "corners"):
            raise ValueError(f"ends={self.ends!r}: must be 'rooms' or 'corners'")
        if self.shortest is not None:
            _check_bin(self)

    @property
    def changes(self) -> bool:
        """Whether what the generator draws is changed afterwards."""
        return bool(self.braid or self.loops or self.blocked or self.flipped)


def longest_path(height: int, width: int, ends: str = "rooms") -> int:
    """Return the most moves that any perfect maze of this size has between two rooms (or opposite corners).

    A snake through all R rooms has 2(R−1) moves. Opposite corners of an even number of rooms with both sides even have
    one colour of the chessboard, so one room must be left out.
    """
    count, down, across = (height // 2) * (width // 2), height // 2, width // 2
    if ends == "corners" and min(down, across) > 1:
        # The path alternates colours: an even number of steps between equal colours, an odd one between unequal ones.
        parity = (down + across) % 2
        most = count - 1 if (count - 1) % 2 == parity else count - 2
        return 2 * most
    return 2 * (count - 1)


def nearest_ends(height: int, width: int, ends: str = "rooms") -> int:
    """Return the fewest moves between start and goal."""
    return 2 if ends == "rooms" else 2 * (height // 2 + width // 2 - 2)


def _check_bin(level: Level) -> None:
    assert level.shortest is not None
    low, high = level.shortest
    if not 0 <= low <= high:
        raise ValueError(f"shortest={level.shortest!r}: must be a pair (fewest, most) of moves")
    most = longest_path(level.height, level.width, level.ends)
    least = nearest_ends(level.height, level.width, level.ends)
    if low > most or high < least or (low == high and low % 2):
        raise ValueError(
            f"shortest={tuple(level.shortest)}: paths of a {level.height}×{level.width} maze between {level.ends} "
            f"have an even number of moves from {least} to {most}"
        )


def draw_level(level: Level, seed: int) -> Maze:
    """Draw a maze: a pure function of the level and a 64-bit seed.

    The board comes from the generator; the start is any room; the path length is uniform over those that this start
    offers inside the bin; the goal is uniform over the rooms at that length. A board and start that offer none are
    drawn again.

    Raises:
        ValueError: none was found in `ATTEMPTS` draws.
    """
    for lane in range(ATTEMPTS):
        maze = attempt(level, seed, lane)
        if maze is not None:
            return maze
    raise ValueError(
        f"no maze with shortest={level.shortest} in {ATTEMPTS:,} draws of {level.height}×{level.width}: "
        "paths this long are too rare at this size; choose a wider bin, another generator or a larger board"
    )


def attempt(level: Level, seed: int, lane: int) -> Maze | None:
    """Return the maze of one draw, or None when this board and start do not fit the bin."""
    integers = Integers(seed, lane)
    height, width = level.height, level.width
    walls = level.generator(height, width, integers)
    if level.braid:
        walls = braid(walls, height, width, level.braid, integers)
    if level.loops:
        walls = open_loops(walls, height, width, level.loops, integers)
    if level.blocked:
        walls = block(walls, height, width, level.blocked, integers)
    if level.flipped:
        walls = flip(walls, height, width, level.flipped, integers)
    return place(level, walls, integers.words(4))


def place(level: Level, walls: bytes, words: tuple[int, ...]) -> Maze | None:
    """Choose start and goal with three random words, or return None when this start offers nothing in the bin."""
    height, width = level.height, level.width
    cells = grid.rooms(height, width)
    if level.ends == "corners":
        corners = (cells[0], cells[width // 2 - 1], cells[-(width // 2)], cells[-1])
        which = words[0] % 4
        start, goal = corners[which], corners[3 - which]
        if walls[start] or walls[goal]:
            return None
        moves = grid.distances(walls, width, start)[goal] if level.shortest or level.changes else 0
        there = moves != grid.UNREACHABLE and _inside(moves, level.shortest)
        return Maze(walls, width, start, goal) if there else None
    start = cells[words[0] % len(cells)]
    if walls[start]:
        return None
    field = grid.distances(walls, width, start)
    lengths = [field[cell] for cell in cells]
    offered = sorted({moves for moves in lengths if moves > 0 and _inside(moves, level.shortest)})
    if not offered:
        return None
    moves = offered[words[1] % len(offered)]
    goals = [cell for cell, length in zip(cells, lengths, strict=True) if length == moves]
    return Maze(walls, width, start, goals[words[2] % len(goals)])


def _inside(moves: int, shortest: tuple[int, int] | None) -> bool:
    return shortest is None or shortest[0] <= moves <= shortest[1]
