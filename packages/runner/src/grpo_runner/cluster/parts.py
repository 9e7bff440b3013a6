"""What stands behind the loop's learner, engine and rollouts on a cluster: the same methods, done by all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch

from grpo_runner.cluster.calls import Call, Member, Pending
from grpo_runner.cluster.supervisor import Supervisor
from grpo_runner.faults import Phase
from grpo_runner.learner import Batch, LossSettings
from grpo_runner.ledger import Sample, Trajectory
from grpo_runner.rollout import RolloutSettings
from grpo_runner.runs import RunFolder
from vismaze_hooks import Completion, Engine, Request, Task

TRIES = 3  # of a chunk of episodes, each on another rank


class ClusterLearner:
    """A learner over the ranks of a cluster, called as a `Learner` is."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    @property
    def ranks(self) -> int:
        return len(self._supervisor.members)

    def policy_step(
        self,
        batch: Batch,
        groups: Sequence[Sequence[int]],
        *,
        loss: LossSettings,
        lr: Callable[[int], float],
        verify: float | None,
    ) -> dict[str, float]:
        """As `Learner.policy_step`."""
        rates = [lr(number) for number in range(len(groups))]
        metrics = self._all("update", "policy_step", batch, groups, loss=loss, lr=rates.__getitem__, verify=verify)
        return metrics | self._supervisor.progressed()

    def logprobs(self, samples: Sequence[Sample], *, adapter: bool = True) -> list[torch.Tensor]:
        """As `Learner.logprobs`."""
        return self._all("publish", "logprobs", samples, adapter=adapter)

    def weights(self) -> Mapping[str, torch.Tensor]:
        """As `Learner.weights`: gathered from all ranks."""
        return self._all("publish", "weights")

    def save(self, folder: Path, weights: Mapping[str, torch.Tensor]) -> None:
        """As `Learner.save`: rank 0 does it alone, in the shared run folder."""
        first = self._supervisor.members[:1]
        self._supervisor.all("publish", "learn", None, False, "save", (folder.resolve(), weights), {}, members=first)

    def load(self, folder: Path) -> None:
        """As `Learner.load`: each rank reads its own part."""
        self._all("start", "load", folder.resolve())

    def snapshot(self) -> Callable[[Path], None]:
        """As `Learner.snapshot`; the function that is returned makes every rank write its own part."""
        supervisor, members = self._supervisor, self._supervisor.members
        supervisor.all("checkpoint", "copy")
        faults = [supervisor.fault(Phase.CHECKPOINT, supervisor.step, member) for member in members]

        def write_all(folder: Path) -> None:
            pending: Pending = {}
            for member, fault in zip(members, faults, strict=True):
                pending |= supervisor.ask("checkpoint", member, "write", fault, folder.resolve(), group="saving")
            supervisor.calls.collect(pending)

        return write_all

    def close(self) -> None:
        """End the cluster's part of the run."""
        self._supervisor.close()

    def _all(self, phase: str, name: str, *arguments: Any, **options: Any) -> Any:
        """Call a method on every rank with what lies in the object store once; returns rank 0's result."""
        supervisor = self._supervisor
        pending: Pending = {}
        stored = ray.put(arguments), ray.put(options)
        for member in supervisor.members:
            fault = supervisor.fault(Phase.UPDATE, supervisor.step + 1, member) if name == "policy_step" else None
            pending |= supervisor.ask(phase, member, "learn", fault, member.rank == 0, name, *stored)
        return supervisor.calls.collect(pending)[0]


class ClusterEngine:
    """All ranks' engines as one."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Sample one turn for each request, spread over the engines."""
        members = self._supervisor.members
        pending: Pending = {}
        for number, member in enumerate(members[: len(requests)]):
            pending |= self._supervisor.ask("publish", member, "generate", requests[number :: len(members)])
        parts = self._supervisor.calls.collect(pending)
        return [parts[n % len(members)][n // len(members)] for n in range(len(requests))]

    def generate_on_each(self, requests: Sequence[Request]) -> list[list[Completion]]:
        """Have every engine answer all requests; one list an engine."""
        return self._supervisor.all("publish", "generate", ray.put(list(requests)))

    def publish(self, adapter_folder: Path, version: int) -> None:
        """Load the weights into every engine."""
        supervisor = self._supervisor
        pending: Pending = {}
        for member in supervisor.members:
            fault = supervisor.fault(Phase.PUBLISH, version, member)
            pending |= supervisor.ask("publish", member, "publish", fault, adapter_folder.resolve(), version)
        supervisor.calls.collect(pending)

    def release(self) -> None:
        """Have every engine that can lend its memory do so."""
        self._supervisor.all("publish", "lend", False)

    def wake(self) -> None:
        """Have them take it again."""
        self._supervisor.all("publish", "lend", True)

    def counts(self) -> dict[str, int]:
        """Return what the engines that are there have counted, summed."""
        total: dict[str, int] = {}
        for counts in self._supervisor.all("publish", "counts"):
            for name, count in counts.items():
                total[name] = total.get(name, 0) + count
        return total

    def close(self) -> None:
        """The engines end with their ranks."""


class ClusterRollouts:
    """Hands out whole groups of episodes by free capacity. Every draw has its coordinates: who plays what changes nothing."""

    def __init__(self, supervisor: Supervisor, run: RunFolder) -> None:
        self._supervisor, self._run = supervisor, run

    def run(
        self,
        engine: Engine,
        tasks: Sequence[tuple[Task, int]],
        settings: RolloutSettings,
        seed_of: Callable[[Task, int, int], int],
        finished: Callable[[Trajectory], None] = lambda trajectory: None,
    ) -> list[Trajectory]:
        """As `Rollouts.run`, each rank with its own engine; pictures stay in the object store until nobody needs them.

        A chunk that fails is played again by another rank, with its seeds.

        Raises:
            RankLost: a rank died, fell silent, or hung.
            Whatever a chunk failed with on `TRIES` ranks.
        """
        supervisor = self._supervisor
        if supervisor.recovery is not None:
            supervisor.recovery.mark("load")
        found: dict[tuple[str, int], Trajectory] = {}
        left = groups_of(tasks)
        again: list[Chunk] = []
        playing: dict[ray.ObjectRef, Chunk] = {}
        pending: Pending = {}
        common = ray.put(settings), ray.put(seed_of)
        ranks = len(supervisor.members)

        def takes(member: Member) -> bool:
            chunk = next_chunk(member.rank, ranks, left, again)
            if chunk is None:
                return False
            fault = supervisor.fault(Phase.ROLLOUT, supervisor.step + 1, member)
            asked = supervisor.ask("rollout", member, "play", fault, chunk.pairs, *common)
            pending.update(asked)
            playing.update(dict.fromkeys(asked, chunk))
            return True

        idle = [member for member in supervisor.members if not takes(member)]
        while pending:
            for ref, outcome in supervisor.calls.next(pending):
                call, chunk = pending.pop(ref), playing.pop(ref)
                idle.append(call.member)
                failed = isinstance(outcome, Exception)
                if failed:
                    again.append(self._failed(chunk, call, outcome))
                if left or again:  # whoever has answered goes on before we look at the answer
                    idle = [member for member in idle if not takes(member)]
                for trajectory in () if failed else outcome:
                    found[trajectory.task.uid, trajectory.sample] = trajectory
                    finished(trajectory)
        return [found[task.uid, sample] for task, sample in tasks]

    def questions(self, tasks: Sequence[Task], settings: RolloutSettings, seeds: Sequence[int], *, turns: int) -> list[Request]:
        """As `Rollouts.questions`."""
        first = self._supervisor.members[:1]
        return self._supervisor.all("start", "questions", tasks, settings, seeds, turns, members=first)[0]

    def _failed(self, chunk: Chunk, call: Call, error: Exception) -> Chunk:
        failed = (*chunk.failed, call.member.rank)
        facts = {"rank": call.member.rank, "tries": len(failed), "error": f"{type(error).__name__}: {error}"[-2000:]}
        self._run.event("rollout_failed", step=self._supervisor.step, **facts)
        if len(failed) >= TRIES:
            raise error
        return Chunk(chunk.pairs, failed)


@dataclass(frozen=True)
class Chunk:
    """Episodes that are played together, and the ranks that have failed on them."""

    pairs: list[tuple[Task, int]]
    failed: tuple[int, ...] = ()


def next_chunk(rank: int, ranks: int, left: list[list[tuple[Task, int]]], again: list[Chunk]) -> Chunk | None:
    """Take the next chunk for a free rank: one that another rank failed on, else some of the groups that are left.

    Chunks become ever smaller (half a fair share of what is left), so that nobody waits long for the last one.
    """
    for place, chunk in enumerate(again):
        if rank not in chunk.failed or len(set(chunk.failed)) >= ranks:
            return again.pop(place)
    if not left:
        return None
    count = -(-len(left) // (2 * ranks))
    taken, left[:count] = left[:count], []
    return Chunk([pair for group in taken for pair in group])


def groups_of(tasks: Sequence[tuple[Task, int]]) -> list[list[tuple[Task, int]]]:
    """Put the samples of each task together, in the order of their first."""
    groups: dict[str, list[tuple[Task, int]]] = {}
    for task, sample in tasks:
        groups.setdefault(task.uid, []).append((task, sample))
    return list(groups.values())
