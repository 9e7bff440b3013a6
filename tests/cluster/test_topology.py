"""The reference's layout: a head without work and three machines of two ranks, the frozen base split over the ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_runner.config import Config
from grpo_runner.main_job import run_training
from grpo_runner.runs import read_lines
from vismaze_hooks import load_plugins

pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning:ray")]

FAULTS = [
    {"step": 2, "phase": "update", "rank": 3, "kind": "kill"},
    {"step": 3, "phase": "rollout", "rank": 4, "kind": "lost-node"},
]


def trained(config: Config) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    run = Path(config.run.folder)
    run_training(config, load_plugins(config.plugins, folder=run.parent), lambda line: None)
    return read_lines(run / "metrics.jsonl"), read_lines(run / "events.jsonl")


def test_six_ranks_on_three_machines_learn_what_one_process_learns_whatever_dies(
    machines_of_two: Any, config_of: Callable[..., Config]
) -> None:
    """A rank is killed while its neighbour on the machine lives on; then a machine with two ranks is lost for good."""
    steps = {"steps": 4}
    alone, _ = trained(config_of("alone", run=steps, cluster={"kind": "local"}))
    cluster = {"kind": "ray", "nodes": 3, "ranks_per_node": 2, "min_nodes": 2, "wait": 3.0, "faults": FAULTS}
    together, events = trained(
        config_of("together", run=steps, cluster=cluster, learner={"frozen_base": "shard"}, checkpoint={"every": 1})
    )
    assert [record["step"] for record in together] == [1, 2, 3, 4]
    ranks = [int(record["cluster/ranks"]) for record in together]
    assert ranks[0] == 6 and ranks[2:] == [4, 4], "step 2 is done again where its checkpoint was not yet whole"
    lost = [(e["rank"], e["step"]) for e in events if e["event"] == "rank_lost"]
    assert lost[0] == (3, 1) and {rank for rank, _ in lost[1:]} <= {4, 5} and len(lost) in (2, 3)
    assert [e["left"] for e in events if e["event"] == "node_lost"] == [2]
    for ours, theirs in zip(alone, together, strict=True):
        assert ours["reward/mean"] == theirs["reward/mean"], "the same tokens were sampled"
        assert theirs["optim/grad_norm"] == pytest.approx(ours["optim/grad_norm"], rel=1e-5)
        print(ours["optim/grad_norm"], theirs["optim/grad_norm"])
