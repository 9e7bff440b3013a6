"""Machines of a cluster: one placement group each, so that losing one takes nothing away from the others."""

from __future__ import annotations

import math
import os
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from grpo_runner.cluster.actor import Rank
from grpo_runner.cluster.calls import Member
from grpo_runner.config import Cluster, Config, ConfigError


@dataclass
class Machine:
    """A placement group and the ranks in it, by bundle; None is a rank that has to be started."""

    group: PlacementGroup
    members: list[Member | None] = field(default_factory=list)
    awaited: bool = True  # False: it did not come in time, and the run goes on without it
    node: str = ""  # Ray's id of it, once a rank runs there


def connect(settings: Cluster) -> bool:
    """Join the configured Ray, or start one for this run. Returns whether `ray.shutdown` is this run's to call.

    Raises:
        ConfigError: no Ray answers at the address.
    """
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # of calls that nobody waits for any more: the ranks are lost
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "warning", "configure_logging": False}
    if settings.address or os.environ.get("RAY_ADDRESS"):
        try:
            with _signals_kept():
                ray.init(address=settings.address, **quiet)
        except (ConnectionError, ValueError) as error:
            where = f"cluster.address: {settings.address}" if settings.address else "RAY_ADDRESS"
            raise ConfigError(f"{where}: no Ray answers there: {error}") from error
        return True
    ranks = settings.nodes * settings.ranks_per_node
    os.environ.setdefault("RAY_worker_niceness", "0")  # the ranks do the work here; Ray would let everybody else go first
    with _signals_kept():
        ray.init(address="local", num_cpus=math.ceil(ranks * settings.cpus), include_dashboard=False, **quiet)
    return True


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep this process's answer to SIGTERM, which `ray.init` replaces: the run ends cleanly on it."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def request(settings: Cluster) -> Machine:
    """Ask for a machine; it may come at once, later or never."""
    bundle = {"CPU": settings.cpus} | ({"GPU": settings.gpus} if settings.gpus else {})
    return Machine(placement_group([bundle] * settings.ranks_per_node, strategy="STRICT_PACK"))


def is_there(machine: Machine) -> bool:
    """Return whether a machine that was asked for has come."""
    return placement_group_table(machine.group).get("state") == "CREATED"


def give_back(machine: Machine) -> None:
    """Return what was asked for; processes that still run in it are ended."""
    remove_placement_group(machine.group)


def is_alive(machine: Machine) -> bool:
    """Return whether Ray counts a machine as alive and its raylet takes connections."""
    for node in ray.nodes():
        if node["NodeID"] == machine.node:
            with suppress(OSError):
                socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), timeout=3).close()
                return bool(node["Alive"])
    return False


def start(machine: Machine, bundle: int, config: Config, plugins_folder: Path, logs: Path) -> ActorHandle:
    """Start a process for a rank in a bundle of a machine that is there."""
    settings = config.cluster
    options: dict[str, Any] = {
        "num_cpus": settings.cpus,
        "num_gpus": settings.gpus,
        "max_restarts": 0,  # a restarted rank would have no group
        "max_task_retries": 0,
        "concurrency_groups": {"saving": 2, "health": 2},
        "scheduling_strategy": PlacementGroupSchedulingStrategy(machine.group, placement_group_bundle_index=bundle),
    }
    remote: Any = ray.remote  # whose annotations do not know the concurrency groups
    return remote(**options)(Rank).remote(config, plugins_folder, logs)


def present(machines: Sequence[Machine]) -> list[Member]:
    """Return the members that are there, in the order of ranks."""
    return [m for machine in machines for m in machine.members if m is not None]
