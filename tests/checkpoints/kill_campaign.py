"""Kill a saving process again and again; after each kill the next start must find the last acknowledged checkpoint.

    python tests/checkpoints/kill_campaign.py --kills 200

Half of the kills are at a seeded operation on the file system (see `kill_worker.py`), half at a seeded time. One run folder
lives through all of them. Prints one line per kill and a summary; exits with 1 when a start failed or lost something.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

WORKER = Path(__file__).with_name("kill_worker.py")
NEVER = 10**9


@dataclass(frozen=True)
class Kill:
    """One kill and what the start after it found."""

    how: str
    acknowledged: int  # last step whose save had returned
    resumed: int  # step that the next start loaded; -1: it failed


def campaign(folder: Path, kills: int, seed: int) -> list[Kill]:
    """Kill `kills` times; returns a row for each."""
    draw = random.Random(seed)
    rows: list[Kill] = []
    acknowledged, how = 0, ""
    while len(rows) < kills:
        if draw.random() < 0.5:
            planned, operation, seconds = "operation", draw.randrange(1, 100), None
        else:
            planned, operation, seconds = "time", NEVER, draw.uniform(0.0, 0.3)
        lines = start(folder, operation, seconds)
        resumed = next((int(line.split()[1]) for line in lines if line.startswith("resumed")), None)
        if resumed is None:  # it failed: a kill by time is only set once it has resumed
            rows.append(Kill(how, acknowledged, -1))
            return rows
        if how:
            rows.append(Kill(how, acknowledged, resumed))
        acknowledged = max([resumed, *(int(line.split()[1]) for line in lines if line.startswith("saved"))])
        how = f"{planned} {operation if seconds is None else f'{seconds:.3f} s'}"
    return rows


def start(folder: Path, operation: int, seconds: float | None) -> list[str]:
    """Run the worker until it is dead; returns what it printed."""
    command = [sys.executable, str(WORKER), str(folder), str(operation)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        try:
            first = worker.stdout.readline()
            if seconds is not None and first:
                time.sleep(seconds)
                worker.kill()
            return [first, *worker.stdout.read().splitlines()]
        finally:
            worker.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = campaign(Path(folder) / "run", options.kills, options.seed)
        left = sorted(os.listdir(Path(folder) / "run" / "checkpoints"))
    for number, row in enumerate(rows, 1):
        print(f"{number:4}  {row.how:18}  acknowledged {row.acknowledged:5}  resumed {row.resumed:5}")
    failed = sum(row.resumed < 0 for row in rows)
    lost = sum(0 <= row.resumed < row.acknowledged for row in rows)
    print(f"kills {len(rows)}, starts that failed {failed}, acknowledged checkpoints lost {lost}; left: {', '.join(left)}")
    return 1 if failed or lost or len(rows) < options.kills else 0


if __name__ == "__main__":
    sys.exit(main())
