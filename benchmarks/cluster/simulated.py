"""Engines that sleep instead of playing, behind the controller's real code: Ray calls, dispatcher, loop.

Thousands of engines live in a few asynchronous actors. What they answer is as large as real play and is unpacked by the
controller as real play is, but costs the actors next to nothing, so that two cores are left to the controller.
"""

from __future__ import annotations

import asyncio
import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import ray

from grpo_runner.cluster.calls import Call, Calls, Member, Pending
from grpo_runner.cluster.pictures import StoredPixels
from grpo_runner.learner import Batch
from grpo_runner.ledger import Trajectory, Turn
from grpo_runner.rollout import RolloutSettings
from vismaze_hooks import Ending, Image, Task

TURNS, PROMPT, ANSWER, PICTURES = 12, 70, 8, 8  # of an episode; ids of a turn's prompt and answer; distinct pictures
TEMPLATES = 16  # different episodes


class _Shared:
    """Stands in a packed episode for what is the group's: its task, the place of its pictures."""

    def __init__(self, name: str) -> None:
        self.name = name


class _Pickler(pickle.Pickler):
    def persistent_id(self, thing: Any) -> str | None:
        return thing.name if isinstance(thing, _Shared) else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, packed: bytes, shared: dict[str, Any]) -> None:
        super().__init__(io.BytesIO(packed))
        self._shared = shared

    def persistent_load(self, name: str) -> Any:
        return self._shared[name]


def packed_episode(seed: int, history: bool) -> bytes:
    """Return an episode of real size as bytes: tokens of a large vocabulary, two pictures a prompt (all, with the history)."""
    rng = np.random.default_rng(seed)
    task, album = _Shared("task"), _Shared("album")
    pictures = [Image(StoredPixels(album, n, (224, 224, 3)), f"{seed:032x}{n:032x}") for n in range(PICTURES)]
    turns, ids, images = [], (), ()
    for number in range(TURNS):
        new = tuple(rng.integers(300, 150_000, PROMPT).tolist())
        shown = (pictures[number % PICTURES], pictures[(number + 1) % PICTURES])
        ids, images = (ids + new, images + shown[:1]) if history else (new, shown)
        answer = tuple(rng.integers(300, 150_000, ANSWER).tolist())
        logprobs, draw = tuple(rng.random(ANSWER).tolist()), int(rng.integers(2**62))
        turns.append(Turn(ids, images, answer, logprobs, draw, 0, "<action>left</action>", True, "A wall is in the way.", 0.0))
        ids = ids + answer if history else ids
    trajectory = Trajectory(task, 0, tuple(turns), float(rng.integers(2)), True, Ending.SUCCESS)  # type: ignore[arg-type]
    out = io.BytesIO()
    _Pickler(out, 5).dump(trajectory)
    return out.getvalue()


class Play:
    """A chunk of episodes that becomes a list of trajectories where it is unpacked: at the controller."""

    def __init__(self, episodes: Sequence[bytes], pairs: Sequence[tuple[Task, int]], albums: dict[str, ray.ObjectRef]) -> None:
        self._content = list(episodes), list(pairs), albums

    def __reduce__(self) -> tuple[Callable[..., list[Trajectory]], tuple]:
        return _unpack, self._content


def _unpack(episodes: list[bytes], pairs: list[tuple[Task, int]], albums: dict[str, ray.ObjectRef]) -> list[Trajectory]:
    found = []
    for number, (task, sample) in enumerate(pairs):
        shared = {"task": task, "album": albums[task.uid]}
        found.append(replace(_Unpickler(episodes[number % len(episodes)], shared).load(), sample=sample))
    return found


@ray.remote(num_cpus=0)
class Host:
    """Many engines in one process."""

    def __init__(self, seconds: float, history: bool) -> None:
        self._seconds = seconds  # a trajectory
        self._episodes = [packed_episode(seed, history) for seed in range(TEMPLATES)]

    async def play(self, fault: None, pairs: Sequence[tuple[Task, int]], settings: Any, seed_of: Any) -> Play:
        await asyncio.sleep(self._seconds * len(pairs))
        albums = {uid: ray.put(np.zeros(PICTURES, dtype=np.uint8)) for uid in {task.uid for task, _ in pairs}}
        return Play(self._episodes, pairs, albums)

    async def ping(self) -> None: ...


class NeverLost:
    """A pulse without a beat: nobody is lost in a simulation."""

    def sign_of(self, member: Member) -> None: ...


class SimulatedSupervisor:
    """As the supervisor, with hosts in place of ranks."""

    step, recovery = 0, None

    def __init__(self, engines: int, hosts: int, seconds: float, history: bool) -> None:
        actors = [Host.options(max_concurrency=engines).remote(seconds, history) for _ in range(hosts)]
        ray.get([actor.ping.remote() for actor in actors])
        self.members = [Member(actors[rank % hosts], rank) for rank in range(engines)]
        self.calls = Calls(NeverLost(), {})  # type: ignore[arg-type]

    def ask(self, phase: str, member: Member, method: str, *arguments: Any, group: str | None = None) -> Pending:
        return {getattr(member.actor, method).remote(*arguments): Call(member, phase)}

    def fault(self, phase: str, step: int, member: Member) -> None: ...


class Receiver:
    """Where the learner stands: the batch goes into the object store once, as for real ranks, and nobody learns."""

    def policy_step(self, batch: Batch, groups: Sequence[Sequence[int]], **options: Any) -> dict[str, float]:
        ray.put((batch, groups))
        return {}


SETTINGS = RolloutSettings(1, 8, 1.0)
