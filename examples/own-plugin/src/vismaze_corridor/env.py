"""The environment: plain Gymnasium, nothing of the project's but a plugin beside it."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

CELL = 8  # pixels a side
AGENT, GOAL, FLOOR = (0, 0, 255), (255, 0, 0), (255, 255, 255)


class CorridorEnv(gymnasium.Env):
    """Walk to the goal.

    ## Description
    A row of cells with an agent and a goal.

    ## Actions
    0 left, 1 right.

    ## Observations
    The row as a picture, 8 pixels a cell: uint8 [8, 8 * length, 3]. The agent is blue, the goal red.

    ## Rewards
    1.0 on reaching the goal.

    ## Termination
    At the goal.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 4}

    def __init__(self, length: int = 5, render_mode: str | None = None) -> None:
        if length < 2:
            raise ValueError(f"length: expected at least 2 cells, got {length}")
        self.length = length
        self.render_mode = render_mode
        self.action_space = spaces.Discrete(2)
        self.observation_space = spaces.Box(0, 255, (CELL, CELL * length, 3), np.uint8)
        self._agent, self._goal = 0, 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if options:
            self._agent, self._goal = options["agent"], options["goal"]
        else:
            self._agent, self._goal = self.np_random.choice(self.length, 2, replace=False).tolist()
        return self.render(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._agent = min(max(self._agent + (1 if action else -1), 0), self.length - 1)
        there = self._agent == self._goal
        return self.render(), float(there), there, False, {}

    def render(self) -> np.ndarray:
        row = np.array([FLOOR] * self.length, dtype=np.uint8)
        row[self._goal], row[self._agent] = GOAL, AGENT
        return np.broadcast_to(row.repeat(CELL, axis=0), (CELL, CELL * self.length, 3)).copy()

    def towards_goal(self) -> list[int]:
        """Return the actions from here to the goal."""
        return [int(self._goal > self._agent)] * abs(self._goal - self._agent)
