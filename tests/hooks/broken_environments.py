"""A small sound environment, and ones that are broken in one way each: what the conformance kit must catch.

A player on a line of nine cells walks to a goal; which cells these are follows from the seed or from the options.
"""

from __future__ import annotations

import itertools
import random

import gymnasium
import numpy as np
from gymnasium import spaces

from vismaze_hooks import Ending, EnvironmentOffer, Task

CELLS = 9


class Sound(gymnasium.Env):
    """Right in everything."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012
    late = 0

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0, 255, (1, CELLS, 3), np.uint8)
        self.action_space = spaces.Discrete(2)

    def level(self):
        cell, goal = self.np_random.choice(CELLS, 2, replace=False)
        return int(cell), int(goal)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        options = options or {}
        self.cell, self.goal = options["level"] if "level" in options else self.level()
        self.limit = abs(self.cell - self.goal) + 2
        self.moves = 0
        return self.shown(), self.info("", Ending.RUNNING)

    def shown(self):
        picture = np.zeros((1, CELLS, 3), dtype=np.uint8)
        picture[0, self.goal, 0] = picture[0, self.cell, 2] = 255
        return picture

    def info(self, feedback, ending):
        left = self.limit - self.moves
        return {"feedback": feedback, "success": ending is Ending.SUCCESS, "ending": ending, "excluded": False, "left": left}

    def step(self, action):
        if not self.action_space.contains(action):
            raise gymnasium.error.InvalidAction(f"{action!r}")
        return self.act(int(action), "")

    def act(self, action, answer):
        self.moves += 1
        if action is not None:
            self.cell = min(max(self.cell + (1 if action else -1), 0), CELLS - 1)
        solved, late = self.cell == self.goal, self.moves >= self.limit + self.late
        ending = Ending.SUCCESS if solved else Ending.LIMIT if late else Ending.RUNNING
        return self.shown(), float(solved), solved, late and not solved, self.info("", ending)

    def render(self):
        return self.shown()


class IgnoresItsSeed(Sound):
    """Each instance has a level of its own, the same for every seed."""

    instances = itertools.count()

    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        self.own = next(self.instances) % CELLS

    def level(self):
        return self.own, (self.own + 4) % CELLS


class LeaksItsState(Sound):
    """The list of goals in `info` is the one it plays with. No array, so Gymnasium's checker does not see it."""

    def reset(self, *, seed=None, options=None):
        self.goals = []
        return super().reset(seed=seed, options=options)

    def info(self, feedback, ending):
        self.goals = self.goals or [self.goal]
        return {**super().info(feedback, ending), "goals": self.goals}

    def act(self, action, answer):
        self.goal = self.goals[0] if self.goals else 0
        return super().act(action, answer)


class ShowsAStalePicture(Sound):
    """The canvas of a level is thrown away after the first picture of the next one was made from it."""

    canvas = None

    def shown(self):
        if self.canvas is None:
            self.canvas = np.zeros((1, CELLS, 3), dtype=np.uint8)
            self.canvas[0, self.goal, 0] = 255
        picture = self.canvas.copy()
        picture[0, self.cell, 2] = 255
        return picture

    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed, options=options)
        self.canvas = None
        return result


class HasUnsolvableLevels(Sound):
    """One level in nine has a limit that is too small."""

    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed, options=options)
        if self.goal == 0:
            self.limit = max(1, abs(self.cell - self.goal) - 1)
        return result[0], self.info("", Ending.RUNNING)


class UsesTheGlobalRandom(Sound):
    """Draws from `random`, which anybody may reseed."""

    def level(self):
        state = random.getrandbits(8)
        cell, goal = super().level()
        return (cell, goal) if state % 2 else (goal, cell)


class GivesUpTooLate(Sound):
    """The limit is off by one."""

    late = 1


class TakesAnyAction(Sound):
    """Anything that is not an action counts as 1."""

    def step(self, action):
        return self.act(1 if action not in (0, 1) else int(action), "")


class TrainsOnItsTest(Sound):
    """Sound itself; its offer draws the tasks of its fixed set."""


class CannotBePickled(Sound):
    """Holds a function that was made inside another."""

    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        self.closure = lambda: render_mode


def _task(cell: int, goal: int, uid: str) -> Task:
    return Task(uid, f"{cell}-{goal}", {"level": [cell, goal]}, abs(cell - goal) + 2)


def _stream(name: str):
    def draw(seed: int) -> Task:
        """Draw, but never the level of the fixed set, 0 to 8."""
        mixed = seed * 0x9E3779B97F4A7C15 >> 7
        cell, step = mixed % CELLS, 1 + mixed // CELLS % (CELLS - 1)
        if (cell, step) == (0, CELLS - 1) and name != "TrainsOnItsTest":
            step = 1
        return _task(cell, (cell + step) % CELLS, f"line/{seed}")

    return lambda: draw


def solve(env) -> list[int]:
    return [int(env.goal > env.cell)] * abs(env.goal - env.cell)


def offer(name: str) -> EnvironmentOffer:
    """Offer one of the environments above."""
    return EnvironmentOffer(
        id=f"{name}-v0",
        entry_point=f"broken_environments:{name}",
        words=("left", "right"),
        prompt=lambda env: "Walk to the red cell.",
        stream=_stream(name),
        fixed_sets={"line-1": lambda: (_task(0, 8, "line-1/0"),)},
        solver=solve,
    )
