"""`FirstPersonMaze-v0`."""

from __future__ import annotations

from typing import Any

from mazeenv import MazeConfig
from vismaze_firstperson.game import WORDS, Levels, advance, letters, observation, solution
from vismaze_hooks import RewardChoice
from vismaze_hooks.game import Game, GameEnv
from vismaze_hooks.names import record_of

OF_THE_ENVIRONMENT = ("width", "height", "fov", "theme", "reward", "render_mode")  # options that no level depends on


class FirstPersonMazeEnv(GameEnv):
    """A maze seen from inside.

    ## Description
    The player stands in a maze, looks ahead, and walks to a pillar within a move limit.

    ## Actions
    `Discrete(4)`: 0 forward one cell, 1 turn left, 2 turn right, 3 turn around.

    ## Observations
    uint8 [height, width, 3].

    ## Rewards
    `sparse` by default: 1.0 on reaching the goal within the limit, else 0.0.

    ## Termination
    The goal reached ends the episode, on the last move too. The limit, fewest actions + 4, truncates.

    ## Registered ids
    `FirstPersonMaze-v0`.
    """

    def __init__(
        self,
        *,
        width: int = 128,
        height: int = 128,
        fov: int = 90,
        theme: str = "plain",
        reward: RewardChoice = "sparse",
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            width: of the picture in pixels.
            height: of the picture in pixels.
            fov: degrees from the left edge to the right.
            theme: one of `mazeenv.themes.THEMES`.
            options: what kind of maze: `size`, `generator`, `braid`, `loops`, `ends`, `shortest` of `mazeenv.MazeConfig`.

        Raises:
            ValueError: an option out of range, or an unknown one; the nearest is suggested.
        """
        self.config = config = config_of(options)
        levels = Levels(config)
        game = Game(WORDS, levels.draw, levels.read, advance, observation(width, height, fov, theme), letters)
        super().__init__(game, reward=reward, render_mode=render_mode)


def config_of(options: dict[str, Any]) -> MazeConfig:
    """Read the options that say what kind of maze; 7×7 cells where nothing is said.

    Raises:
        ValueError: an option out of range, or one that this environment does not have.
    """
    for name in ("max_moves", "stop_required"):
        if name in options:
            raise ValueError(f"{name} is not an option here: the limit is the fewest actions + 4, and there is no stop")
    return record_of(MazeConfig, {"size": 7, **options}, beside=OF_THE_ENVIRONMENT)


def solve(env: FirstPersonMazeEnv) -> tuple[int, ...]:
    """Return a shortest sequence of actions from where the player stands."""
    walk = env.state
    return solution(walk.maze, walk.cell, walk.heading)
