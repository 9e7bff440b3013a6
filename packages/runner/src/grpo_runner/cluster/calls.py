"""Calls to the ranks: never waited for without a deadline, and given up as soon as any rank is lost."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
import torch
import torch.distributed as dist
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayTaskError

from grpo_runner.cluster.pulse import Pulse
from grpo_runner.interruptions import Cause, Lost, RankLost

TICK = 0.2  # seconds between two looks at who is lost
GRACE = 3.0  # seconds in which a death explains an error of another rank
DEADLINES = {"start": 900.0, "rollout": 3600.0, "update": 3600.0, "publish": 900.0, "checkpoint": 900.0, "leave": 30.0}


@dataclass
class Member:
    """A process of the cluster that is, or will be, a rank."""

    actor: ActorHandle
    rank: int  # in the present group
    host: str = "?"
    pid: int = 0
    node: str = ""  # Ray's id of its machine

    @property
    def id(self) -> str:
        return self.actor._actor_id.hex()


@dataclass(frozen=True)
class Call:
    """A call that is being answered."""

    member: Member
    phase: str
    since: float = field(default_factory=time.monotonic)


Pending = dict[ray.ObjectRef, Call]


class Calls:
    """Asks members and waits for them. Keeps nothing between calls, so that several threads may use it."""

    def __init__(self, pulse: Pulse, deadlines: Mapping[Any, float]) -> None:
        """
        Args:
            deadlines: phase -> longest seconds of a call, where `DEADLINES` do not fit.
        """
        self._pulse = pulse
        self.deadlines = {**DEADLINES, **deadlines}

    def collect(self, pending: Pending) -> list[Any]:
        """Wait for all; return the results in the order of the calls.

        Raises:
            RankLost: a rank died, fell silent, hung, or failed where the others did not.
            Whatever the ranks raised, when all of them live.
        """
        open_calls, found = dict(pending), {}
        while open_calls:
            for ref, outcome in self.next(open_calls):
                call = open_calls.pop(ref)
                if isinstance(outcome, Exception):
                    self._judge(outcome, call, open_calls)
                found[ref] = outcome
        return [found[ref] for ref in pending]

    def next(self, pending: Pending) -> Iterator[tuple[ray.ObjectRef, Any]]:
        """Wait until at least one call is answered; yield the answers that are there. An error of the callee is an answer.

        Each answer is fetched when its turn comes, so that whoever gave one before has new work by then.

        Raises:
            RankLost: a rank died, fell silent, or hung.
        """
        refs = list(pending)
        while not (done := ray.wait(refs, num_returns=len(refs), timeout=0)[0] or ray.wait(refs, timeout=TICK)[0]):
            self.check(pending.values())
            late = [c for c in pending.values() if time.monotonic() - c.since > self.deadlines[c.phase]]
            if late:
                raise RankLost(self._hung(late))
        for ref in done:
            yield ref, self._outcome(ref, pending[ref])

    def check(self, calls: Iterable[Call]) -> None:
        """
        Raises:
            RankLost: somebody who is called is lost.
        """
        lost = [(call, sign) for call in calls if (sign := self._pulse.sign_of(call.member)) is not None]
        if lost:
            raise RankLost([_lost(call, sign.cause, sign.seconds, sign.detail) for call, sign in lost])

    def _outcome(self, ref: ray.ObjectRef, call: Call) -> Any:
        try:
            return ray.get(ref)
        except RayTaskError as error:
            return error.cause if isinstance(error.cause, Exception) else error
        except RayActorError as error:
            raise RankLost([_lost(call, Cause.DIED, self._pulse.age(call.member), str(error).strip())]) from error
        except ray.exceptions.RayError as error:  # an object of a lost machine
            return error

    def _judge(self, error: Exception, call: Call, others: Pending) -> None:
        """Raise what an error of a rank means: that another one died, that this one is broken, or the error itself."""
        end = time.monotonic() + GRACE
        broken = isinstance(error, ray.exceptions.RayError) or _is_broken(error)
        while broken and time.monotonic() < end:
            self.check([call, *others.values()])
            for ref in ray.wait(list(others), num_returns=len(others), timeout=TICK)[0] if others else ():
                self._outcome(ref, others.pop(ref))
            if not others:
                time.sleep(TICK)
        if broken:
            raise RankLost([_lost(call, Cause.FAILED, time.monotonic() - call.since, repr(error))]) from error
        raise error

    def _hung(self, late: Sequence[Call]) -> list[Lost]:
        """Name those that do not merely wait for others; all of them when that cannot be told."""
        asked: Pending = {call.member.actor.waits.options(concurrency_group="health").remote(): call for call in late}
        answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=GRACE)
        waiting = [ref for ref in answered if self._outcome(ref, asked[ref]) is True]
        guilty = [call for ref, call in asked.items() if ref not in waiting] or list(late)
        return [_lost(c, Cause.HUNG, time.monotonic() - c.since, f"longer than {self.deadlines[c.phase]:g} s") for c in guilty]


def _is_broken(error: Exception) -> bool:
    """Return whether an error is one of torch's own (connections, devices), not one that our code raises knowingly."""
    return type(error) is RuntimeError or isinstance(error, dist.DistError | torch.AcceleratorError | torch.OutOfMemoryError)


def _lost(call: Call, cause: Cause, seconds: float, detail: str) -> Lost:
    member = call.member
    return Lost(member.rank, member.host, member.pid, call.phase, cause, round(seconds, 2), detail)
