"""The options that say what kind of maze an environment plays: one record, checked once, shared by all entry points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mazeenv.levels import ATTEMPTS, Level, draw_level, nearest_ends
from mazeenv.maze import Maze
from mazeenv.registry import make_generator
from vismaze_hooks.integers import mix64
from vismaze_hooks.names import record_of

VIEW_OPTIONS = ("observation", "observation_options", "reward", "cell_px", "theme", "render_mode")


@dataclass(frozen=True)
class MazeConfig:
    """What kind of maze, and how long one may walk."""

    size: Any = 9  # cells per side, walls included, odd; or a pair (height, width)
    generator: str = "wilson"  # name of an installed generator
    braid: float = 0.0  # chance of each dead end to be opened
    loops: int = 0  # further walls to open
    blocked: int = 0  # passages to wall up afterwards; what that cuts off is never start or goal
    flipped: int = 0  # cells inside the rim, rooms and pillars too, that change between wall and floor last of all
    ends: Literal["rooms", "corners"] = "rooms"  # start and goal: any two "rooms", or opposite "corners"
    shortest: tuple[int, int] | None = None  # fewest and most moves from start to goal
    max_moves: int | None = None  # None: shortest + 4, + 1 where a stop is needed
    stop_required: bool = False  # VisGym's rule: the goal counts only with a stop on it

    @staticmethod
    def of(options: Mapping[str, Any]) -> MazeConfig:
        """Read options; those of the view, which no maze depends on, are left out.

        Raises:
            ValueError: an unknown option (the nearest is suggested), or a value out of range.
        """
        return record_of(MazeConfig, options, beside=VIEW_OPTIONS)

    def __post_init__(self) -> None:
        if not isinstance(self.stop_required, bool):
            raise ValueError(f"stop_required={self.stop_required!r}: must be true or false")
        pair = self.shortest
        if pair is not None and not (isinstance(pair, tuple | list) and len(pair) == 2 and all(type(n) is int for n in pair)):
            raise ValueError(f"shortest={pair!r}: must be a pair (fewest, most) of moves")
        if self.max_moves is None:
            return
        height, width = self.sides
        least = nearest_ends(height, width, self.ends) if self.shortest is None else self.shortest[0]
        if isinstance(self.max_moves, bool) or not isinstance(self.max_moves, int) or self.max_moves < 1:
            raise ValueError(f"max_moves={self.max_moves!r}: must be a whole number, 1 or more")
        if self.max_moves < least + self.stop_required:
            raise ValueError(f"max_moves={self.max_moves}: no maze of this kind can be solved within it")

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width in cells.

        Raises:
            ValueError: neither a whole number nor a pair of them.
        """
        size = (self.size, self.size) if isinstance(self.size, int) else self.size
        if isinstance(size, str) or not hasattr(size, "__len__") or len(size) != 2:
            raise ValueError(f"size={self.size!r}: must be a number of cells or a pair (height, width)")
        return size[0], size[1]

    def level(self) -> Level:
        """Return what is drawn."""
        height, width = self.sides
        pair = None if self.shortest is None else (self.shortest[0], self.shortest[1])
        generator, changes = make_generator(self.generator), (self.braid, self.loops, self.blocked, self.flipped)
        return Level(height, width, generator, *changes, self.ends, pair)

    def draw(self, level: Level, seed: int, limit: int | None) -> Maze:
        """Draw a maze that can be solved within the limit (None: its own default limit); a pure function of the seed."""
        for _ in range(ATTEMPTS):
            maze = draw_level(level, seed)
            if limit is None or maze.shortest + self.stop_required <= limit:
                return maze
            seed = mix64(seed)
        raise ValueError(f"max_moves={limit}: no maze that can be solved within it in {ATTEMPTS:,} draws")
