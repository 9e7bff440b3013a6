"""What the controller costs in a step: 6 to 4,096 engines that sleep instead of playing, 100,000 trajectories.

    python benchmarks/cluster/scaling.py

Writes benchmarks/results/scaling.json and docs/images/scaling.png. Counted is the processor time of the controller's process,
all threads of it: drawing tasks, handing them out, unpacking what comes back, advantages, samples, mini-batches, metrics, and
the batch on its way to the ranks. Wall time would tell of the two cores that the engines share with it here.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import os
import platform
import pstats
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from grpo_runner.files import write_json

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "benchmarks" / "results" / "scaling.json"
IMAGE = ROOT / "docs" / "images" / "scaling.png"
ENGINES = (6, 64, 512, 4096)
TRAJECTORIES = (10_000, 30_000, 100_000)  # with 512 engines; fewer would be no group for each
PROFILED = (512, 10_000)  # engines, trajectories
BUSY = 10.0  # seconds that each engine sleeps in all
HOSTS = 2
SAMPLES = 16  # of a task; fewer where there would be less tasks than engines
T = TypeVar("T")


def measure(engines: int, trajectories: int, *, history: bool, profiled: bool) -> dict[str, Any]:
    """Do one step of the loop; return processor seconds by part."""
    import ray

    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    ray.init("local", num_cpus=HOSTS, include_dashboard=False, object_store_memory=2 * 10**9, log_to_driver=False)
    from simulated import SETTINGS, Receiver, SimulatedSupervisor

    from grpo_core import LRSchedule
    from grpo_runner.cluster.parts import ClusterRollouts
    from grpo_runner.config import load
    from grpo_runner.session import find_environment, fixed_set
    from grpo_runner.task_source import TaskSource
    from grpo_runner.train import draw_tasks, play, update
    from vismaze_hooks import load_plugins

    samples = min(SAMPLES, trajectories // engines)
    config = load(
        ROOT / "examples" / "maze-tiny.toml", [f"rollout.tasks={trajectories // samples}", f"rollout.samples={samples}"]
    )
    offer = find_environment(config, load_plugins())
    supervisor = SimulatedSupervisor(engines, HOSTS, BUSY * engines / trajectories, history)
    gc.collect()
    gc.freeze()  # as the command does
    session: Any = SimpleNamespace(
        config=config,
        tasks=TaskSource(offer.stream(**config.tasks.stream), config.run.seed, revisit=config.tasks.revisit),  # type: ignore[misc]
        fixed=fixed_set(offer, config.tasks.evaluation),
        rollouts=ClusterRollouts(supervisor, None),  # type: ignore[arg-type]
        engine=None,
        play=SETTINGS,
        learner=Receiver(),
        schedule=LRSchedule(peak=1e-3, kind="linear", total_steps=100, warmup_steps=0),
        version=0,
    )
    seconds: dict[str, float] = {}

    def timed(name: str, work: Callable[[], T]) -> T:
        start = time.process_time()
        result = work()
        seconds[name] = round(time.process_time() - start, 3)
        return result

    profile = cProfile.Profile(time.process_time) if profiled else None
    start = time.perf_counter()
    with profile if profile is not None else nullcontext():
        tasks = timed("draw", lambda: draw_tasks(session, 0))
        played = timed("rollout", lambda: play(session, 0, tasks))
        timed("update", lambda: update(session, 0, played))
    row = {
        "engines": engines,
        "trajectories": trajectories,
        "history": history,
        "seconds": seconds,
        "total_seconds": round(sum(seconds.values()), 3),
        "milliseconds_a_trajectory": round(1e3 * sum(seconds.values()) / trajectories, 4),
        "wall_seconds": round(time.perf_counter() - start, 1),
        "peak_gigabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
    }
    if profile is not None:
        row["profile"] = busiest(profile)
    ray.shutdown()
    return row


def busiest(profile: cProfile.Profile, count: int = 15) -> list[dict[str, Any]]:
    """Return the functions in which the main thread spent most time, without those that wait for the engines."""
    rows = []
    for (file, _, name), (_, calls, own, total, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        if "wait" not in name:
            where = file.rpartition("site-packages/")[2].rpartition("src/")[2]
            rows.append({"function": f"{where}:{name}", "calls": calls, "own": round(own, 3), "total": round(total, 3)})
    return sorted(rows, key=lambda row: -row["own"])[:count]


def in_a_process_of_its_own(
    engines: int, trajectories: int, *, history: bool = False, profiled: bool = False
) -> dict[str, Any]:
    flags = [*(["--history"] if history else []), *(["--profile"] if profiled else [])]
    command = [sys.executable, __file__, "--one", str(engines), str(trajectories), *flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(row, flush=True)
    return row


def draw_picture(rows: list[dict[str, Any]]) -> None:
    """Draw milliseconds a trajectory by part, a bar for each size."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    chosen = sorted((r for r in rows if not r["history"]), key=lambda r: (r["trajectories"], r["engines"]))
    labels = [f"{r['engines']:,} engines\n{r['trajectories']:,} trajectories" for r in chosen]
    figure, axis = pyplot.subplots(figsize=(1.5 * len(chosen) + 1, 3.2))
    bottom = [0.0] * len(chosen)
    for part in ("draw", "rollout", "update"):
        height = [1e3 * r["seconds"][part] / r["trajectories"] for r in chosen]
        axis.bar(labels, height, bottom=bottom, label=part)
        bottom = [b + h for b, h in zip(bottom, height, strict=True)]
    axis.tick_params(axis="x", labelsize=7)
    axis.set_ylabel("controller, ms a trajectory")
    axis.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(IMAGE, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", nargs=2, type=int, metavar=("ENGINES", "TRAJECTORIES"), help="measure one row, print it")
    parser.add_argument("--history", action="store_true", help="prompts hold the whole conversation")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--again", action="store_true", help="measure what the results hold already, too")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(*given.one, history=given.history, profiled=given.profile)))
        return
    found: dict[str, Any] = {"rows": []} if given.again or not RESULT.exists() else json.loads(RESULT.read_text())
    found["machine"] = {"cpu_cores": os.cpu_count(), "python": platform.python_version()}
    plan = dict.fromkeys([*((e, TRAJECTORIES[-1]) for e in ENGINES), *((ENGINES[-2], t) for t in TRAJECTORIES)])
    for engines, trajectories, history in [*((*place, False) for place in plan), (*PROFILED, True)]:
        if not any((r["engines"], r["trajectories"], r["history"]) == (engines, trajectories, history) for r in found["rows"]):
            found["rows"].append(in_a_process_of_its_own(engines, trajectories, history=history))
            write_json(RESULT, found)
    if "profile" not in found:
        found["profile"] = in_a_process_of_its_own(*PROFILED, profiled=True)["profile"]
        write_json(RESULT, found)
    draw_picture(found["rows"])


if __name__ == "__main__":
    main()
