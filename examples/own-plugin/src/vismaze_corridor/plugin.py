"""The plugin: what this package offers. Found through its entry point; nothing else has to be told about it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import permutations

from vismaze_hooks import EnvironmentOffer, Task, Transition, hookimpl

PROMPT = "Walk to the red cell. Answer with <action>left</action> or <action>right</action>."
HELD_OUT = ((0, 3), (3, 0))  # agent and goal of the fixed set; never drawn for training


def task(agent: int, goal: int, uid: str) -> Task:
    options = {"agent": agent, "goal": goal}
    return Task(uid, f"corridor-{agent}-{goal}", options, abs(agent - goal) + 2, labels={"shortest": abs(agent - goal)})


def stream(length: int) -> Callable[[int], Task]:
    pairs = [pair for pair in permutations(range(length), 2) if pair not in HELD_OUT]
    return lambda seed: task(*pairs[seed % len(pairs)], uid=f"Corridor-v0/{seed:016x}")


def fixed() -> tuple[Task, ...]:
    return tuple(task(*pair, uid=f"corridor-2/{number}") for number, pair in enumerate(HELD_OUT))


def corridor(length: int = 5) -> EnvironmentOffer:
    return EnvironmentOffer(
        id="Corridor-v0",
        entry_point="vismaze_corridor.env:CorridorEnv",
        kwargs={"length": length},
        words=("left", "right"),
        prompt=lambda env: PROMPT,
        stream=partial(stream, length),
        fixed_sets={"corridor-2": fixed},
        solver=lambda env: env.towards_goal(),
    )


@hookimpl
def vismaze_environments() -> dict[str, Callable[..., EnvironmentOffer]]:
    return {"Corridor-v0": corridor}


def brevity(limit: int = 24) -> Callable[[Transition], float]:
    """1.0 for an answer of at most `limit` characters, else 0.0."""
    return lambda transition: float(len(transition.answer) <= limit)


@hookimpl
def vismaze_rewards() -> dict[str, Callable[..., Callable[[Transition], float]]]:
    return {"brevity": brevity}
