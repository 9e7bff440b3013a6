"""Trajectory → sample → micro-batch: exact token ids, which of them are trained, and pictures by index.

Axes: B rows, T width, N tokens of a packed batch, M trained tokens, I pictures of a batch, R feature rows, D their size.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ._checks import check_choice

SIDES = ("right", "left")


@dataclass(frozen=True)
class Turn:
    """One exchange. Example: ``Turn((5, 9, 9, 6), (7, 2), (-0.1, -0.3), ("maze-3:4,1",))``."""

    prompt_ids: tuple[int, ...]
    """Token ids that the environment or the template put before the answer; never trained."""
    answer_ids: tuple[int, ...]
    """Token ids exactly as they were sampled, never re-tokenised text."""
    sampler_logprobs: tuple[float, ...]
    """The sampler's log-prob of each answer id."""
    images: tuple[Hashable, ...] = ()
    """Content keys of the pictures whose placeholders stand in ``prompt_ids``, in their order."""


@dataclass(frozen=True)
class Trajectory:
    """One episode of one task. Example: ``Trajectory("maze-3", 1.0, (turn, turn))``."""

    uid: Hashable
    """The task instance: what the group is made by."""
    reward: float | None
    """Total reward; None leaves the episode out of the group's mean, of the mask and of the denominator."""
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class Sample:
    """One row for the model. Example: ``Sample("maze-3", (5, 9, 7, 2), (False, False, True, True), (0, 0, -.1, -.3), ())``."""

    uid: Hashable
    ids: tuple[int, ...]
    trained: tuple[bool, ...]
    """Per id: was it made by the model, and is it trained? Never the first one, which nothing predicts."""
    sampler_logprobs: tuple[float, ...]
    """Per id; 0 where it is not trained."""
    images: tuple[Hashable, ...]

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.trained) == len(self.sampler_logprobs):
            got = (len(self.ids), len(self.trained), len(self.sampler_logprobs))
            raise ValueError(f"ids, trained, sampler_logprobs: expected one length, got {got}")
        if self.trained and self.trained[0]:
            raise ValueError("trained: expected False for the first id, which no hidden state predicts, got True")


def trajectory_samples(trajectory: Trajectory, *, per_turn: bool = False) -> list[Sample]:
    """Turn an episode into rows: one row of all turns, or one row per turn with everything before it as the prompt.

    One row costs one forward pass over the episode; one per turn costs the square of the turns, and is for models whose
    template rewrites history. Every answer id is trained exactly once either way, and none when the reward is None.
    """
    samples: list[Sample] = []
    ids: list[int] = []
    trained: list[bool] = []
    logprobs: list[float] = []
    images: list[Hashable] = []
    kept = trajectory.reward is not None
    for number, turn in enumerate(trajectory.turns, start=1):
        if len(turn.answer_ids) != len(turn.sampler_logprobs):
            got = (len(turn.answer_ids), len(turn.sampler_logprobs))
            raise ValueError(f"sampler_logprobs: expected one per answer id, {got[0]}, got {got[1]}")
        if per_turn:
            trained, logprobs = [False] * len(ids), [0.0] * len(ids)
        ids += [*turn.prompt_ids, *turn.answer_ids]
        trained += [False] * len(turn.prompt_ids) + [kept] * len(turn.answer_ids)
        logprobs += [0.0] * len(turn.prompt_ids) + list(turn.sampler_logprobs)
        images += turn.images
        if per_turn or number == len(trajectory.turns):
            samples.append(Sample(trajectory.uid, tuple(ids), tuple(trained), tuple(logprobs), tuple(images)))
    return samples


@dataclass(frozen=True)
class MicroBatch:
    """Some samples as tensors, padded [B, T] or packed [N]; all that follows the model is [M], over trained tokens only.

    Example: ``token_logprobs(hidden.reshape(-1, D)[batch.predictor], head, batch.targets)``.
    """

    samples: tuple[int, ...]
    """Positions of the samples in the list that they came from, one per sequence."""
    input_ids: Tensor
    """[B, T] or [N] int64."""
    mask: Tensor
    """Same shape, bool: the trained tokens."""
    real: Tensor
    """Same shape, bool: no padding (the attention mask)."""
    positions: Tensor
    """Same shape, int64: 0, 1, … within each sequence; 0 on padding."""
    boundaries: Tensor
    """[sequences + 1] int64: where each sequence starts in the packed order of real tokens."""
    predictor: Tensor
    """[M] int64: place in the flat [B·T] or [N] hidden states of the one that predicts each trained token."""
    targets: Tensor
    """[M] int64: the trained token ids."""
    sample_of: Tensor
    """[M] int64: position in the list of samples, e.g. ``advantages[batch.sample_of]``."""
    sampler_logprobs: Tensor
    """[M] float32."""
    images: Tensor
    """[I] int64: rows of the caller's :class:`ImageTable`, in the order in which placeholders stand."""


def pad_batch(
    samples: Sequence[Sample],
    chosen: Sequence[int],
    *,
    pad_id: int,
    side: str = "right",
    width: int | None = None,
    image_index: dict[Hashable, int] | None = None,
) -> MicroBatch:
    """Put the chosen samples into rows of one width (default: the longest), padded on the right or the left.

    Raises ValueError for a width below the longest sample, and for a picture that ``image_index`` does not know.
    """
    check_choice("side", side, SIDES)
    longest = max((len(samples[place].ids) for place in chosen), default=0)
    width = longest if width is None else width
    if width < longest:
        raise ValueError(f"width: expected at least the longest sample, {longest}, got {width}")
    starts = []
    for row, place in enumerate(chosen):
        starts.append(row * width + (width - len(samples[place].ids) if side == "left" else 0))
    return _fill(samples, chosen, starts, (len(chosen), width), pad_id, image_index)


def pack_batch(
    samples: Sequence[Sample], chosen: Sequence[int], *, image_index: dict[Hashable, int] | None = None
) -> MicroBatch:
    """Put the chosen samples one after the other, without padding: [N]. ``boundaries`` keeps their attention apart."""
    starts, total = [], 0
    for place in chosen:
        starts.append(total)
        total += len(samples[place].ids)
    return _fill(samples, chosen, starts, (total,), 0, image_index)


def _fill(
    samples: Sequence[Sample],
    chosen: Sequence[int],
    starts: Sequence[int],
    shape: tuple[int, ...],
    pad_id: int,
    image_index: dict[Hashable, int] | None,
) -> MicroBatch:
    size = 1
    for axis in shape:
        size *= axis
    ids_N, mask_N = torch.full((size,), pad_id), torch.zeros(size, dtype=torch.bool)
    real_N, positions_N = torch.zeros(size, dtype=torch.bool), torch.zeros(size, dtype=torch.int64)
    sample_N, logprobs_N = torch.zeros(size, dtype=torch.int64), torch.zeros(size)
    images: list[int] = []
    boundaries = [0]
    for place, start in zip(chosen, starts, strict=True):
        sample = samples[place]
        part = slice(start, start + len(sample.ids))
        ids_N[part], mask_N[part] = torch.tensor(sample.ids, dtype=torch.int64), torch.tensor(sample.trained).bool()
        real_N[part], positions_N[part] = True, torch.arange(len(sample.ids))
        sample_N[part], logprobs_N[part] = place, torch.tensor(sample.sampler_logprobs)
        boundaries.append(boundaries[-1] + len(sample.ids))
        images += [_index(image_index, key) for key in sample.images]
    trained_M = mask_N.nonzero().squeeze(1)
    return MicroBatch(
        tuple(chosen), ids_N.reshape(shape), mask_N.reshape(shape), real_N.reshape(shape), positions_N.reshape(shape),
        torch.tensor(boundaries), trained_M - 1, ids_N[trained_M], sample_N[trained_M], logprobs_N[trained_M],
        torch.tensor(images, dtype=torch.int64),
    )  # fmt: skip


def _index(image_index: dict[Hashable, int] | None, key: Hashable) -> int:
    if image_index is None or key not in image_index:
        raise ValueError(f"image_index: expected an entry for every picture, none for {key!r}")
    return image_index[key]
