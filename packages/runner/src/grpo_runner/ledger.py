"""The trajectory ledger: everything that was shown, sampled and paid, by coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vismaze_hooks import Ending, Image, Task


@dataclass(frozen=True)
class Turn:
    """One question and its answer, as ids.

    Example: a turn of the demo has a prompt of about 40 ids with two image placeholders, two pictures, and the four
    sampled ids of `<action>left</action><|im_end|>`.
    """

    prompt_ids: tuple[int, ...]  # image placeholders not expanded
    images: tuple[Image, ...]
    token_ids: tuple[int, ...]  # as sampled
    logprobs: tuple[float, ...]  # of the sampler
    seed: int
    weights_version: int
    answer: str
    readable: bool
    feedback: str
    reward: float
    trained: bool = True  # False: part of the context only


@dataclass(frozen=True)
class Trajectory:
    """One sample of a task's group."""

    task: Task
    sample: int
    turns: tuple[Turn, ...]
    reward: float | None  # sum over the turns; None: a reward asked to leave the sample out
    success: bool
    ending: Ending
    error: str | None = None  # of the environment or a reward, which ended the episode; the sample is then left out

    @property
    def moves(self) -> int:
        return len(self.turns)


@dataclass(frozen=True)
class Sample:
    """One sequence to train on: ids with the positions that the model itself made."""

    trajectory: int  # its place in the batch of trajectories
    ids: tuple[int, ...]  # image placeholders not expanded
    images: tuple[Image, ...]
    trained: np.ndarray  # int64 [trained tokens], places in `ids`
    sampler_logprobs: np.ndarray  # float64 [trained tokens]
    versions: np.ndarray  # int64 [trained tokens]: weights version each token was sampled with


def samples_of(number: int, trajectory: Trajectory) -> list[Sample]:
    """Return the sequences of one trajectory: turns are one sequence for as long as each prompt extends the last.

    With the full history that is one sequence a trajectory; with a bounded history it is one a turn. No setting is asked.
    """
    samples: list[Sample] = []
    ids: tuple[int, ...] = ()
    open_turns: list[tuple[int, Turn]] = []  # first place of the answer, turn
    for turn in trajectory.turns:
        if open_turns and turn.prompt_ids[: len(ids)] != ids:
            samples.append(_close(number, ids, open_turns))
            open_turns = []
        open_turns.append((len(turn.prompt_ids), turn))
        ids = turn.prompt_ids + turn.token_ids
    if open_turns:
        samples.append(_close(number, ids, open_turns))
    return [s for s in samples if len(s.trained)]


def _close(number: int, ids: tuple[int, ...], turns: Sequence[tuple[int, Turn]]) -> Sample:
    trained = [(start, t) for start, t in turns if t.trained]
    return Sample(  # a million times in a step of a large cluster: one array of a list costs less than arrays that are joined
        number,
        ids,
        turns[-1][1].images,
        np.array([place for start, t in trained for place in range(start, start + len(t.token_ids))], dtype=np.int64),
        np.array([logprob for _, t in trained for logprob in t.logprobs], dtype=np.float64),
        np.array([t.weights_version for _, t in trained for _ in t.token_ids], dtype=np.int64),
    )
