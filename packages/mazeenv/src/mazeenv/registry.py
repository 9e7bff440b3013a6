"""What is installed: plugins by name, and Gymnasium's registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium

from mazeenv import rewards
from vismaze_hooks import Observation, Plugins, Reward, RewardSum
from vismaze_hooks.plugins import current_plugins

RewardChoice = str | Sequence[str] | Mapping[str, float]


def register_environments(plugins: Plugins) -> None:
    """Register every offered environment with Gymnasium, so that `gym.make(id)` finds it."""
    for name in plugins.offers["environment"]:
        offer = plugins.create("environment", name)
        gymnasium.register(
            id=offer.id,
            entry_point=offer.entry_point,
            vector_entry_point=offer.vector_entry_point,
            kwargs=dict(offer.kwargs),
        )


def make_observation(choice: str | Observation, options: Mapping[str, Any]) -> Observation:
    """Return the named observation made with these options; an `Observation` record stands for itself."""
    if isinstance(choice, Observation):
        return choice
    return current_plugins().create("observation", choice, options)


def make_reward(choice: RewardChoice | RewardSum) -> RewardSum:
    """Return the weighted sum that a name, a list of names (weight 1 each) or a mapping name -> weight stands for.

    Raises:
        ValueError: an unknown name (the nearest is suggested), no name at all, or a weight that is no finite number.
    """
    if isinstance(choice, RewardSum):
        return choice
    weights = (
        {choice: 1.0}
        if isinstance(choice, str)
        else dict(choice if isinstance(choice, Mapping) else dict.fromkeys(choice, 1.0))
    )
    if not weights:
        raise ValueError("reward: at least one name is needed")
    for name, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not abs(weight) < float("inf"):
            raise ValueError(f"reward {name!r}: the weight must be a finite number, got {weight!r}")
    plugins = current_plugins()
    terms: list[tuple[str, float, Reward]] = [(n, float(w), plugins.create("reward", n)) for n, w in weights.items()]
    return RewardSum(tuple(terms))


def sparse_weight(reward: RewardSum) -> float | None:
    """Return the weight when the reward is mazeenv's `sparse` and nothing else; else None."""
    if len(reward.terms) != 1 or reward.terms[0][0] != "sparse" or reward.terms[0][2] is not rewards.sparse_value:
        return None
    return reward.terms[0][1]


def make_generator(name: str) -> Any:
    """Return the named generator; a callable stands for itself."""
    return name if callable(name) else current_plugins().create("generator", name)
