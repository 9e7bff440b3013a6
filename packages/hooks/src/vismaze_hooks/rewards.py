"""The configured sum of rewards: one function for every environment, so that a stored transition can be priced again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vismaze_hooks.records import Reward, Transition


@dataclass(frozen=True)
class RewardParts:
    """The price of one transition. `total` is None when any part asks to leave the sample out."""

    total: float | None
    parts: Mapping[str, float | None]  # unweighted


@dataclass(frozen=True)
class RewardSum:
    """A weighted sum of named rewards.

    Example: `RewardSum((("sparse", 1.0, sparse), ("progress", 0.2, progress)))(transition).total`.
    """

    terms: Sequence[tuple[str, float, Reward]]  # name, weight, function

    def __call__(self, transition: Transition) -> RewardParts:
        parts = {name: reward(transition) for name, _, reward in self.terms}
        total = 0.0
        for name, weight, _ in self.terms:
            value = parts[name]
            if value is None:
                return RewardParts(None, parts)
            total += weight * value
        return RewardParts(total, parts)
