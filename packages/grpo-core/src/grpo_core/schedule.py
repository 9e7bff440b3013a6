"""Learning rate as a pure function of the step, so that a resumed run needs nothing but the step's number."""

import math
from dataclasses import dataclass

import torch

from ._checks import check_choice, check_positive

SCHEDULES = ("constant", "linear", "cosine")


@dataclass(frozen=True)
class LRSchedule:
    """Warm-up, then constant, linear or cosine decay to ``final_fraction`` of the peak.

    Example: ``LRSchedule(peak=1e-5, kind="cosine", total_steps=100, warmup_steps=10).lr_at(0) == 1e-6``.
    """

    peak: float
    """Learning rate after the warm-up."""
    kind: str = "constant"
    """constant, linear or cosine."""
    total_steps: int | None = None
    """Steps of the run; the decay ends with the last one. Needed unless constant."""
    warmup_steps: int = 0
    """Steps of the linear warm-up; its first step has peak / warmup_steps, never 0."""
    final_fraction: float = 0.0
    """Share of the peak that is left in the last step, 0 to 1."""

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, SCHEDULES)
        check_positive("peak", self.peak)
        if self.warmup_steps < 0:
            raise ValueError(f"warmup_steps: expected at least 0, got {self.warmup_steps}")
        if not 0 <= self.final_fraction <= 1:
            raise ValueError(f"final_fraction: expected 0 to 1, got {self.final_fraction}")
        if self.kind != "constant" and (self.total_steps is None or self.total_steps <= self.warmup_steps):
            raise ValueError(f"total_steps: expected more than warmup_steps={self.warmup_steps}, got {self.total_steps}")

    def lr_at(self, step: int) -> float:
        """Learning rate of the optimizer step with this number, counted from 0; after the last step it stays."""
        if step < 0:
            raise ValueError(f"step: expected at least 0, got {step}")
        if step < self.warmup_steps:
            return self.peak * ((step + 1) / self.warmup_steps)
        if self.kind == "constant" or self.total_steps is None:
            return self.peak
        decaying = max(self.total_steps - 1 - self.warmup_steps, 1)
        done = min((step - self.warmup_steps) / decaying, 1.0)
        left = 1 - done if self.kind == "linear" else (1 + math.cos(math.pi * done)) / 2
        return self.peak * (self.final_fraction + (1 - self.final_fraction) * left)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give every parameter group of the optimizer this learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = lr
