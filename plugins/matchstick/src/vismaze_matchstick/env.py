"""`Matchstick-v0`."""

from __future__ import annotations

from typing import Any

from vismaze_hooks import RewardChoice
from vismaze_hooks.game import Game, GameEnv
from vismaze_hooks.names import record_of
from vismaze_matchstick.game import MatchstickConfig, advance, letters, picture, shortest
from vismaze_matchstick.sticks import PLACES

OF_THE_ENVIRONMENT = ("unit", "reward", "render_mode")  # options that no level depends on


class MatchstickEnv(GameEnv):
    """A matchstick equation.

    ## Description
    An equation of three digits, laid with matches, is false. Moving one or two of them makes it true.

    ## Actions
    `Discrete(22)`: a place. With an empty hand the match there is taken; with one in hand it is put there.

    ## Observations
    uint8 [9·unit, 21·unit, 3].

    ## Rewards
    `sparse` by default: 1.0 for a true equation and an empty hand within the limit, else 0.0.

    ## Termination
    The true equation ends the episode, on the last move too. The limit, two moves for each match and 4, truncates.

    ## Registered ids
    `Matchstick-v0`.
    """

    def __init__(
        self, *, unit: int = 24, reward: RewardChoice = "sparse", render_mode: str | None = None, **options: Any
    ) -> None:
        """
        Args:
            unit: pixels a side of the square that a match lies in.
            options: the fields of `MatchstickConfig`: `changes`.

        Raises:
            ValueError: an option out of range, or an unknown one; the nearest is suggested.
        """
        self.config = config = record_of(MatchstickConfig, options, beside=OF_THE_ENVIRONMENT)
        game = Game(PLACES, config.draw, config.read, advance, picture(unit), letters)
        super().__init__(game, reward=reward, render_mode=render_mode)


def solve(env: MatchstickEnv) -> tuple[int, ...]:
    """Return a shortest sequence of actions from the present matches."""
    return shortest(env.state)
