"""What this package offers: the environment with its prompt, tasks and solver. Mazes and what is held out are mazeenv's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from mazeenv import SETS, Maze, MazeConfig, eval_set, training_stream
from vismaze_firstperson.env import FirstPersonMazeEnv, config_of, solve
from vismaze_firstperson.game import WORDS, begin
from vismaze_hooks import EnvironmentOffer, Task, hookimpl
from vismaze_hooks.levels import check_extra_moves

ID = "FirstPersonMaze-v0"


def prompt(env: FirstPersonMazeEnv) -> str:
    """Return the task in words."""
    walk = env.state
    assert env.observation.legend is not None
    return (
        f"{env.observation.legend(walk)}. Walk to it. You have {walk.limit - walk.moves} actions; a bump into a wall or an "
        "answer that cannot be read uses one. Each turn, answer with one of forward, left, right, around (the last three turn "
        "you on the spot) in this form: <action>forward</action>"
    )


def _task(task: Task, extra_moves: int = 0) -> Task:
    """Return a task of mazeenv with the limit that actions with turns need."""
    limit = begin(Maze.from_text(task.options["maze"])).limit + extra_moves
    return Task(task.uid, task.content_hash, {"maze": task.options["maze"], "limit": limit}, limit, labels=task.labels)


def stream(config: MazeConfig, *, extra_moves: int = 0, **options: Any) -> Callable[[int], Task]:
    """Make the training stream.

    Args:
        extra_moves: added to each task's move limit.
        options: `shortest` or `bins`, and `exclude`, of `mazeenv.training_stream`.
    """
    check_extra_moves(extra_moves)
    draw = training_stream(config, ID, **options)
    return lambda seed: _task(draw(seed), extra_moves)


def fixed(name: str, config: MazeConfig) -> tuple[Task, ...]:
    """Return a fixed set of mazeenv's as tasks of this environment."""
    return tuple(_task(task) for task in eval_set(name, config))


def first_person_maze(**options: Any) -> EnvironmentOffer:
    """Offer `FirstPersonMaze-v0` with these options of `FirstPersonMazeEnv`.

    Raises:
        ValueError: an unknown option, or one out of range.
    """
    config = config_of(options)
    return EnvironmentOffer(
        id=ID,
        entry_point="vismaze_firstperson.env:FirstPersonMazeEnv",
        words=WORDS,
        prompt=prompt,
        kwargs=options,
        stream=partial(stream, config),
        fixed_sets={name: partial(fixed, name, config) for name, entry in SETS.items() if entry.size == config.sides},
        solver=solve,
        baselines={"random": lambda env, random: int(random.integers(env.action_space.n))},
    )


@hookimpl
def vismaze_environments() -> Mapping[str, Callable[..., EnvironmentOffer]]:
    return {ID: first_person_maze}
