"""Finding the newest whole checkpoint: verify, set damage aside under a telling name, fall back, refuse what is not ours."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_runner.files import fsync_folder, fsync_tree, hidden, remove, write_atomic
from grpo_runner.folders import MANIFEST, DamagedFolderError, Manifest, UnknownSchemaError, read_manifest, verify_folder
from vismaze_hooks.records import CheckpointBackend

POINTER = "LATEST"
_STEP = re.compile(r"step_(\d{8,})", re.ASCII)
_MIRRORED = re.compile(r"step_(\d{8,})-a(\d+)", re.ASCII)
_ABSENT = object()


class NothingWholeError(RuntimeError):
    """There were checkpoints and none of them can be used: starting again from step 0 must be somebody's decision."""


class ForeignRunError(RuntimeError):
    """The folder holds a checkpoint of another run."""


class ConfigMismatchError(RuntimeError):
    """The checkpoint was written under a configuration that this one may not continue; lists the keys with both values."""


@dataclass(frozen=True)
class Place:
    """Where a run's checkpoints are, and what makes them this run's."""

    folder: Path
    attempt: int
    run_id: str
    config_hash: str
    config: Mapping[str, Any]  # as JSON gives it back
    backend: CheckpointBackend | None
    tell: Callable[..., None]  # tell(event, **fields)


@dataclass
class Search:
    """What one search has met so far."""

    may_change: Collection[str]
    lost: set[int] = field(default_factory=set)  # steps that were committed and cannot be used


def step_name(step: int) -> str:
    """Return "step_00000010" for 10."""
    return f"step_{step:08d}"


def local_steps(folder: Path) -> list[int]:
    """Return the steps that have an entry in the folder, whole or not, newest first."""
    matches = (_STEP.fullmatch(name) for name in os.listdir(folder))
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def mirrored_steps(names: Collection[str]) -> list[tuple[int, int, str]]:
    """Return (step, attempt, name) of the backend's names that are checkpoints, newest first."""
    matches = (_MIRRORED.fullmatch(name) for name in names)
    return sorted(((int(match[1]), int(match[2]), match[0]) for match in matches if match), reverse=True)


def whole_manifests(folder: Path) -> dict[int, Manifest]:
    """Return step -> manifest of the checkpoints whose manifest and sizes are right (the bytes are not read)."""
    found = {}
    for step in local_steps(folder):
        with suppress(DamagedFolderError, UnknownSchemaError):
            found[step] = verify_folder(folder / step_name(step), hashes=False)
    return found


def find_newest(place: Place, may_change: Collection[str]) -> tuple[Path, Manifest] | None:
    """Return the newest whole checkpoint of this run, or None where there has never been one.

    The pointer is read only to notice a checkpoint that is gone. The backend is asked once something was lost, for anything
    newer than the next one here, or when nothing is here.

    Raises:
        NothingWholeError: there were checkpoints and none can be used.
        ForeignRunError, ConfigMismatchError, UnknownSchemaError: what is there is not for this run.
    """
    search = Search(may_change)
    steps = local_steps(place.folder)
    _check_pointer(place, search, steps[0] if steps else -1)
    for step in [*steps, -1]:
        found = _restore(place, search, step) if search.lost or step < 0 else None
        if found is None and step >= 0:
            found = _examine(place, search, step)
        if found is not None:
            if search.lost:
                used = found[1].fields["step"]
                place.tell("checkpoint_fallback", used=used, lost=sorted(search.lost), steps_to_redo=max(search.lost) - used)
                _point_at(place, used)
            return found
    aside = sorted(path.name for path in place.folder.glob("corrupt-*"))
    if search.lost or aside:
        raise NothingWholeError(
            f"no checkpoint in {place.folder} can be used; steps lost: {sorted(search.lost)}; set aside: {aside}. "
            "To start again from step 0, move this folder away."
        )
    return None


def _check_pointer(place: Place, search: Search, newest: int) -> None:
    try:
        text = (place.folder / POINTER).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return
    match = _STEP.fullmatch(text)
    if match is None:
        place.tell("pointer_stale", pointer=text[:80], newest=newest, error="not the name of a step")
    elif int(match[1]) > newest:
        search.lost.add(int(match[1]))
        place.tell("checkpoint_lost", step=int(match[1]), file=POINTER, reason="the pointer names it; it is gone", aside=None)
    elif int(match[1]) < newest:
        place.tell("pointer_stale", pointer=text, newest=newest, error="older than what is there")


def _point_at(place: Place, step: int) -> None:
    """Let the pointer name what was used, so that the next start does not report the same loss again."""
    try:
        write_atomic(place.folder / POINTER, f"{step_name(step)}\n", attempt=place.attempt)
    except OSError as error:
        place.tell("pointer_stale", pointer="", newest=step, error=str(error))


def _examine(place: Place, search: Search, step: int) -> tuple[Path, Manifest] | None:
    """Verify one local checkpoint; quarantine it and return None when it is damaged."""
    folder = place.folder / step_name(step)
    try:
        return folder, verify_checkpoint(place, folder, step, search.may_change)
    except DamagedFolderError as error:
        search.lost.add(step)
        aside = _quarantine(place, folder, error)
        place.tell("checkpoint_lost", step=step, file=error.file, reason=error.reason, aside=aside)
        return None


def verify_checkpoint(place: Place, folder: Path, step: int, may_change: Collection[str]) -> Manifest:
    """Return the manifest of a folder that is whole and a checkpoint of this run at this step.

    Raises:
        DamagedFolderError, UnknownSchemaError: as `verify_folder`.
        ForeignRunError, ConfigMismatchError: it is whole, or might be, and not ours to use; nothing was moved.
    """
    fields = read_manifest(folder).fields
    if missing := sorted({"run_id", "attempt", "step", "config_hash", "config", "meta"} - fields.keys()):
        raise DamagedFolderError(folder, MANIFEST, f"not a checkpoint's: no {', '.join(missing)}")
    if fields["run_id"] != place.run_id:
        raise ForeignRunError(
            f"{folder} belongs to run {fields['run_id']!r}, this is run {place.run_id!r}. "
            "Use another run folder, or move it away."
        )
    if fields["step"] != step:
        raise DamagedFolderError(folder, MANIFEST, f"written for step {fields['step']}, in the folder of step {step}")
    manifest = verify_folder(folder)
    if fields["config_hash"] != place.config_hash:
        differing = config_differences(fields["config"], place.config, may_change)
        if differing:
            raise ConfigMismatchError(
                f"{folder} was written under another configuration: " + "; ".join(differing) + ". "
                "Restore these values, or start another run."
            )
    return manifest


def config_differences(before: Mapping[str, Any], now: Mapping[str, Any], may_change: Collection[str] = ()) -> list[str]:
    """Return a line per dotted key whose value differs, "optim.lr: 1e-05 in the checkpoint, 3e-05 now".

    Args:
        may_change: keys that are left out, each with all below it.
    """
    old, new = _flatten(before), _flatten(now)
    lines = []
    for key in sorted(old.keys() | new.keys()):
        if any(key == free or key.startswith(f"{free}.") for free in may_change):
            continue
        was, is_ = old.get(key, _ABSENT), new.get(key, _ABSENT)
        if was != is_ or type(was) is not type(is_):
            was_text, is_text = ("absent" if value is _ABSENT else repr(value) for value in (was, is_))
            lines.append(f"{key}: {was_text} in the checkpoint, {is_text} now")
    return lines


def _flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _quarantine(place: Place, folder: Path, error: DamagedFolderError) -> str | None:
    """Set a damaged checkpoint aside; returns its new name, or None where the place does not allow it."""
    name, number = f"corrupt-{folder.name}", 1
    while os.path.lexists(place.folder / name):
        number += 1
        name = f"corrupt-{folder.name}-{number}"
    try:
        os.rename(folder, place.folder / name)
        fsync_folder(place.folder)
        write_atomic(place.folder / f"{name}.txt", f"{error}\n", attempt=place.attempt)
    except OSError as refused:
        place.tell("quarantine_failed", folder=str(folder), error=str(refused))
        return None
    return name


def _restore(place: Place, search: Search, newer_than: int) -> tuple[Path, Manifest] | None:
    """Bring the newest whole checkpoint above a step back from the backend, or return None."""
    if place.backend is None:
        return None
    try:
        names = place.backend.names()
    except Exception as error:  # whatever a third party's backend raises; an older local one may still do
        place.tell("backend_failed", action="names", error=repr(error))
        if newer_than < 0:
            raise NothingWholeError(f"nothing usable in {place.folder}, and the backend cannot be asked: {error!r}") from error
        return None
    for step, _, name in mirrored_steps(names):
        if step <= newer_than:
            break
        temporary = hidden(place.folder / step_name(step), "tmp", place.attempt)
        try:
            place.backend.get(name, temporary)
            manifest = verify_checkpoint(place, temporary, step, search.may_change)
        except (ForeignRunError, ConfigMismatchError, UnknownSchemaError):
            _discard(temporary, place)
            raise
        except Exception as error:  # noqa: BLE001 — damage or a third party's failure: told, and the next one is tried
            _discard(temporary, place)
            search.lost.add(step)
            place.tell("checkpoint_lost", step=step, file=name, reason=f"backend: {error}", aside=None)
            continue
        folder = place.folder / step_name(step)
        fsync_tree(temporary)
        os.rename(temporary, folder)
        fsync_folder(place.folder)
        place.tell("checkpoint_restored", step=step, name=name, folder=str(folder))
        return folder, manifest
    return None


def _discard(temporary: Path, place: Place) -> None:
    if temporary.exists():
        remove(temporary, place.attempt)
