"""What is installed: plugins by name, and Gymnasium's registry."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import gymnasium

from vismaze_hooks import Observation, Plugins, PluginWarning, RewardSum
from vismaze_hooks.plugins import current_plugins, last_line
from vismaze_hooks.rewards import sparse_value


def register_environments(plugins: Plugins) -> None:
    """Register every offered environment with Gymnasium, so that `gym.make(id)` finds it.

    An offer that cannot be made is reported as a `PluginWarning`; the others are registered.
    """
    for name in plugins.offers["environment"]:
        try:
            offer = plugins.create("environment", name)
        except Exception as error:  # noqa: BLE001 — one broken plugin must not hide the others; it is reported
            owner = plugins.owners["environment", name]
            warnings.warn(f"plugin {owner!r} cannot offer {name}: {last_line(error)}", PluginWarning, stacklevel=2)
            continue
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


def sparse_weight(reward: RewardSum) -> float | None:
    """Return the weight when the reward is mazeenv's `sparse` and nothing else; else None."""
    if len(reward.terms) != 1 or reward.terms[0][0] != "sparse" or reward.terms[0][2] is not sparse_value:
        return None
    return reward.terms[0][1]


def make_generator(name: str) -> Any:
    """Return the named generator; a callable stands for itself."""
    return name if callable(name) else current_plugins().create("generator", name)
