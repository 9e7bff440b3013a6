"""Where a process is, and its death at a planned instant: the n-th call made inside a phase, or a time after entering it."""

from __future__ import annotations

import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from grpo_runner.checkpoints import CheckpointStore
from grpo_runner.runs import RunFolder

PHASES = ("rollout", "reward", "update", "publish", "save", "evaluate", "retention")


@dataclass(frozen=True)
class Instant:
    """When to die.

    Example: `Instant("save", call=312)` is the 312th call of a Python or C function inside of saves since the start.
    """

    phase: str
    call: int | None = None
    visit: int = 1  # with `seconds`: which entry into the phase starts the clock
    seconds: float | None = None

    def __str__(self) -> str:
        return f"call {self.call}" if self.call is not None else f"visit {self.visit} + {1000 * (self.seconds or 0):.2f} ms"


class Place(threading.local):
    """The phase a thread is in."""

    phase = ""


@dataclass
class Watch:
    """Counts what happens in each phase, and kills this process at the instant, if there is one."""

    instant: Instant | None
    shared: mmap.mmap  # 64 bytes that the parent sees: the phase of the main thread, then that of any other
    calls: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    visits: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    place: Place = field(default_factory=Place)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        if name not in PHASES:
            yield
            return
        outer, self.place.phase = self.place.phase, name
        self._show(name)
        self.visits[name] += 1
        planned = self.instant
        if planned is not None and planned.seconds is not None and (planned.phase, planned.visit) == (name, self.visits[name]):
            killer = threading.Timer(planned.seconds, os.kill, (os.getpid(), signal.SIGKILL))
            killer.daemon = True
            killer.start()
        counts = planned is None or (planned.phase == name and planned.call is not None)
        start, profile = time.perf_counter(), sys.getprofile()
        if counts:
            sys.setprofile(self._count)
        try:
            yield
        finally:
            if counts:
                sys.setprofile(profile)
            self.seconds[name] += time.perf_counter() - start
            self.place.phase = outer
            self._show(outer)

    def _count(self, frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            phase = self.place.phase
            self.calls[phase] += 1
            if self.instant is not None and (phase, self.calls[phase]) == (self.instant.phase, self.instant.call):
                os.kill(os.getpid(), signal.SIGKILL)

    def _show(self, phase: str) -> None:
        at = 0 if threading.current_thread() is threading.main_thread() else 32
        self.shared[at : at + 32] = phase.encode().ljust(32)

    def inside(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with a phase around every call."""

        def call(*arguments: Any, **options: Any) -> Any:
            with self.phase(name):
                return function(*arguments, **options)

        return call


def shown(shared: mmap.mmap) -> str:
    """Return where the process was, such as "rollout" or "rollout, save in the background"."""
    main, other = (shared[at : at + 32].decode().strip() for at in (0, 32))
    return (main or "between phases") + (f", {other} in the background" if other else "")


def watch(instant: Instant | None, shared: mmap.mmap, rewards: Any) -> Watch:
    """Put a watch around the phases of `grpo_runner` in this process.

    Args:
        rewards: the module with the function `pay`.
    """
    from grpo_runner import checkpoints

    here = Watch(instant, shared)
    timed = RunFolder.phase

    @contextmanager
    def phase(self: RunFolder, name: str) -> Iterator[None]:
        with timed(self, name), here.phase(name):
            yield

    RunFolder.phase = phase  # type: ignore[method-assign]
    CheckpointStore._commit = here.inside("save", CheckpointStore._commit)  # type: ignore[method-assign]
    checkpoints.retain = here.inside("retention", checkpoints.retain)
    rewards.pay = here.inside("reward", rewards.pay)
    return here
