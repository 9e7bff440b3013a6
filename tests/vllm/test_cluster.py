"""Two ranks on Ray, each with a vLLM engine of its own: every engine is proved, and one that dies is replaced in its rank."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from small import LORA, OPTIONS

from grpo_runner.config import parse
from grpo_runner.main_job import run_training
from grpo_runner.runs import read_lines
from vismaze_hooks import load_plugins

pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning:ray")]

SUPPORT = Path(__file__).parent / "support"
STEPS = 3


def engines() -> list[psutil.Process]:
    """The vLLM processes of this test's ranks, which Ray's raylet has started."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "grpo_runner.vllm_process" in " ".join(child.cmdline())]


def test_two_engines_are_proved_and_one_that_dies_is_replaced(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    table = {
        "plugins": ["lowercase.py"],
        "run": {"folder": str(tmp_path / "run"), "steps": STEPS},
        "model": {"path": str(base)},
        "environment": {"id": "VisMaze-v0", "options": {"size": 5, "cell_px": 8, "reward": "lowercase"}, "prompt": "Go."},
        "tasks": {"evaluation": "vismaze-5x5"},
        "rollout": {"engine": "vllm", "engine_options": OPTIONS, "tasks": 6, "samples": 4, "max_new_tokens": 1},
        "loss": {"scale": "none"},
        "train": {"lr": 4e-2, "schedule": "constant", **LORA},
        "cluster": {"kind": "ray", "nodes": 2},
        "evaluation": {"every": STEPS, "samples": 0},
    }
    config, killed = parse(table, "test"), []

    def tell(line: str) -> None:
        if line.startswith("step 1/"):
            victim, _ = engines()
            victim.kill()
            killed.append(victim.pid)

    run_training(config, load_plugins(["lowercase.py"], folder=SUPPORT), tell)
    records = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [r["cluster/ranks"] for r in records] == [2] * STEPS
    assert all(r["agreement/canary_gap_max"] <= 1e-4 and r["agreement/logprob_gap_max"] <= 1e-4 for r in records)
    assert [r["engine/deaths"] for r in records] == [0, 1, 1] and len(killed) == 1
    assert not [e for e in read_lines(tmp_path / "run" / "events.jsonl") if e["event"] == "rank_lost"], "no rank was lost"
