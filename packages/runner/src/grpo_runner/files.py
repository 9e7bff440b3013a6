"""Single files and folders: names that stay inside, durable writes, deletion by rename, hashes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)


def check_name(name: str) -> str:
    """Return a name that is one plain component of a path: letters, digits, ".", "_", "-"; at most 128, not led by a dot.

    Raises:
        ValueError: anything else, so that no name can lead out of its folder.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"not a name: {name!r}; expected letters, digits, '.', '_' or '-', beginning with a letter or digit")
    return name


def fsync_path(path: Path) -> None:
    """Make the content of a file, or the entries of a folder, durable."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_folder(folder: Path) -> None:
    """Make the entries of a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_tree(folder: Path) -> None:
    """Make every file below a folder, and every folder's entries, durable."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            fsync_path(path.resolve())
        else:
            fsync_folder(path)
    fsync_folder(folder)


def write_atomic(path: Path, text: str, *, attempt: int = 0) -> None:
    """Write a file so that a reader sees the old content or the new, never a part.

    Args:
        attempt: the writer's attempt, part of the temporary name: a later attempt's `folders.sweep` takes it away.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = hidden(path, "tmp", attempt)
    try:
        with temporary.open("w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    write_atomic(path, json.dumps(value, indent=1, ensure_ascii=False, sort_keys=False) + "\n")


@contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """Fill a temporary folder beside `folder`; rename it into place when the block ends without an error.

    An existing folder of the name is set aside first and removed last, so that one whole folder is always there.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = hidden(folder, "tmp")
    temporary.mkdir()
    try:
        yield temporary
        fsync_tree(temporary)
        if folder.exists():
            aside = hidden(folder, "trash")
            os.rename(folder, aside)
            os.rename(temporary, folder)
            shutil.rmtree(aside)
        else:
            os.rename(temporary, folder)
        fsync_folder(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def list_files(folder: Path) -> list[str]:
    """Return the paths of the regular files below a folder, relative to it, sorted.

    Raises:
        ValueError: a link or a special file: what it stands for is not in the folder.
    """
    found = []
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode):
            found.append(path.relative_to(folder).as_posix())
        elif not stat.S_ISDIR(mode):
            raise ValueError(f"{path}: neither a file nor a folder (a link or a special file)")
    return found


def hidden(path: Path, why: str, attempt: int = 0) -> Path:
    """Return a fresh name beside `path` that no reader takes for a product and that `folders.sweep` can attribute."""
    return path.with_name(f".{why}-{path.name.lstrip('.')}-a{attempt}-{uuid.uuid4().hex[:8]}")


def remove(path: Path, attempt: int = 0) -> None:
    """Delete a folder or file by rename first: under its name it is whole or gone, also when the deletion is cut off."""
    trash = hidden(path, "trash", attempt)
    os.rename(path, trash)
    fsync_folder(path.parent)
    if trash.is_dir() and not trash.is_symlink():
        shutil.rmtree(trash)
    else:
        trash.unlink()


def sha256_file(path: Path) -> str:
    """Return the sha256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
