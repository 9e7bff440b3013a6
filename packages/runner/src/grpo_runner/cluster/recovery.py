"""The time that a recovery takes, split into its parts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from grpo_runner.interruptions import Lost

PARTS = ("detect", "tear_down", "schedule", "load", "first_step")


class Recovery:
    """A clock: `mark` ends a part. `lost` is None for a planned change of size."""

    def __init__(self, step: int, lost: Sequence[Lost] | None) -> None:
        self._step, self._lost = step, lost
        detect = max((one.seconds for one in lost), default=0.0) if lost else 0.0
        self.seconds = {"detect": round(detect, 2)}
        self._since = time.monotonic()

    @property
    def event(self) -> str:
        return "resized" if self._lost is None else "recovered"

    def mark(self, part: str) -> None:
        """End a part; a part that has ended stays as it is."""
        if part not in self.seconds:
            now = time.monotonic()
            self.seconds[part] = round(now - self._since, 2)
            self._since = now

    def facts(self) -> dict[str, Any]:
        """Return what the event says."""
        lost = [one.rank for one in self._lost or ()]
        return {"step": self._step, "lost": lost, "seconds": {**self.seconds, "total": self.total}}

    @property
    def total(self) -> float:
        return round(sum(self.seconds.values()), 2)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the step that ends the recovery."""
        parts = {f"cluster/recovery_{part}_seconds": seconds for part, seconds in self.seconds.items()}
        return {**parts, "cluster/recovery_seconds": self.total}
