"""Signs of life: every process is asked twice a second (less often beyond 250), by a thread that nothing else can hold up."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError

from grpo_runner.interruptions import Cause

if TYPE_CHECKING:
    from grpo_runner.cluster.calls import Member

BEAT = 0.5  # seconds between two questions
LOOK = 0.002  # the same for each member, where they are many: looking at one takes 0.25 ms of the driver's time
UNREACHABLE = 3.0  # seconds after which a process that Ray cannot reach, though it is not declared dead, counts as gone


@dataclass
class _Watched:
    member: Member
    answered: float  # monotonic
    asked: ray.ObjectRef | None = None
    unreachable: float | None = None  # since when, monotonic


@dataclass(frozen=True)
class Sign:
    """Why a member counts as lost."""

    cause: Cause
    seconds: float  # since it last answered
    detail: str


class Pulse:
    """Watches members and says which of them are lost. A member is watched from the moment its process has answered once."""

    def __init__(self, silence: float) -> None:
        """
        Args:
            silence: seconds without an answer after which a member counts as lost.
        """
        self._silence = silence
        self._watched: dict[str, _Watched] = {}  # by actor id
        self._lost: dict[str, Sign] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)
        self._thread.start()

    def watch(self, members: Iterable[Member]) -> None:
        with self._lock:
            for member in members:
                self._watched.setdefault(member.id, _Watched(member, time.monotonic()))

    def forget(self, members: Iterable[Member]) -> None:
        with self._lock:
            for member in members:
                self._watched.pop(member.id, None)
                self._lost.pop(member.id, None)

    def sign_of(self, member: Member) -> Sign | None:
        """Return why a member is lost, None while it lives."""
        with self._lock:
            return self._lost.get(member.id)

    def age(self, member: Member) -> float:
        """Return the seconds since a member last answered."""
        with self._lock:
            watched = self._watched.get(member.id)
        return time.monotonic() - watched.answered if watched is not None else 0.0

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(max(BEAT, LOOK * len(self._watched))):
            with self._lock:
                watched = list(self._watched.values())
            for one in watched:
                sign = self._look(one)
                if sign is not None:
                    with self._lock:
                        if one.member.id in self._watched:
                            self._lost.setdefault(one.member.id, sign)

    def _look(self, one: _Watched) -> Sign | None:
        if one.asked is not None:
            done, _ = ray.wait([one.asked], timeout=0)
            if done:
                asked, one.asked = one.asked, None
                try:
                    ray.get(asked)
                    one.answered, one.unreachable = time.monotonic(), None
                except ActorUnavailableError as error:
                    if one.unreachable is None:
                        one.unreachable = time.monotonic()
                    if time.monotonic() - one.unreachable > UNREACHABLE:
                        return self._sign(one, Cause.DIED, error)
                except RayActorError as error:
                    return self._sign(one, Cause.DIED, error)
                except RayError as error:
                    return self._sign(one, Cause.FAILED, error)
        if one.asked is None:
            one.asked = one.member.actor.ping.options(concurrency_group="health").remote()
        age = time.monotonic() - one.answered
        return Sign(Cause.SILENT, age, f"no answer for {age:.1f} s") if age > self._silence else None

    @staticmethod
    def _sign(one: _Watched, cause: Cause, error: RayError) -> Sign:
        return Sign(cause, time.monotonic() - one.answered, str(error).strip())
