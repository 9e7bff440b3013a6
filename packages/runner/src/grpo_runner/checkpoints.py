"""The checkpoints of a run: committed whole, found whole, or named as damaged; never loaded on trust.

Saving: temporary folder beside the others, files synced and hashed, manifest, rename to `step_00000010`, pointer `LATEST`,
retention, mirror. Loading (`recovery`) scans the folders from the newest to the oldest and verifies every byte.
"""

from __future__ import annotations

import errno
import json
import shutil
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from grpo_runner import attempts
from grpo_runner.attempts import Superseded
from grpo_runner.files import write_atomic
from grpo_runner.folders import (
    DamagedFolderError,
    Manifest,
    UnknownSchemaError,
    commit_folder,
    is_committed,
    ring,
    sweep,
    verify_folder,
)
from grpo_runner.mirrors import best_so_far, mirror, retain
from grpo_runner.recovery import (
    POINTER,
    ConfigMismatchError,
    ForeignRunError,
    NothingWholeError,
    Place,
    find_newest,
    step_name,
    whole_manifests,
)
from vismaze_hooks.records import CheckpointBackend

__all__ = (
    "CheckpointError",
    "CheckpointStore",
    "Committed",
    "ConfigMismatchError",
    "DamagedFolderError",
    "ForeignRunError",
    "Loaded",
    "Manifest",
    "NothingWholeError",
    "Superseded",
    "UnknownSchemaError",
    "UnreadableCheckpointError",
    "commit_folder",
    "is_committed",
    "ring",
    "sweep",
    "verify_folder",
)

T = TypeVar("T")


class CheckpointError(RuntimeError):
    """A checkpoint could not be saved; the ones before it stand as they were."""


class UnreadableCheckpointError(RuntimeError):
    """The reader failed on a folder that is exactly what was committed. Nothing is moved."""


@dataclass(frozen=True)
class Committed:
    """A checkpoint that stands."""

    step: int
    folder: Path
    bytes: int  # of all files, the manifest left out
    seconds: float  # from the first write to the end of retention and mirror


@dataclass(frozen=True)
class Loaded:
    """Where a state came from."""

    step: int
    meta: Mapping[str, Any]
    folder: Path


class CheckpointStore:
    """The checkpoints of one run, written by one process (rank 0) of one attempt.

    Args:
        folder: where the checkpoints are; made when missing. Leftovers of earlier attempts are cleared from it.
        keep: newest whole checkpoints that stay, here and in the backend, beside the best by score; at least 1.
        backend: where each committed checkpoint is mirrored to, and looked for when one is lost here.
        on_event: told (name, fields) of everything that happens; also from the saving thread, never twice at a time.

    Raises:
        Superseded: a later attempt of this run has started.
        OSError: `folder` cannot be made or listed.
    """

    def __init__(
        self,
        folder: Path,
        *,
        run_folder: Path,
        attempt: int,
        run_id: str,
        config_hash: str,
        config: Mapping[str, Any],
        keep: int,
        backend: CheckpointBackend | None = None,
        on_event: Callable[[str, Mapping[str, Any]], None],
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep: expected at least 1, got {keep}")
        self.folder, self.keep = folder, keep
        self.failed = 0  # saves that failed
        self.newest = 0  # step of the newest checkpoint that stands; 0: none was loaded or saved yet
        self._on_event, self._telling = on_event, threading.Lock()
        self._place = Place(folder, attempt, run_id, config_hash, json.loads(json.dumps(config)), backend, self._tell)
        self._fence = attempts.fence(run_folder, attempt)
        self._saver = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[Committed] | None = None
        self._expected_bytes = 0  # of the next checkpoint, from the last
        self._fence()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            sweep(folder, attempt)
        except OSError as error:  # what cannot be written can still be loaded from
            self._tell("sweep_failed", folder=str(folder), error=str(error))

    def save(
        self, step: int, write: Callable[[Path], None], meta: Mapping[str, Any], *, score: float | None = None
    ) -> Committed:
        """Save now. `write` fills the folder it is given; `meta` is JSON and goes into the manifest.

        Args:
            score: of the policy at this step, higher is better; the best checkpoint outlives retention.

        Raises:
            CheckpointError: it failed; counted, told, and the checkpoints before it stand.
            Superseded: a later attempt has started; nothing was published.
        """
        self.wait()
        return self._save(step, write, meta, score)

    def save_async(
        self, step: int, snapshot_write: Callable[[Path], None], meta: Mapping[str, Any], score: float | None = None
    ) -> None:
        """Save in the background, once the save in flight (if any) is done. A failure is told and counted, not raised.

        Args:
            snapshot_write: as `write`, over a state that nobody changes any more.

        Raises:
            Superseded: the save before met a later attempt.
        """
        self.wait()
        self._pending = self._saver.submit(self._save, step, snapshot_write, json.loads(json.dumps(meta)), score)

    def wait(self) -> Committed | None:
        """Wait for the save in flight; returns what it committed, or None when there was none or it failed.

        Raises:
            Superseded: that save met a later attempt.
        """
        if self._pending is None:
            return None
        try:
            return self._pending.result()
        except CheckpointError:
            return None  # told and counted where it happened
        finally:
            if self._pending.done():
                self._pending = None

    def load(
        self, read: Callable[[Path, Mapping[str, Any]], T], *, may_change: Collection[str] = ()
    ) -> tuple[T, Loaded] | None:
        """Return `read(folder, meta)` of the newest whole checkpoint; None when there has never been one.

        Args:
            may_change: dotted keys of the configuration, each with all below it, that may differ from the checkpoint's.

        Raises:
            UnreadableCheckpointError: `read` failed on a verified folder.
            As `find` beside that.
        """
        found = self.find(may_change=may_change)
        if found is None:
            return None
        folder, manifest = found
        step, meta = manifest.fields["step"], manifest.fields["meta"]
        try:
            state = read(folder, meta)
        except _failures() as error:
            raise UnreadableCheckpointError(f"{folder} is as it was committed, but reading it failed: {error!r}") from error
        self._tell("checkpoint_loaded", step=step, folder=str(folder), written_by_attempt=manifest.fields["attempt"])
        return state, Loaded(step, meta, folder)

    def find(self, *, may_change: Collection[str] = ()) -> tuple[Path, Manifest] | None:
        """Return the newest whole checkpoint, verified to the last byte; None when there has never been one.

        Damaged ones are renamed to `corrupt-step_…`, with the reason in a text file beside, and told.

        Raises:
            NothingWholeError: there were checkpoints and none can be used.
            ForeignRunError, ConfigMismatchError, UnknownSchemaError: what is there is not for this run.
            Superseded: a later attempt has started.
        """
        self.wait()
        self._fence()
        found = find_newest(self._place, may_change)
        if found is not None:
            self._expected_bytes, self.newest = found[1].bytes, int(found[1].fields["step"])
        return found

    def _save(self, step: int, write: Callable[[Path], None], meta: Mapping[str, Any], score: float | None) -> Committed:
        start = time.perf_counter()
        try:
            folder, manifest = self._commit(step, write, meta, score)
        except _failures() as error:
            refused = error if isinstance(error, Superseded) else attempts.superseded(self._fence)
            if refused is not None:  # the sweep of a later attempt looks like a disk error from here
                self._tell("checkpoint_superseded", step=step, error=str(refused))
                raise refused from (None if refused is error else error)
            self.failed += 1
            self._tell("checkpoint_failed", step=step, error=f"{type(error).__name__}: {error}", failed=self.failed)
            raise CheckpointError(f"checkpoint of step {step} in {self.folder} failed: {error!r}") from error
        self._expected_bytes, self.newest = manifest.bytes, step
        self._tell("checkpoint_committed", step=step, folder=str(folder), bytes=manifest.bytes)
        self._after_commit("retention", retain, self._place, self.keep, self._fence)
        if self._place.backend is not None:
            self._after_commit("mirror", mirror, self._place, self._place.backend, self.keep, self._fence)
        return Committed(step, folder, manifest.bytes, time.perf_counter() - start)

    def _commit(
        self, step: int, write: Callable[[Path], None], meta: Mapping[str, Any], score: float | None
    ) -> tuple[Path, Manifest]:
        place = self._place
        self._fence()
        free = shutil.disk_usage(self.folder).free
        if free < self._expected_bytes:
            raise OSError(
                errno.ENOSPC, f"{free} bytes are free, the last checkpoint took {self._expected_bytes}", str(self.folder)
            )
        fields = {
            "kind": "checkpoint",
            "run_id": place.run_id,
            "attempt": place.attempt,
            "step": step,
            "config_hash": place.config_hash,
            "config": place.config,
            "score": score,
            "best": best_so_far(whole_manifests(self.folder), step, score),
            "meta": meta,
        }
        folder = commit_folder(self.folder, step_name(step), write, manifest=fields, attempt=place.attempt, fence=self._fence)
        self._fence()
        write_atomic(self.folder / POINTER, f"{step_name(step)}\n", attempt=place.attempt)
        return folder, verify_folder(folder, hashes=False)

    def _after_commit(self, what: str, action: Callable[..., None], *arguments: Any) -> None:
        """Do what may fail without harm to the checkpoint that now stands."""
        try:
            action(*arguments)
        except Superseded:
            raise
        except Exception as error:  # noqa: BLE001 — includes whatever a third party's backend raises; told
            self._tell(f"{what}_failed", error=f"{type(error).__name__}: {error}")

    def _tell(self, event: str, **fields: Any) -> None:
        with self._telling:
            self._on_event(event, fields)


def _failures() -> tuple[type[BaseException], ...]:
    """What a save or a reader may raise. DCP's exception is no `Exception`; it can only come once its module is loaded."""
    api = sys.modules.get("torch.distributed.checkpoint.api")
    return (Exception,) if api is None else (Exception, api.CheckpointException)
