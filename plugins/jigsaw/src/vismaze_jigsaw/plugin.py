"""What this package offers: the environment with its prompt, tasks and solver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from vismaze_hooks import EnvironmentOffer, Task, hookimpl
from vismaze_hooks.levels import FixedLevels, LevelSets
from vismaze_hooks.names import record_of
from vismaze_jigsaw.env import OF_THE_ENVIRONMENT, JigsawEnv, solve
from vismaze_jigsaw.game import JigsawConfig, Puzzle, solution, words

ID = "Jigsaw-v0"
PINS = {  # tiles a side -> hashes of the set and the tuning set with all kinds
    2: (
        "2e3dc277e965cd9a2a6cfffb087aa5c685720bd9a6afbeeb52bedd78228957be",
        "a88e0ba04a3ad6cf13b50f8ac0d6a1ee463a32f883cb2740fe566966fcc584cc",
    ),
    3: (
        "ec4f66e44a8080c1ac6dc9a650717ffd5fb8e9d9784398fb6d8d8ff95660baec",
        "64e7e7da76925e4c3d91eaa89f96bb135267640f9835709b7bfc4eec0d650c71",
    ),
    4: (
        "a590d8b7ceb428fb3106145a7c780a48d951881a5d61f1ac7045d471ef108097",
        "09a5e9bace4e88da01b9b53ca044e2f699e785de416f1156486d95b1e1e9c028",
    ),
}


def prompt(env: JigsawEnv) -> str:
    """Return the task in words."""
    puzzle: Puzzle = env.state
    assert env.observation.legend is not None
    return (
        f"{env.observation.legend(puzzle)}. Put it together. A move swaps the tiles at two places; places are counted from 1, "
        f"row by row. You have {puzzle.limit - puzzle.moves} moves; an answer that cannot be read uses one. Each turn, answer "
        "with two places, the smaller first, in this form: <action>1-2</action>"
    )


def same(puzzle: Puzzle) -> str:
    """Return what makes a level: its picture, so that pictures of a fixed set are never trained on in any arrangement."""
    return f"{puzzle.kind} {puzzle.picture}"


@lru_cache(maxsize=16)
def level_sets(config: JigsawConfig) -> LevelSets:
    """Return the fixed sets of this size and these kinds of pictures, of any number of swaps."""
    draw = replace(config, swaps=None).draw
    n = config.tiles
    pins = PINS.get(n, (None, None)) if config.pictures == JigsawConfig().pictures else (None, None)
    sets = {
        f"jigsaw-64-{n}x{n}": FixedLevels(draw, 64, 1 << 40, pins[0]),
        f"jigsaw-64-{n}x{n}-tune": FixedLevels(draw, 64, 2 << 40, pins[1]),
    }
    return LevelSets(ID, _options, same, lambda puzzle: {"shortest": len(solution(puzzle)), "picture": puzzle.kind}, sets)


def _options(puzzle: Puzzle) -> dict[str, Any]:
    return {"kind": puzzle.kind, "picture": puzzle.picture, "order": list(puzzle.order)}


def stream(config: JigsawConfig, *, extra_moves: int = 0, swaps: Any = None) -> Callable[[int], Task]:
    """Make the training stream.

    Args:
        extra_moves: added to each task's move limit.
        swaps: fewest and most swaps, in place of the environment's own.
    """
    chosen = config if swaps is None else replace(config, swaps=swaps)
    return level_sets(config).stream(chosen.draw, extra_moves=extra_moves)


def jigsaw(**options: Any) -> EnvironmentOffer:
    """Offer `Jigsaw-v0` with these options of `JigsawEnv`.

    Raises:
        ValueError: an unknown option, or one out of range.
    """
    config = record_of(JigsawConfig, options, beside=OF_THE_ENVIRONMENT)
    sets = level_sets(config)
    return EnvironmentOffer(
        id=ID,
        entry_point="vismaze_jigsaw.env:JigsawEnv",
        words=words(config.tiles),
        prompt=prompt,
        kwargs=options,
        stream=partial(stream, config),
        fixed_sets={name: partial(sets.fixed, name) for name in sets.sets},
        solver=solve,
        baselines={"random": lambda env, random: int(random.integers(env.action_space.n))},
    )


@hookimpl
def vismaze_environments() -> Mapping[str, Callable[..., EnvironmentOffer]]:
    return {ID: jigsaw}
