"""Rewards as a configured sum, one function for every environment, so that a stored transition can be priced again; and the
rewards that fit every environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vismaze_hooks.answers import CLOSE, OPEN, plain
from vismaze_hooks.plugins import current_plugins
from vismaze_hooks.records import Ending, Reward, Transition

RewardChoice = str | Sequence[str] | Mapping[str, "float | Mapping[str, Any]"]
"""A name, a list of names (weight 1 each), or name -> weight, or name -> {"weight": w, and options of the factory}."""


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


def make_reward(choice: RewardChoice | RewardSum) -> RewardSum:
    """Return the weighted sum that a choice stands for; a `RewardSum` stands for itself.

    Raises:
        ValueError: an unknown name (the nearest is suggested), no name at all, a weight that is no finite number, or options
            that the factory refuses.
    """
    if isinstance(choice, RewardSum):
        return choice
    named: Mapping[str, Any] = (
        {choice: 1.0} if isinstance(choice, str) else choice if isinstance(choice, Mapping) else dict.fromkeys(choice, 1.0)
    )
    if not named:
        raise ValueError("reward: at least one name is needed")
    plugins, terms = current_plugins(), []
    for name, given in named.items():
        options = dict(given) if isinstance(given, Mapping) else {}
        weight = options.pop("weight", 1.0) if isinstance(given, Mapping) else given
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not abs(weight) < float("inf"):
            raise ValueError(f"reward {name!r}: the weight must be a finite number, got {weight!r}")
        terms.append((name, float(weight), plugins.create("reward", name, options)))
    return RewardSum(tuple(terms))


def sparse_value(transition: Transition) -> float:
    return 1.0 if transition.ending is Ending.SUCCESS else 0.0


def sparse() -> Reward:
    """Make the reward 1.0 for success within the limit, else 0.0."""
    return sparse_value


def _readable(transition: Transition) -> float:
    return -1.0 if transition.action is None else 0.0


def _bare(transition: Transition) -> float:
    answer = plain(transition.answer).strip()
    bare = answer.startswith(OPEN) and answer.endswith(CLOSE) and answer.count(OPEN) == answer.count(CLOSE) == 1
    return 0.0 if bare and transition.action is not None else -1.0


def form(*, strict: bool = False) -> Reward:
    """Make the reward −1.0 for an answer that cannot be read, else 0.0; a fine and no prize, since a prize for every turn
    would pay for not arriving.

    Args:
        strict: anything but the tag and its word costs as much; for the grammar `<action>word</action>` only.
    """
    return _bare if strict else _readable
