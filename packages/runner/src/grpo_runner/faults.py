"""The fault plan: what goes wrong on purpose, where and when, for drills on a real cluster.

A plan is a function of its text alone, so a drill can be repeated. Without a plan nobody calls anything here.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from grpo_runner.seeds import derive_seed
from vismaze_hooks.names import nearest


class Phase(StrEnum):
    """The part of a step in which a fault strikes, in the order of the step."""

    ROLLOUT = "rollout"
    UPDATE = "update"
    PUBLISH = "publish"
    CHECKPOINT = "checkpoint"


class Kind(StrEnum):
    """What happens to the process of the rank."""

    KILL = "kill"  # SIGKILL: the process is gone
    STOP = "stop"  # SIGSTOP: it is there, and silent
    SLOW = "slow"  # it sleeps, then goes on: no failure, and must not be taken for one
    DISK_FULL = "disk-full"  # nothing can be written for as long as the phase lasts
    LOST_NODE = "lost-node"  # its node's raylet is killed, and the rank with it


PHASES_OF = {kind: tuple(Phase) for kind in Kind} | {Kind.DISK_FULL: (Phase.CHECKPOINT,)}  # ranks write in this phase only


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong once. Example: `Fault(3, Phase.UPDATE, 1, Kind.KILL)`."""

    step: int  # from 1, as metrics and checkpoints count
    phase: Phase
    rank: int
    kind: Kind
    seconds: float = 5.0  # of "slow"


def plan_of(plan: str | Sequence[Mapping[str, Any]], *, steps: int, ranks: int) -> tuple[Fault, ...]:
    """Return the faults of a run in the order in which they strike.

    Args:
        plan: "seed:count", which draws that many faults, at most one a step; or a list of tables with the keys of `Fault`.
            In a list the same place may stand again: the second strikes when the step is done again.
        steps: of the whole run.
        ranks: of the full size.

    Raises:
        ValueError: a plan that cannot be carried out; says which key of which entry, and what was expected.
    """
    if isinstance(plan, str):
        faults = _drawn(plan, steps=steps, ranks=ranks) if plan else []
    else:
        faults = [_read(table, f"fault {n}", steps=steps, ranks=ranks) for n, table in enumerate(plan, 1)]
    return tuple(sorted(faults, key=lambda f: (f.step, tuple(Phase).index(f.phase), f.rank)))


def _drawn(text: str, *, steps: int, ranks: int) -> list[Fault]:
    seed, colon, count = (part.strip() for part in text.partition(":"))
    if not (colon and seed.isdecimal() and count.isdecimal()):
        raise ValueError(f"faults {text!r}: expected 'seed:count', two whole numbers from 0 such as '7:3', or a list of tables")
    if int(count) > steps:
        raise ValueError(f"faults {text!r}: {count} faults do not fit into {steps} steps; a drawn plan has at most one a step")

    def draw(what: str, step: int) -> int:
        return derive_seed(int(seed), "fault", what, step)

    faults = []
    for step in sorted(range(1, steps + 1), key=lambda step: draw("step", step))[: int(count)]:
        kind = tuple(Kind)[draw("kind", step) % len(Kind)]
        phases = PHASES_OF[kind]
        faults.append(Fault(step, phases[draw("phase", step) % len(phases)], draw("rank", step) % ranks, kind))
    return faults


def _read(table: Mapping[str, Any], where: str, *, steps: int, ranks: int) -> Fault:
    keys = [f.name for f in fields(Fault)]
    for key in table:
        if key not in keys:
            raise ValueError(f"{where}: unknown key {key!r}.{nearest(key, keys)} Keys: {', '.join(keys)}.")
    for key in ("step", "phase", "rank", "kind"):
        if key not in table:
            raise ValueError(f"{where}: key {key!r} is missing")
    kind, phase = _choice(Kind, table["kind"], f"{where}: kind"), _choice(Phase, table["phase"], f"{where}: phase")
    if phase not in PHASES_OF[kind]:
        raise ValueError(f"{where}: {kind} happens in phase {', '.join(PHASES_OF[kind])} only, where ranks write; got {phase}")
    seconds = table.get("seconds", Fault.seconds)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
        raise ValueError(f"{where}: seconds: expected a number above 0, got {seconds!r}")
    if "seconds" in table and kind is not Kind.SLOW:
        raise ValueError(f"{where}: seconds is for kind 'slow', got {kind}")
    step = _number(table["step"], f"{where}: step", 1, steps)
    return Fault(step, phase, _number(table["rank"], f"{where}: rank", 0, ranks - 1), kind, float(seconds))


Choice = TypeVar("Choice", Kind, Phase)


def _choice(choices: type[Choice], value: Any, where: str) -> Choice:
    known = [str(choice) for choice in choices]
    if value not in known:
        raise ValueError(f"{where}: expected one of {', '.join(known)}, got {value!r}.{nearest(value, known)}")
    return choices(value)


def _number(value: Any, where: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{where}: expected a whole number from {low} to {high}, got {value!r}")
    return value


@contextmanager
def struck(fault: Fault | None) -> Iterator[None]:
    """Do a phase's work under its fault: all kinds but disk-full strike before it. Runs in the rank's process."""
    if fault is None:
        yield
    elif fault.kind is Kind.DISK_FULL:
        with full_disk():
            yield
    else:
        strike(fault)
        yield


def strike(fault: Fault) -> None:
    """Do to this process what the fault says; returns after a "slow" alone, or when a "stop" is continued.

    Raises:
        ValueError: disk-full, which lasts: see `struck`.
        RuntimeError: lost-node in a process that no raylet has started.
    """
    match fault.kind:
        case Kind.SLOW:
            time.sleep(fault.seconds)
        case Kind.STOP:
            os.kill(os.getpid(), signal.SIGSTOP)
        case Kind.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        case Kind.LOST_NODE:
            os.kill(raylet_above(os.getpid()), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        case Kind.DISK_FULL:
            raise ValueError("disk-full lasts as long as a phase: use `with struck(fault): …`")


@contextmanager
def full_disk() -> Iterator[None]:
    """A block in which the kernel refuses to let this process write to any file (pipes and sockets go on).

    The limit is RLIMIT_FSIZE, which needs no privilege and no second file system. As on a full disk a file can be made and
    the write fails with an OSError; its errno is EFBIG, not ENOSPC. Python ignores SIGXFSZ, which would end the process.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def raylet_above(pid: int) -> int:
    """Return the pid of the raylet that started a process: the nearest ancestor of that name. Linux.

    Raises:
        RuntimeError: there is none.
    """
    below = pid
    while pid > 1:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        name, _, rest = stat.partition("(")[2].rpartition(")")
        if name == "raylet":
            return pid
        pid = int(rest.split()[1])
    raise RuntimeError(f"lost-node: process {below} was not started by a raylet, so there is no node to lose")
