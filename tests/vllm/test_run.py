"""A GRPO run with the engine vllm beside the same run with the engine local: same base, same seeds, both learn."""

from __future__ import annotations

from pathlib import Path

import pytest
from small import LORA, OPTIONS

from grpo_runner.config import Config, parse
from grpo_runner.main_job import run_training
from grpo_runner.runs import read_lines
from vismaze_hooks import Plugins, load_plugins

STEPS = 10


@pytest.fixture(scope="module")
def lowercase() -> Plugins:
    return load_plugins(["lowercase.py"], folder=Path(__file__).parent / "support")


def config_of(base: Path, folder: Path, engine: str, options: dict | None = None) -> Config:
    table = {
        "run": {"folder": str(folder), "steps": STEPS},
        "model": {"path": str(base)},
        "environment": {"id": "VisMaze-v0", "options": {"size": 5, "cell_px": 8, "reward": "lowercase"}, "prompt": "Go."},
        "tasks": {"evaluation": "vismaze-5x5"},
        "rollout": {"engine": engine, "engine_options": options or {}, "tasks": 6, "samples": 4, "max_new_tokens": 1},
        "loss": {"scale": "none"},
        "train": {"lr": 4e-2, "schedule": "constant", **LORA},
        "evaluation": {"every": STEPS, "samples": 0},
        "checkpoint": {"every": STEPS},
    }
    return parse(table, "test")


def metrics(base: Path, folder: Path, plugins: Plugins, engine: str, options: dict | None = None) -> list[dict]:
    run_training(config_of(base, folder, engine, options), plugins, lambda line: None)
    return read_lines(folder / "metrics.jsonl")


@pytest.fixture(scope="module")
def vllm_run(base: Path, tmp_path_factory: pytest.TempPathFactory, lowercase: Plugins) -> Path:
    folder = tmp_path_factory.mktemp("vllm") / "run"
    metrics(base, folder, lowercase, "vllm", OPTIONS)
    return folder


@pytest.fixture(scope="module")
def local_run(base: Path, tmp_path_factory: pytest.TempPathFactory, lowercase: Plugins) -> Path:
    folder = tmp_path_factory.mktemp("local") / "run"
    metrics(base, folder, lowercase, "local")
    return folder


@pytest.mark.parametrize("engine", ["local_run", "vllm_run"])
def test_it_learns(engine: str, request: pytest.FixtureRequest) -> None:
    run = request.getfixturevalue(engine)
    assert len(read_lines(run / "metrics.jsonl")) == STEPS
    first, last = (rewarded(run / "eval" / f"step_{step:08d}.jsonl") for step in (0, STEPS))
    assert last > first + 0.3, (first, last)


def rewarded(path: Path) -> float:
    """Share of the answers of a greedy evaluation that are paid."""
    rows = read_lines(path)[1:]
    return sum(r["reward"] for r in rows) / sum(r["moves"] for r in rows)


def test_every_publish_was_proved_and_every_token_agreed(vllm_run: Path) -> None:
    records = read_lines(vllm_run / "metrics.jsonl")
    assert all(r["agreement/canary_gap_max"] <= 1e-4 for r in records)
    assert all(r["agreement/logprob_gap_max"] <= 1e-4 and r["agreement/tokens"] > 30 for r in records)
    assert all(r["rollout/staleness_max"] == 0 and r["engine/deaths"] == 0 for r in records)
    assert len(list((vllm_run / "sync").iterdir())) == 3


def test_the_two_start_from_the_same_tasks_and_evaluate_alike(vllm_run: Path, local_run: Path) -> None:
    """The draws differ (each engine has its own generator), the greedy play of the same weights does not."""
    ours, theirs = (read_lines(run / "eval" / "step_00000000.jsonl")[1:] for run in (vllm_run, local_run))
    answers = [
        (a, b)
        for mine, yours in zip(ours, theirs, strict=True)
        for a, b in zip(mine["answers"], yours["answers"], strict=False)
    ]
    assert len(answers) > 40 and sum(a == b for a, b in answers) >= 0.99 * len(answers)
