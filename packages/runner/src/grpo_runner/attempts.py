"""Attempts: each start of a run takes the next number, and an older attempt may publish nothing any more."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path

from grpo_runner.files import fsync_folder

_ATTEMPT = re.compile(r"attempt_(\d{6,})", re.ASCII)


class Superseded(RuntimeError):
    """A later attempt of this run has started; this one must stop and publish nothing."""


def next_attempt(run_folder: Path) -> int:
    """Take the next attempt number of a run, from 1; two starts at once get different numbers.

    The number is a file that can be made only once, so this needs no lock and works on NFS and Lustre.
    """
    folder = run_folder / "attempts"
    folder.mkdir(parents=True, exist_ok=True)
    number = current(run_folder) + 1
    while True:
        try:
            handle = os.open(folder / f"attempt_{number:06d}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            number += 1
            continue
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump({"host": socket.gethostname(), "pid": os.getpid(), "unix_seconds": time.time()}, out)
            out.flush()
            os.fsync(out.fileno())
        fsync_folder(folder)
        return number


def current(run_folder: Path) -> int:
    """Return the highest attempt number that was taken, or 0."""
    folder = run_folder / "attempts"
    if not folder.is_dir():
        return 0
    matches = (_ATTEMPT.fullmatch(name) for name in os.listdir(folder))
    return max((int(match[1]) for match in matches if match), default=0)


def fence(run_folder: Path, attempt: int) -> Callable[[], None]:
    """Return a function that raises `Superseded` once a later attempt has started. Call it right before publishing."""

    def check() -> None:
        latest = current(run_folder)
        if latest > attempt:
            raise Superseded(f"attempt {attempt} of {run_folder} was superseded by attempt {latest}: it publishes nothing more")

    return check


def superseded(check: Callable[[], None]) -> Superseded | None:
    """Return what a fence raises, or None while the attempt is the latest."""
    try:
        check()
    except Superseded as error:
        return error
    return None
