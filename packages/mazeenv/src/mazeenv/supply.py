"""Mazes drawn ahead for many environments, so that the drawing can be done in batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from gymnasium.utils import seeding

from mazeenv.batch import Mazes, draw_levels
from mazeenv.board import open_exits
from mazeenv.config import MazeConfig
from vismaze_hooks.integers import MASK

AHEAD = 16  # mazes kept ready per environment


class Supply:
    """For each environment its own sequence of mazes, the one that `VisMazeEnv` draws from the same seed.

    In group mode, groups of neighbours have the same seed, so the same sequence.
    """

    def __init__(self, config: MazeConfig, count: int, group_size: int) -> None:
        self._config, self._count, self._group_size = config, count, group_size
        self._level = config.level()
        cells = self._level.height * self._level.width
        self._walls, self._exits = np.zeros((2, count, AHEAD, cells), dtype=np.uint8)
        self._ends = np.zeros((count, AHEAD, 3), dtype=np.int64)  # start, goal, shortest
        self._seeds = np.zeros((count, AHEAD), dtype=np.uint64)
        self._taken = np.zeros(count, dtype=np.int64)  # mazes handed out since the seeding
        self._drawn = np.zeros(count, dtype=np.int64)
        self._generators: list[np.random.Generator] = []

    @property
    def generators(self) -> tuple[np.random.Generator, ...]:
        """One for each environment; those of a group are equal."""
        if not self._generators:
            self.seed(None, np.ones(self._count, dtype=bool))
        return tuple(self._generators)

    def seed(self, seed: int | Sequence[int | None] | None, mask: np.ndarray) -> None:
        """Begin new sequences where a seed is given and the mask is set; everywhere at first.

        Raises:
            ValueError: a list of another length than there are groups.
        """
        groups = self._count // self._group_size
        if seed is None or isinstance(seed, int | np.integer):
            seeds = [None if seed is None else int(seed) + group for group in range(groups)]
        else:
            seeds = list(seed)
        if len(seeds) != groups:
            raise ValueError(f"{len(seeds)} seeds: {groups} are needed, one for each environment (or group)")
        first = not self._generators
        if first:
            self._generators = [np.random.Generator(np.random.PCG64(0))] * self._count
        for group, value in enumerate(seeds):
            members = range(group * self._group_size, (group + 1) * self._group_size)
            if value is None and not first:
                continue
            made, used = seeding.np_random(value)
            for i in members:
                if first or mask[i]:
                    self._generators[i] = made if i == members[0] else seeding.np_random(used)[0]
                    self._taken[i] = self._drawn[i] = 0

    def take(self, which: np.ndarray, limit: int | None) -> tuple[np.ndarray, ...]:
        """Return walls, exits, start, goal, shortest of the next maze of each environment in `which`.

        Args:
            limit: the move limit that they must be solvable within.
        """
        if (self._taken[which] == self._drawn[which]).any():
            self._fill(1 if not self._drawn.any() else AHEAD)
        slot = self._taken[which] % AHEAD
        walls, exits, ends = self._walls[which, slot], self._exits[which, slot], self._ends[which, slot]
        if limit != self._config.max_moves:
            for k, (i, at) in enumerate(zip(which, slot, strict=True)):
                maze = self._config.draw(self._level, int(self._seeds[i, at]), limit)
                walls[k] = np.frombuffer(maze.walls, dtype=np.uint8)
                ends[k] = maze.start, maze.goal, maze.shortest
            exits = open_exits(walls, self._level.width)
        self._taken[which] += 1
        return walls, exits, ends[:, 0], ends[:, 1], ends[:, 2]

    def _fill(self, ahead: int) -> None:
        owners, slots, seeds = [], [], []
        for i, generator in enumerate(self._generators):
            wanted = int(self._taken[i]) + ahead - int(self._drawn[i])
            if wanted > 0:
                raw = generator.bit_generator.random_raw(wanted)
                seeds += [int(word) & MASK for word in raw]
                owners += [i] * wanted
                slots += [(int(self._drawn[i]) + k) % AHEAD for k in range(wanted)]
                self._drawn[i] += wanted
        mazes = self._draw(seeds)
        self._walls[owners, slots] = mazes.walls
        self._exits[owners, slots] = open_exits(mazes.walls, self._level.width)
        self._ends[owners, slots] = np.stack([mazes.start, mazes.goal, mazes.shortest], axis=1)
        self._seeds[owners, slots] = np.array(seeds, dtype=np.uint64)

    def _draw(self, seeds: list[int]) -> Mazes:
        mazes, limit = draw_levels(self._level, seeds), self._config.max_moves
        if limit is not None:
            for row in np.flatnonzero(mazes.shortest + self._config.stop_required > limit).tolist():
                maze = self._config.draw(self._level, seeds[row], limit)
                mazes.walls[row] = np.frombuffer(maze.walls, dtype=np.uint8)
                mazes.start[row], mazes.goal[row], mazes.shortest[row] = maze.start, maze.goal, maze.shortest
        return mazes
