"""What this package offers: the environment with its prompt, tasks and solver, and the reward `native`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from vismaze_gymnasium.env import GymnasiumEnv, config_of, solve
from vismaze_gymnasium.game import Foreign, GymnasiumConfig, Played
from vismaze_hooks import EnvironmentOffer, Reward, Task, Transition, hookimpl
from vismaze_hooks.answers import tagged
from vismaze_hooks.levels import FixedLevels, LevelSets

ID = "Gymnasium-v0"


def prompt(env: GymnasiumEnv) -> str:
    """Return the task in words: the configured prompt, the moves left, and how to answer."""
    state, words = env.state, env.action_words
    return (
        f"{env.foreign.config.prompt} You have {state.limit - state.moves} moves; an answer that cannot be read uses one. "
        f"Each turn, answer with one of {', '.join(words)} in this form: {tagged(words[0])}"
    )


class Tasks:
    """The fixed sets and streams of one configuration; the environment is made when the first task is asked for."""

    def __init__(self, config: GymnasiumConfig) -> None:
        self._config = config
        self._sets: tuple[Foreign, LevelSets] | None = None

    def fixed(self, name: str) -> tuple[Task, ...]:
        return self._made()[1].fixed(name)

    def stream(self, *, extra_moves: int = 0) -> Callable[[int], Task]:
        """Make the training stream.

        Args:
            extra_moves: added to each task's move limit.
        """
        foreign, sets = self._made()
        return sets.stream(foreign.draw, extra_moves=extra_moves)

    def _made(self) -> tuple[Foreign, LevelSets]:
        if self._sets is None:
            foreign, config = Foreign(self._config), self._config
            sets = {
                "evaluation": FixedLevels(foreign.draw, config.evaluation, 1 << 40),
                "tuning": FixedLevels(foreign.draw, config.tuning, 2 << 40),
            }
            self._sets = foreign, LevelSets(ID, _options, partial(_same, foreign), partial(_labels, foreign), sets)
        return self._sets


def _options(state: Played) -> dict[str, Any]:
    return {"seed": state.seed, "actions": list(state.actions)}


def _same(foreign: Foreign, state: Played) -> str:
    return foreign.place(state).hex()


def _labels(foreign: Foreign, state: Played) -> dict[str, int | str]:
    return {"shortest": len(foreign.plan(state))} if foreign.config.search else {}


def in_words(**options: Any) -> EnvironmentOffer:
    """Offer `Gymnasium-v0` with these options of `GymnasiumEnv`; without any, its id only, as there is nothing to play yet.

    Raises:
        ValueError: `env` or `words` is missing, an unknown option, or one out of range.
    """
    entry_point = "vismaze_gymnasium.env:GymnasiumEnv"
    if not options:
        return EnvironmentOffer(id=ID, entry_point=entry_point, words=(), prompt=prompt)
    config = config_of({name: value for name, value in options.items() if name not in ("reward", "render_mode")})
    tasks = Tasks(config)
    return EnvironmentOffer(
        id=ID,
        entry_point=entry_point,
        words=tuple(config.table),
        prompt=prompt,
        kwargs=options,
        stream=tasks.stream,
        fixed_sets={name: partial(tasks.fixed, name) for name in ("evaluation", "tuning")},
        solver=solve if config.search else None,
        baselines={"random": lambda env, random: int(random.integers(env.action_space.n))},
    )


@hookimpl
def vismaze_environments() -> Mapping[str, Callable[..., EnvironmentOffer]]:
    return {ID: in_words}


def _native(transition: Transition) -> float:
    return transition.after.paid


def native() -> Reward:
    """Make the reward that the foreign environment itself paid for the action; 0.0 for an unreadable answer."""
    return _native


@hookimpl
def vismaze_rewards() -> Mapping[str, Callable[..., Reward]]:
    return {"native": native}
