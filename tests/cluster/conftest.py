"""A cluster on this machine: a head without work and machines of one CPU or two, as processes of Ray."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_runner.config import Config, parse

RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    "RAY_worker_niceness": "0",
    # a silent machine is found in seconds, not in a minute
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "4",
}
STORE = 80_000_000  # bytes of a machine's object store


class Machines:
    """The machines of the cluster, the newest last."""

    def __init__(self, cpus: int = 1) -> None:
        """
        Args:
            cpus: of each machine: as many as ranks that shall fit.
        """
        from ray.cluster_utils import Cluster

        self._cpus = cpus

        head = {"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address: str = self._cluster.address
        self.nodes: list[Any] = []

    def add(self, count: int = 1) -> None:
        """Plug machines in."""
        self.nodes += [self._cluster.add_node(num_cpus=self._cpus, object_store_memory=STORE) for _ in range(count)]

    def freeze(self, number: int) -> None:
        """Stop a machine's raylet: it is there, and silent. Returns when Ray has found out, or after a minute."""
        import ray

        node = self.nodes[number]
        os.kill(self._raylet(node), signal.SIGSTOP)
        end = time.monotonic() + 60
        while time.monotonic() < end and any(n["NodeID"] == node.node_id and n["Alive"] for n in ray.nodes()):
            time.sleep(0.2)

    def close(self) -> None:
        for node in self.nodes:
            if node.any_processes_alive():
                os.kill(self._raylet(node), signal.SIGCONT)
        self._cluster.shutdown()

    @staticmethod
    def _raylet(node: Any) -> int:
        return node.all_processes["raylet"][0].process.pid


@pytest.fixture(scope="module")
def environment() -> Iterator[None]:
    """Ray's settings, for this process and those that it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        for name, value in RAY.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def machines(environment: None) -> Iterator[Machines]:
    """A running cluster of three machines that this process has joined."""
    yield from joined(1)


@pytest.fixture(scope="module")
def machines_of_two(environment: None) -> Iterator[Machines]:
    """The same, with room for two ranks on each machine."""
    yield from joined(2)


def joined(cpus: int) -> Iterator[Machines]:
    import ray

    found = Machines(cpus)
    try:
        found.add(3)
        ray.init(address=found.address, log_to_driver=False, logging_level="error")
        yield found
    finally:
        ray.shutdown()
        found.close()


@pytest.fixture(scope="module")
def config_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Config]:
    """Return a function that makes a configuration of a run of seconds; all share one small base model."""
    folder = tmp_path_factory.mktemp("cluster")
    rewards = Path(__file__).parents[1] / "runner" / "short_answers.py"  # no copy: one process knows one module of a name

    def make(name: str, **changes: dict[str, Any]) -> Config:
        table: dict[str, Any] = {
            "plugins": [str(rewards)],
            "run": {"folder": str(folder / name), "steps": 2},
            "model": {"path": str(folder / "base"), "tiny": {"vision_depth": 2, "deepstack": [0, 1]}},
            "environment": {
                "id": "VisMaze-v0",
                "options": {"size": 5, "cell_px": 8, "reward": "short_answers"},
                "prompt": "Go.",
            },
            "tasks": {"evaluation": "vismaze-5x5", "stream": {"shortest": [2, 2]}},
            "rollout": {"tasks": 6, "samples": 3, "history": 1, "max_new_tokens": 3},
            "loss": {"scale": "none"},
            "train": {"lr": 1e-3, "rank": 4, "targets": "all-linear"},
            "cluster": {"kind": "ray", "nodes": 3},
            "evaluation": {"every": 100, "samples": 0},
        }
        for section, values in changes.items():
            table[section] = {**table.get(section, {}), **values}
        return parse(table, "test")

    return make
