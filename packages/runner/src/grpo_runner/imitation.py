"""Imitation: demonstrations in, one optimizer step on every weight out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from grpo_core import guarded_step, set_lr
from grpo_runner.ledger import Sample
from grpo_runner.policy import Policy
from grpo_runner.scoring import Entry, Metrics, Scored, Scorer

MUON = 4.0
"""Muon's learning rate over AdamW's. torch scales Muon's steps to 0.2 a weight and unit of learning rate, what AdamW's amount
to late in large models (Liu et al. 2025, "Muon is Scalable for LLM Training"); early in a small one nearer to 1. With 4
the warm start on 7x7 mazes needs half the demonstrations that it needs with AdamW alone."""


class Imitation:
    """Trains every weight from scratch: the layers' matrices by Muon; embeddings, norms, biases and the head by AdamW."""

    def __init__(self, policy: Policy, scorer: Scorer, *, weight_decay: float, max_norm: float) -> None:
        self._scorer = scorer
        self._parameters = list(policy.trained.values())
        self._max_norm = max_norm
        head = policy.head
        linear = [m.weight for m in policy.core.modules() if isinstance(m, nn.Linear) and m.weight is not head]
        inner = {id(weight) for weight in linear}
        rest = [p for p in self._parameters if id(p) not in inner]
        self._optimizers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(rest, lr=0.0, weight_decay=weight_decay, betas=(0.9, 0.95)),
            torch.optim.Muon(linear, lr=0.0, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"),
        ]

    def step(self, samples: Sequence[Sample], *, lr: float) -> dict[str, float]:
        """One optimizer step on the mean negative log-prob of the trained tokens."""
        denominator = float(sum(len(s.trained) for s in samples))

        def loss_of(scored: Scored, entries: Sequence[Entry]) -> tuple[torch.Tensor, Metrics]:
            value = -scored.logprobs.sum() / denominator
            return value, {"sft/loss": value.detach()}

        metrics, _ = self._scorer.backward(self._scorer.entries(samples), loss_of, entropy=False)
        for optimizer, factor in zip(self._optimizers, (1.0, MUON), strict=True):
            set_lr(optimizer, factor * lr)
        outcome = guarded_step(self._optimizers, self._parameters, max_norm=self._max_norm)
        return {name: float(v) for name, v in metrics.items()} | {"optim/grad_norm": outcome.grad_norm}
