"""Which tasks a step plays: new ones from the stream, and again some whose last group had both outcomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from grpo_runner.ledger import Trajectory
from grpo_runner.seeds import derive_seed, uniform
from vismaze_hooks import Task

REMEMBERED = 512  # tasks with both outcomes; the longest unseen are forgotten, the policy has left them behind


class TaskSource:
    """Draws tasks as a function of the run seed, the step and the outcomes so far.

    A group in which every sample earns the same teaches nothing. Late in a run that is most of them, while a task that
    went both ways at its last visit mostly does so again: it lies at the edge of what the policy can do. Tasks that always
    fail or always succeed are not visited again, so no task is held on to for its own sake.
    """

    def __init__(self, draw: Callable[[int], Task], run_seed: int, *, revisit: float) -> None:
        """
        Args:
            draw: seed -> task, the training stream.
            revisit: share of a step's tasks, at most, that are visited again.
        """
        self._draw = draw
        self._run_seed = run_seed
        self._revisit = revisit
        self._edge: dict[str, tuple[int, float]] = {}  # uid -> (seed, spread of the last group's rewards), last seen last
        self._seeds: dict[str, int] = {}  # of the tasks in play
        self.revisited = 0  # of them

    def draw(self, step: int, count: int) -> list[Task]:
        """Return the tasks of one step. Those that are visited again are drawn by the spread that they had."""
        keys = {
            uid: uniform(derive_seed(self._run_seed, "revisit", step, uid), 0) ** (1 / spread)  # Efraimidis and Spirakis 2006
            for uid, (_, spread) in self._edge.items()
        }
        again = sorted(keys, key=lambda uid: keys[uid], reverse=True)[: int(self._revisit * count)]
        seeds = [self._edge[uid][0] for uid in again]
        seeds += [derive_seed(self._run_seed, "task", step, n) for n in range(count - len(again))]
        tasks = [self._draw(seed) for seed in seeds]
        self._seeds = {task.uid: seed for task, seed in zip(tasks, seeds, strict=True)}
        self.revisited = len(again)
        return tasks

    def learn(self, trajectories: Sequence[Trajectory]) -> None:
        """Take in how the drawn tasks went."""
        if not self._revisit:
            return
        groups: dict[str, list[float]] = {}
        for trajectory in trajectories:
            if trajectory.reward is not None:
                groups.setdefault(trajectory.task.uid, []).append(trajectory.reward)
        for uid, rewards in groups.items():
            self._edge.pop(uid, None)
            mean = fmean(rewards)
            spread = fmean((r - mean) ** 2 for r in rewards)
            if spread > 0:
                self._edge[uid] = self._seeds[uid], spread
        for uid in list(self._edge)[:-REMEMBERED]:
            del self._edge[uid]

    def state(self) -> list[Any]:
        """Return what a checkpoint keeps: JSON."""
        return [[uid, seed, spread] for uid, (seed, spread) in self._edge.items()]

    def load(self, state: Sequence[Any]) -> None:
        self._edge = {uid: (seed, spread) for uid, seed, spread in state}
