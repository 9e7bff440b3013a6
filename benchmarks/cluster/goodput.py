"""Goodput under failures: useful over wall time, of the supervisor's recovery and of starting everything again.

    python benchmarks/cluster/goodput.py [--steps 20] [--machines 3] [--rates 0 5 10] [--out benchmarks/results/goodput.json]

A simulated cluster on this machine (a head, and machines of one CPU), the small model, ranks killed at seeded places: `rate`
percent of the steps. `recover` is the run as it is. `restart` is the same loop without recovery: a loss ends the process, and
the same command is started again on the same cluster until it ends well, as a scheduler would. Wall time goes from the end of
the first start to the end of the run; useful is what the steps took that were kept, by their own metrics, so that a busy
machine counts on both sides; R is the rest by failure.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

import tomli_w

from grpo_runner.faults import Phase
from grpo_runner.runs import read_lines
from grpo_runner.seeds import derive_seed

RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_worker_niceness": "0",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "4",
    "OMP_NUM_THREADS": "1",
}
LENGTHS = (60, 300, 900)  # seconds of a step to put R into
SEED = 1
PLUGIN = Path(__file__).parents[2] / "tests" / "runner" / "short_answers.py"


def plan(steps: int, machines: int, rate: int) -> list[dict[str, Any]]:
    """Return a kill in `rate` percent of the steps, at seeded places; none in the last step."""
    count = round(steps * rate / 100)
    chosen = sorted(range(1, steps), key=lambda step: derive_seed(SEED, "step", step))[:count]
    phases = (Phase.ROLLOUT, Phase.UPDATE, Phase.PUBLISH)
    return [
        {
            "step": step,
            "phase": str(phases[derive_seed(SEED, "phase", step) % len(phases)]),
            "rank": derive_seed(SEED, "rank", step) % machines,
            "kind": "kill",
        }
        for step in sorted(chosen)
    ]


def configuration(folder: Path, name: str, address: str, steps: int, machines: int, rate: int) -> Path:
    table = {
        "plugins": ["short_answers.py"],
        "run": {"folder": str(folder / name), "steps": steps},
        "model": {"path": str(folder / "base"), "tiny": {"vision_depth": 2, "deepstack": [0, 1]}},
        "environment": {"id": "VisMaze-v0", "options": {"size": 5, "cell_px": 8, "reward": "short_answers"}, "prompt": "Go."},
        "tasks": {"evaluation": "vismaze-5x5", "stream": {"shortest": [2, 2]}},
        "rollout": {"tasks": 6, "samples": 4, "history": 1, "max_new_tokens": 4},
        "loss": {"scale": "none"},
        "train": {"lr": 1e-3, "rank": 4, "targets": "all-linear"},
        "cluster": {"kind": "ray", "address": address, "nodes": machines, "faults": plan(steps, machines, rate)},
        "evaluation": {"every": steps, "samples": 0},
    }
    shutil.copy(PLUGIN, folder)
    (folder / f"{name}.toml").write_text(tomli_w.dumps(table))
    return folder / f"{name}.toml"


def train(how: str, config: Path) -> int:
    """Run to the end; returns how often the command was started."""
    starts = 0
    while True:
        starts += 1
        done = subprocess.run([sys.executable, __file__, "--child", how, str(config)], capture_output=True, text=True)
        if done.returncode == 0:
            return starts
        if how == "recover" or starts > 20:
            raise RuntimeError(done.stderr[-4000:])


def child(how: str, config: Path) -> None:
    from grpo_runner import main_job
    from grpo_runner.cli import app

    if how == "restart":
        main_job.through_losses = lambda work, recover: work()  # type: ignore[assignment]
    app(["train", str(config)])


def measured(run: Path) -> dict[str, Any]:
    """Return wall seconds from the first start's end to the run's, the seconds of the steps that were kept, the recoveries."""
    events = read_lines(run / "events.jsonl")
    times = {
        name: [datetime.fromisoformat(e["time"]) for e in events if e["event"] == name]
        for name in ("run_started", "run_finished")
    }
    found = {"wall_seconds": (times["run_finished"][-1] - times["run_started"][0]).total_seconds()}
    return found | {
        "useful_seconds": round(sum(sum(r["seconds"].values()) for r in read_lines(run / "metrics.jsonl")), 1),
        "failures": sum(e["event"] == "fault_struck" for e in events),
        "recoveries": [e["seconds"] for e in events if e["event"] == "recovered"],
    }


def measure(folder: Path, address: str, steps: int, machines: int, rates: list[int]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for rate in sorted({0, *rates}):
        for how in ("recover", "restart") if rate else ("recover",):
            name = f"{how}-{rate}"
            starts = train(how, configuration(folder, name, address, steps, machines, rate))
            row = {"how": how, "rate_percent": rate, "starts": starts, **measured(folder / name)}
            lost = row["wall_seconds"] - row["useful_seconds"]
            row["goodput"] = round(row["useful_seconds"] / row["wall_seconds"], 3)
            row["R_seconds"] = round(lost / row["failures"], 1) if row["failures"] else None
            row["step_seconds"] = round(row["useful_seconds"] / steps, 2)
            print(json.dumps(row), flush=True)
            rows.append(row)
    return rows


def on_paper(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put each measured R into s / (s + f R) for steps of other lengths."""
    return [
        {
            "how": row["how"],
            "rate_percent": row["rate_percent"],
            "step_seconds": s,
            "goodput": round(s / (s + row["rate_percent"] / 100 * row["R_seconds"]), 3),
        }
        for row in rows
        if row["R_seconds"]
        for s in LENGTHS
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--child", nargs=2, metavar=("HOW", "CONFIG"), help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--machines", type=int, default=3)
    parser.add_argument("--rates", type=int, nargs="+", default=[0, 5, 10])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/goodput.json"))
    asked = parser.parse_args()
    if asked.child:
        child(asked.child[0], Path(asked.child[1]))
        return
    os.environ.update(RAY)
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 80_000_000, "include_dashboard": False}
    )
    try:
        for _ in range(asked.machines):
            cluster.add_node(num_cpus=1, object_store_memory=80_000_000)
        with tempfile.TemporaryDirectory() as folder:
            rows = measure(Path(folder), cluster.address, asked.steps, asked.machines, asked.rates)
    finally:
        cluster.shutdown()
    facts = {"cores": os.cpu_count(), "load": os.getloadavg(), "steps": asked.steps, "machines": asked.machines}
    asked.out.write_text(json.dumps({**facts, "rows": rows, "on_paper": on_paper(rows)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
