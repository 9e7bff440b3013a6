"""`Gymnasium-v0`."""

from __future__ import annotations

from typing import Any

from vismaze_gymnasium.game import Foreign, GymnasiumConfig
from vismaze_hooks import RewardChoice
from vismaze_hooks.game import GameEnv
from vismaze_hooks.names import record_of


class GymnasiumEnv(GameEnv):
    """Somebody's environment, in words.

    ## Description
    Any installed Gymnasium environment with `rgb_array` frames and discrete actions.

    ## Actions
    `Discrete(len(words))`.

    ## Observations
    The frames: uint8 [height, width, 3].

    ## Rewards
    `sparse` by default: 1.0 for a success within the limit, else 0.0. `native`: what the environment paid.

    ## Termination
    Where the environment terminates; where it truncates, or the move limit is used up, the episode is truncated.

    ## Registered ids
    `Gymnasium-v0`.
    """

    def __init__(self, *, reward: RewardChoice = "sparse", render_mode: str | None = None, **options: Any) -> None:
        """
        Args:
            options: the fields of `GymnasiumConfig`; `env` and `words` are needed.

        Raises:
            ValueError: an option out of range, an unknown one (the nearest is suggested), an environment that cannot be made.
        """
        self.foreign = Foreign(config_of(options))
        super().__init__(self.foreign.game(), reward=reward, render_mode=render_mode)

    def close(self) -> None:
        self.foreign.close()


def config_of(options: dict[str, Any]) -> GymnasiumConfig:
    """Read the options.

    Raises:
        ValueError: `env` or `words` is missing, or an option is wrong.
    """
    for name in ("env", "words"):
        if name not in options:
            raise ValueError(
                f'{name} is missing: name the environment and its words, as in env = "FrozenLake-v1", words = ["left", …]'
            )
    return record_of(GymnasiumConfig, options)


def solve(env: GymnasiumEnv) -> tuple[int, ...]:
    """Return a shortest sequence of actions from the present state that the search finds."""
    return env.foreign.plan(env.state)
