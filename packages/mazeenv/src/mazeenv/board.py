"""N mazes being played, as arrays, and the rules of `mazeenv.rules` for all of them at once.

Axes: N environments, C cells of a board.
"""

from __future__ import annotations

import numpy as np

from mazeenv import rules
from mazeenv.config import MazeConfig
from mazeenv.grid import STOP, steps
from mazeenv.maze import Maze
from mazeenv.state import MazeState
from vismaze_hooks import Ending

ENDINGS = np.array([Ending.RUNNING, Ending.SUCCESS, Ending.FAILURE, Ending.LIMIT], dtype=object)
RUNNING, SUCCESS, FAILURE, LIMIT = range(4)
_SAID = (rules.MOVED, rules.BUMPED, rules.SOLVED, rules.STOPPED)
FEEDBACK = np.array([*_SAID, *(f"{said} {rules.OUT_OF_MOVES}".lstrip() for said in _SAID)], dtype=object)
_MASKS = np.array([[*(bits >> a & 1 for a in range(4)), 1] for bits in range(16)], dtype=np.int8)  # action masks
_EXITS = _MASKS.astype(np.int64).ravel()


def open_exits(walls: np.ndarray, width: int) -> np.ndarray:
    """Return the open moves of each cell as bits (1 up, 2 down, 4 left, 8 right), uint8 like `walls`, [B, C].

    Cells of the rim get bits without meaning: nobody ever stands there.
    """
    free, exits = walls ^ 1, np.zeros_like(walls)
    exits[:, width:-width] = free[:, : -2 * width] | free[:, 2 * width :] << 1
    exits[:, 1:-1] |= free[:, :-2] << 2 | free[:, 2:] << 3
    return exits


class Board:
    """The states of N environments."""

    def __init__(self, config: MazeConfig, count: int, trail: bool = False) -> None:
        self.height, self.width = config.sides
        cells = self.height * self.width
        self.stop_required = config.stop_required
        self.walls = np.ones((count, cells), dtype=np.uint8)  # [N, C]
        self.exits = np.zeros((count, cells), dtype=np.uint8)  # [N, C]: the open moves of each cell, as `open_exits` gives
        self.start, self.cell, self.goal = (np.zeros(count, dtype=np.int64) for _ in range(3))
        self.moves, self.limit = (np.zeros(count, dtype=np.int64) for _ in range(2))
        self.ending = np.zeros(count, dtype=np.int64)  # index into ENDINGS
        self._trail = np.zeros((count, cells), dtype=np.uint8) if trail else None  # [N, C]: cells that were walked on
        self._mazes: list[Maze | None] = [None] * count  # made when a state is asked for
        self._steps = np.array([*steps(self.width), 0])
        self._rows = np.arange(count) * cells

    def fill(self, which: np.ndarray, mazes: tuple[np.ndarray, ...], limit: int | None) -> None:
        """Begin episodes on new mazes in the environments `which`.

        Args:
            mazes: walls, exits, start, goal, shortest, a row for each of `which`.
        """
        walls, exits, start, goal, shortest = mazes
        self.walls[which] = walls
        self.exits[which] = exits
        self.start[which] = self.cell[which] = start
        self.goal[which] = goal
        self.moves[which] = self.ending[which] = 0
        if self._trail is not None:
            self._trail[which] = 0
        self.limit[which] = shortest + (rules.SPARE_MOVES + self.stop_required) if limit is None else limit
        for i in which.tolist():
            self._mazes[i] = None

    def fill_one(self, which: np.ndarray, state: MazeState) -> None:
        """Begin episodes on one given maze."""
        maze = state.maze
        walls = np.frombuffer(maze.walls, dtype=np.uint8)[None]
        exits = open_exits(walls, self.width)
        self.fill(which, (walls, exits, *(np.array(n) for n in (maze.start, maze.goal, maze.shortest))), state.limit)

    def state(self, i: int) -> MazeState:
        """Return the state of one environment."""
        maze = self._mazes[i]
        if maze is None:
            maze = self._mazes[i] = Maze(self.walls[i].tobytes(), self.width, int(self.start[i]), int(self.goal[i]))
        trail = None if self._trail is None else self._trail[i].tobytes()
        return MazeState(maze, int(self.cell[i]), int(self.moves[i]), int(self.limit[i]), self.stop_required, trail)

    def advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
        """Take one action each; every episode must be running.

        Returns:
            the cells before, the feedback as index into `FEEDBACK`, both [N], and whether any episode may have ended.
        """
        before = self.cell
        is_open = _EXITS.take(self.exits.take(self._rows + before) * 5 + actions)
        self.cell = cell = before + self._steps.take(actions) * is_open
        if self._trail is not None:
            moved = np.flatnonzero(cell != before)
            self._trail[moved, before[moved]] = 1
        self.moves = moves = self.moves + 1
        feedback = 1 - is_open
        solved, stop, late = cell == self.goal, actions == STOP, moves >= self.limit
        if self.stop_required:
            solved &= stop
        if not np.count_nonzero(solved | stop | late):  # the usual step ends nothing: `ending` is all zero already
            return before, feedback, False
        failed = stop & ~solved
        late &= ~(solved | failed)
        self.ending = solved + 2 * failed + 3 * late
        return before, feedback + 2 * solved + 3 * failed + 4 * late, True

    def masks(self) -> np.ndarray:
        """Return the action masks, int8 [N, 5]; all zero where an episode is over."""
        masks = _MASKS.take(self.exits.take(self._rows + self.cell), axis=0)
        if np.count_nonzero(self.ending):
            masks[self.ending != RUNNING] = 0
        return masks
