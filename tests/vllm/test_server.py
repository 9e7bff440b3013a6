"""`grpo-run serve` and `grpo-run eval --engine openai` against a real vLLM server on loopback, with the official client."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from small import LORA
from tomli_w import dumps

from grpo_runner.config import parse
from grpo_runner.identity import without_none
from grpo_runner.main_job import run_training
from grpo_runner.serve import best_export, serves
from vismaze_hooks import load_plugins

FLAGS = ["--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", "50000000", "--max-model-len", "2048"]
FLAGS += ["--max-num-batched-tokens", "2048", "--skip-mm-profiling", "--block-size", "32", "--disable-log-stats"]
GRPO_RUN = [sys.executable, "-m", "grpo_runner.cli"]


@pytest.fixture(scope="module")
def run(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run with the engine local, whose adapter is then served."""
    folder = tmp_path_factory.mktemp("served") / "run"
    table = {
        "run": {"folder": str(folder), "steps": 2},
        "model": {"path": str(base)},
        "environment": {"id": "VisMaze-v0", "options": {"size": 5, "cell_px": 8, "reward": "lowercase"}, "prompt": "Go."},
        "tasks": {"evaluation": "vismaze-5x5"},
        "rollout": {"tasks": 2, "samples": 4, "max_new_tokens": 4, "history": 1},
        "loss": {"scale": "none"},
        "train": {"lr": 3e-2, "schedule": "constant", **LORA},
        "evaluation": {"every": 1, "samples": 0},
        "export": {"every": 1},
    }
    config = parse(table, "test")
    support = Path(__file__).parent / "support"
    run_training(config, load_plugins(["lowercase.py"], folder=support), lambda line: None)
    (folder / "small_letters.py").write_text((support / "lowercase.py").read_text())
    table = without_none(config.model_dump(mode="json")) | {"plugins": ["small_letters.py"]}
    (folder / "config.toml").write_text(dumps(table))
    return folder


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[tuple[subprocess.Popen, int]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [*GRPO_RUN, "serve", str(run), "--name", "maze", "--port", str(port), "--", *FLAGS]
    with (run / "serve.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    while not serves(port, "maze"):
        assert process.poll() is None, (run / "serve.log").read_text()[-3000:]
        time.sleep(1)
    yield process, port
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=120)


def evaluate(run: Path, port: int, *more: str) -> subprocess.CompletedProcess:
    url = f"http://127.0.0.1:{port}/v1"
    command = [*GRPO_RUN, "eval", str(run), "--engine", "openai", "--base-url", url, "--retries", "0", *more]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_official_client_reaches_the_adapter_and_the_base(server: tuple[subprocess.Popen, int], run: Path) -> None:
    _, port = server
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none")
    assert {"base", "maze"} <= {m.id for m in client.models.list()}
    messages = [{"role": "user", "content": "Go."}]
    answers = {
        model: client.chat.completions.create(model=model, messages=messages, max_tokens=4, temperature=0, logprobs=True)
        for model in ("base", "maze")
    }
    first = {model: answer.choices[0].logprobs.content[0].logprob for model, answer in answers.items()}
    assert first["base"] != first["maze"], "the adapter must be applied"
    log = (run / "serve.log").read_text()
    assert "--enable-lora" in log and "stop with Ctrl-C" in log


def test_the_server_plays_as_the_local_engine_does(server: tuple[subprocess.Popen, int], run: Path, tmp_path: Path) -> None:
    _, port = server
    best, _ = best_export(run)
    done = evaluate(run, port, "--model", "maze", "--out", str(tmp_path / "server.jsonl"))
    assert done.returncode == 0, done.stderr
    assert "prompt tokens" in done.stdout and "of 16 solved" in done.stdout
    local = subprocess.run(
        [*GRPO_RUN, "eval", str(run), "--adapter", str(best), "--out", str(tmp_path / "local.jsonl")], check=True
    )
    assert local.returncode == 0
    ours, theirs = (
        [json.loads(line) for line in (tmp_path / f"{n}.jsonl").read_text().splitlines()] for n in ("server", "local")
    )
    order = {row["uid"]: row for row in theirs[1:]}
    pairs = [(a, b) for row in ours[1:] for a, b in zip(row["answers"], order[row["uid"]]["answers"], strict=False)]
    # a server leaves out bytes at the end that are no text yet; the local engine shows them as they are
    assert len(pairs) > 40 and sum(a.rstrip("\ufffd") == b.rstrip("\ufffd") for a, b in pairs) >= 0.95 * len(pairs)


def test_an_evaluation_that_was_cut_off_goes_on(server: tuple[subprocess.Popen, int], run: Path, tmp_path: Path) -> None:
    _, port = server
    out = tmp_path / "rows.jsonl"
    assert evaluate(run, port, "--model", "maze", "--out", str(out)).returncode == 0
    lines = out.read_text().splitlines()
    out.write_text("\n".join(lines[:9]) + '\n{"uid": "half a li')
    again = evaluate(run, port, "--model", "maze", "--out", str(out))
    assert again.returncode == 0 and "8 of 16 episodes were played before" in again.stdout
    rows = [json.loads(line) for line in out.read_text().splitlines() if line.endswith("}")]
    assert len({r["uid"] for r in rows[1:]}) == 16 == len(rows) - 1
    other = evaluate(run, port, "--model", "base", "--out", str(out))
    assert other.returncode == 2 and "holds another evaluation (evaluated differ)" in other.stderr


def test_an_unknown_model_and_a_dead_server_are_a_users_errors(server: tuple[subprocess.Popen, int], run: Path) -> None:
    _, port = server
    unknown = evaluate(run, port, "--model", "nobody")
    assert unknown.returncode == 2 and "does not answer for model 'nobody'" in unknown.stderr
    dead = evaluate(run, 9, "--model", "maze")
    assert dead.returncode == 2 and "127.0.0.1:9" in dead.stderr and "OPENAI_API_KEY" in dead.stderr


def test_the_server_stops_cleanly(server: tuple[subprocess.Popen, int]) -> None:
    process, port = server
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=120) == 0
    assert not serves(port, "maze")
    assert os.path.exists(f"/proc/{process.pid}") is False
