"""One run of each environment's example: what the small model gains on its fixed set, as JSON and as a table.

    python benchmarks/learning/examples.py [jigsaw klotski ...]

Runs go to the folders that the configurations name; what is finished is not run again, what was interrupted goes on. Writes
benchmarks/results/examples.json; a name that is not given keeps what stands there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from run import KEPT, ROOT, breakdown, ends

from grpo_runner.config import load
from grpo_runner.statistics import wilson_interval
from vismaze_hooks.names import nearest

NAMES = ("jigsaw", "klotski", "matchstick", "firstperson", "frozenlake", "cliffwalking", "minigrid")
RESULTS = ROOT / "benchmarks" / "results" / "examples.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME", help=f"of {', '.join(NAMES)}; all by default")
    names = parser.parse_args().names
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"unknown example {unknown[0]!r}{nearest(unknown[0], NAMES)}")
    for name in names:
        config = ROOT / "examples" / f"{name}.toml"
        subprocess.run([sys.executable, "-m", "grpo_runner.cli", "train", str(config)], check=True)
    collect({name: Path(load(ROOT / "examples" / f"{name}.toml").run.folder) for name in names})


def collect(folders: dict[str, Path]) -> None:
    """Put what finished runs say of themselves into the results, and print all that stands there."""
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name, folder in folders.items():
        summary = json.loads((folder / "summary.json").read_text())
        facts = breakdown(folder)
        results[name] = {key: summary[key] for key in KEPT} | {key: facts[key] for key in ("won", "lost", "mcnemar_p")}
        for key, rows in zip(("eval_start", "eval_final"), ends(folder), strict=True):
            sampled = [row["success"] for row in rows if row["mode"] != "greedy"]
            results[name][key] |= {"sampled_solved": sum(sampled), "sampled_total": len(sampled)}
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    print("| example | fixed set | greedy, start | end | sampled, start | end | steps, seconds |")
    print("|---|---|---|---|---|---|---|")
    for name in [name for name in NAMES if name in results]:
        looks = results[name]["eval_start"], results[name]["eval_final"]
        cells = [f"{look['solved']} ({interval(look['solved'], look['total'])})" for look in looks]
        for solved, total in ((look["sampled_solved"], look["sampled_total"]) for look in looks):
            cells.append(f"{solved / total:.1%} of {total} ({interval(solved, total)})")
        steps, seconds = results[name]["steps"], results[name]["wall_seconds"]["total"]
        print(f"| `{name}` | {looks[0]['total']} | {' | '.join(cells)} | {steps}, {seconds:.0f} |")


def interval(solved: int, total: int) -> str:
    """Return Wilson's interval at 95 %, as if samples of one task were independent."""
    low, high = wilson_interval(solved, total)
    return f"{low:.1%} to {high:.1%}"


if __name__ == "__main__":
    main()
