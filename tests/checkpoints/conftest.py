"""A small run with checkpoints, and a real S3 server process that keeps its objects on the disk."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from contextlib import suppress
from pathlib import Path

import pytest

from grpo_runner import attempts
from grpo_runner.checkpoints import CheckpointStore

ACCESS_KEY, SECRET_KEY = "AKIATESTCHECKPOINTS", "wJalrXUtnFEMI-not-a-real-secret"
BUCKET = "grpo-checkpoints"


def state(step: int, size: int = 2000) -> dict[str, bytes]:
    """A state in three files, a function of the step."""
    body = b"".join(hashlib.sha256(f"{step}/{block}".encode()).digest() for block in range(size // 32))
    return {"rank_0.bin": body, "rank_1.bin": body[::-1], "optimizer/moments.bin": body[: size // 2]}


def writer(step: int, size: int = 2000):
    def write(folder: Path) -> None:
        for name, content in state(step, size).items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)

    return write


def read(folder: Path, meta) -> dict[str, bytes]:
    names = [path for path in folder.rglob("*") if path.is_file() and path.name != "MANIFEST.json"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in names}


class Run:
    """A run folder; `start()` is what each start of the command does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[tuple[str, dict]] = []
        self.checkpoints = folder / "checkpoints"

    def start(self, *, keep: int = 3, run_id: str = "run-1", config=None, backend=None) -> CheckpointStore:
        config = {"optim": {"lr": 1e-5}, "steps": 10} if config is None else config
        digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
        return CheckpointStore(
            self.checkpoints,
            run_folder=self.folder,
            attempt=attempts.next_attempt(self.folder),
            run_id=run_id,
            config_hash=digest,
            config=config,
            keep=keep,
            backend=backend,
            on_event=lambda name, fields: self.events.append((name, dict(fields))),
        )

    def told(self, name: str) -> list[dict]:
        return [fields for event, fields in self.events if event == name]

    def step(self, step: int) -> Path:
        return self.checkpoints / f"step_{step:08d}"

    def names(self) -> list[str]:
        return sorted(os.listdir(self.checkpoints))


@pytest.fixture
def run(tmp_path) -> Run:
    return Run(tmp_path / "run")


@pytest.fixture(scope="session")
def three_once(tmp_path_factory) -> Path:
    run = Run(tmp_path_factory.mktemp("three") / "run")
    store = run.start()
    for step in (1, 2, 3):
        store.save(step, writer(step), {"step_seen": step}, score=-abs(step - 1))
    return run.folder


@pytest.fixture
def three(three_once, run) -> Run:
    """A run with checkpoints of steps 1, 2 and 3; step s has score -|s - 1|."""
    shutil.copytree(three_once, run.folder)
    return run


@pytest.fixture
def tools():
    """The functions above, for test modules (which do not import each other)."""

    class Tools:
        pass

    Tools.state, Tools.writer, Tools.read, Tools.Run = staticmethod(state), staticmethod(writer), staticmethod(read), Run
    return Tools


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that are free, as is each one's port + 10000 (SeaweedFS takes both)."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(12_000, 22_000)
        with socket.socket() as one, socket.socket() as two, suppress(OSError):
            one.bind(("127.0.0.1", port))
            two.bind(("127.0.0.1", port + 10_000))
            found.append(port)
    return found


def _executable(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), sysconfig.get_path("scripts")])) or (
        shutil.which(name)
    )


class S3Server:
    """An S3 server on loopback: rclone (plain files), or SeaweedFS where CHECKPOINTS_S3_SERVER=weed. Both keep a restart."""

    def __init__(self, kind: str, executable: str, folder: Path) -> None:
        self.kind, self.executable, self.folder = kind, executable, folder
        self.data = folder / "data"
        self.data.mkdir(parents=True)
        self.port, *self.others = free_ports(4)
        self.process: subprocess.Popen | None = None
        self._log = itertools.count()
        if kind == "rclone":
            (self.data / BUCKET).mkdir()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        if self.kind == "rclone":
            return [
                self.executable, "serve", "s3", "--config", os.devnull, "--auth-key", f"{ACCESS_KEY},{SECRET_KEY}",
                "--addr", f"127.0.0.1:{self.port}", str(self.data),
            ]  # fmt: skip
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        keys = [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]
        identities = self.folder / "identities.json"
        identities.write_text(json.dumps({"identities": [{"name": "test", "credentials": keys, "actions": actions}]}))
        master, volume, filer = self.others
        return [
            self.executable, "server", f"-dir={self.data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-master.port={master}",
            f"-volume.port={volume}", "-filer", f"-filer.port={filer}", "-s3", f"-s3.port={self.port}",
            f"-s3.config={identities}", "-master.volumeSizeLimitMB=64", "-volume.max=30",
        ]  # fmt: skip

    def start(self) -> None:
        with (self.folder / f"log-{next(self._log)}.txt").open("w") as out:
            self.process = subprocess.Popen(self.command(), stdout=out, stderr=subprocess.STDOUT, cwd=self.folder)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"{self.kind} ended with {self.process.returncode}"
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError(f"{self.kind} did not open its port")

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@pytest.fixture(scope="module")
def s3_server(tmp_path_factory):
    """A running server with the bucket `BUCKET`."""
    if not os.environ.get("CI"):
        pytest.importorskip("s3fs", reason="needs vismaze-fsspec[testing]")
    import s3fs

    kind = os.environ.get("CHECKPOINTS_S3_SERVER", "rclone")
    executable = _executable(kind)
    if executable is None:
        if os.environ.get("CI"):
            pytest.fail(f"{kind} is missing: install vismaze-fsspec[testing]")
        pytest.skip(f"{kind} is missing: install vismaze-fsspec[testing]")
    server = S3Server(kind, executable, tmp_path_factory.mktemp("s3"))
    server.start()
    if kind == "weed":
        for _ in range(100):
            try:
                store = s3fs.S3FileSystem(
                    key=ACCESS_KEY, secret=SECRET_KEY, endpoint_url=server.endpoint, skip_instance_cache=True
                )
                store.mkdir(BUCKET)
                break
            except Exception:  # noqa: BLE001 — still starting
                time.sleep(0.2)
    yield server
    server.kill()


@pytest.fixture
def s3(s3_server, monkeypatch):
    """`s3(prefix, **options)` gives the URL and options of a place on the server; credentials are in the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    if s3_server.process is None:
        s3_server.start()
    return s3_server
