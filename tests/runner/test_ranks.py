"""A learner over ranks computes what one process computes, and any number of ranks goes on from another number's checkpoint."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from multiprocessing import active_children
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tomli_w
import torch
from peft import PeftModel
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText

from grpo_runner.launch import lead
from grpo_runner.runs import read_lines

CASES = Path(__file__).with_name("rank_cases.py")


def run(what: str, model: Path, folder: Path) -> str:
    command = [sys.executable, str(CASES), what, str(model), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)  # ranks that do not meet wait for ever
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout


def whole_norm(tensors: dict[str, torch.Tensor]) -> float:
    return sum(float(t.double().pow(2).sum()) for t in tensors.values()) ** 0.5


@pytest.mark.slow
def test_the_gradient_is_the_same_on_any_number_of_ranks_and_micro_batches(tiny_plain: Path, tmp_path: Path) -> None:
    run("gradients", tiny_plain, tmp_path)
    found = sorted(tmp_path.glob("gradient-*.safetensors"))
    assert {file.name.split("-")[1] for file in found} == {"1", "2", "3", "4"} and len(found) == 20
    passes = set()
    for file in found:
        _, ranks, rest = file.stem.split("-", 2)
        name = next(n for n in ("language", "all-linear", "full") if rest.startswith(n))
        reference = load_file(tmp_path / f"gradient-1-{name}-replicate-2.safetensors")
        gradient = load_file(file)
        assert gradient.keys() == reference.keys(), file.name
        difference = whole_norm({n: gradient[n] - reference[n] for n in gradient}) / whole_norm(reference)
        assert difference <= 1e-6, (file.name, difference)
        with safe_open(file, "pt") as opened:
            facts = opened.metadata()
        assert abs(float(facts["norm"]) / whole_norm(reference) - 1) <= 1e-6, "the norm that clips is that of all ranks"
        if name == "language":
            passes.add((ranks, int(facts["passes"])))
    assert {("1", 1), ("1", 2), ("1", 4), ("2", 1), ("2", 2), ("2", 4), ("3", 1), ("3", 2)} <= passes, passes


@pytest.mark.slow
def test_ranks_with_unequal_numbers_of_micro_batches_wait_for_each_other(tiny_plain: Path, tmp_path: Path) -> None:
    run("unequal", tiny_plain, tmp_path)


@pytest.mark.slow
def test_a_run_goes_on_with_one_rank_and_with_three_from_the_checkpoint_of_two(tiny_plain: Path, tmp_path: Path) -> None:
    events = run("elastic", tiny_plain, tmp_path)
    assert events.count("checkpoint_committed") == 12 and events.count("checkpoint_loaded") == 2
    whole, parts = (load_file(tmp_path / name / "weights.safetensors") for name in ("whole", "parts"))
    start = load_file(tmp_path / "language" / "state.safetensors")
    assert max(float((whole[n] - start[f"weights/{n}"]).abs().max()) for n in whole) > 5e-4, "there was something to learn"
    assert max(float((whole[n] - parts[n]).abs().max()) for n in whole) <= 1e-6
    shards = sorted(f.name for f in (tmp_path / "parts" / "checkpoints" / "step_00000006").glob("*.safetensors"))
    assert len(shards) == 3, "each rank wrote its own part"
    manifest = json.loads((tmp_path / "parts" / "checkpoints" / "step_00000006" / "MANIFEST.json").read_text())
    assert manifest["meta"] == {"ranks": 3} and set(shards) == set(manifest["files"])
    model = PeftModel.from_pretrained(AutoModelForImageTextToText.from_pretrained(tiny_plain), tmp_path / "parts" / "adapter")
    loaded = {n.removeprefix("base_model.model."): p for n, p in model.named_parameters() if "lora_" in n}
    assert loaded.keys() == parts.keys() and all(torch.equal(loaded[n], parts[n]) for n in parts)


@pytest.mark.slow
def test_processes_that_form_a_new_group_as_other_ranks_save_their_own_parts(tiny_plain: Path, tmp_path: Path) -> None:
    run("regroup", tiny_plain, tmp_path)


@pytest.mark.slow
def test_a_save_that_fails_on_one_rank_fails_on_all_and_costs_that_checkpoint_only(tiny_plain: Path, tmp_path: Path) -> None:
    events = run("failing", tiny_plain, tmp_path)
    assert "checkpoint_failed {'step': 2, 'error': 'CheckpointException" in events and "File too large" in events
    left = sorted(f.name for f in (tmp_path / "failing" / "checkpoints").iterdir())
    assert left == ["LATEST", "step_00000001", "step_00000003"], "nothing is left of the one that failed"


def configuration(folder: Path, steps: int) -> Path:
    table = {
        "plugins": ["short_answers.py"],
        "run": {"folder": str(folder / "run"), "steps": steps},
        "model": {"path": str(folder / "base"), "tiny": {"vision_depth": 2, "deepstack": [0, 1]}},
        "environment": {"id": "VisMaze-v0", "options": {"size": 5, "cell_px": 8, "reward": "short_answers"}, "prompt": "Go."},
        "tasks": {"evaluation": "vismaze-5x5", "stream": {"shortest": [2, 2]}},
        "rollout": {"tasks": 2, "samples": 4, "history": 1, "max_new_tokens": 4},
        "loss": {"scale": "none"},
        "train": {"lr": 1e-3, "rank": 4, "targets": "all-linear", "minibatches": 2},
        "evaluation": {"every": 100, "samples": 0},
    }
    shutil.copy(CASES.with_name("short_answers.py"), folder)
    (folder / "c.toml").write_text(tomli_w.dumps(table))
    return folder / "c.toml"


class Unreadable(SimpleNamespace):
    """A configuration that cannot be read where it arrives."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


@pytest.mark.slow
def test_a_rank_that_fails_before_it_has_met_the_others_is_not_waited_for(capfd: pytest.CaptureFixture[str]) -> None:
    others = active_children()
    with pytest.raises(RuntimeError, match=r"rank 1 of the learner failed, so the run cannot go on"):
        lead(Unreadable(learner=SimpleNamespace(ranks=2)))
    assert "invalid literal for int()" in capfd.readouterr().err, "what it said itself"
    assert [child for child in active_children() if child not in others] == []


def until(process: subprocess.Popen, start: str) -> None:
    for line in process.stderr:
        if line.startswith(start):
            return
    raise AssertionError(f"it ended with {process.wait()} before {start!r}")


def spawned(process: subprocess.Popen) -> list[int]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


@pytest.mark.slow
def test_grpo_run_trains_on_ranks_that_it_or_torchrun_starts_and_survives_the_death_of_one(tmp_path: Path) -> None:
    config = str(configuration(tmp_path, 6))
    train = ["-m", "grpo_runner.cli", "train", config]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stderr": subprocess.PIPE, "text": True, "env": environment}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *train]
    with subprocess.Popen(torchrun, **pipes) as process:  # two ranks, stopped by SIGTERM as a scheduler would
        until(process, "step 1/")
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
    events = tmp_path / "run" / "events.jsonl"
    stopped = [e for e in read_lines(events) if e["event"] == "run_stopped"]
    assert len(stopped) == 1 and stopped[0]["saved"] == stopped[0]["step"] >= 1
    then = stopped[0]["step"] + 2  # by then the checkpoint of the step before stands
    with subprocess.Popen([sys.executable, *train, "learner.ranks=3"], **pipes) as process:  # three, and one of them dies
        until(process, f"step {then}/")
        ranks = spawned(process)
        os.kill(ranks[-1], signal.SIGKILL)
        assert "rank 2 of the learner failed" in process.stderr.read()
    assert process.returncode == 1 and len(ranks) == 2 and not any(Path(f"/proc/{rank}").exists() for rank in ranks)
    subprocess.run([sys.executable, *train], check=True, env=environment, capture_output=True)  # one goes on to the end
    resumed = [e for e in read_lines(events) if e["event"] == "resumed"]
    assert [(e["written_by"]["ranks"], e["world"]["ranks"]) for e in resumed] == [(2, 3), (3, 1)]
    assert (tmp_path / "run" / "adapters" / "step_00000006" / "adapter_model.safetensors").is_file()
