"""The ranks of a cluster compute what one process computes; what they hold does not grow; what hangs is named."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist

from grpo_core import group_advantages
from grpo_runner.config import Config
from grpo_runner.engine_local import LocalEngine
from grpo_runner.interruptions import Cause, RankLost
from grpo_runner.learner import Batch, Learner, LossSettings
from grpo_runner.ledger import Trajectory, samples_of
from grpo_runner.policy import load_processors
from grpo_runner.ranks import make_learner
from grpo_runner.rollout import Rollouts, RolloutSettings, training_seed
from grpo_runner.runs import RunFolder, read_lines
from grpo_runner.session import find_environment, play_settings
from vismaze_hooks import Task, load_plugins

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning:ray")]

from grpo_runner.base_model import ensure_base  # noqa: E402
from grpo_runner.cluster import ClusterLearner, ClusterRollouts, Supervisor  # noqa: E402
from grpo_runner.cluster.pictures import StoredPixels  # noqa: E402

LOSS = LossSettings("ppo", 0.2, 0.28, 0.05, 0.01)


@pytest.fixture(scope="module")
def config(config_of: Callable[..., Config]) -> Config:
    found = config_of("ranks", cluster={"kind": "ray", "nodes": 3, "deadlines": {"update": 20.0, "leave": 5.0}})
    plugins = load_plugins(found.plugins, folder=Path(found.run.folder).parent)
    ensure_base(found, find_environment(found, plugins), lambda line: None)
    return found


@pytest.fixture(scope="module")
def supervisor(environment: None, config: Config) -> Iterator[Supervisor]:
    """Three ranks on a Ray that the supervisor starts itself."""
    found = Supervisor(config, Path(config.run.folder).parent, RunFolder(Path(config.run.folder), 1))
    try:
        found.start()
        yield found
    finally:
        found.close()


@pytest.fixture(scope="module")
def tasks(config: Config) -> list[tuple[Task, int]]:
    offer = find_environment(config, load_plugins(config.plugins, folder=Path(config.run.folder).parent))
    draw = offer.stream(**config.tasks.stream)
    return [(draw(seed), sample) for seed in range(4) for sample in range(3)]


def played(supervisor: Supervisor, config: Config, tasks: list[tuple[Task, int]], **changes: Any) -> list[Trajectory]:
    settings = RolloutSettings(**{**vars(play_settings(config)), **changes})
    rollouts = ClusterRollouts(supervisor, RunFolder(Path(config.run.folder), 1))
    return rollouts.run(None, tasks, settings, training_seed(7, 0))


def batch_of(trajectories: list[Trajectory]) -> Batch:
    rewards = [float(n % 2) for n in range(len(trajectories))]
    advantages = group_advantages(rewards, [t.task.uid for t in trajectories])
    samples = [s for number, trajectory in enumerate(trajectories) for s in samples_of(number, trajectory)]
    owner = torch.tensor([s.trajectory for s in samples])
    return Batch(samples, advantages[owner], torch.ones(len(samples), dtype=torch.bool))


def gradient(learner: Learner, batch: Batch) -> dict[str, torch.Tensor]:
    learner.gradient(learner.plan(batch, range(len(batch.samples)), LOSS), LOSS, None)
    found = {name: p.grad for name, p in learner.policy.trained.items() if p.grad is not None}
    whole = {name: (g.full_tensor() if hasattr(g, "full_tensor") else g).clone() for name, g in found.items()}
    learner.optimizer.zero_grad()
    return whole


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """How far a gradient is from another, in units of the other's norm."""
    assert one.keys() == other.keys()
    away = sum(float((one[n].double() - g.double()).pow(2).sum()) for n, g in other.items()) ** 0.5
    norm = sum(float(g.double().pow(2).sum()) for g in other.values()) ** 0.5
    assert norm > 0
    return away / norm


def on_each(supervisor: Supervisor, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run a function of (rank, …) inside every rank's process."""
    return ray.get([m.actor.__ray_call__.remote(function, *arguments) for m in supervisor.members], timeout=120)


def test_tokens_and_gradient_are_those_of_one_process(
    supervisor: Supervisor, config: Config, tasks: list[tuple[Task, int]]
) -> None:
    theirs = played(supervisor, config, tasks)
    processors = load_processors(Path(config.model.path))
    offer = find_environment(config, load_plugins(config.plugins, folder=Path(config.run.folder).parent))
    rollouts = Rollouts(offer, processors.chat, processors.vocabulary, prompt=config.environment.prompt)
    learner = make_learner(config, None)
    engine = LocalEngine(model=config.model.path, lora={"rank": 4, "alpha": 32.0, "targets": "all-linear"})
    ours = rollouts.run(engine, tasks, play_settings(config), training_seed(7, 0))
    assert [[t.token_ids for t in one.turns] for one in theirs] == [[t.token_ids for t in one.turns] for one in ours]
    assert [[t.prompt_ids for t in one.turns] for one in theirs] == [[t.prompt_ids for t in one.turns] for one in ours]
    assert [one.reward for one in theirs] == [one.reward for one in ours]
    for one, other in zip(theirs, ours, strict=True):
        for turn, same in zip(one.turns, other.turns, strict=True):
            for image, seen in zip(turn.images, same.images, strict=True):
                assert isinstance(image.pixels, StoredPixels) and image.sha256 == seen.sha256
                assert np.array_equal(np.asarray(image.pixels), seen.pixels)
    ours_alone = gradient(learner, batch_of(ours))
    found = on_each(supervisor, lambda rank, batch: gradient(rank._learner, batch), ray.put(batch_of(theirs)))
    assert len(found) == 3
    # Ranks add in another order. How much that rounds is the CPU's (1.02e-6 with AVX-512, less without), so the measure is
    # what one process loses by rounding: its distance from the gradient in double precision.
    learner.policy.core.double()
    exact = gradient(learner, batch_of(ours))
    alone = distance(ours_alone, exact)
    assert 0 < alone < 5e-6
    for each in found:
        assert distance(each, exact) <= 1.5 * alone, (distance(each, exact), alone)


def test_ranks_meet_at_one_address_of_the_driver(supervisor: Supervisor) -> None:
    assert supervisor._store is not None
    port = supervisor._store.port
    sockets = psutil.Process().net_connections()
    listening = {c.laddr.ip for c in sockets if c.status == psutil.CONN_LISTEN and c.laddr.port == port}
    assert listening == {ray.util.get_node_ip_address()}, "torch's own store listens on every address"


def test_a_picture_lies_in_the_store_once_for_each_rank_that_drew_it(
    supervisor: Supervisor, config: Config, tasks: list[tuple[Task, int]]
) -> None:
    places: dict[tuple[str, str], set[tuple[Any, int]]] = {}
    shown = 0
    for trajectory in played(supervisor, config, tasks):
        for image in (image for turn in trajectory.turns for image in turn.images):
            places.setdefault((trajectory.task.uid, image.sha256), set()).add((image.pixels.album, image.pixels.place))
            shown += 1
    assert all(len(found) == 1 for found in places.values()), "samples of a group share their pictures"
    stored = {place for found in places.values() for place in found}
    assert len(stored) <= 3 * len({sha for _, sha in places}) < shown


def test_what_an_engine_fails_on_is_played_by_another_with_the_same_seeds(
    supervisor: Supervisor, config: Config, tasks: list[tuple[Task, int]]
) -> None:
    def break_once(rank: Any, number: int) -> None:
        generate = rank._engine.generate

        def failing(requests: Any) -> Any:
            rank._engine.generate = generate
            raise OSError("the engine's card has left the bus")

        if number == 0:
            rank._engine.generate = failing

    whole = played(supervisor, config, tasks)
    for number, member in enumerate(supervisor.members):
        ray.get(member.actor.__ray_call__.remote(break_once, number), timeout=60)
    again = played(supervisor, config, tasks)
    assert [[t.token_ids for t in one.turns] for one in again] == [[t.token_ids for t in one.turns] for one in whole]
    events = [e for e in read_lines(Path(config.run.folder) / "events.jsonl") if e["event"] == "rollout_failed"]
    assert [(e["rank"], e["tries"]) for e in events] == [(0, 1)] and "left the bus" in events[0]["error"]


def test_memory_of_every_process_stays_flat_over_200_steps(
    supervisor: Supervisor, config: Config, tasks: list[tuple[Task, int]]
) -> None:
    learner = ClusterLearner(supervisor)
    named = {member.pid: f"rank {member.rank}" for member in supervisor.members} | {psutil.Process().pid: "driver"}
    named |= {psutil.Process(member.pid).ppid(): "raylet" for member in supervisor.members}

    def memory() -> dict[str, int]:
        gc.collect()
        return {name: psutil.Process(pid).memory_info().rss for pid, name in named.items()}

    before: dict[str, int] = {}
    start = time.perf_counter()
    for step in range(200):
        trajectories = played(supervisor, config, tasks[:6], max_new_tokens=1)
        learner.logprobs([s for number, t in enumerate(trajectories) for s in samples_of(number, t)][:4])
        del trajectories
        if step == 80:
            before = memory()
    after = memory()
    growth = {name: (after[name] - before[name]) / 1e6 for name in before}
    print({name: f"{mb:+.1f} MB" for name, mb in growth.items()}, f"{(time.perf_counter() - start) / 200:.3f} s a step")
    assert max(growth.values()) < 8, growth


def test_whoever_waits_for_a_rank_that_leaves_gets_an_error(supervisor: Supervisor) -> None:
    """Also when the rank's memory still holds the group, as the traceback of a call that failed does."""

    def hold(rank: Any) -> None:
        cycle = [rank._learner]
        cycle.append(cycle)

    def wait(rank: Any) -> None:
        with pytest.raises(RuntimeError):
            dist.all_reduce(torch.ones(1), group=rank._learner._world.control)

    first, *others = supervisor.members
    waiting = first.actor.__ray_call__.remote(wait)
    ray.get([m.actor.__ray_call__.remote(hold) for m in others], timeout=60)
    supervisor.all("leave", "leave", members=others)
    ray.get(waiting, timeout=20)
    supervisor._join()


def test_a_hang_is_found_by_its_deadline_and_names_rank_and_phase(
    supervisor: Supervisor, config: Config, tasks: list[tuple[Task, int]]
) -> None:
    """Last in this module: rank 1 sleeps, and the others wait for it in a collective."""

    def hang(rank: Any) -> None:
        rank._learner.plan = lambda *_: time.sleep(3600)

    batch = batch_of(played(supervisor, config, tasks))
    ray.get(supervisor.members[1].actor.__ray_call__.remote(hang), timeout=60)
    supervisor.calls.deadlines["update"] = 4.0
    with pytest.raises(RankLost) as caught:
        ClusterLearner(supervisor).policy_step(batch, [range(len(batch.samples))], loss=LOSS, lr=lambda n: 0.0, verify=None)
    assert [(one.rank, one.phase, one.cause) for one in caught.value.lost] == [(1, "update", Cause.HUNG)]
    assert "rank 1" in str(caught.value) and "hung in update" in str(caught.value)
