"""What stays, here and in the backend: retention by age and score, and copies of what stays."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from grpo_runner.files import remove
from grpo_runner.folders import DamagedFolderError, Manifest, verify_folder
from grpo_runner.recovery import Place, mirrored_steps, step_name, whole_manifests
from vismaze_hooks.records import CheckpointBackend


def mirror_name(step: int, attempt: int) -> str:
    """Return the name in the backend; the attempt is in it, so that no attempt ever overwrites another's copy."""
    return f"{step_name(step)}-a{attempt:04d}"


def best_of(scores: Mapping[int, float | None]) -> int | None:
    """Return the step with the highest score, the first of equals; None where nothing has a score."""
    known = {step: score for step, score in scores.items() if score is not None and score == score}  # NaN is no score
    return max(sorted(known), key=lambda step: known[step]) if known else None


def best_so_far(manifests: Mapping[int, Manifest], step: int, score: float | None) -> list[float] | None:
    """Return [step, score] of the best checkpoint of the run, also when it is not here any more; None without scores.

    Every manifest carries it: on a new disk only the newest checkpoint comes back, and the best must not be pruned for that.
    """
    scores: dict[int, float | None] = {}
    for own, manifest in manifests.items():
        if manifest.fields["best"] is not None:
            scores[int(manifest.fields["best"][0])] = manifest.fields["best"][1]
        scores[own] = manifest.fields["score"]
    scores[step] = score
    best = best_of(scores)
    return None if best is None else [best, float(scores[best] or 0.0)]


def surplus(scores: Mapping[int, float | None], keep: int) -> list[int]:
    """Return the steps that retention removes: all but the newest `keep` and the best by score."""
    return sorted(scores.keys() - set(sorted(scores, reverse=True)[:keep]) - {best_of(scores)})


def retain(place: Place, keep: int, fence: Callable[[], None]) -> None:
    """Remove whole checkpoints beyond the newest `keep` and the best; what is damaged is left to be found and named."""
    scores = {step: manifest.fields["score"] for step, manifest in whole_manifests(place.folder).items()}
    for step in surplus(scores, keep):
        fence()
        remove(place.folder / step_name(step), place.attempt)


def mirror(place: Place, backend: CheckpointBackend, keep: int, fence: Callable[[], None]) -> None:
    """Copy what stands here and is not in the backend, the newest first; then remove there what neither place keeps.

    What an earlier attempt, or a backend that was down, left out is made up for; an upload that was cut off is gone on with.
    """
    whole = whole_manifests(place.folder)
    have = set(backend.names())
    for step in sorted(whole, reverse=True):
        name = mirror_name(step, whole[step].fields["attempt"])
        if name in have:
            continue
        try:
            verify_folder(place.folder / step_name(step))
        except DamagedFolderError as error:  # left to be found and named at the next start
            place.tell("mirror_failed", step=step, error=str(error))
            continue
        fence()
        backend.put(place.folder / step_name(step), name)
        place.tell("checkpoint_mirrored", step=step, name=name)
    mirrored = mirrored_steps(backend.names())
    best = whole[max(whole)].fields["best"] if whole else None
    stay = {*whole, *(step for step, _, _ in mirrored[:keep]), *(best or [])[:1]}
    for step, _, name in mirrored:
        if step not in stay:
            fence()
            backend.delete(name)
