"""Folders that are whole under their name or not there.

A committed folder carries `MANIFEST.json`: a schema version, the size and sha256 of every other file, whatever fields the
writer adds, and a digest of itself. It appears under its name by one rename, after everything in it is on the disk.
Names beginning with a dot are never products: `.tmp-` is being written, `.trash-` is being deleted, `.aside-` is the old
folder of a name whose new one is just taking its place.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from grpo_runner.files import check_name, fsync_folder, fsync_path, hidden, list_files, remove, sha256_file

MANIFEST = "MANIFEST.json"
SCHEMA = 1
_HIDDEN = re.compile(r"\.(?P<why>tmp|trash|aside)-(?P<name>.+)-a(?P<attempt>\d+)-[0-9a-f]{8}", re.ASCII)


class DamagedFolderError(RuntimeError):
    """A committed folder is not what was committed; the message names the folder and the file."""

    def __init__(self, folder: Path, file: str, reason: str) -> None:
        super().__init__(f"{folder}: {file}: {reason}")
        self.folder, self.file, self.reason = folder, file, reason


class UnknownSchemaError(RuntimeError):
    """A whole manifest in a format that this version does not read. Not damage: nothing is moved."""


@dataclass(frozen=True)
class FileEntry:
    """One file of a committed folder."""

    bytes: int
    sha256: str  # hex


@dataclass(frozen=True)
class Manifest:
    """What a committed folder says of itself.

    Example: `Manifest({"step": 10, "run_id": "7f…"}, {"state.safetensors": FileEntry(2048, "5c1e…")})`.
    """

    fields: Mapping[str, Any]  # what the writer added
    files: Mapping[str, FileEntry]  # by path relative to the folder, "/" between parts

    @property
    def bytes(self) -> int:
        """Bytes of all files together, the manifest itself left out."""
        return sum(entry.bytes for entry in self.files.values())


def commit_folder(
    parent: Path,
    name: str,
    write: Callable[[Path], None],
    *,
    manifest: Mapping[str, Any],
    attempt: int = 0,
    fence: Callable[[], None] | None = None,
) -> Path:
    """Write a folder that is whole under its name or not there; returns it.

    `write` fills a temporary folder in `parent`; then files are synced and hashed, the manifest is written, and one rename
    publishes. A folder already of this name is set aside until the new one stands; `sweep` puts it back if that was cut off.

    Args:
        manifest: fields of the manifest beside "schema", "files" and "digest"; JSON-able.
        attempt: the writer's attempt, part of the temporary name: a later attempt's `sweep` takes it away.
        fence: called right before the rename; raises where this writer may no longer publish.

    Raises:
        ValueError: `name` is not a plain name, or `write` left a link, a special file or its own manifest.
        OSError: whatever the disk answered. In every case nothing new stands under `name`, and the temporary folder is gone.
    """
    check_name(name)
    parent.mkdir(parents=True, exist_ok=True)
    target = parent / name
    temporary = hidden(target, "tmp", attempt)
    temporary.mkdir()
    try:
        write(temporary)
        _seal(temporary, manifest)
        if fence is not None:
            fence()
        if os.path.lexists(target):
            aside = hidden(target, "aside", attempt)
            os.rename(target, aside)
            os.rename(temporary, target)
            fsync_folder(parent)
            remove(aside, attempt)
        else:
            os.rename(temporary, target)
            fsync_folder(parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _seal(folder: Path, fields: Mapping[str, Any]) -> None:
    """Sync and hash what is in the folder, write the manifest, sync the folders."""
    files = list_files(folder)
    if MANIFEST in files:
        raise ValueError(f"{folder}: the writer must leave {MANIFEST} to the commit")
    with ThreadPoolExecutor(4) as pool:  # the disk syncs a file while the processor hashes it
        synced = [pool.submit(fsync_path, folder / file) for file in files]
        hashes = list(pool.map(sha256_file, [folder / file for file in files]))
        for sync in synced:
            sync.result()
    entries = [FileEntry((folder / file).stat().st_size, sha256) for file, sha256 in zip(files, hashes, strict=True)]
    body = {"schema": SCHEMA, **fields, "files": {f: vars(e) for f, e in zip(files, entries, strict=True)}}
    with (folder / MANIFEST).open("w", encoding="utf-8") as out:
        json.dump({**body, "digest": _digest(body)}, out, indent=1, ensure_ascii=False)
        out.write("\n")
        out.flush()
        os.fsync(out.fileno())
    for below in [*(path for path in folder.rglob("*") if path.is_dir()), folder]:
        fsync_folder(below)


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a committed folder, having checked the manifest alone.

    Raises:
        DamagedFolderError: it is missing, unreadable, or not what was written.
        UnknownSchemaError: it is whole and of another format.
    """
    if folder.is_symlink() or not folder.is_dir():
        raise DamagedFolderError(folder, ".", "not a folder (a link or a file)")
    try:
        body = json.loads((folder / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise DamagedFolderError(folder, MANIFEST, "missing") from None
    except (ValueError, RecursionError, OSError) as error:
        raise DamagedFolderError(folder, MANIFEST, f"unreadable: {error}") from error
    if not isinstance(body, dict) or body.pop("digest", None) != _digest(body):
        raise DamagedFolderError(folder, MANIFEST, "its own digest does not fit its content")
    schema, files = body.pop("schema", None), body.pop("files", None)
    if schema != SCHEMA:
        raise UnknownSchemaError(f"{folder / MANIFEST}: schema {schema!r}; this version reads schema {SCHEMA}")
    try:
        return Manifest(body, {_inside(file): FileEntry(**entry) for file, entry in files.items()})
    except (AttributeError, TypeError, ValueError) as error:
        raise DamagedFolderError(folder, MANIFEST, f"its list of files cannot be used: {error}") from error


def _inside(file: str) -> str:
    path = PurePosixPath(file)
    if path.is_absolute() or ".." in path.parts or "\0" in file or not path.parts:
        raise ValueError(f"{file!r} leads out of the folder")
    return file


def verify_folder(folder: Path, *, hashes: bool = True) -> Manifest:
    """Return the manifest of a folder that is exactly what was committed.

    Args:
        hashes: False compares names and sizes only: no read of the data.

    Raises:
        DamagedFolderError: a file is missing, has another size or other bytes, or was never committed; names it.
        UnknownSchemaError: as `read_manifest`.
    """
    manifest = read_manifest(folder)
    try:
        present = set(list_files(folder)) - {MANIFEST}
    except ValueError as error:
        raise DamagedFolderError(folder, ".", str(error)) from error
    for file in sorted(manifest.files.keys() - present):
        raise DamagedFolderError(folder, file, "missing")
    for file in sorted(present - manifest.files.keys()):
        raise DamagedFolderError(folder, file, "not in the manifest")
    for file, entry in manifest.files.items():
        size = (folder / file).stat().st_size
        if size != entry.bytes:
            raise DamagedFolderError(folder, file, f"{size} bytes, {entry.bytes} were committed")
    if hashes:
        with ThreadPoolExecutor(4) as pool:
            found = pool.map(sha256_file, [folder / file for file in manifest.files])
            for (file, entry), sha256 in zip(manifest.files.items(), found, strict=True):
                if sha256 != entry.sha256:
                    raise DamagedFolderError(folder, file, f"sha256 {sha256}, {entry.sha256} was committed")
    return manifest


def is_committed(folder: Path, fields: Mapping[str, Any]) -> bool:
    """Return whether a folder is exactly what was committed, and its manifest says these things among others."""
    try:
        found = verify_folder(folder).fields
    except (DamagedFolderError, UnknownSchemaError):
        return False
    return all(name in found and found[name] == value for name, value in fields.items())


def ring(parent: Path, keep: int) -> list[str]:
    """Delete all but the last `keep` `step_…` folders of `parent` in the order of their names; returns what went."""
    if keep < 1:
        raise ValueError(f"keep: expected at least 1, got {keep}")
    steps = sorted(path for path in parent.glob("step_*") if path.is_dir())
    for path in steps[:-keep]:
        remove(path)
    return [path.name for path in steps[:-keep]]


def sweep(parent: Path, attempt: int, *, idle_seconds: float = 0.0) -> list[str]:
    """Clear what attempts below `attempt` left in `parent`; returns the names of what went or was put back.

    Their temporary folders go, so a writer of such an attempt that still lives can no longer publish: its next rename finds
    nothing to rename. A folder that was set aside comes back when nothing stands under its name.

    Args:
        idle_seconds: leave alone what was changed in this time, where writers have no attempt numbers to tell them apart.
    """
    done = []
    latest = time.time() - idle_seconds
    for path in sorted(parent.iterdir()):
        match = _HIDDEN.fullmatch(path.name)
        if not match or int(match["attempt"]) >= attempt or path.lstat().st_mtime > latest:
            continue
        if match["why"] == "aside" and not os.path.lexists(parent / match["name"]):
            os.rename(path, parent / match["name"])
        else:
            with suppress(FileNotFoundError):  # its own writer, still alive, may be deleting it too
                remove(path, attempt)
        done.append(path.name)
    fsync_folder(parent)
    return done
