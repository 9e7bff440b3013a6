"""What mazeenv offers through the hooks of `vismaze_hooks`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mazeenv import generators, observations, offer, rewards
from vismaze_hooks import EnvironmentOffer, Observation, Reward, hookimpl


@hookimpl
def vismaze_environments() -> Mapping[str, Callable[..., EnvironmentOffer]]:
    return {offer.ID: offer.maze_offer}


@hookimpl
def vismaze_observations() -> Mapping[str, Callable[..., Observation]]:
    return {"rgb": observations.rgb}


@hookimpl
def vismaze_rewards() -> Mapping[str, Callable[..., Reward]]:
    return {"sparse": rewards.sparse}


@hookimpl
def vismaze_generators() -> Mapping[str, Callable[[], generators.Generator]]:
    return {"wilson": lambda: generators.wilson}
