"""Tasks that went both ways are drawn again, as a function of the outcomes; everything else as before."""

from __future__ import annotations

import json

import pytest

from grpo_runner.ledger import Trajectory
from grpo_runner.task_source import REMEMBERED, TaskSource
from vismaze_hooks import Ending, Task


def task_of(seed: int) -> Task:
    return Task(uid=f"task-{seed}", content_hash=f"{seed:x}", options={}, move_limit=4)


def played(tasks: list[Task], *, rewards: list[float | None]) -> list[Trajectory]:
    return [Trajectory(task, n, (), r, bool(r), Ending.SUCCESS) for task in tasks for n, r in enumerate(rewards)]


def source(revisit: float = 0.5, seed: int = 7) -> TaskSource:
    return TaskSource(task_of, seed, revisit=revisit)


def uids(tasks: list[Task]) -> set[str]:
    return {task.uid for task in tasks}


def test_without_revisits_tasks_are_those_of_the_stream_whatever_came_of_them() -> None:
    plain, other = source(0.0), source(0.0)
    for step in range(3):
        tasks = plain.draw(step, 4)
        plain.learn(played(tasks, rewards=[0.0, 1.0]))
        assert tasks == other.draw(step, 4) and plain.revisited == 0
    assert plain.state() == []


@pytest.mark.parametrize("rewards", [[0.0, 0.0], [1.0, 1.0], [1.0, None], [None, None]])
def test_a_group_of_one_outcome_is_not_visited_again(rewards: list[float | None]) -> None:
    tasks = source()
    first = tasks.draw(0, 8)
    tasks.learn(played(first, rewards=rewards))
    assert uids(first).isdisjoint(uids(tasks.draw(1, 8))) and tasks.revisited == 0


def test_at_most_the_share_is_visited_again_and_the_rest_is_what_the_stream_gives() -> None:
    tasks, plain = source(0.5), source(0.0)
    first = tasks.draw(0, 8)
    tasks.learn(played(first, rewards=[0.0, 1.0]))
    second = tasks.draw(1, 8)
    assert tasks.revisited == 4 == len(uids(second) & uids(first))
    assert second[4:] == plain.draw(1, 8)[:4]


def test_a_task_that_stops_going_both_ways_is_let_go() -> None:
    tasks = source(1.0)
    first = tasks.draw(0, 4)
    tasks.learn(played(first, rewards=[0.0, 1.0]))
    again = tasks.draw(1, 4)
    assert uids(again) == uids(first)
    tasks.learn(played(again, rewards=[1.0, 1.0]))
    assert uids(tasks.draw(2, 4)).isdisjoint(uids(first))


def test_even_odds_come_back_more_often_than_rare_outcomes() -> None:
    tasks = source(0.5)
    first = tasks.draw(0, 64)
    tasks.learn(played(first[:32], rewards=[0.0, 1.0] * 8) + played(first[32:], rewards=[0.0] * 15 + [1.0]))
    again = uids(tasks.draw(1, 64))
    assert len(again & uids(first[:32])) > 2 * len(again & uids(first[32:])) > 0


def test_a_restored_state_draws_on_alike() -> None:
    tasks, restored = source(), source()
    for step in range(4):
        tasks.learn(played(tasks.draw(step, 6), rewards=[0.0, 1.0, 0.5]))
    restored.load(json.loads(json.dumps(tasks.state())))
    for step in range(4, 8):
        drawn = tasks.draw(step, 6)
        assert drawn == restored.draw(step, 6) and tasks.revisited == 3
        for one in (tasks, restored):
            one.learn(played(drawn, rewards=[1.0, 0.0]))
    assert tasks.state() == restored.state()


def test_what_was_not_seen_for_long_is_forgotten_and_memory_stays_bounded() -> None:
    tasks = source(0.01)
    for step in range(4):
        tasks.learn(played(tasks.draw(step, REMEMBERED // 2), rewards=[0.0, 1.0]))
    assert len(tasks.state()) == REMEMBERED


def test_other_run_seeds_draw_other_tasks() -> None:
    assert uids(source(seed=1).draw(0, 8)).isdisjoint(uids(source(seed=2).draw(0, 8)))
