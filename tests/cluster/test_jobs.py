"""`grpo-run submit`, `status`, `stop` against a real Ray head, whose jobs are real runs that are killed, stopped and lost."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from grpo_runner.config import ConfigError, load
from grpo_runner.job_server import Job, ending, exit_code, was_lost
from grpo_runner.jobs import Log, pack, plan

BIN = Path(sys.executable).parent
TOKEN = secrets.token_hex(32)
CONFIG = """
plugins = ["mortal.py"]
[run]
folder = "{folder}/run"
steps = 3
[model]
path = "{folder}/base"
tiny = {{ vision_depth = 2, deepstack = [0, 1] }}
[environment]
id = "Corridor-v0"
[tasks]
evaluation = "corridor-2"
[rollout]
tasks = 2
samples = 2
max_new_tokens = 3
[train]
lr = 1e-3
schedule = "constant"
[evaluation]
every = 1000000
samples = 0
"""
PLUGIN = """
import json, os, signal
from pathlib import Path
from vismaze_hooks import hookimpl

@hookimpl
def vismaze_step_finished(step, metrics):
    grave = os.environ.get("GRAVE")
    if grave and step == 2 and not Path(grave).exists():
        Path(grave).write_text(json.dumps({"files": sorted(os.listdir()), "variables": sorted(os.environ)}))
        os.kill(os.getpid(), signal.SIGKILL)
"""


class Head:
    """A Ray head with its job server, on ports of its own."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="ray")  # short: the sockets' paths must be
        self._ports = [free_port() for _ in range(4)]
        self.address = f"http://127.0.0.1:{self._ports[0]}"
        self._process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        http, gcs, agent, client = self._ports
        options = [f"--dashboard-port={http}", f"--port={gcs}", f"--dashboard-agent-listen-port={agent}"]
        options += [f"--ray-client-server-port={client}", "--min-worker-port=0", "--max-worker-port=0", "--num-cpus=2"]
        options += ["--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", "--include-dashboard=true"]
        options += ["--object-store-memory=80000000", f"--temp-dir={self._folder}", "--disable-usage-stats", "--block"]
        output = Path(self._folder) / "start.txt"
        with output.open("a") as out:
            command = [str(BIN / "ray"), "start", "--head", *options]
            process = subprocess.Popen(command, env=environment(), stdout=out, stderr=subprocess.STDOUT, text=True)
        try:
            until(lambda: process.poll() is not None or self._answers())
            assert process.poll() is None, output.read_text()
        except AssertionError:
            process.terminate()
            raise
        return process

    def _answers(self) -> bool:
        request = urllib.request.Request(f"{self.address}/api/jobs/", headers={"Authorization": f"Bearer {TOKEN}"})
        try:
            with urllib.request.urlopen(request):
                return True
        except OSError:
            return False

    def kill(self) -> None:
        """Lose the machine: all at once, nothing is told. Returns when what was on it is gone."""
        processes = psutil.Process(self._process.pid).children(recursive=True)
        for process in processes:
            with suppress(psutil.NoSuchProcess):  # the loss of one ends others
                process.kill()
        self._process.wait()
        psutil.wait_procs(processes, timeout=20)

    def replace(self) -> None:
        """Start an empty head where the lost one was."""
        self._process = self._start()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def free_port() -> int:
    """Return a port that nobody uses, out of those that Ray would give to workers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def environment(**more: str) -> dict[str, str]:
    """Return the variables of a process of the cluster or of its user; a token keeps others of this machine away."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    ray = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    return {**kept, **ray, "PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", **more}


def grpo_run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "grpo-run"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment(**more), check=False)


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [str(BIN / "grpo-run"), *arguments]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment(), preexec_fn=interruptible, **pipes)


def interruptible() -> None:
    """Take Ctrl-C as a terminal's process does, also where the tests run in the background and ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def until(true: Callable[[], bool], seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    started = Head()
    yield started
    started.close()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A run of three steps, beside what must not be taken along."""
    (tmp_path / "mortal.py").write_text(PLUGIN)
    (tmp_path / "password.txt").write_text("secret")
    path = tmp_path / "corridor.toml"
    path.write_text(CONFIG.format(folder=tmp_path))
    return path


def steps_of(config: Path) -> list[int]:
    metrics = config.parent / "run" / "metrics.jsonl"
    return [json.loads(line)["step"] for line in metrics.read_text().splitlines()] if metrics.exists() else []


@pytest.mark.ray
def test_a_driver_that_is_killed_is_submitted_again_and_takes_only_what_it_was_given(head: Head, config: Path) -> None:
    grave = config.parent / "grave"
    done = grpo_run(
        *("submit", str(config), "train.lr=2e-3", "--address", head.address),
        *("--env", "GRAVE", "--env", "COLOUR=blue green"),
        GRAVE=str(grave),
        PASSWORD="secret",
        RAY_ADDRESS="127.0.0.1:1",  # what was said counts more
    )
    assert done.returncode == 0, done.stderr
    assert "failed with exit code 137; it is submitted again" in done.stderr
    assert done.stdout.count("Running entrypoint") == 2 and done.stdout.count("step 3/3") == 1  # of both logs, once
    found = json.loads(grave.read_text())
    assert found["files"] == ["corridor.toml", "mortal.py"]
    assert {"GRAVE", "COLOUR"} <= set(found["variables"]) and "PASSWORD" not in found["variables"]
    assert steps_of(config) == [1, 2, 3]
    assert json.loads((config.parent / "run" / "summary.json").read_text())["config"]["train"]["lr"] == 2e-3
    first, second = grpo_run("status", "--address", head.address).stdout.splitlines()[-2:]
    assert "-1  failed with exit code 137  step 3 of 3" in first and "-2  succeeded  step 3 of 3" in second


@pytest.mark.ray
def test_an_error_of_the_run_is_its_exit_code_and_final(head: Head, config: Path) -> None:
    done = grpo_run("submit", str(config), "environment.id=Corridor-v7", "--address", head.address)
    assert done.returncode == 2 and "again" not in done.stderr
    assert "Did you mean 'Corridor-v0'?" in done.stdout


@pytest.mark.ray
def test_a_job_is_left_looked_at_and_stopped(head: Head, config: Path) -> None:
    at = ("--address", head.address)
    command = ("submit", str(config), "run.steps=1000000", *at)
    with start(*command) as submitted:
        until(lambda: len(steps_of(config)) >= 2)
        refused = grpo_run(*command)
        submitted.send_signal(signal.SIGINT)
        _, told = submitted.communicate()
    assert submitted.returncode == 130
    job = told.partition("grpo-run stop ")[2].split("`")[0]
    assert refused.returncode == 2 and f"job {job} is running in {config.parent}/run already" in refused.stderr

    shown = grpo_run("status", job, *at)
    assert shown.stdout.startswith(f"{job}  running  step ") and " of 1000000 " in shown.stdout
    mistyped = grpo_run("stop", job[:-1] + "7", *at)
    assert mistyped.returncode == 2 and f"Did you mean '{job}'?" in mistyped.stderr

    stopped = grpo_run("stop", job, *at)
    assert stopped.returncode == 0 and stopped.stdout.startswith(f"{job}  stopped  step ")
    last = (config.parent / "run" / "events.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["event"] == "run_stopped", "it had the time to save"
    followed = grpo_run("status", job, "--follow", *at)
    assert followed.returncode == 143 and "step 2/1000000" in followed.stdout
    assert grpo_run("stop", job, *at).stdout.startswith(f"{job}  stopped"), "once more does no harm"


@pytest.mark.ray
def test_a_lost_cluster_is_waited_for_and_the_job_submitted_again(head: Head, config: Path) -> None:
    with start("submit", str(config), "run.steps=40", "--address", head.address) as submitted:
        until(lambda: len(steps_of(config)) >= 1)
        head.kill()
        before = len(steps_of(config))
        head.replace()
        log, told = submitted.communicate()
    assert submitted.returncode == 0, told
    assert "lost: the cluster no longer knows it; it is submitted again" in told
    assert before < 40 and log.count("step 40/40") == 1
    assert steps_of(config) == list(range(1, 41))


@pytest.mark.ray
def test_a_cluster_that_wants_a_token_says_so(head: Head) -> None:
    done = grpo_run("status", "--address", head.address, RAY_AUTH_MODE="disabled")
    assert done.returncode == 2 and "Authentication required" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.ray
def test_without_a_server_the_address_is_named() -> None:
    done = grpo_run("status", "--address", f"http://127.0.0.1:{free_port()}")
    assert done.returncode == 2 and "error: no Ray job server at http://127.0.0.1:" in done.stderr


@pytest.mark.ray
def test_another_form_of_address_reaches_the_module_that_knows_it(tmp_path: Path) -> None:
    module = "def get_job_submission_client_cluster_info(address, **options): raise ValueError('asked for ' + address)"
    (tmp_path / "my_clusters.py").write_text(module)
    done = grpo_run("status", "--address", "my_clusters://here/there", PYTHONPATH=str(tmp_path))
    assert done.returncode == 2 and "asked for here/there" in done.stderr
    missing = grpo_run("status", "--address", "no_clusters://here")
    assert missing.returncode == 2 and "no_clusters does not exist" in missing.stderr


def test_without_ray_the_error_says_what_to_install(config: Path) -> None:
    code = "import sys; sys.modules['ray'] = None; from grpo_runner.cli import app; app()"
    done = subprocess.run([sys.executable, "-c", code, "submit", str(config)], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "pip install 'grpo-runner[ray]'" in done.stderr


@pytest.mark.parametrize(
    ("overrides", "variables", "message"),
    [
        (["run.folder=runs/x"], [], "run.folder=/shared/runs/x"),
        (["model.path=x"], [], "model.path = 'x' is relative"),
        (["plugins=['absent.py']"], [], "there is no file"),
        (["plugins=['../rewards']"], [], "lies outside"),
        (["plugins=['/etc/passwd']"], [], "lies outside"),
        ([], ["NOBODY_SETS_THIS"], "--env NOBODY_SETS_THIS"),
        ([], ["=x"], "--env =x"),
    ],
)
def test_what_cannot_work_on_a_cluster_is_refused(
    config: Path, overrides: list[str], variables: list[str], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(config, load(config, overrides), overrides, address=None, environment=variables, grace=1)
    assert message in str(caught.value)


def test_plugins_are_taken_along_where_they_are_files(config: Path, tmp_path: Path) -> None:
    (config.parent / "parts").mkdir()
    (config.parent / "parts" / "one.py").write_text("")
    settings = load(config, ["plugins=['mortal', 'parts/one.py', 'installed_module']"])
    packed = tmp_path / "packed"
    packed.mkdir()
    pack(plan(config, settings, (), address=None, environment=(), grace=1), packed)
    files = {str(path.relative_to(packed)) for path in packed.rglob("*") if path.is_file()}
    assert files == {"corridor.toml", "mortal.py", "parts/one.py"}


@pytest.mark.parametrize(
    ("state", "code", "error", "expected", "lost"),
    [
        ("SUCCEEDED", 0, None, 0, False),
        ("FAILED", 2, "JOB_ENTRYPOINT_COMMAND_ERROR", 2, False),
        ("FAILED", -9, "JOB_ENTRYPOINT_COMMAND_ERROR", 137, True),
        ("FAILED", 143, "JOB_ENTRYPOINT_COMMAND_ERROR", 143, True),  # the node was told to go: grpo-run saved, and ended so
        ("FAILED", None, "JOB_SUPERVISOR_ACTOR_DIED", 1, True),
        ("FAILED", None, "RUNTIME_ENV_SETUP_FAILURE", 1, False),
        ("STOPPED", None, None, 143, False),
    ],
)
def test_only_a_driver_that_did_not_end_by_itself_was_lost(
    state: str, code: int | None, error: str | None, expected: int, lost: bool
) -> None:
    job = Job("run-1", state, "/run", 3, code, error, "what Ray says")
    assert (exit_code(job), was_lost(job)) == (expected, lost)
    assert ("what Ray says" in ending(job)) == (state == "FAILED" and code is None)


def test_a_log_that_is_told_again_is_written_once() -> None:
    class Connections:
        told = iter([["one\n", "tw"], ["one\ntwo\nthr"], ["one\n", "two\nthree\n", "four\n"]])

        async def tail_job_logs(self, job_id: str) -> AsyncIterator[str]:
            for piece in next(self.told):
                yield piece

    written: list[str] = []
    log, client = Log(written.append), Connections()
    for _ in range(3):
        asyncio.run(log.stream(client, "run-1"))  # type: ignore[arg-type]
    assert "".join(written) == "one\ntwo\nthree\nfour\n"
