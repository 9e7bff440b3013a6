"""A process that saves one checkpoint after another and dies by its own SIGKILL at a given operation on the file system.

`kill_worker.py RUN_FOLDER OPERATIONS` prints "resumed N", then "saved N" after each save that returned. It dies before its
`OPERATIONS`-th call of open-for-writing, fsync, mkdir, rename, replace, unlink or rmdir, counted from the end of the loading;
where the count is odd, in the middle of what it was writing: half of the file's bytes are cut off first.
"""

from __future__ import annotations

import builtins
import io
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import conftest

WATCHED = ("fsync", "mkdir", "rename", "replace", "unlink", "rmdir")
SAVES = 4


def die_at(operation: int, checkpoints: Path) -> None:
    """Replace the watched functions by ones that count, and kill this process at the given call."""
    left = operation

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            if operation % 2:
                cut_newest(checkpoints)
            os.kill(os.getpid(), signal.SIGKILL)

    def counting(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            count()
            return function(*arguments, **options)

        return call

    def opening(function: Any) -> Any:
        def call(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if "w" in mode:
                count()
            return function(file, mode, *arguments, **options)

        return call

    for name in WATCHED:
        setattr(os, name, counting(getattr(os, name)))
    io.open = opening(io.open)  # type: ignore[assignment]
    builtins.open = io.open


def cut_newest(checkpoints: Path) -> None:
    """Cut the newest file of a temporary folder in half: what an unsynced file may look like after a crash."""
    files = [path for temporary in checkpoints.glob(".tmp-*") for path in (temporary, *temporary.rglob("*")) if path.is_file()]
    if files:
        newest = max(files, key=lambda path: path.stat().st_mtime_ns)
        os.truncate(newest, newest.stat().st_size // 2)


def main(folder: Path, operation: int) -> None:
    run = conftest.Run(folder)
    store = run.start(keep=2)
    found = store.load(conftest.read)
    step = found[1].step if found else 0
    assert found is None or found[0] == conftest.state(step), f"a false state was loaded for step {step}"
    assert not run.told("checkpoint_lost"), run.events
    print("resumed", step, flush=True)
    die_at(operation, run.checkpoints)
    for following in range(step + 1, step + 1 + SAVES):
        store.save(following, conftest.writer(following), {"step_seen": following}, score=-abs(following - 2))
        print("saved", following, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
