"""Whether the sampler and the learner see the same: the difference of their log-probs of the tokens that were sampled."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist

from grpo_runner.ledger import Sample
from grpo_runner.scoring import Entry, Metrics


class DisagreementError(RuntimeError):
    """The sampler's and the learner's log-probs of the same tokens differ by too much to train on."""


class Gap:
    """The largest and the mean difference between the sampler's and the learner's log-prob of a token."""

    def __init__(self) -> None:
        self.largest, self.total, self.tokens, self.where = 0.0, 0.0, 0, "no token"

    def compare(self, entry: Entry, samples: Sequence[Sample], logprobs: torch.Tensor) -> None:
        if not entry.uses or not len(logprobs):
            return
        sampled = np.stack([samples[use].sampler_logprobs for use in entry.uses])
        difference = np.abs(sampled - logprobs.double().numpy())
        use, token = np.unravel_index(difference.argmax(), difference.shape)  # argmax takes a NaN for the largest
        where = f"trajectory {samples[entry.uses[use]].trajectory}, trained token {token}"
        self._add(float(difference.sum()), difference.size, float(difference[use, token]), where)

    def compare_each(self, entries: Sequence[Entry], samples: Sequence[Sample], scores: Sequence[torch.Tensor]) -> None:
        for entry, logprobs in zip(entries, scores, strict=True):
            self.compare(entry, samples, logprobs)

    def _add(self, total: float, tokens: int, largest: float, where: str) -> None:
        self.total += total
        self.tokens += tokens
        if not (largest <= self.largest or math.isnan(self.largest)):  # a NaN is the largest, and stays so
            self.largest, self.where = largest, where

    def of_all(self, group: dist.ProcessGroup | None) -> Gap:
        """Return the gap over all ranks."""
        if group is None:
            return self
        gaps: list[Gap] = [self] * group.size()
        dist.all_gather_object(gaps, self, group=group)
        whole = Gap()
        for gap in gaps:
            whole._add(gap.total, gap.tokens, gap.largest, gap.where)
        return whole

    def check(self, limit: float | None) -> None:
        """
        Raises:
            DisagreementError: the largest difference is above the limit, or not a number.
        """
        if limit is not None and not self.largest <= limit:
            raise DisagreementError(
                f"sampler and learner disagree by {self.largest:.3g} on the log-prob of a token ({self.where}); "
                f"train.verify allows {limit:g}. The engine does not hold the weights that are trained, or it sees other "
                "tokens or pictures."
            )

    def metrics(self) -> Metrics:
        return {
            "agreement/logprob_gap_max": torch.tensor(self.largest),
            "agreement/logprob_gap_sum": torch.tensor(self.total),
            "agreement/tokens": torch.tensor(float(self.tokens)),
        }
