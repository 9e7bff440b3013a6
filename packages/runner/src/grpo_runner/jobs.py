"""Runs as jobs of a Ray cluster: what is taken along, submitting, following to the end.

The job is `grpo-run train` with the same configuration, so it resumes where the run folder stands, and submitting it again
is always safe. Ray runs a job once; whether it runs again is for whoever submitted it: see `watch`.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from grpo_runner.config import Config, ConfigError
from grpo_runner.job_server import (
    Job,
    JobError,
    ServerAwayError,
    Tell,
    connect,
    ending,
    exit_code,
    jobs,
    lookup,
    patiently,
    refusals,
    was_lost,
)

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

INTERRUPTED = 130


@dataclass(frozen=True)
class Plan:
    """What is submitted, and again after each loss.

    Example: `Plan("http://head:8265", Path("maze.toml"), ("run.seed=1",), "/shared/runs/maze", 200, {"LANG": "C.UTF-8"})`.
    """

    address: str | None  # as given, for Ray to read
    path: Path  # of the configuration
    overrides: tuple[str, ...]
    folder: str  # of the run, absolute: the same on every machine
    steps: int
    environment: Mapping[str, str]  # variables that the job gets; no others are taken along
    plugins: tuple[str, ...] = ()  # files, relative to the configuration's folder
    grace: int = 600  # seconds from the request to end until the job is killed


def plan(
    path: Path, config: Config, overrides: Sequence[str], *, address: str | None, environment: Sequence[str], grace: int
) -> Plan:
    """Say what to submit.

    Args:
        environment: names of this process's variables, or NAME=value.

    Raises:
        ConfigError: a relative folder, which in a job would lie in a temporary one; a local plugin outside of the
            configuration's folder, or missing; a variable that is not set.
    """
    for key, value in (("run.folder", config.run.folder), ("model.path", config.model.path)):
        if not os.path.isabs(value):
            raise ConfigError(
                f"{key} = {value!r} is relative, and a job starts in a temporary folder of some node; "
                f"give a path that all nodes share, such as {key}=/shared/{value}"
            )
    plugins = tuple(_local_plugins(config.plugins, path.resolve().parent))
    variables = dict(_variable(item) for item in environment)
    folder = os.path.normpath(config.run.folder)
    return Plan(address, path, tuple(overrides), folder, config.run.steps, variables, plugins, grace)


def _local_plugins(names: Sequence[str], folder: Path) -> Iterator[str]:
    """Yield the plugins that are files beside the configuration; other names are modules that the nodes must have."""
    for name in names:
        file = name if name.endswith(".py") else f"{name}.py"
        if not (folder / file).resolve().is_relative_to(folder):
            raise ConfigError(f"plugins: {name!r} lies outside of {folder}; a job takes files along from there only")
        if (folder / file).is_file():
            yield file
        elif name.endswith(".py"):
            raise ConfigError(f"plugins: there is no file {folder / file}")


def _variable(item: str) -> tuple[str, str]:
    name, equals, value = item.partition("=")
    if not name or not (equals or name in os.environ):
        raise ConfigError(f"--env {item}: expected NAME=value, or the name of a variable that is set here")
    return name, value if equals else os.environ[name]


def run(plan: Plan, *, retries: int, tell: Tell, write: Tell) -> int:
    """Submit the job, follow it to its end, return its exit code. Arguments are those of `watch`."""
    job_id = submit(plan)
    tell(f"job {job_id} is submitted; run folder {plan.folder}")
    return watch(plan.address, job_id, tell=tell, write=write, retries=retries, again=lambda: submit(plan))


def submit(plan: Plan) -> str:
    """Hand the job to the cluster; return its id, which is the run folder's name, a hash of the folder, and a number.

    Raises:
        JobError: a job is running in this run folder, or the server refuses.
    """
    client = connect(plan.address)
    before = [job for job in jobs(client) if job.folder == plan.folder]
    running = next((job.id for job in before if not job.ended), None)
    if running is not None:
        raise JobError(
            f"job {running} is running in {plan.folder} already; `grpo-run status {running} --follow` shows it, "
            f"`grpo-run stop {running}` ends it"
        )
    # Two submissions at once choose the same number, and the server refuses the second.
    number = 1 + max((int(job.id.rpartition("-")[2]) for job in before), default=0)
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", Path(plan.folder).name)
    job_id = f"{name}-{hashlib.sha256(plan.folder.encode()).hexdigest()[:6]}-{number}"
    with TemporaryDirectory() as packed:
        pack(plan, Path(packed))
        environment = {**plan.environment, "RAY_JOB_STOP_WAIT_TIME_S": str(plan.grace)}
        with refusals(f"the job server refused job {job_id}"):
            client.submit_job(
                entrypoint=shlex.join(["exec", "grpo-run", "train", plan.path.name, *plan.overrides]),
                submission_id=job_id,
                metadata={"run_folder": plan.folder, "steps": str(plan.steps)},
                runtime_env={"working_dir": packed, "env_vars": environment},
            )
    return job_id


def pack(plan: Plan, into: Path) -> None:
    """Copy what the job needs, and nothing else: the configuration and the plugins that it names."""
    shutil.copyfile(plan.path, into / plan.path.name)
    for file in plan.plugins:
        (into / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(plan.path.parent / file, into / file)


def watch(
    address: str | None,
    job_id: str,
    *,
    tell: Tell,
    write: Tell,
    retries: int = 0,
    again: Callable[[], str] | None = None,
) -> int:
    """Follow a job to its end; return its exit code. Interrupted, the job goes on without us.

    Args:
        tell: is given what happens to the job, a line each; `write` its log, in pieces.
        retries: times that the job is submitted again where its driver did not end by itself: a signal, a lost node or
            cluster. What the driver says itself, an error or success, is final.
        again: submits it and returns the new id.

    Raises:
        ServerAwayError: for `PATIENCE` seconds. The job may go on.
    """
    while True:
        try:
            job = _follow(address, job_id, tell, Log(write))
        except KeyboardInterrupt:
            tell(f"job {job_id} goes on: `grpo-run status {job_id} --follow` shows it again, `grpo-run stop {job_id}` ends it")
            return INTERRUPTED
        except ServerAwayError as error:
            raise ServerAwayError(f"{error}; job {job_id} may go on there") from error
        what = ending(job) if job is not None else "lost: the cluster no longer knows it"
        if again is None or retries == 0 or (job is not None and not was_lost(job)):
            tell(f"job {job_id} {what}")
            return exit_code(job) if job is not None else 1
        retries -= 1
        tell(f"job {job_id} {what}; it is submitted again, and {retries} more times if need be")
        job_id = patiently(again, tell)
        tell(f"job {job_id} is submitted")


class Log:
    """Writes a log that is told from its beginning after every lost connection: each piece of it once."""

    def __init__(self, write: Tell) -> None:
        self._write = write
        self._written = 0  # characters

    async def stream(self, client: JobSubmissionClient, job_id: str) -> None:
        """Write what is new, until the job ends."""
        place = 0
        async for text in client.tail_job_logs(job_id):
            place += len(text)
            if place > self._written:
                self._write(text[self._written - place :])
                self._written = place


def _follow(address: str | None, job_id: str, tell: Tell, log: Log) -> Job | None:
    """Stream a job's log until it ends; return how it ended, None when the cluster no longer knows it: a new head."""
    from aiohttp import ClientError  # late, as Ray

    while True:
        client = patiently(lambda: connect(address), tell)
        try:
            asyncio.run(log.stream(client, job_id))
        except (ClientError, OSError, RuntimeError) as error:
            tell(f"the connection to the log of job {job_id} broke ({error}); asking again")
        job = patiently(lambda: lookup(connect(address), job_id), tell)
        if job is None or job.ended:
            return job
        time.sleep(1)
