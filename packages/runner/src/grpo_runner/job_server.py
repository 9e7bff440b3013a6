"""A Ray cluster's job server: its jobs, their states, how they ended. Ray comes in late: only the commands for jobs need it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from grpo_runner.runs import read_lines
from vismaze_hooks.names import nearest

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

PATIENCE = 300  # seconds without an answer: a head node is replaced in less
STOPPED = 143  # what a job that was stopped counts as, which has no exit code of its own: 128 + SIGTERM
LOST = ("JOB_SUPERVISOR_ACTOR_DIED", "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE")  # Ray's errors when the driver's node is gone
Tell = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """A run that was submitted, as the server tells of it.

    Example: `Job("maze-8b-3fa2c1-1", "FAILED", "/shared/runs/maze-8b", 200, -9, "JOB_ENTRYPOINT_COMMAND_ERROR", "…")`.
    """

    id: str
    state: str  # PENDING, RUNNING; and at its end STOPPED, SUCCEEDED or FAILED
    folder: str  # of the run
    steps: int
    driver_exit_code: int | None  # negative: the signal that ended the driver; None: it has not ended, or not by itself
    error_type: str | None  # Ray's
    message: str | None

    @property
    def ended(self) -> bool:
        return self.state in ("STOPPED", "SUCCEEDED", "FAILED")


class JobError(RuntimeError):
    """A job that cannot be submitted, found or stopped; the message says why, and what to do."""


class ServerAwayError(JobError):
    """No job server answers."""


def connect(address: str | None) -> JobSubmissionClient:
    """Return a client of the job server at an address, which is passed to Ray as it is.

    Args:
        address: None: where Ray's environment variables say, or the cluster on this machine.

    Raises:
        JobError: Ray is not installed.
        ServerAwayError: nobody answers there.
    """
    try:
        from ray.job_submission import JobSubmissionClient
    except ImportError as error:
        raise JobError(f"jobs need Ray: pip install 'grpo-runner[ray]' ({error})") from error
    where = f"at {address}" if address else "on this machine; pass --address, such as http://HEAD:8265"
    with refusals(f"no Ray job server {where}", ServerAwayError), _address_counts(address):
        return JobSubmissionClient(address)


@contextmanager
def _address_counts(address: str | None) -> Iterator[None]:
    """Ray prefers its environment variables to the address that it is given; what was given to us counts more."""
    names = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS") if address is not None else ()
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)


@contextmanager
def refusals(what: str, kind: type[JobError] = JobError) -> Iterator[None]:
    """Turn Ray's errors into one of ours that says what was tried."""
    from ray.exceptions import RayError

    try:
        yield
    except (AssertionError, OSError, RayError, RuntimeError, ValueError) as error:
        raise kind(f"{what}: {error}") from error


def jobs(client: JobSubmissionClient) -> list[Job]:
    """Return the jobs that `grpo-run` submitted, the oldest first.

    Raises:
        ServerAwayError: the server does not answer.
    """
    with refusals("the jobs cannot be listed", ServerAwayError):
        listed = client.list_jobs()
    found = []
    for job in sorted(listed, key=lambda job: job.start_time or 0):
        facts = job.metadata or {}
        if "run_folder" in facts:
            ending = (job.driver_exit_code, job.error_type, job.message)
            found.append(Job(str(job.submission_id), job.status.value, facts["run_folder"], int(facts["steps"]), *ending))
    return found


def lookup(client: JobSubmissionClient, job_id: str) -> Job | None:
    """Return a job, None when the cluster knows none of this id."""
    return next((job for job in jobs(client) if job.id == job_id), None)


def find(client: JobSubmissionClient, job_id: str) -> Job:
    """Return a job.

    Raises:
        JobError: the cluster knows none of this id; lists those it knows, and suggests the nearest.
    """
    job = lookup(client, job_id)
    if job is None:
        known = [j.id for j in jobs(client)]
        raise JobError(f"no job {job_id!r}.{nearest(job_id, known)} Jobs: {', '.join(known) or 'none'}.")
    return job


def stop(client: JobSubmissionClient, job_id: str, tell: Tell) -> Job:
    """Ask a job to end, and wait until it has: the run saves where it stands first.

    Raises:
        JobError: as `find`.
    """
    job = find(client, job_id)
    if not job.ended:
        tell(f"job {job_id} is asked to end; it saves where it stands")
        with refusals(f"job {job_id} cannot be stopped"):
            client.stop_job(job_id)
    while not job.ended:
        time.sleep(0.5)
        job = find(client, job_id)
    return job


def patiently(ask: Callable[[], T], tell: Tell) -> T:
    """Return what the server answers, asking again while it is away.

    Raises:
        ServerAwayError: the last one, after `PATIENCE` seconds.
    """
    give_up = time.monotonic() + PATIENCE
    told = False
    while True:
        try:
            return ask()
        except ServerAwayError as error:
            if time.monotonic() > give_up:
                raise
            if not told:
                tell(f"{error}; asking again for {PATIENCE} s")
                told = True
        time.sleep(2)


def was_lost(job: Job) -> bool:
    """Return whether a job's driver was ended from outside: by a signal, or with its node. A stopped job was not lost."""
    if job.state != "FAILED":
        return False
    if job.driver_exit_code is None:
        return job.error_type in LOST
    return exit_code(job) > 128


def exit_code(job: Job) -> int:
    """Return a job's exit code as a shell counts: 128 more than the signal that ended it; 1 where the driver never ran."""
    if job.state == "STOPPED":
        return STOPPED
    code = job.driver_exit_code
    if code is None:
        return 0 if job.state == "SUCCEEDED" else 1
    return 128 - code if code < 0 else code


def ending(job: Job) -> str:
    """Return how a job ended, in words."""
    if job.state != "FAILED":
        return job.state.lower()
    if job.driver_exit_code is None:
        return f"failed without an exit code: {job.message}"
    return f"failed with exit code {exit_code(job)}"


def line(job: Job) -> str:
    """Return one line about a job: id, state, step, run folder; the step is read where the run folder is within reach."""
    folder = Path(job.folder)
    step = "?"
    if folder.is_dir():
        step = str(max((int(record["step"]) for record in read_lines(folder / "metrics.jsonl")), default=0))
    return f"{job.id}  {ending(job) if job.ended else job.state.lower()}  step {step} of {job.steps}  {folder}"
