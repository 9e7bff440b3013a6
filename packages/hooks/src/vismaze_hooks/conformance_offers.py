"""The rules about what an environment's offer promises: words, tasks, limits, solvability, vector form."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from vismaze_hooks.answers import parse_tagged, tagged
from vismaze_hooks.conformance import Skip, Subject, equal
from vismaze_hooks.records import Ending, EnvironmentOffer, Task
from vismaze_hooks.text import TextEnvironment

DRAWS = 200  # tasks of the stream that are looked at
NASTY = (
    "",
    "\x00",
    "<action>",
    "</action><action>",
    "<action>" * 100_000,
    "(" * 1_000_000,
    "\ud800",
    "ａ",
    "a\u0301\u0323" * 200_000,
)


def _offer(subject: Subject) -> EnvironmentOffer:
    if subject.offer is None:
        raise Skip("no plugin offers it")
    return subject.offer


def _text(subject: Subject) -> TextEnvironment:
    offer = _offer(subject)
    return TextEnvironment(subject.make(), offer)


def _tasks(offer: EnvironmentOffer, env: gymnasium.Env) -> Iterator[Task]:
    """Yield tasks of the stream and of every fixed set; where there are none, levels of seeds."""
    if offer.stream is not None:
        draw = offer.stream()
        yield from (draw(seed) for seed in range(DRAWS))
    for fixed in offer.fixed_sets.values():
        yield from fixed()
    if offer.stream is None and not offer.fixed_sets:
        limit = getattr(getattr(env, "spec", None), "max_episode_steps", None) or 0
        yield from (Task(f"seed/{seed}", f"seed/{seed}", {}, limit, seed=seed) for seed in range(DRAWS))


def reads_its_own_answers(subject: Subject) -> None:
    """Each word, written as an answer, is read as its action; the reader takes anything and never raises."""
    offer = _offer(subject)
    parse, write = offer.parse or parse_tagged, offer.answer or tagged
    for action, word in enumerate(offer.words):
        assert parse(write(word), offer.words) == action, f"{write(word)!r} is not read as action {action}"
    for answer in NASTY:
        assert parse(answer, offer.words) is None, f"{answer[:40]!r} is read as an action"


def says_what_to_do(subject: Subject) -> None:
    """Reset comes with a prompt, each step with feedback, readable, success and ending."""
    env = _text(subject)
    _, info = env.reset(seed=0)
    assert isinstance(info.get("prompt"), str) and info["prompt"], "the prompt is missing"
    *_, info = env.step("nothing to read")
    assert info["readable"] is False, "an answer without an action counts as readable"
    for name, kind in (("feedback", str), ("success", bool), ("ending", Ending), ("excluded", bool)):
        assert isinstance(info.get(name), kind), f"info[{name!r}] must be a {kind.__name__}, got {info.get(name)!r}"


def unreadable_answers_use_a_move(subject: Subject) -> None:
    """An unreadable answer changes nothing but the moves; the limit truncates exactly on the last one, with reward 0."""
    offer = _offer(subject)
    env = _text(subject)
    for task in itertools.islice(_tasks(offer, env.unwrapped), 10):
        if not task.move_limit:
            raise Skip("it has no move limit")
        shown, _ = env.start(task)
        for move in range(1, task.move_limit + 1):
            again, reward, terminated, truncated, _ = env.step("")
            assert not terminated, f"task {task.uid}: an unreadable answer ended the episode"
            assert reward <= 0, f"task {task.uid}: an unreadable answer was rewarded with {reward}"
            assert truncated is (move == task.move_limit), (
                f"task {task.uid}: move {move} of {task.move_limit}: truncated={truncated}"
            )
            assert equal(shown, again), f"task {task.uid}: an unreadable answer changed the observation"


def every_level_can_be_solved(subject: Subject) -> None:
    """The solver's actions solve every task of the stream and the fixed sets within its move limit."""
    offer = _offer(subject)
    if offer.solver is None:
        raise Skip("the offer has no solver, so nothing can show that its levels are solvable")
    env, write = _text(subject), offer.answer or tagged
    for task in _tasks(offer, env.unwrapped):
        env.start(task)
        actions = list(offer.solver(env.unwrapped))
        done, info, taken = False, {"success": False}, 0
        for action in actions:
            assert not done, f"task {task.uid}: the episode ended before the solver's last action"
            _, _, terminated, truncated, info = env.step(write(offer.words[action]))
            done, taken = terminated or truncated, taken + 1
        assert info["success"], (
            f"task {task.uid} is not solved by its solver: {taken} of {len(actions)} actions, limit {task.move_limit}, "
            f"{task.labels}: the level cannot be solved within its limit"
        )


def tasks_are_pure_and_held_out(subject: Subject) -> None:
    """`draw(seed)` is a pure function; equal contents have equal hashes; no fixed set is ever drawn."""
    offer = _offer(subject)
    if offer.stream is None:
        raise Skip("it has no stream of tasks")
    draw, again = offer.stream(), offer.stream()
    tasks = [draw(seed) for seed in range(DRAWS)]
    assert tasks == [again(seed) for seed in range(DRAWS)], "draw(seed) gives another task the second time"
    assert [draw(seed) for seed in reversed(range(DRAWS))] == tasks[::-1], "draw(seed) depends on what was drawn before"
    assert len({task.uid for task in tasks}) == DRAWS, "two seeds have one uid"
    for seed in (2**64 - 1, 2**63):
        assert draw(seed) == again(seed), f"seed {seed} gives different tasks"
    drawn = {task.content_hash: task.uid for task in tasks}
    for name, fixed in offer.fixed_sets.items():
        seen: dict[str, str] = {}
        for task in fixed():
            assert task.content_hash not in drawn, f"{task.uid} of {name} is drawn for training as {drawn[task.content_hash]}"
            assert task.content_hash not in seen, f"{name}: {task.uid} and {seen[task.content_hash]} are the same"
            seen[task.content_hash] = task.uid


def a_group_starts_alike(subject: Subject) -> None:
    """Eight environments started on one task show the same."""
    offer = _offer(subject)
    env = _text(subject)
    for task in itertools.islice(_tasks(offer, env.unwrapped), 5):
        first, *others = [_text(subject).start(task) for _ in range(8)]
        assert all(equal(first, other) for other in others), f"task {task.uid}: environments of one group differ"


def vector_form_equals_sync(subject: Subject) -> None:
    """The vector entry point equals `SyncVectorEnv`, step by step, in the three autoreset modes."""
    offer = _offer(subject)
    if offer.vector_entry_point is None:
        raise Skip("it has no vector entry point")
    make: Callable[..., Any] = load_env_creator(offer.vector_entry_point)
    for mode in AutoresetMode:
        one = make(num_envs=3, autoreset_mode=mode, **subject.kwargs)
        two: Any = SyncVectorEnv([subject.make] * 3, autoreset_mode=mode)
        assert equal(one.reset(seed=9), two.reset(seed=9)), f"{mode}: reset differs"
        draw = np.random.default_rng(0)
        for step in range(120):
            actions = draw.integers(one.single_action_space.n, size=3)
            a, b = one.step(actions), two.step(actions)
            assert equal(a, b), f"{mode}: step {step} differs"
            over = a[2] | a[3]
            if mode is AutoresetMode.DISABLED and over.any():
                options = [{"reset_mask": over.copy()} for _ in range(2)]
                assert equal(one.reset(options=options[0]), two.reset(options=options[1])), f"{mode}: masked reset differs"
        one.close()
        two.close()


OFFER_RULES: tuple[Callable[[Subject], None], ...] = (
    reads_its_own_answers,
    says_what_to_do,
    unreadable_answers_use_a_move,
    every_level_can_be_solved,
    tasks_are_pure_and_held_out,
    a_group_starts_alike,
    vector_form_equals_sync,
)
