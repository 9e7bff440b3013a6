"""What every checkpoint backend must do: run `check_checkpoint_backend` on yours."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from vismaze_hooks.records import CheckpointBackend

BAD_NAMES = ("", ".", "..", "../outside", "/absolute", "a/b", "a\\b", "nul\0name", ".hidden", "-led", "new\nline", "n" * 300)


def check_checkpoint_backend(make: Callable[[], CheckpointBackend], scratch: Path) -> None:
    """Check a backend against the contract; nothing may be stored in it yet.

    Args:
        make: builds a backend on one and the same empty place each time: what one has put, the next one lists.
        scratch: an empty folder on the local disk for the check's own files.

    Raises:
        AssertionError: says which part of the contract does not hold.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    _check_round_trip(make, scratch)
    _check_replacement(make, scratch)
    _check_refusals(make, scratch)
    _check_names(make, scratch)
    _check_deletion(make)
    again = pickle.loads(pickle.dumps(make()))
    assert again.names() == [], "a pickled and restored instance does not see the same place"


def _check_round_trip(make: Callable[[], CheckpointBackend], scratch: Path) -> None:
    files = {
        "MANIFEST.json": b"{}",
        "empty": b"",
        "deep/er/shard [0].bin": os.urandom(3 * 2**20 + 1),
        "deep/ünder score.txt": b"\x00\xff",
    }
    folder = _fill(scratch / "first", files)
    assert make().names() == [], "the place was not empty, or `names` lists what nobody put"
    make().put(folder, "step_00000001-a0001")
    make().put(folder, "step_00000001")  # a name that another one begins with
    assert make().names() == ["step_00000001", "step_00000001-a0001"], f"names() is {make().names()} after two puts"
    make().get("step_00000001-a0001", scratch / "back" / "first")
    assert _content(scratch / "back" / "first") == files, "`get` did not give back what was put"
    assert _content(folder) == files, "`put` changed the folder that it was given"
    make().delete("step_00000001")
    assert make().names() == ["step_00000001-a0001"], "deleting one name touched another that begins like it"


def _check_replacement(make: Callable[[], CheckpointBackend], scratch: Path) -> None:
    second = {"deep/er/shard [0].bin": b"other bytes", "new": b"1"}
    make().put(_fill(scratch / "second", second), "step_00000001-a0001")
    make().put(scratch / "second", "step_00000001-a0001")
    make().get("step_00000001-a0001", scratch / "back" / "second")
    assert _content(scratch / "back" / "second") == second, "after a second put of a name, `get` gives a mixture or the old one"


def _check_refusals(make: Callable[[], CheckpointBackend], scratch: Path) -> None:
    """What fails must fail loudly and leave neither a name nor a part of a folder."""
    _refuses(lambda: make().get("unknown", scratch / "back" / "unknown"), FileNotFoundError, "getting an unknown name")
    assert not (scratch / "back" / "unknown").exists(), "a failed `get` left a folder"
    occupied = _fill(scratch / "occupied", {"mine": b"1"})
    _refuses(lambda: make().get("step_00000001-a0001", occupied), FileExistsError, "getting into a folder that is there")
    assert _content(occupied) == {"mine": b"1"}, "a refused `get` changed the folder"
    _refuses(lambda: make().put(scratch / "missing", "missing"), OSError, "putting a folder that is not there")
    linked = _fill(scratch / "linked", {"a": b"1"})
    (linked / "b").symlink_to(occupied / "mine")
    _refuses(lambda: make().put(linked, "linked"), ValueError, "putting a folder with a symbolic link")
    assert make().names() == ["step_00000001-a0001"], "a failed `put` left its name in the list"


def _check_names(make: Callable[[], CheckpointBackend], scratch: Path) -> None:
    folder = _fill(scratch / "named", {"a": b"1"})
    for name in BAD_NAMES:
        _refuses(partial(make().put, folder, name), ValueError, f"putting under the name {name!r}")
        _refuses(partial(make().get, name, scratch / "back" / "bad"), ValueError, f"getting the name {name!r}")
        _refuses(partial(make().delete, name), ValueError, f"deleting the name {name!r}")
    assert make().names() == ["step_00000001-a0001"], "a refused name is in the list"


def _check_deletion(make: Callable[[], CheckpointBackend]) -> None:
    make().delete("step_00000001-a0001")
    make().delete("step_00000001-a0001")  # two attempts may clear the same
    assert make().names() == [], "a deleted name is listed"


def _refuses(action: Callable[[], Any], expected: type[Exception], what: str) -> None:
    try:
        action()
    except expected:
        return
    except Exception as error:
        raise AssertionError(f"{what} must raise {expected.__name__}, it raised {error!r}") from error
    raise AssertionError(f"{what} must raise {expected.__name__}, it raised nothing")


def _fill(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def _content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
