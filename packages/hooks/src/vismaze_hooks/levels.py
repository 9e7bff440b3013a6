"""Tasks from levels: fixed sets that are pinned by a hash, and endless streams that avoid them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from vismaze_hooks.integers import MASK, mix64
from vismaze_hooks.names import pick
from vismaze_hooks.records import Task

ATTEMPTS = 2_000  # draws before nothing counts as left


def digest_of(tasks: Sequence[Task]) -> str:
    """Return the sha256 of all that the tasks are, in order."""
    whole = [[task.content_hash, dict(task.options), task.move_limit] for task in tasks]
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class FixedLevels:
    """A fixed set: drawn from consecutive seeds, leaving out what is there already."""

    draw: Callable[[int], Any]  # 64-bit seed -> first state of a level; two of a set may differ in difficulty by their seed
    count: int
    seed: int
    sha256: str | None = None  # `digest_of` its tasks, so that no change of a generator goes unseen; None: not pinned


@dataclass(frozen=True)
class LevelSets:
    """How levels of one environment become tasks, and its fixed sets; an earlier set's levels are in no later one."""

    id: str  # of the environment
    write: Callable[[Any], Mapping[str, Any]]  # first state -> reset options that give it back, `limit` among them
    same: Callable[[Any], str]  # first state -> text that is equal exactly for levels that count as the same
    labels: Callable[[Any], Mapping[str, int | str]]
    sets: Mapping[str, FixedLevels] = field(default_factory=dict)

    def task(self, state: Any, uid: str, extra_moves: int = 0) -> Task:
        """Return the task of playing a level."""
        options = {**self.write(state), "limit": state.limit + extra_moves}
        return Task(uid, self.content_hash(state), options, state.limit + extra_moves, labels=dict(self.labels(state)))

    def content_hash(self, state: Any) -> str:
        return hashlib.sha256(self.same(state).encode()).hexdigest()

    def fixed(self, name: str) -> tuple[Task, ...]:
        """Return a fixed set as tasks.

        Raises:
            ValueError: an unknown set (the nearest is suggested), or one that is no longer what its hash says.
        """
        pick("fixed set", name, self.sets)
        return self._drawn[name]

    def held_out(self) -> frozenset[str]:
        """Return the content hashes of every fixed set."""
        return frozenset(task.content_hash for tasks in self._drawn.values() for task in tasks)

    @cached_property
    def _drawn(self) -> dict[str, tuple[Task, ...]]:
        drawn: dict[str, tuple[Task, ...]] = {}
        used: set[str] = set()
        for name, entry in self.sets.items():
            tasks: list[Task] = []
            for offset in range(ATTEMPTS + entry.count):
                state = entry.draw(mix64(entry.seed + offset))
                if len(tasks) < entry.count and (key := self.content_hash(state)) not in used:
                    used.add(key)
                    tasks.append(self.task(state, f"{name}/{len(tasks)}"))
                if len(tasks) == entry.count:
                    break
            else:
                raise ValueError(
                    f"{name}: only {len(tasks)} of {entry.count} different levels were found in {ATTEMPTS:,} draws; "
                    "ask for fewer, or choose options that give more"
                )
            digest = digest_of(tasks)
            if entry.sha256 is not None and digest != entry.sha256:
                raise ValueError(f"{name}: its levels have the hash {digest}, it was made with {entry.sha256}")
            drawn[name] = tuple(tasks)
        return drawn

    def stream(self, draw: Callable[[int], Any], *, extra_moves: int = 0) -> Callable[[int], Task]:
        """Return `draw(seed) -> Task`, a pure function of a 64-bit seed that avoids every fixed set.

        Args:
            draw: 64-bit seed -> first state of a level.
            extra_moves: added to each task's move limit.

        Raises:
            ValueError: nothing is left to draw, or `extra_moves` is no whole number of 0 or more.
        """
        check_extra_moves(extra_moves)
        stream = Stream(self, draw, extra_moves, self.held_out())
        for seed in range(4):
            stream(seed)  # refuse at once what would fail later
        return stream


def check_extra_moves(extra_moves: int) -> None:
    """Refuse what cannot be added to a move limit.

    Raises:
        ValueError: no whole number of 0 or more.
    """
    if isinstance(extra_moves, bool) or not isinstance(extra_moves, int) or extra_moves < 0:
        raise ValueError(f"extra_moves={extra_moves!r}: must be a whole number, 0 or more")


@dataclass(frozen=True)
class Stream:
    """`stream(seed) -> Task`. Made by `LevelSets.stream`."""

    levels: LevelSets
    draw: Callable[[int], Any]
    extra_moves: int
    avoid: frozenset[str]

    def __call__(self, seed: int) -> Task:
        seed = word = seed & MASK
        for _ in range(ATTEMPTS):
            word = mix64(word)
            state = self.draw(word)
            if self.levels.content_hash(state) not in self.avoid:
                return self.levels.task(state, f"{self.levels.id}/{seed:016x}", self.extra_moves)
        raise ValueError(
            f"{self.levels.id}: nothing is left to draw, each of {ATTEMPTS:,} levels is in a fixed set. "
            "Choose options that give more levels"
        )
