"""What this package offers: the environment with its prompt, tasks and solver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial

from vismaze_hooks import EnvironmentOffer, Task, hookimpl
from vismaze_hooks.levels import FixedLevels, LevelSets
from vismaze_hooks.names import record_of
from vismaze_matchstick.env import OF_THE_ENVIRONMENT, MatchstickEnv, solve
from vismaze_matchstick.game import MatchstickConfig, Sticks, letters, shortest
from vismaze_matchstick.sticks import PLACES

ID = "Matchstick-v0"
PINS = {  # changes -> hashes of the set and the tuning set
    1: (
        "15ff747fb32167d3dcd74c472dfbcc362018a98e2944075e174d039741fc6e4f",
        "1488b47ba2307f6e0834047146619a151a056ea8246cda29eda1c11985636ea4",
    ),
    2: (
        "00334b79e44876a1b390287e2f5dfbd90f36e7d79079aaf86e7aa3dc157ed187",
        "af58dd3a3923fafb30e139efb613648ee7aa506f86771bf5369a065f8d15ffae",
    ),
    3: (
        "d1600701a65d94131c5c207183849c2581a6acbb0c1bbbf5630d354289d9bb08",
        "ab38437a7c9ca88ed51bf952896806bda02050ce8acb7bf5ba51126e82341055",
    ),
}


def prompt(env: MatchstickEnv) -> str:
    """Return the task in words."""
    sticks: Sticks = env.state
    changes = env.config.changes
    assert env.observation.legend is not None
    return (
        f"{env.observation.legend(sticks)}. Make it true by moving {changes} match{'es' if changes > 1 else ''}. An answer "
        "names a place: the match there is taken, and the next answer says where it is put. Places are 1, 2 and 3 for the "
        "digits with top, upper-left, upper-right, middle, lower-left, lower-right or bottom, and sign for the match that "
        f"makes a plus of a minus. You have {sticks.limit - sticks.moves} answers; one that is impossible or cannot be read "
        "uses one. Answer in this form: <action>1-top</action>"
    )


@lru_cache(maxsize=4)
def level_sets(config: MatchstickConfig) -> LevelSets:
    """Return the fixed sets of this difficulty."""
    pins = PINS[config.changes]
    sets = {
        f"matchstick-64-{config.changes}": FixedLevels(config.draw, 64, 1 << 40, pins[0]),
        f"matchstick-64-{config.changes}-tune": FixedLevels(config.draw, 64, 2 << 40, pins[1]),
    }
    return LevelSets(
        ID, lambda sticks: {"equation": letters(sticks)}, letters, lambda sticks: {"shortest": len(shortest(sticks))}, sets
    )


def stream(config: MatchstickConfig, *, extra_moves: int = 0) -> Callable[[int], Task]:
    """Make the training stream.

    Args:
        extra_moves: added to each task's move limit.
    """
    return level_sets(config).stream(config.draw, extra_moves=extra_moves)


def matchstick(**options: object) -> EnvironmentOffer:
    """Offer `Matchstick-v0` with these options of `MatchstickEnv`.

    Raises:
        ValueError: an unknown option, or one out of range.
    """
    config = record_of(MatchstickConfig, options, beside=OF_THE_ENVIRONMENT)
    sets = level_sets(config)
    return EnvironmentOffer(
        id=ID,
        entry_point="vismaze_matchstick.env:MatchstickEnv",
        words=PLACES,
        prompt=prompt,
        kwargs=options,
        stream=partial(stream, config),
        fixed_sets={name: partial(sets.fixed, name) for name in sets.sets},
        solver=solve,
        baselines={"random": lambda env, random: int(random.integers(env.action_space.n))},
    )


@hookimpl
def vismaze_environments() -> Mapping[str, Callable[..., EnvironmentOffer]]:
    return {ID: matchstick}
