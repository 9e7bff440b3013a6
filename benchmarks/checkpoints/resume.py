"""Seconds from the start of the command to the first step after a resume, by what they go into.

    python benchmarks/checkpoints/resume.py

A run of the small model is stopped by SIGTERM and started again, as often as asked; each start is a fresh process. "ready" ends
when models, engine and checkpoints are there (imports included), "resumed" when the newest checkpoint has been verified and
read, "step" with the line of the first step. Writes benchmarks/results/resume.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

import tomli_w

RESULTS = Path(__file__).parents[1] / "results" / "resume.json"


def write_config(folder: Path) -> Path:
    table = {
        "run": {"folder": str(folder / "run"), "steps": 1000},
        "model": {"path": str(folder / "base"), "tiny": "tiny"},
        "environment": {"id": "VisMaze-v0", "options": {"size": 7, "cell_px": 8}, "prompt": "Go."},
        "tasks": {"evaluation": "vismaze-64-7x7"},
        "rollout": {"tasks": 4, "samples": 4, "history": 1, "max_new_tokens": 4},
        "train": {"lr": 1e-3, "targets": "all-linear"},
        "evaluation": {"every": 1000, "samples": 0},
    }
    (folder / "run.toml").write_text(tomli_w.dumps(table))
    return folder / "run.toml"


def start(config: Path) -> tuple[float, float]:
    """Run until the second line of a step, then stop; returns when it was started and when the first step was reported."""
    begun, first = time.time(), None
    command = [sys.executable, "-m", "grpo_runner.cli", "train", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("step ") and first is None:
                first = time.time()
            elif line.startswith("step "):
                process.send_signal(signal.SIGTERM)
                break
        process.stderr.read()
    if first is None or process.returncode != 143:
        raise SystemExit(f"the run ended with {process.returncode}")
    return begun, first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as place:
        config = write_config(Path(place))
        start(config)
        for _ in range(options.rounds):
            begun, first = start(config)
            events = [json.loads(line) for line in (Path(place) / "run" / "events.jsonl").read_text().splitlines()]
            at = {e["event"]: datetime.fromisoformat(e["time"]).timestamp() for e in events}  # the last of each name
            ends = {"ready": at["run_started"], "resumed": at["resumed"], "step": first}
            rows.append({name: round(end - begun, 3) for name, end in ends.items()})
    median = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    machine = {"cpu_cores": os.cpu_count(), "load_average": os.getloadavg()[0], "python": platform.python_version()}
    record = {"machine": machine, "median_seconds_after_start": median, "rounds": rows}
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    print(median)


if __name__ == "__main__":
    main()
