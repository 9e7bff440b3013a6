"""The hooks, on one page. Offers are asked once at start; events are told and never asked.

An offer returns a mapping name -> factory; the configuration picks a name and passes its options to the factory.
The factory's result is described in `vismaze_hooks.records`. The order of plugins carries no meaning.
"""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from vismaze_hooks.markers import hookspec

if TYPE_CHECKING:
    from vismaze_hooks.records import CheckpointBackend, Engine, EnvironmentOffer, Observation, Reward, Tracker


@hookspec
def vismaze_environments() -> Mapping[str, Callable[..., EnvironmentOffer]]:
    """Offer environments by Gymnasium id. The factory takes the environment's keyword options."""


@hookspec
def vismaze_observations() -> Mapping[str, Callable[..., Observation]]:
    """Offer observations: how a state is shown."""


@hookspec
def vismaze_rewards() -> Mapping[str, Callable[..., Reward]]:
    """Offer rewards: pure functions of one transition."""


@hookspec
def vismaze_generators() -> Mapping[str, Callable[..., Any]]:
    """Offer level generators. What a generator returns is the environment's own matter (a maze's walls, say)."""


@hookspec
def vismaze_checkpoint_backends() -> Mapping[str, Callable[..., CheckpointBackend]]:
    """Offer places to keep checkpoints."""


@hookspec
def vismaze_engines() -> Mapping[str, Callable[..., Engine]]:
    """Offer inference engines."""


@hookspec
def vismaze_trackers() -> Mapping[str, Callable[..., Tracker]]:
    """Offer experiment trackers. Beside its own options a factory is given `folder`, the run's, and `run_id`, the same at every
    start of a run: under this id a resumed run goes on where it was."""


@hookspec
def vismaze_run_started(config: Mapping[str, Any]) -> None:
    """Told once, before the first step, with the resolved configuration."""


@hookspec
def vismaze_step_finished(step: int, metrics: Mapping[str, float]) -> None:
    """Told after each optimizer step with its metrics."""


@hookspec
def vismaze_run_finished(step: int, error: BaseException | None) -> None:
    """Told once at the end; `error` is None when the run ended as planned."""
