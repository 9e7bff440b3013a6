"""What mazeenv offers through the hooks of `vismaze_hooks`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mazeenv import generators, observations, offer, rewards
from vismaze_hooks import EnvironmentOffer, Observation, Reward, hookimpl


@hookimpl
def vismaze_environments() -> Mapping[str, Callable[..., EnvironmentOffer]]:
    return {offer.ID: offer.maze_offer, offer.EASY: offer.visgym_easy_offer, offer.HARD: offer.visgym_hard_offer}


@hookimpl
def vismaze_observations() -> Mapping[str, Callable[..., Observation]]:
    return {
        "rgb": observations.rgb,
        "egocentric": observations.egocentric,
        "first_person": observations.first_person,
        "ascii": observations.ascii,
        "symbolic": observations.symbolic,
    }


@hookimpl
def vismaze_rewards() -> Mapping[str, Callable[..., Reward]]:
    return {
        "progress": rewards.progress,
        "shortest_path": rewards.shortest_path,
        "invalid_penalty": rewards.invalid_penalty,
    }


@hookimpl
def vismaze_generators() -> Mapping[str, Callable[[], generators.Generator]]:
    return {
        "wilson": lambda: generators.wilson,
        "depth_first": lambda: generators.depth_first,
        "prim": lambda: generators.prim,
        "kruskal": lambda: generators.kruskal,
        "division": lambda: generators.division,
    }
