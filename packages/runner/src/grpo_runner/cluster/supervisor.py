"""The supervisor: starts the ranks, and brings the run back when some of them are lost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
import torch.distributed as dist

from grpo_runner.cluster import machines
from grpo_runner.cluster.calls import Call, Calls, Member, Pending
from grpo_runner.cluster.diagnosis import write_diagnosis
from grpo_runner.cluster.machines import Machine
from grpo_runner.cluster.pulse import Pulse
from grpo_runner.cluster.recovery import Recovery
from grpo_runner.config import Config
from grpo_runner.faults import Fault
from grpo_runner.interruptions import GaveUpError, Lost, RankLost, Resize, TooFewNodesError
from grpo_runner.runs import RunFolder, read_lines
from grpo_runner.world import open_store

ATTEMPTS = 3  # failures of one step after which it is not tried again


class Supervisor:
    """The ranks of a run. `step` is the number of finished steps, kept by the loop's owner."""

    def __init__(self, config: Config, plugins_folder: Path, run: RunFolder) -> None:
        self.step = 0
        self._config, self._plugins_folder, self._run = _absolute(config), plugins_folder.resolve(), run
        self._settings = config.cluster
        self._logs = run.path.resolve() / "logs"
        self._plan = config.fault_plan()
        self._struck = {e["number"] for e in read_lines(run.path / "events.jsonl") if e["event"] == "fault_struck"}
        self._failures: Counter[int] = Counter()  # by step
        self._owns_ray = machines.connect(self._settings)
        self._pulse = Pulse(self._settings.silence)
        self.calls = Calls(self._pulse, self._settings.deadlines)
        self._machines: list[Machine] = []
        self._missing = [machines.request(self._settings) for _ in range(self._settings.nodes)]
        self._store: dist.TCPStore | None = None
        self._generation = 0
        self.recovery: Recovery | None = None  # under way: until the next optimizer step is done

    @property
    def members(self) -> list[Member]:
        """The ranks, in order."""
        return machines.present(self._machines)

    # Calls.

    def ask(self, phase: str, member: Member, method: str, *arguments: Any, group: str | None = None) -> Pending:
        """Call a method of one rank; returns the call, to be collected."""
        bound = getattr(member.actor, method)
        if group is not None:
            bound = bound.options(concurrency_group=group)
        return {bound.remote(*arguments): Call(member, phase)}

    def all(self, phase: str, method: str, *arguments: Any, members: Sequence[Member] | None = None) -> list[Any]:
        """Call a method of every rank; returns the results in the order of the ranks.

        Raises:
            RankLost, or what the ranks raised: as `Calls.collect`.
        """
        pending: Pending = {}
        for member in self.members if members is None else members:
            pending |= self.ask(phase, member, method, *arguments)
        return self.calls.collect(pending)

    def fault(self, phase: str, step: int, member: Member) -> Fault | None:
        """Return what shall go wrong in a phase of a step at a rank: each fault of the plan once in a run."""
        for number, fault in enumerate(self._plan):
            place = (fault.phase, fault.step, fault.rank)
            if number not in self._struck and place == (phase, step, member.rank):
                self._struck.add(number)
                self._run.event("fault_struck", number=number, step=step, phase=phase, rank=member.rank, kind=fault.kind)
                return fault
        return None

    # The life of the group.

    def start(self) -> None:
        """Start all ranks.

        Raises:
            TooFewNodesError, RankLost: as `recover`, which is then the way to go on.
            ConfigError: what the ranks say of the configuration.
        """
        self._come_up()

    def can_grow(self) -> bool:
        """Return whether a machine that was missing is there."""
        return any(machines.is_there(machine) for machine in self._missing)

    def recover(self, why: RankLost | Resize) -> None:
        """Replace what is lost and make one group of all ranks again; the loop then resumes from the newest checkpoint.

        Raises:
            GaveUpError: this step has failed `ATTEMPTS` times.
            TooFewNodesError: too few machines came in time.
            RankLost: another rank was lost meanwhile.
        """
        recovery = self.recovery = Recovery(self.step, why.lost if isinstance(why, RankLost) else None)
        if isinstance(why, RankLost):
            for one in why.lost:
                self._tell_lost(one)
            self._failures[self.step] += 1
            if self._failures[self.step] >= ATTEMPTS:
                self._give_up(why)
        gone = {one.rank for one in why.lost} if isinstance(why, RankLost) else set()
        self._end([m for m in self.members if m.rank in gone])
        self._dissolve()
        self._replace_machines()
        recovery.mark("tear_down")
        self._come_up()

    def progressed(self) -> dict[str, float]:
        """Say that an optimizer step is done; returns the metrics of the recovery that this ends, if it does."""
        metrics = {"cluster/ranks": float(len(self.members)), "cluster/recovery_seconds": 0.0}
        if self.recovery is not None:
            recovery, self.recovery = self.recovery, None
            recovery.mark("first_step")
            self._run.event(recovery.event, **recovery.facts(), ranks=len(self.members), nodes=len(self._machines))
            metrics |= recovery.metrics()
        return metrics

    def close(self) -> None:
        """End all processes and give the machines back."""
        members = self.members
        with suppress(Exception):
            self.all("leave", "close", members=members)
        self._pulse.close()
        self._end(members)
        for machine in (*self._machines, *self._missing):
            machines.give_back(machine)
        self._store = None
        if self._owns_ray:
            ray.shutdown()

    def _tell_lost(self, lost: Lost) -> None:
        facts = {"rank": lost.rank, "host": lost.host, "pid": lost.pid, "phase": lost.phase, "cause": lost.cause}
        self._run.event("rank_lost", step=self.step, **facts, seconds=lost.seconds, detail=lost.detail[-2000:])

    def _give_up(self, why: RankLost) -> None:
        folder = write_diagnosis(self._run.path.resolve(), self._config, why, self.members)
        self._run.event("gave_up", step=self.step, failures=ATTEMPTS, diagnosis=str(folder))
        raise GaveUpError(f"step {self.step + 1} failed {ATTEMPTS} times, the last time because: {why}. See {folder}") from why

    def _end(self, members: Iterable[Member]) -> None:
        """End processes, whatever state they are in."""
        for member in members:
            ray.kill(member.actor, no_restart=True)
            self._pulse.forget([member])
            for machine in self._machines:
                machine.members = [None if m is member else m for m in machine.members]

    def _dissolve(self) -> None:
        """Have the survivors leave the group; whoever does not come out of what it is in is ended."""
        self._store = None  # closes the connections of those who are still meeting there
        pending: Pending = {}
        for member in self.members:
            member.actor.abandon.options(concurrency_group="health").remote()
            pending |= self.ask("leave", member, "leave")
        while pending:
            try:
                for ref, outcome in self.calls.next(pending):
                    member = pending.pop(ref).member
                    if isinstance(outcome, Exception):
                        self._end([member])
            except RankLost as more:
                gone = {one.rank for one in more.lost}
                for one in more.lost:
                    self._tell_lost(one)
                self._end([c.member for c in pending.values() if c.member.rank in gone])
                pending = {ref: c for ref, c in pending.items() if c.member.rank not in gone}

    def _replace_machines(self) -> None:
        """Ask for a new machine in place of each one that is dead; ranks that still run on it are ended."""
        for machine in list(self._machines):
            if None in machine.members and not machines.is_alive(machine):
                self._end([m for m in machine.members if m is not None])
                machines.give_back(machine)
                self._machines.remove(machine)
                self._missing.append(machines.request(self._settings))
                self._run.event("node_lost", step=self.step, left=len(self._machines))

    def _come_up(self) -> None:
        """Start whoever is missing and make one group of all."""
        self._await_machines()
        fresh = []
        for machine in self._machines:
            for bundle, member in enumerate(machine.members):
                if member is None:
                    actor = machines.start(machine, bundle, self._config, self._plugins_folder, self._logs)
                    machine.members[bundle] = member = Member(actor, -1)
                    fresh.append(member)
        for rank, member in enumerate(self.members):
            member.rank = rank
        try:
            for member, place in zip(fresh, self.all("start", "place", members=fresh), strict=True):
                member.host, member.pid, member.node = place
            for machine in self._machines:
                machine.node = next(m.node for m in machine.members if m is not None)
            self._pulse.watch(fresh)
            self._mark("schedule")
            self.all("start", "open", members=fresh)
        except RankLost:
            self._end(fresh)  # so that whoever is there at the next attempt is ready
            raise
        self._join()

    def _await_machines(self) -> None:
        """Take the machines that come within `wait` seconds; go on without the others where the configuration allows it.

        One that did not come in time is not waited for again; it is taken whenever it comes.
        """
        least = self._settings.min_nodes or self._settings.nodes
        end = time.monotonic() + self._settings.wait
        while True:
            for machine in [m for m in self._missing if machines.is_there(m)]:
                self._missing.remove(machine)
                machine.members = [None] * self._settings.ranks_per_node
                self._machines.append(machine)
            if not self._missing:
                return
            if time.monotonic() > end or not any(machine.awaited for machine in self._missing):
                break
            self.calls.check(Call(m, "start") for m in self.members)
            time.sleep(0.2)
        if len(self._machines) < least:
            raise TooFewNodesError(
                f"{len(self._machines)} machines with {self._settings.ranks_per_node} x {self._settings.cpus:g} CPUs and "
                f"{self._settings.gpus:g} GPUs came within {self._settings.wait:g} s; cluster.nodes is {self._settings.nodes}, "
                f"at least {least} are needed (cluster.min_nodes). `ray status` shows what the cluster has; the same command "
                "continues the run"
            )
        for machine in self._missing:
            machine.awaited = False
        self._run.event("fewer_nodes", step=self.step, nodes=len(self._machines), of=self._settings.nodes)

    def _join(self) -> None:
        members = self.members
        self._generation += 1
        size, host = len(members), ray.util.get_node_ip_address()
        self._store = open_store(host, size)
        pending: Pending = {}
        for member in members:
            where = (member.rank, size, self._settings.ranks_per_node, self._generation, host, self._store.port)
            pending |= self.ask("start", member, "join", *where)
        self.calls.collect(pending)

    def _mark(self, part: str) -> None:
        if self.recovery is not None:
            self.recovery.mark(part)


def _absolute(config: Config) -> Config:
    """Return the configuration as another process can use it, whatever its working directory is."""
    model = config.model.model_copy(update={"path": str(Path(config.model.path).resolve())})
    return config.model_copy(update={"model": model})
