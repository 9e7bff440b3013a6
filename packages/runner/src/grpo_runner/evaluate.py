"""Evaluation: the same rollout on a fixed set; one row an episode, nothing left out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from grpo_runner.config import ConfigError
from grpo_runner.files import write_atomic
from grpo_runner.ledger import Trajectory
from grpo_runner.rollout import Player, RolloutSettings, evaluation_seed
from grpo_runner.runs import append_line, read_lines
from grpo_runner.statistics import wilson_interval
from vismaze_hooks import Engine, Task


@dataclass(frozen=True)
class Outcome:
    """The result of one evaluation."""

    solved: int  # greedy
    total: int
    interval: tuple[float, float]  # Wilson, 95 %
    sampled_rate: float | None  # solve rate at the training temperature; None when not sampled
    mean_moves: float | None  # of solved greedy episodes
    invalid_share: float  # unreadable answers among all answers, greedy

    @property
    def rate(self) -> float:
        return self.solved / self.total


def read_outcome(record: Mapping[str, Any]) -> Outcome:
    """Return an outcome from what `asdict` and JSON made of it."""
    low, high = record["interval"]
    return Outcome(**{**record, "interval": (low, high)})


def evaluate(
    rollouts: Player,
    engine: Engine,
    tasks: Sequence[Task],
    settings: RolloutSettings,
    *,
    samples: int,
    run_seed: int,
    done: Sequence[dict[str, Any]] = (),
    keep: Callable[[dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """Play every task once greedily and `samples` times at the training temperature.

    Args:
        done: rows of episodes that need not be played again.
        keep: told each new row as soon as its episode is over.

    Returns:
        One JSON-able row an episode, greedy ones first.
    """
    rows = {(r["mode"], r["uid"], r["sample"]): r for r in done}
    plan = {"greedy": [(t, 0) for t in tasks], "sampled": [(t, s) for t in tasks for s in range(samples)]}
    for mode, pairs in plan.items():
        played = replace(settings, temperature=0.0) if mode == "greedy" else settings
        missing = [(t, s) for t, s in pairs if (mode, t.uid, s) not in rows]

        def finished(trajectory: Trajectory, mode: str = mode) -> None:
            row = rows[mode, trajectory.task.uid, trajectory.sample] = _row(trajectory, mode)
            if keep is not None:
                keep(row)

        if missing:
            rollouts.run(engine, missing, played, evaluation_seed(run_seed), finished)
    return [rows[mode, task.uid, sample] for mode, pairs in plan.items() for task, sample in pairs]


def _row(trajectory: Trajectory, mode: str) -> dict[str, Any]:
    task = trajectory.task
    return {
        "uid": task.uid,
        "content_hash": task.content_hash,
        "mode": mode,
        "sample": trajectory.sample,
        "success": trajectory.success,
        "ending": str(trajectory.ending),
        "moves": trajectory.moves,
        "move_limit": task.move_limit,
        "invalid": sum(not t.readable for t in trajectory.turns),
        "reward": trajectory.reward,
        "answers": [t.answer for t in trajectory.turns],
        "labels": dict(task.labels),
        **({"error": trajectory.error} if trajectory.error is not None else {}),
    }


def outcome(rows: Sequence[dict[str, Any]]) -> Outcome:
    """Count the rows of one evaluation."""
    greedy = [r for r in rows if r["mode"] == "greedy"]
    sampled = [r for r in rows if r["mode"] == "sampled"]
    solved = sum(r["success"] for r in greedy)
    answers = sum(r["moves"] for r in greedy)
    return Outcome(
        solved=solved,
        total=len(greedy),
        interval=wilson_interval(solved, len(greedy)),
        sampled_rate=fmean(r["success"] for r in sampled) if sampled else None,
        mean_moves=fmean(r["moves"] for r in greedy if r["success"]) if solved else None,
        invalid_share=sum(r["invalid"] for r in greedy) / max(answers, 1),
    )


def write_evaluation(path: Path, header: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    """Write an evaluation's file: the header's line, then a line an episode."""
    write_atomic(path, "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in (header, *rows)))


def read_evaluation(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """Return header and rows, or None when the evaluation has not been made."""
    lines = read_lines(path)
    return (lines[0], lines[1:]) if lines else None


def resumable(path: Path, header: dict[str, Any]) -> tuple[list[dict[str, Any]], Callable[[dict[str, Any]], None]]:
    """Return what a file holds of an evaluation that was cut off, and a function that appends a row to it.

    Raises:
        ConfigError: the file is of another evaluation.
    """
    found = read_evaluation(path)
    if found is None:
        append_line(path, header)
        found = header, []
    if found[0] != header:
        differing = sorted(k for k in found[0].keys() | header.keys() if found[0].get(k) != header.get(k))
        raise ConfigError(f"{path} holds another evaluation ({', '.join(differing)} differ); choose another file with --out")
    return found[1], lambda row: append_line(path, row)


def check_disjoint(tasks: Sequence[Task], trained: Sequence[Task], name: str) -> None:
    """Raise if a training task is one of the fixed set: the promise is the environment's, the check is ours.

    Raises:
        ValueError: names the task.
    """
    held_out = {t.content_hash for t in tasks}
    for task in trained:
        if task.content_hash in held_out:
            raise ValueError(f"training task {task.uid} is a task of the fixed set {name}; its stream must avoid that set")
