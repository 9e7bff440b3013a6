"""The checkpoint backend `fsspec`: data objects first, the record that commits them last.

Layout under the URL:

    step_00000010-a0001/5c1e0f…/state.safetensors    data, in a folder named after the content of all of it
    step_00000010-a0001/COMMITTED.json               which folder counts, with every object's size and sha256
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import os
import random
import re
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import fsspec

from vismaze_fsspec.secrets import redact, refuse_credentials

T = TypeVar("T")
RECORD = "COMMITTED.json"
SCHEMA = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_FINAL = (FileNotFoundError, PermissionError, NotImplementedError, TypeError, ValueError)  # asking again changes nothing
_EXTRA: dict[str, dict[str, Any]] = {  # options that a protocol needs here; the user's own come first
    "file": {"auto_mkdir": True},
    "s3": {"use_listings_cache": False, "config_kwargs": {"retries": {"max_attempts": 1}}},  # the retries are ours
}
_LONGEST_WAIT = 30.0  # seconds
_CHUNK = 8 * 2**20  # bytes read at a time for hashing

log = logging.getLogger(__name__)


class StoreUnavailableError(OSError):
    """The store did not do it in any of the tries."""


class DamagedObjectError(OSError):
    """An object is not what was put; the message names it."""


class FsspecBackend:
    """Moves folders to and from a store that fsspec reaches; each process builds its own, and it can be pickled.

    Args:
        url: where the names go, such as "s3://bucket/run"; the bucket must exist.
        retries: further tries after a failure, each after twice the wait; 8 bridge about two minutes.
        wait_seconds: before the first retry.
        part_mib: size of the parts of a multipart upload, MiB; S3 wants at least 5.
        options: of the fsspec filesystem, such as `endpoint_url`. Credentials are refused: they come from the environment.
    """

    def __init__(self, url: str, *, retries: int = 8, wait_seconds: float = 0.5, part_mib: int = 16, **options: Any) -> None:
        refuse_credentials(url, options)
        self.url, self.retries, self.wait_seconds, self.part_mib = url.rstrip("/"), retries, wait_seconds, part_mib
        self.options = options
        protocol = fsspec.utils.get_protocol(url)
        self._protocol = "s3" if protocol == "s3a" else protocol
        self._extra = _EXTRA.get(self._protocol, {})
        self._upload = {"chunksize": part_mib * 2**20} if self._protocol == "s3" else {}

    def __repr__(self) -> str:
        return f"FsspecBackend({self.url!r})"

    def put(self, folder: Path, name: str) -> None:
        """Upload a folder; it is listed once its record stands, which is last. Goes on with an upload that was cut off.

        Raises:
            ValueError: not a name, or a link or special file in the folder.
            StoreUnavailableError: the store failed in every try; what was listed before is listed still.
        """
        files = _describe(folder)
        generation = _digest(files)[:16]
        base = f"{self._root()}/{_check_name(name)}"
        present = self._sizes(name)
        for file, entry in files.items():
            self._put_object(folder / file, f"{base}/{generation}/{file}", entry, present)
        body = {"schema": SCHEMA, "name": name, "generation": generation, "files": files}
        record = json.dumps({**body, "digest": _digest(body)}, indent=1).encode()
        self._try(f"commit {name}", lambda fs: fs.pipe_file(f"{base}/{RECORD}", record))
        for path in self._sizes(name):
            if path != f"{name}/{RECORD}" and not path.startswith(f"{name}/{generation}/"):
                self._remove(f"{self._root()}/{path}")
        log.info("committed %s: %d objects, %d bytes", name, len(files), sum(entry["bytes"] for entry in files.values()))

    def get(self, name: str, folder: Path) -> None:
        """Download a folder; `folder` is whole or was not made.

        Raises:
            FileNotFoundError: nothing whole has this name.
            FileExistsError: `folder` is there already.
            StoreUnavailableError, DamagedObjectError: names the object.
        """
        if os.path.lexists(folder):
            raise FileExistsError(f"{folder} is there already")
        record = self._record(_check_name(name), self._sizes(name))
        if record is None:
            raise FileNotFoundError(f"nothing whole is named {name!r} in {self.url}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = folder.with_name(f".tmp-{folder.name.lstrip('.')}-a0-{uuid.uuid4().hex[:8]}")
        temporary.mkdir()
        try:
            for file, entry in record["files"].items():
                (temporary / file).parent.mkdir(parents=True, exist_ok=True)
                self._get_object(f"{self._root()}/{name}/{record['generation']}/{file}", temporary / file, entry)
            os.rename(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def names(self) -> list[str]:
        """Return the names whose record stands and whose objects are all there with their sizes, sorted."""
        sizes = self._sizes()
        candidates = sorted(path.removesuffix(f"/{RECORD}") for path in sizes if path.count("/") == 1 and path.endswith(RECORD))
        return [name for name in candidates if _NAME.fullmatch(name) and self._record(name, sizes) is not None]

    def delete(self, name: str) -> None:
        """Delete a folder, its record first; an unknown name is no error."""
        paths = self._sizes(_check_name(name))
        for path in sorted(paths, key=lambda path: (path != f"{name}/{RECORD}", path)):
            self._remove(f"{self._root()}/{path}")

    def _put_object(self, file: Path, key: str, entry: Mapping[str, Any], present: Mapping[str, int]) -> None:
        def upload(fs: Any) -> None:
            try:
                fs.put_file(str(file), key, **self._upload)
                size = fs.info(key)["size"]
            except FileNotFoundError as error:  # a server that restarted has forgotten the multipart upload
                raise StoreUnavailableError(f"the store lost it: {error}") from error
            if size != entry["bytes"]:
                raise DamagedObjectError(f"{key}: {size} bytes arrived of {entry['bytes']}")

        if present.get(key.removeprefix(f"{self._root()}/")) == entry["bytes"] and self._hash(key) == entry["sha256"]:
            log.info("already there: %s", key)
            return
        self._try(f"upload {key}", upload)

    def _get_object(self, key: str, file: Path, entry: Mapping[str, Any]) -> None:
        def download(fs: Any) -> None:
            fs.get_file(key, str(file))
            found = {"bytes": file.stat().st_size, "sha256": _sha256(file)}
            if found != dict(entry):
                raise DamagedObjectError(f"{key}: is {found}, was put as {dict(entry)}")

        self._try(f"download {key}", download)
        with file.open("rb") as written:
            os.fsync(written.fileno())

    def _hash(self, key: str) -> str:
        def read(fs: Any) -> str:
            digest, size = hashlib.sha256(), fs.info(key)["size"]
            for start in range(0, size, _CHUNK):
                digest.update(fs.cat_file(key, start=start, end=min(start + _CHUNK, size)))
            return digest.hexdigest()

        return self._try(f"read {key}", read)

    def _record(self, name: str, sizes: Mapping[str, int]) -> dict[str, Any] | None:
        """Return the record of a name when it is sound and every object it lists is there with its size."""
        if f"{name}/{RECORD}" not in sizes:
            return None
        text = self._try(f"read record of {name}", lambda fs: fs.cat_file(f"{self._root()}/{name}/{RECORD}"))
        try:
            body = json.loads(text)
            digest = body.pop("digest")
        except (ValueError, AttributeError, KeyError):
            return None  # half written, on a store that does not write whole objects
        if digest != _digest(body) or body["schema"] != SCHEMA or body["name"] != name:
            return None
        if any(_leaves(file) for file in (*body["files"], body["generation"])):
            raise DamagedObjectError(f"{name}/{RECORD} lists a path that leads out of its folder")
        fits = all(sizes.get(f"{name}/{body['generation']}/{file}") == e["bytes"] for file, e in body["files"].items())
        return body if fits else None

    def _filesystem(self) -> Any:
        options = copy.deepcopy({**self._extra, **self.options})  # some filesystems change what they are given
        return fsspec.filesystem(self._protocol, **options)

    def _root(self) -> str:
        return str(fsspec.get_filesystem_class(self._protocol)._strip_protocol(self.url)).rstrip("/")

    def _sizes(self, name: str = "") -> dict[str, int]:
        """Return path below the root -> bytes of every object, or of those of one name."""
        root = self._root()

        def find(fs: Any) -> dict[str, Any]:
            fs.invalidate_cache()
            try:
                return fs.find(f"{root}/{name}".rstrip("/"), detail=True)
            except FileNotFoundError:
                return {}

        found = self._try(f"list {name or root}", find)
        below = {path.removeprefix(f"{root}/"): info["size"] for path, info in found.items() if path.startswith(f"{root}/")}
        return {path: size for path, size in below.items() if not name or path.startswith(f"{name}/")}

    def _remove(self, key: str) -> None:
        def remove(fs: Any) -> None:
            try:
                fs.rm_file(key)
            except FileNotFoundError:
                log.info("already gone: %s", key)

        self._try(f"delete {key}", remove)

    def _try(self, what: str, action: Callable[[Any], T]) -> T:
        """Do it, and again after a growing wait when the store fails; messages never carry credentials."""
        for number in range(self.retries + 1):
            try:
                return action(self._filesystem())
            except _FINAL as error:
                kind: type[Exception] = next(final for final in _FINAL if isinstance(error, final))
                raise kind(redact(f"{what}: {error}")) from None
            except Exception as error:  # noqa: BLE001 — stores raise what they like; bounded, and raised in the end
                text = redact(f"{type(error).__name__}: {error}")
                if number == self.retries:
                    lasting = DamagedObjectError if isinstance(error, DamagedObjectError) else StoreUnavailableError
                    raise lasting(f"{what} failed in {number + 1} tries: {text}") from None
                wait = min(self.wait_seconds * 2**number, _LONGEST_WAIT) * random.uniform(0.75, 1.25)
                log.warning("%s failed, again in %.1f s: %s", what, wait, text)
                time.sleep(wait)
        raise AssertionError("unreachable")


def _check_name(name: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"not a name: {name!r}; expected letters, digits, '.', '_' or '-', beginning with a letter or digit")
    return name


def _leaves(path: str) -> bool:
    return PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts or "\0" in path


def _describe(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the files of a folder: path -> {"bytes", "sha256"}."""
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder")
    files = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode):
            files[path.relative_to(folder).as_posix()] = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        elif not stat.S_ISDIR(mode):
            raise ValueError(f"{path}: neither a file nor a folder (a link or a special file)")
    return files


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
