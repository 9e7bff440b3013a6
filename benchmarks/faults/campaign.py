"""kill -9 at seeded instants of real runs, over every phase; each run must end with the adapter of the uninterrupted one.

    python benchmarks/faults/campaign.py --kills 200

A run (a small Qwen3-VL, mazes of 5x5, a checkpoint every step, written in the background) is started, killed, started again
with the same configuration, and so on until it ends; then the next run begins. Half of the kills come at the n-th call of a
Python or C function inside a phase, half at a time after a phase was entered, which may be in the middle of C code or of
another phase. Each start is a fork of one process that has only imported the libraries: no state goes from one to the next
but what lies on the disk. Prints a row per kill and a table, writes benchmarks/results/faults.json, and exits with 1 when a
start failed, a committed step was lost, or a run ended with other bytes.
"""

from __future__ import annotations

import argparse
import gc
import json
import mmap
import os
import platform
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(Path(__file__).parent))

import torch
import transformers
from instants import PHASES, Instant, shown, watch

from grpo_runner.config import Config, parse
from grpo_runner.files import sha256_file, write_json
from grpo_runner.main_job import run_training
from grpo_runner.policy import load_processors
from grpo_runner.runs import read_lines
from vismaze_hooks import Plugins, load_plugins

RESULTS = Path(__file__).parents[1] / "results" / "faults.json"
STEPS = 10


@dataclass(frozen=True)
class Row:
    """One kill, and what the start after it found."""

    run: int
    attempt: int
    phase: str  # that the instant was drawn in
    instant: str
    died_in: str
    committed: int  # newest step whose checkpoint had been reported
    resumed: int | None = None  # step that the next start to come so far went on from; None: none did

    @property
    def lost_steps(self) -> int:
        return self.committed if self.resumed is None else max(0, self.committed - self.resumed)


def config_of(place: Path, run: str) -> Config:
    """Return the configuration of a run of seconds."""
    table = {
        "run": {"folder": str(place / run), "steps": STEPS},
        "model": {"path": str(place / "base"), "tiny": {"vision_depth": 2, "deepstack": [0, 1]}},
        "environment": {"id": "VisMaze-v0", "options": {"size": 5, "cell_px": 8, "reward": "faults"}, "prompt": "Go."},
        "tasks": {"evaluation": "vismaze-5x5", "stream": {"shortest": [2, 2]}},
        "rollout": {"tasks": 2, "samples": 2, "history": 0, "max_new_tokens": 2},
        "loss": {"scale": "none"},
        "train": {"lr": 1e-2, "rank": 2, "targets": "all-linear", "schedule": "cosine"},
        "evaluation": {"every": 4, "samples": 0},
        "checkpoint": {"keep": 2},
        "export": {"every": 5},
    }
    return parse(table, "campaign")


def start(config: Config, plugins: Plugins, instant: Instant | None, shared: mmap.mmap, log: Path) -> int:
    """Run in a fork of this process; returns how it ended: 0, an exit code, or minus a signal's number."""
    shared[:] = b" " * 64
    sys.stdout.flush()
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status)
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(out, 1)
        os.dup2(out, 2)
        here = watch(instant, shared, next(m for name, m in sys.modules.items() if name.endswith("faults_reward")))
        run_training(config, plugins, print)
        if instant is None:
            write_json(
                Path(config.run.folder) / "instants.json", {n: [here.calls[n], here.visits[n], here.seconds[n]] for n in PHASES}
            )
        os._exit(0)
    except BaseException:  # noqa: BLE001 — the child ends here, whatever came; the parent reads the log
        traceback.print_exc()
        os._exit(1)


def phase_of(number: int, seed: int) -> str:
    """Return the phase that a kill, by its number from 0, is meant for: each seven go through all, in a seeded order."""
    order = list(PHASES)
    random.Random(f"{seed}/{number // len(PHASES)}").shuffle(order)
    return order[number % len(PHASES)]


def draw(chance: random.Random, phase: str, counted: dict[str, list[float]]) -> Instant:
    """Return an instant in a phase, in the first two steps or so after a start."""
    calls, visits, seconds = counted[phase]
    if chance.random() < 0.5:
        return Instant(phase, call=chance.randrange(1, max(2, round(2 * calls / STEPS))))
    entries = max(1, round(2 * visits / STEPS))
    return Instant(phase, visit=chance.randint(1, entries), seconds=chance.uniform(0.0, seconds / visits))


def products(run: Path) -> dict[str, Any]:
    """Return what must not depend on kills: adapters, evaluations, and metrics without their seconds."""
    adapters = sorted((run / "adapters").glob("step_*"))
    return {
        "adapters": {folder.name: sha256_file(folder / "adapter_model.safetensors") for folder in adapters},
        "evaluations": {file.name: sha256_file(file) for file in sorted((run / "eval").glob("step_*"))},
        "metrics": [{k: v for k, v in record.items() if k != "seconds"} for record in read_lines(run / "metrics.jsonl")],
    }


def told(run: Path, event: str, attempt: int | None = None) -> list[int]:
    events = read_lines(run / "events.jsonl")
    return [e["step"] for e in events if e["event"] == event and attempt in (None, e["attempt"])]


def campaign(place: Path, kills: int, seed: int) -> dict[str, Any]:
    """Kill `kills` times and let the last run end; returns the whole record."""
    begun, chance, shared, log = time.monotonic(), random.Random(seed), mmap.mmap(-1, 64), place / "log.txt"
    plugins = load_plugins(["faults_reward.py"], folder=Path(__file__).parent)
    if start(config_of(place, "whole"), plugins, None, shared, log):
        raise SystemExit(f"the uninterrupted run failed:\n{log.read_text()}")
    whole = products(place / "whole")
    counted = json.loads((place / "whole" / "instants.json").read_text())
    load_processors(place / "base")  # once, for all forks
    gc.freeze()
    rows: list[Row] = []
    equal: list[bool] = []
    failed: list[str] = []
    while (len(rows) < kills or len(equal) < rows[-1].run) and not failed:
        number = len(equal) + 1
        run, attempt, ended = place / f"run_{number:03d}", 0, None
        while ended != 0:
            attempt += 1
            instant = draw(chance, phase_of(len(rows), seed), counted) if len(rows) < kills else Instant("none")
            ended = start(config_of(place, run.name), plugins, instant, shared, log)
            came = told(run, "resumed", attempt) or ([0] if told_start(run, attempt) else [])
            waiting = [n for n, row in enumerate(rows) if row.run == number and row.resumed is None]
            for n in waiting if came or ended != -signal.SIGKILL else []:  # a start may be killed before it has resumed
                rows[n] = replace(rows[n], resumed=came[0] if came else None)
                show(n + 1, rows[n])
            if ended == -signal.SIGKILL:
                committed = max(told(run, "checkpoint_committed"), default=0)
                rows.append(Row(number, attempt, instant.phase, str(instant), shown(shared), committed))
            elif ended != 0:
                failed.append(f"run {number}, attempt {attempt} ended with {ended}:\n{log.read_text()[-4000:]}")
                break
        equal.append(not failed and products(run) == whole)
    return {
        "kills": len(rows),
        "resumed": sum(row.resumed is not None for row in rows),
        "lost_steps": sum(row.lost_steps for row in rows),
        "digest_equal": all(equal),
        "runs": len(equal),
        "adapter_sha256": whole["adapters"][f"step_{STEPS:08d}"],
        "failed": failed,
        "seed": seed,
        "seconds": round(time.monotonic() - begun, 1),
        "machine": {"cpu_cores": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__},
        "by_phase": by_phase(rows),
        "rows": [{**asdict(row), "lost_steps": row.lost_steps} for row in rows],
    }


def told_start(run: Path, attempt: int) -> bool:
    return any(e["event"] == "run_started" and e["attempt"] == attempt for e in read_lines(run / "events.jsonl"))


def by_phase(rows: list[Row]) -> dict[str, dict[str, int]]:
    """Return kills, resumptions and lost steps by the phase that the instant was drawn in."""
    mine = {phase: [row for row in rows if row.phase == phase] for phase in PHASES}
    return {
        phase: {
            "kills": len(found),
            "resumed": sum(row.resumed is not None for row in found),
            "lost_steps": sum(row.lost_steps for row in found),
            "distinct_instants": len(Counter(row.instant for row in found)),
        }
        for phase, found in mine.items()
    }


def show(number: int, row: Row) -> None:
    print(
        f"{number:4}  run {row.run:3} attempt {row.attempt:3}  {row.phase:10} {row.instant:22} died in {row.died_in:42} "
        f"committed {row.committed:3}  resumed {row.resumed}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    warnings.filterwarnings("default")
    with tempfile.TemporaryDirectory() as place:
        record = campaign(Path(place), options.kills, options.seed)
    write_json(options.results, record)
    print(f"\n{'phase':12}{'kills':>8}{'resumed':>10}{'lost steps':>12}")
    for phase, found in record["by_phase"].items():
        print(f"{phase:12}{found['kills']:8}{found['resumed']:10}{found['lost_steps']:12}")
    print("\n".join(record["failed"]), file=sys.stderr)
    print(
        f"{record['kills']} kills in {record['runs']} runs, {record['resumed']} resumed, {record['lost_steps']} committed "
        f"steps lost, final products equal: {record['digest_equal']}, {record['seconds']} s"
    )
    good = record["resumed"] == record["kills"] >= options.kills and not record["lost_steps"] and record["digest_equal"]
    return 0 if good and not record["failed"] else 1


if __name__ == "__main__":
    sys.exit(main())
