"""What an episode is at one instant: a frozen record that rewards and observations read."""

from __future__ import annotations

from typing import NamedTuple

from mazeenv.maze import Maze


class MazeState(NamedTuple):
    """A maze being played. A named tuple, because one is made at every step and a frozen dataclass takes thrice the time.

    Example: `MazeState(maze, cell=maze.start, moves=0, limit=maze.shortest + 4)`.
    """

    maze: Maze
    cell: int  # where the player is
    moves: int  # actions used so far, bumps and unreadable answers included
    limit: int  # actions allowed
    stop_required: bool = False  # VisGym's rule: only a stop on the goal succeeds
    trail: bytes | None = None  # for each cell whether it was walked on, 1 or 0; None: not recorded, as nothing shows it
