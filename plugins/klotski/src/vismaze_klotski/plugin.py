"""What this package offers: the environment with its prompt, tasks and solver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from vismaze_hooks import EnvironmentOffer, Task, hookimpl
from vismaze_hooks.levels import FixedLevels, LevelSets
from vismaze_hooks.names import record_of
from vismaze_klotski.board import Position, letters, solution
from vismaze_klotski.env import OF_THE_ENVIRONMENT, KlotskiEnv, solve, words
from vismaze_klotski.levels import KlotskiConfig, same

ID = "Klotski-v0"
SETS = {  # kind of board: size, dominoes, singles -> name, levels of the set and of its tuning set, moves, hashes of both
    ((5, 4), 5, 4): (
        "klotski-64",
        64,
        (2, 12),
        "a2ae78aa7883dde2be3c31e90500d04d3254a1afe8740214376c01c0f89d72c3",
        "c33fcd65dc3588cbf34b6811c203f5cd44e62db157e75b5fce23363d2dccc407",
    ),
    ((4, 4), 3, 4): (
        "klotski-64-4x4",
        64,
        (2, 12),
        "4f62690d75f60fc2548e7045aef36ea7d07d360410280c3f43666c9e6042f370",
        "d1cbf238ab5b27315af67281dbe7f96413a09a15e5227c015d8d0fcd047409ed",
    ),
    ((4, 3), 1, 3): (
        "klotski-32-4x3",
        32,
        (1, 8),
        "338fa35b624d8240b444da6dbe3be4461350fa5fa37484372e520832c11375ab",
        "0776029c6707e2bd42f49f91a27a5eaac3be864e6341b4cc76b9ade2b06db389",
    ),
    ((3, 3), 0, 2): (
        "klotski-8-3x3",
        8,
        (1, 6),
        "7963004fefe9e095a03bc158fd99a2609bfcf990c9b27b163b6b1fe209c12235",
        "75e3755aa6af5fd3aff25b5e56fade3a3a356e9bfea5b0adcd6158d896201d5c",
    ),
}


def prompt(env: KlotskiEnv) -> str:
    """Return the task in words."""
    position: Position = env.state
    assert env.observation.legend is not None
    left = (position.columns - 2) // 2 + 1
    return (
        f"{env.observation.legend(position)}. Slide the red block to the bottom edge, into columns {left} and {left + 1}. A "
        f"move slides one block by one square into free squares. You have {position.limit - position.moves} moves; one that is "
        "blocked, or an answer that cannot be read, uses one. Each turn, answer with a colour and up, down, left or right in "
        "this form: <action>blue left</action>"
    )


@lru_cache(maxsize=16)
def level_sets(config: KlotskiConfig) -> LevelSets:
    """Return the fixed sets of this kind of board; their levels do not depend on `config.moves`."""
    kind = (config.size, config.dominoes, config.singles)
    rows, columns = config.size
    name, count, moves, pin, tuning_pin = SETS.get(kind, (f"klotski-16-{rows}x{columns}", 16, config.moves, None, None))
    draw = replace(config, moves=moves).draw
    sets = {name: FixedLevels(draw, count, 1 << 40, pin), f"{name}-tune": FixedLevels(draw, count, 2 << 40, tuning_pin)}
    return LevelSets(ID, lambda position: {"board": letters(position)}, same, _labels, sets)


def _labels(position: Position) -> Mapping[str, int | str]:
    way = solution(position.rows, position.columns, position.blocks, position.goal)
    return {"shortest": len(way or ())}


def stream(config: KlotskiConfig, *, extra_moves: int = 0, moves: Any = None) -> Callable[[int], Task]:
    """Make the training stream.

    Args:
        extra_moves: added to each task's move limit.
        moves: fewest and most moves of a shortest solution, in place of the environment's own.
    """
    chosen = config if moves is None else replace(config, moves=moves)
    return level_sets(config).stream(chosen.draw, extra_moves=extra_moves)


def klotski(**options: Any) -> EnvironmentOffer:
    """Offer `Klotski-v0` with these options of `KlotskiEnv`.

    Raises:
        ValueError: an unknown option, or one out of range.
    """
    config = record_of(KlotskiConfig, options, beside=OF_THE_ENVIRONMENT)
    return EnvironmentOffer(
        id=ID,
        entry_point="vismaze_klotski.env:KlotskiEnv",
        words=words(config.count),
        prompt=prompt,
        kwargs=options,
        stream=partial(stream, config),
        fixed_sets={name: partial(level_sets(config).fixed, name) for name in level_sets(config).sets},
        solver=solve,
        baselines={"random": lambda env, random: int(random.integers(env.action_space.n))},
    )


@hookimpl
def vismaze_environments() -> Mapping[str, Callable[..., EnvironmentOffer]]:
    return {ID: klotski}
