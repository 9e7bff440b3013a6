"""Whose answer a policy gives where the solver and the greedy baseline disagree, at the start of a run and at its end.

    python benchmarks/learning/forks.py runs/maze-tiny

Reads the run's evaluations on its fixed set and plays their answers again, so no model is needed.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np

from grpo_runner.config import load
from grpo_runner.evaluate import read_evaluation
from vismaze_hooks import EnvironmentOffer, Task, load_plugins
from vismaze_hooks.answers import parse_tagged
from vismaze_hooks.text import make_text_environment

DRAWS = 12  # of the baseline in one state: it breaks ties at random


def main(run: Path) -> None:
    config = load(run / "config.toml")
    offer = load_plugins().create("environment", config.environment.id, config.environment.options)
    tasks = {task.uid: task for task in offer.fixed_sets[config.tasks.evaluation]()}
    first, *_, last = sorted((run / "eval").glob("step_*.jsonl"))
    for file in (first, last):
        for mode in ("greedy", "sampled"):
            counts: Counter[str] = Counter()
            for row in read_evaluation(file)[1]:
                if row["mode"] == mode:
                    counts += sides(offer, tasks[row["uid"]], row["answers"])
            print(f"{file.stem} {mode}: {dict(sorted(counts.items()))}")


def sides(offer: EnvironmentOffer, task: Task, answers: list[str]) -> Counter[str]:
    """Count, over the turns in which the baseline would not go the solver's way, whose answer was given."""
    env = make_text_environment(offer)
    env.start(task)
    counts: Counter[str] = Counter()
    for answer in answers:
        shortest = offer.solver(env.unwrapped)[0]
        crow = {offer.baselines["greedy"](env.unwrapped, np.random.default_rng(draw)) for draw in range(DRAWS)}
        if shortest not in crow:
            action = parse_tagged(answer, offer.words)
            counts["solver" if action == shortest else "greedy" if action in crow else "other"] += 1
        env.step(answer)
    return counts


if __name__ == "__main__":
    main(Path(sys.argv[1]))
