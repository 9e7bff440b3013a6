"""Several run seeds of one configuration: their summaries as JSON, their learning curves as PNG, where they solve as tables.

    python benchmarks/learning/run.py examples/maze-tiny.toml --seeds 3

Runs go to the configuration's folder, seeds above 0 to that name with the seed behind it; what is finished is not run
again, what was interrupted goes on. Writes benchmarks/results/NAME.json and docs/images/NAME.png.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot
from matplotlib.ticker import MaxNLocator

from grpo_runner.config import load
from grpo_runner.evaluate import outcome, read_evaluation
from grpo_runner.runs import read_lines
from grpo_runner.statistics import Fate, by_stratum, compare, mcnemar_exact, summarize

ROOT = Path(__file__).parents[2]
KEPT = ("eval_start", "eval_final", "steps", "seeds", "hashes", "wall_seconds", "versions")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("overrides", nargs="*", help="key=value, for every seed")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--control", type=Path, help="run folder of the shuffled-advantages control, drawn beside")
    options = parser.parse_args()
    base = load(options.config, options.overrides)
    folders = [Path(base.run.folder if seed == 0 else f"{base.run.folder}-{seed}") for seed in range(options.seeds)]
    for seed, folder in enumerate(folders):
        command = [sys.executable, "-m", "grpo_runner.cli", "train", str(options.config), *options.overrides]
        subprocess.run([*command, f"run.folder={folder}", f"run.seed={seed}"], check=True)
    name = options.config.stem
    every = [*folders, options.control] if options.control else folders
    summaries = {folder.name: json.loads((folder / "summary.json").read_text()) for folder in every}
    result = {run: {key: summary[key] for key in KEPT} for run, summary in summaries.items()}
    for folder in every:
        result[folder.name] |= breakdown(folder)
        result[folder.name]["hashes"] |= {"code": code_hash(), "fixed_set": set_hash(folder)}
    (ROOT / "benchmarks" / "results" / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    draw(folders, options.control, name, ROOT / "docs" / "images" / f"{name}.png")
    for run, summary in result.items():
        start, end = summary["eval_start"], summary["eval_final"]
        print(f"{run}: {start['solved']} -> {end['solved']} of {end['total']}, {summary['wall_seconds']['total']:.0f} s")
    for label in ("shortest", "class"):
        print_table(label, [result[folder.name] for folder in folders])


def evaluations(run: Path) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Return header and rows of each evaluation of a run, by step."""
    return [found for path in sorted((run / "eval").glob("step_*.jsonl")) if (found := read_evaluation(path))]


def ends(run: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows of the first and of the last evaluation."""
    (_, first), *_, (_, last) = evaluations(run)
    return first, last


def code_hash() -> str:
    """Return the sha256 over the sources of the packages and plugins, as they are when the table is made."""
    digest = hashlib.sha256()
    for file in sorted(file for part in ("packages", "plugins") for file in (ROOT / part).glob("*/src/**/*.py")):
        digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


def set_hash(run: Path) -> str:
    """Return the sha256 over what the last evaluation played: each task's number and the hash of its content."""
    tasks = sorted({(row["uid"], row["content_hash"]) for row in ends(run)[1]})
    return hashlib.sha256(json.dumps(tasks).encode()).hexdigest()


def breakdown(run: Path) -> dict[str, Any]:
    """Compare start and end, both greedy: newly solved and lost with McNemar's test, by path length, by class of walls."""
    before, after = ([row for row in rows if row["mode"] == "greedy"] for rows in ends(run))
    fates = compare(*({row["uid"]: row["success"] for row in rows} for rows in (before, after)))
    won, lost = (sum(fate is wanted for fate in fates.values()) for wanted in (Fate.WON, Fate.LOST))
    ways = {
        label: {
            str(old.stratum): {"start": old.solved, "end": new.solved, "total": new.total}
            for old, new in zip(by_stratum(before, label), by_stratum(after, label), strict=True)
        }
        for label in ("shortest", "class")
    }
    detours = {name: summarize(rows)["detour"] for name, rows in (("start", before), ("end", after))}
    return {"won": won, "lost": lost, "mcnemar_p": mcnemar_exact(lost, won), "detour": detours, "by": ways}


def print_table(label: str, runs: list[dict[str, Any]]) -> None:
    """Print as Markdown what all seeds together solve, greedy, for each value of a label."""
    print(f"\n| {label} | start | end |\n|---|---|---|")
    for value in runs[0]["by"][label]:
        cells = [run["by"][label][value] for run in runs]
        total = sum(cell["total"] for cell in cells)
        print(f"| {value} | {sum(c['start'] for c in cells)} of {total} | {sum(c['end'] for c in cells)} of {total} |")


def draw(runs: list[Path], control: Path | None, title: str, file: Path) -> None:
    """Draw the solved share of the fixed set (with its Wilson interval) and of the training tasks, by step."""
    figure, (fixed, training) = pyplot.subplots(1, 2, figsize=(11, 4), sharey=True)
    for number, run in enumerate([*runs, control] if control else runs):
        label, colour = (f"seed {number}", f"C{number}") if run is not control else ("shuffled advantages", "grey")
        found = evaluations(run)
        steps = [header["step"] for header, _ in found]
        results = [outcome(rows) for _, rows in found]
        fixed.plot(steps, [r.rate for r in results], marker="o", color=colour, label=label)
        fixed.fill_between(steps, *zip(*(r.interval for r in results), strict=True), color=colour, alpha=0.12, lw=0)
        if all(r.sampled_rate is not None for r in results):
            fixed.plot(steps, [r.sampled_rate for r in results], ls=":", color=colour)
        solved = [record["reward/solved"] for record in read_lines(run / "metrics.jsonl")]
        window = max(1, len(solved) // 20)
        means = [sum(solved[max(0, n - window) : n + 1]) / len(solved[max(0, n - window) : n + 1]) for n in range(len(solved))]
        training.plot(range(1, len(means) + 1), means, color=colour)
    fixed.set(title=f"{title}: the fixed set, greedy (dotted: sampled)", xlabel="step", ylabel="solved", ylim=(0, 1))
    training.set(title="training mazes, sampled (running mean)", xlabel="step")
    for axis in (fixed, training):
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.grid(alpha=0.3)
    fixed.legend(loc="lower right", fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    main()
