"""What this package offers through its own hooks: the rewards that fit every environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vismaze_hooks import rewards
from vismaze_hooks.markers import hookimpl
from vismaze_hooks.records import Reward


@hookimpl
def vismaze_rewards() -> Mapping[str, Callable[..., Reward]]:
    return {"sparse": rewards.sparse, "format": rewards.form}
