"""What interrupts a run on a cluster. Needs no ray, so that the loop's owner can name these without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

Result = TypeVar("Result")


class Cause(StrEnum):
    """How it was found out that a rank is lost."""

    DIED = "died"  # its process is gone
    SILENT = "silent"  # no sign of life for as long as `cluster.deadlines` allows
    HUNG = "hung"  # alive, but a call took longer than its phase may
    FAILED = "failed"  # alive, and it raised what no other rank raised: a broken device, a broken connection


@dataclass(frozen=True)
class Lost:
    """A rank that is lost. Example: `Lost(2, "10.0.0.7", 4711, "update", Cause.DIED, 0.4, "The actor died …")`."""

    rank: int
    host: str
    pid: int
    phase: str  # of the call in which it was noticed
    cause: Cause
    seconds: float  # since its last sign of life
    detail: str = ""  # what Ray or the rank said


class RankLost(RuntimeError):
    """Ranks died, fell silent or hung, so the step cannot be finished; the supervisor can bring the run back."""

    def __init__(self, lost: Sequence[Lost]) -> None:
        super().__init__("; ".join(f"rank {one.rank} ({one.host}, pid {one.pid}) {one.cause} in {one.phase}" for one in lost))
        self.lost = tuple(lost)


class Resize(Exception):
    """A machine that was missing is there, and a checkpoint stands: the run takes the full size again."""


class TooFewNodesError(RuntimeError):
    """Fewer machines than `cluster.min_nodes` came within `cluster.wait` seconds."""


class GaveUpError(RuntimeError):
    """The same step failed again and again; the message names the folder with the diagnosis."""


def through_losses(work: Callable[[], Result], recover: Callable[[RankLost | Resize], None]) -> Result:
    """Do some work; when a cluster loses ranks meanwhile (or gets machines back), recover and do it again.

    Args:
        recover: makes the cluster whole; bounds by itself how often that is tried. What is lost meanwhile is its next task.
    """
    why: RankLost | Resize | None = None
    while True:
        try:
            if why is not None:
                recover(why)
            return work()
        except (RankLost, Resize) as caught:
            why = caught
