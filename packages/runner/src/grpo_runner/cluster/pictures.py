"""Pictures between processes: each distinct one goes into the object store once, and what travels is where it lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import ray

from grpo_runner.ledger import Trajectory
from vismaze_hooks import Image


@dataclass(frozen=True)
class StoredPixels:
    """Pixels in the object store; they are fetched when somebody makes an array of them, and let go with the last of these."""

    album: ray.ObjectRef  # of a list of arrays: all new pictures of one task
    place: int
    shape: tuple[int, ...]  # [height, width, 3]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(ray.get(self.album)[self.place], dtype=dtype)  # lies on this machine after the first time


def put_away(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Return the trajectories with each distinct picture in the object store, one object a task."""
    stored: dict[str, Image] = {}
    tasks: dict[str, dict[str, Image]] = {}
    for trajectory in trajectories:
        for turn in trajectory.turns:
            for image in turn.images:
                if image.sha256 not in stored:
                    tasks.setdefault(trajectory.task.uid, {})[image.sha256] = stored[image.sha256] = image
    for images in tasks.values():
        album = ray.put([i.pixels for i in images.values()])
        for place, image in enumerate(images.values()):
            stored[image.sha256] = Image(StoredPixels(album, place, image.pixels.shape), image.sha256)  # type: ignore[arg-type]

    def lean(trajectory: Trajectory) -> Trajectory:
        turns = (replace(turn, images=tuple(stored[i.sha256] for i in turn.images)) for turn in trajectory.turns)
        return replace(trajectory, turns=tuple(turns))

    return [lean(trajectory) for trajectory in trajectories]
