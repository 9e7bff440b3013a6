"""Many samples as a few arrays: what travels to the ranks, which would otherwise spend longer on unpacking than on reading.

A step of a large cluster has a million samples. As so many records with arrays of their own they cost a microsecond for each
small array, on the sender and on every rank; as columns they are copied as a block, and a rank makes those that it looks at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import overload

import numpy as np

from grpo_runner.ledger import Sample
from vismaze_hooks import Image


@dataclass(frozen=True)
class Columns(Sequence[Sample]):
    """Samples, one after the other: `ids[starts[n] : starts[n + 1]]` are those of sample n, and so on. N samples."""

    trajectory: np.ndarray  # int64 [N]
    ids: np.ndarray  # int32 [tokens of all]
    starts: np.ndarray  # int64 [N + 1]
    trained: np.ndarray  # int32 [trained tokens of all], places in the sample's own ids
    logprobs: np.ndarray  # float64 [trained tokens of all]
    versions: np.ndarray  # int64 [trained tokens of all]
    trained_starts: np.ndarray  # int64 [N + 1]
    images: tuple[Image, ...]  # distinct
    shown: np.ndarray  # int32 [pictures of all], places in `images`
    shown_starts: np.ndarray  # int64 [N + 1]

    def __len__(self) -> int:
        return len(self.trajectory)

    @overload
    def __getitem__(self, number: int) -> Sample: ...
    @overload
    def __getitem__(self, number: slice) -> list[Sample]: ...
    def __getitem__(self, number: int | slice) -> Sample | list[Sample]:
        if isinstance(number, slice):
            return [self[n] for n in range(*number.indices(len(self)))]
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {number} of {len(self)}")
        n = number % len(self)
        ids = slice(self.starts[n], self.starts[n + 1])
        trained = slice(self.trained_starts[n], self.trained_starts[n + 1])
        shown = slice(self.shown_starts[n], self.shown_starts[n + 1])
        return Sample(
            int(self.trajectory[n]),
            tuple(self.ids[ids].tolist()),
            tuple(self.images[place] for place in self.shown[shown].tolist()),
            self.trained[trained].astype(np.int64),
            self.logprobs[trained],
            self.versions[trained],
        )


def columns(samples: Sequence[Sample]) -> Columns:
    """Put samples into columns. Pictures are told apart by their sha256."""
    if isinstance(samples, Columns):
        return samples
    images: dict[str, tuple[int, Image]] = {}
    shown = [images.setdefault(i.sha256, (len(images), i))[0] for s in samples for i in s.images]
    starts = _starts(len(s.ids) for s in samples)
    return Columns(
        np.array([s.trajectory for s in samples], dtype=np.int64),
        np.fromiter(chain.from_iterable(s.ids for s in samples), np.int32, int(starts[-1])),
        starts,
        _joined([s.trained for s in samples], np.int32),
        _joined([s.sampler_logprobs for s in samples], np.float64),
        _joined([s.versions for s in samples], np.int64),
        _starts(len(s.trained) for s in samples),
        tuple(image for _, image in images.values()),
        np.array(shown, dtype=np.int32),
        _starts(len(s.images) for s in samples),
    )


def _starts(lengths: Iterable[int]) -> np.ndarray:
    return np.cumsum([0, *lengths], dtype=np.int64)


def _joined(parts: Sequence[np.ndarray], kind: type[np.generic]) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype=kind), *parts]).astype(kind, copy=False)
