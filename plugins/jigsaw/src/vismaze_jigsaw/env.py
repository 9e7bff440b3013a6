"""`Jigsaw-v0`."""

from __future__ import annotations

from typing import Any

from vismaze_hooks import RewardChoice
from vismaze_hooks.game import Game, GameEnv
from vismaze_hooks.names import record_of
from vismaze_jigsaw.game import JigsawConfig, advance, letters, picture, solution, words

OF_THE_ENVIRONMENT = ("px", "line", "reward", "render_mode")  # options that no level depends on


class JigsawEnv(GameEnv):
    """A jigsaw puzzle.

    ## Description
    A picture was cut into square tiles, which were shuffled; bring each to its place within a move limit.

    ## Actions
    `Discrete(n·(n−1)/2)` for n tiles: swap the tiles at two places. Words are `1-2`, `1-3`, …: places in reading order.

    ## Observations
    uint8 [px, px, 3].

    ## Rewards
    `sparse` by default: 1.0 for the whole picture within the limit, else 0.0.

    ## Termination
    The whole picture ends the episode, on the last move too. The limit, fewest swaps + 2, truncates.

    ## Registered ids
    `Jigsaw-v0`.
    """

    def __init__(
        self,
        *,
        px: int | None = None,
        line: int = 1,
        reward: RewardChoice = "sparse",
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            px: side of the picture in pixels, a multiple of the tiles a side; None: the nearest to 256.
            line: half the width of the black lines between tiles, in pixels; 0: none.
            options: what kind of puzzle: the fields of `JigsawConfig`, `tiles`, `swaps`, `pictures`.

        Raises:
            ValueError: an option out of range, or an unknown one; the nearest is suggested.
        """
        self.config = config = record_of(JigsawConfig, options, beside=OF_THE_ENVIRONMENT)
        shown = picture(256 // config.tiles * config.tiles if px is None else px, config.tiles, line)
        game = Game(words(config.tiles), config.draw, config.read, advance, shown, letters)
        super().__init__(game, reward=reward, render_mode=render_mode)


def solve(env: JigsawEnv) -> tuple[int, ...]:
    """Return a shortest sequence of swaps from the present arrangement."""
    return solution(env.state)
