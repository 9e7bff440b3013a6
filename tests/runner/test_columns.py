"""Samples in columns are the same samples, before and after travelling, and cost little to take apart."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from grpo_runner.columns import Columns, columns
from grpo_runner.learner import Batch
from grpo_runner.ledger import Sample
from vismaze_hooks import Image

PICTURES = [Image(np.full((2, 2, 3), n, dtype=np.uint8), f"sha of {n}") for n in range(4)]


@some.composite
def samples(draw: some.DrawFn) -> Sample:
    ids = draw(some.lists(some.integers(0, 200_000), min_size=1, max_size=20))
    trained = draw(some.lists(some.integers(0, len(ids) - 1), unique=True, max_size=len(ids)))
    logprobs = draw(some.lists(some.floats(-50, 0), min_size=len(trained), max_size=len(trained)))
    images = draw(some.lists(some.sampled_from(PICTURES), max_size=5))
    versions = np.full(len(trained), draw(some.integers(0, 2**40)))
    places = np.array(sorted(trained), dtype=np.int64)
    return Sample(draw(some.integers(0, 10**6)), tuple(ids), tuple(images), places, np.array(logprobs), versions)


def plain(sample: Sample) -> tuple:
    arrays = [sample.trained, sample.sampler_logprobs, sample.versions]
    pictures = [(image.sha256, image.pixels.tobytes()) for image in sample.images]
    return sample.trajectory, sample.ids, pictures, [(a.dtype, a.tolist()) for a in arrays]


@given(some.lists(samples(), max_size=6))
def test_a_batch_that_has_travelled_holds_the_same_samples(given: list[Sample]) -> None:
    advantages, kept = torch.arange(len(given)) / 3, torch.arange(len(given)) % 2 == 0
    came = pickle.loads(pickle.dumps(Batch(given, advantages, kept)))
    assert [plain(sample) for sample in came.samples] == [plain(sample) for sample in given]
    assert came.advantages.equal(advantages) and came.kept.equal(kept)
    assert all(isinstance(token, int) for sample in came.samples for token in sample.ids)
    again = pickle.loads(pickle.dumps(came))
    assert [plain(sample) for sample in again.samples] == [plain(sample) for sample in given]


def test_samples_are_found_by_number_and_slice() -> None:
    none = np.zeros(0, dtype=np.int64)
    three = columns([Sample(n, (n, n + 1), (), none, none.astype(np.float64), none) for n in range(3)])
    assert [three[n].trajectory for n in (0, 2, -1)] == [0, 2, 2]
    assert [s.ids for s in three[1:]] == [(1, 2), (2, 3)]
    for number in (3, -4):
        with pytest.raises(IndexError, match=f"sample {number} of 3"):
            three[number]


def test_a_picture_travels_once_however_many_samples_show_it() -> None:
    none = np.zeros(0, dtype=np.int64)
    shown = [Sample(n, (1,), (PICTURES[n % 2],) * 3, none, none.astype(np.float64), none) for n in range(10)]
    found = columns(shown)
    assert isinstance(found, Columns) and [i.sha256 for i in found.images] == ["sha of 0", "sha of 1"]


def test_columns_travel_as_few_blocks() -> None:
    """The number of buffers does not grow with the samples: that is what makes a large batch cheap to take apart."""

    def blocks(count: int) -> int:
        one = np.ones(1, dtype=np.int64)
        batch = Batch([Sample(n, (1, 2), (), one, one / 2, one) for n in range(count)], torch.zeros(count), torch.ones(count))
        buffers: list[pickle.PickleBuffer] = []
        pickle.dumps(batch, protocol=5, buffer_callback=buffers.append)
        return len(buffers)

    assert blocks(100) == blocks(2) < 12
