"""Rollouts: what a turn's prompt is made of, and that a group is one task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace

import numpy as np
import pytest

from grpo_runner.evaluate import check_disjoint, evaluate, outcome
from grpo_runner.ledger import samples_of
from grpo_runner.policy import load_processors
from grpo_runner.rollout import Rollouts, RolloutSettings, training_seed
from grpo_runner.seeds import derive_seed, uniform
from grpo_runner.train import minibatches
from vismaze_hooks import Completion, Ending, EnvironmentOffer, Request, load_plugins


class Scripted:
    """Answers by script: the requests it was asked are kept. Stands for any engine, since it is only asked and answers."""

    def __init__(self, processors, words: Sequence[str], *, closes: bool = True) -> None:
        self.processors, self.words, self.closes = processors, words, closes
        self.asked: list[Request] = []

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        self.asked.extend(requests)
        found = []
        for request in requests:
            word = self.words[request.seed % len(self.words)]
            ids = self.processors.chat.encode(f"<action>{word}</action>")
            ids = (*ids, self.processors.vocabulary.end_of_turn) if self.closes else ids
            found.append(Completion(ids, (-0.5,) * len(ids), self.closes, 3))
        return found


def rollouts_of(folder: Path, offer: EnvironmentOffer) -> Rollouts:
    processors = load_processors(folder)
    return Rollouts(offer, processors.chat, processors.vocabulary, prompt="Go to the goal.")


@pytest.mark.parametrize("history", [None, 0, 1, 2])
@pytest.mark.parametrize("closes", [True, False])
def test_a_prompt_is_the_ids_of_before_plus_what_was_sampled_plus_the_new_picture(
    tiny_plain: Path, maze5: EnvironmentOffer, history: int | None, closes: bool
) -> None:
    processors = load_processors(tiny_plain)
    engine = Scripted(processors, ["up", "down"], closes=closes)
    task = maze5.stream()(5)
    settings = RolloutSettings(history, 8, 1.0)
    (trajectory,) = rollouts_of(tiny_plain, maze5).run(engine, [(task, 0)], settings, lambda t, s, turn: turn)
    assert trajectory.ending is Ending.LIMIT and trajectory.moves == task.move_limit
    for number, turn in enumerate(trajectory.turns):
        seen = min(number, history) if history is not None else number
        assert len(turn.images) == turn.prompt_ids.count(processors.vocabulary.image_pad) == seen + 1
        text = processors.tokenizer.decode(list(turn.prompt_ids))
        assert text.startswith("<|im_start|>user\nGo to the goal.\n")
        assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")
        assert text.count("<|im_end|>") == 1 + 2 * seen
        if history is None and number:
            before = trajectory.turns[number - 1]
            prefix = before.prompt_ids + before.token_ids
            assert turn.prompt_ids[: len(prefix)] == prefix, "prompts must extend what was sampled, id by id"
    assert len(samples_of(0, trajectory)) == (1 if history is None else max(1, trajectory.moves - history))


def test_trained_tokens_are_exactly_what_was_sampled(tiny_plain: Path, maze5: EnvironmentOffer) -> None:
    engine = Scripted(load_processors(tiny_plain), ["up", "left"])
    for history in (None, 1):
        (trajectory,) = rollouts_of(tiny_plain, maze5).run(
            engine, [(maze5.stream()(5), 0)], RolloutSettings(history, 8, 1.0), lambda t, s, turn: turn
        )
        trained = [sample.ids[p] for sample in samples_of(0, trajectory) for p in sample.trained]
        assert trained == [i for turn in trajectory.turns for i in turn.token_ids]


def test_all_samples_of_a_group_start_from_the_same_state_with_seeds_of_their_own(
    tiny_plain: Path, maze5: EnvironmentOffer
) -> None:
    engine = Scripted(load_processors(tiny_plain), ["up", "down", "left", "right"])
    draw = maze5.stream()
    pairs = [(draw(t), s) for t in range(3) for s in range(8)]
    trajectories = rollouts_of(tiny_plain, maze5).run(engine, pairs, RolloutSettings(1, 8, 1.0), training_seed(0, 0))
    first = {(t.task.uid, t.turns[0].images[0].sha256, t.turns[0].prompt_ids) for t in trajectories}
    assert len(first) == 3
    seeds = [turn.seed for t in trajectories for turn in t.turns]
    assert len(set(seeds)) == len(seeds)
    assert Counter(t.task.uid for t in trajectories) == dict.fromkeys((draw(t).uid for t in range(3)), 8)


def test_seeds_are_functions_of_their_coordinates_only() -> None:
    assert derive_seed(0, "task", 1, 2) == derive_seed(0, "task", 1, 2)
    all_seeds = {derive_seed(r, p, s, n) for r in range(3) for p in ("task", "sample") for s in range(20) for n in range(20)}
    assert len(all_seeds) == 3 * 2 * 20 * 20
    assert derive_seed(0, "task", 1, 23) != derive_seed(0, "task", 12, 3)
    draws = np.array([uniform(seed, position) for seed in range(2000) for position in range(4)])
    assert draws.min() >= 0 and draws.max() < 1 and abs(draws.mean() - 0.5) < 0.02


def test_demonstrations_are_the_solvers_and_solve(tiny_plain: Path, maze5: EnvironmentOffer) -> None:
    rollouts = rollouts_of(tiny_plain, maze5)
    tasks = maze5.fixed_sets["vismaze-5x5"]()
    shown = rollouts.demonstrate(tasks, RolloutSettings(None, 8, 1.0))
    assert all(t.success and t.reward == 1.0 and t.moves == t.task.labels["shortest"] for t in shown)


def test_noise_is_played_and_not_learnt(tiny_plain: Path, maze5: EnvironmentOffer) -> None:
    rollouts = rollouts_of(tiny_plain, maze5)
    draw = maze5.stream(extra_moves=20)
    settings = RolloutSettings(None, 8, 1.0)
    shown = rollouts.demonstrate([draw(n) for n in range(60)], settings, noise=0.4, seed=1)
    turns = [turn for t in shown for turn in t.turns]
    assert 0.3 < 1 - sum(t.trained for t in turns) / len(turns) < 0.5
    assert any(t.moves > t.task.labels["shortest"] and t.success for t in shown), "the solver goes on from wherever it is"
    learnt = sum(len(s.trained) for n, t in enumerate(shown) for s in samples_of(n, t))
    assert learnt == sum(len(t.token_ids) for t in turns if t.trained)
    again = rollouts.demonstrate([t.task for t in shown], settings, noise=0.4, seed=1)
    assert [[u.answer for u in t.turns] for t in shown] == [[u.answer for u in t.turns] for t in again]


def test_habits_are_shown_and_learnt(tiny_plain: Path, maze5: EnvironmentOffer) -> None:
    rollouts = rollouts_of(tiny_plain, maze5)
    draw = maze5.stream(extra_moves=20)
    settings = RolloutSettings(None, 8, 1.0)
    tasks = [draw(n) for n in range(60)]
    plain = rollouts.demonstrate(tasks, settings, seed=1)
    shown = rollouts.demonstrate(tasks, settings, habits={"random": 0.25, "greedy": 0.25}, seed=1)
    assert all(turn.trained for t in shown for turn in t.turns)
    assert fmean(t.moves for t in shown) > fmean(t.moves for t in plain) and any(t.success for t in shown)
    stops = fmean(t.answer == "<action>stop</action>" for s in shown for t in s.turns)  # a fifth of what random plays
    assert 0.02 < stops < 0.09
    again = rollouts.demonstrate(tasks, settings, habits={"random": 0.25, "greedy": 0.25}, seed=1)
    assert [[u.answer for u in t.turns] for t in shown] == [[u.answer for u in t.turns] for t in again]
    greedy = rollouts.demonstrate(tasks, settings, habits={"greedy": 1.0}, seed=1)
    answers = [turn.answer for t in greedy for turn in t.turns]
    assert answers != [turn.answer for t in plain for turn in t.turns] and "<action>stop</action>" not in answers
    with pytest.raises(ValueError, match=r"unknown baseline 'greed'.*greedy.*Installed: greedy, random"):
        rollouts.demonstrate(tasks, settings, habits={"greed": 0.5})


def test_an_evaluation_counts_everything(tiny_plain: Path, maze5: EnvironmentOffer) -> None:
    engine = Scripted(load_processors(tiny_plain), ["jump"])
    tasks = maze5.fixed_sets["vismaze-5x5"]()
    rows = evaluate(rollouts_of(tiny_plain, maze5), engine, tasks, RolloutSettings(1, 8, 1.0), samples=2, run_seed=0)
    assert len(rows) == 3 * len(tasks)
    result = outcome(rows)
    assert (result.solved, result.total, result.sampled_rate, result.invalid_share) == (0, 16, 0.0, 1.0)
    assert all(row["invalid"] == row["moves"] == row["move_limit"] and row["ending"] == "limit" for row in rows)


def test_a_training_task_of_the_fixed_set_stops_the_run(maze5: EnvironmentOffer) -> None:
    fixed = maze5.fixed_sets["vismaze-5x5"]()
    check_disjoint(fixed, [maze5.stream()(n) for n in range(200)], "vismaze-5x5")
    with pytest.raises(ValueError, match="is a task of the fixed set vismaze-5x5"):
        check_disjoint(fixed, [maze5.stream()(1), fixed[3]], "vismaze-5x5")


def test_mini_batches_are_whole_groups_and_hold_everything_once() -> None:
    trajectories = [SimpleNamespace(task=SimpleNamespace(uid=f"t{n // 4}")) for n in range(40)]
    samples = [SimpleNamespace(trajectory=n) for n in range(40) for _ in range(3)]
    parts = minibatches(samples, trajectories, 3, seed=1)  # type: ignore[arg-type]
    assert sorted(n for part in parts for n in part) == list(range(120))
    groups = [{trajectories[samples[n].trajectory].task.uid for n in part} for part in parts]
    assert sum(len(g) for g in groups) == 10 and not set.intersection(*groups)
    assert parts == minibatches(samples, trajectories, 3, seed=1) != minibatches(samples, trajectories, 3, seed=2)  # type: ignore[arg-type]


def test_a_plugin_of_ones_own_is_played_by_name(tiny_plain: Path) -> None:
    offer = load_plugins().create("environment", "Corridor-v0", {"length": 4})
    engine = Scripted(load_processors(tiny_plain), ["left", "right", "up"])
    draw = offer.stream()
    pairs = [(draw(t), s) for t in range(6) for s in range(4)]
    trajectories = rollouts_of(tiny_plain, offer).run(engine, pairs, RolloutSettings(None, 8, 1.0), training_seed(0, 0))
    assert {t.ending for t in trajectories} == {Ending.SUCCESS, Ending.LIMIT}
    assert all(t.moves <= t.task.move_limit for t in trajectories)
    assert any(not turn.readable for t in trajectories for turn in t.turns), "'up' is no word of this environment"


def test_an_answer_that_claims_a_picture_adds_none_and_is_invalid(tiny_plain: Path, maze5: EnvironmentOffer) -> None:
    """As by an engine without the mask: a well-formed answer with a placeholder in it, again and again."""
    processors = load_processors(tiny_plain)
    vocabulary = processors.vocabulary

    class Claiming(Scripted):
        def generate(self, requests: Sequence[Request]) -> list[Completion]:
            said = super().generate(requests)
            pad = (vocabulary.image_pad,)
            return [Completion((*c.token_ids[:-1], *pad, c.token_ids[-1]), (*c.logprobs, -0.5), c.stopped, 3) for c in said]

    engine = Claiming(processors, ["up", "left"])
    task = maze5.stream()(5)
    (trajectory,) = rollouts_of(tiny_plain, maze5).run(
        engine, [(task, 0)], RolloutSettings(None, 8, 1.0), lambda t, s, turn: turn
    )
    assert trajectory.moves > 1 and not any(t.readable or t.trained for t in trajectory.turns)
    for turn in trajectory.turns:
        assert turn.prompt_ids.count(vocabulary.image_pad) == len(turn.images)
        assert vocabulary.image_pad not in turn.token_ids and len(turn.token_ids) == len(turn.logprobs)
    assert samples_of(0, trajectory) == [], "nothing of it is trained on"


def test_an_engine_that_streams_is_not_held_back_by_the_slowest(tiny_plain: Path, maze5: EnvironmentOffer) -> None:
    """The same trajectories, though the last asked is always answered first."""

    class Streaming(Scripted):
        def stream(self, requests, follow):
            waiting = list(enumerate(requests))
            while waiting:
                number, request = waiting.pop()
                following = follow(number, self.generate([request])[0])
                if following is not None:
                    waiting.append((number, following))

    processors = load_processors(tiny_plain)
    pairs = [(maze5.stream()(n), s) for n in (5, 6) for s in range(2)]
    played = []
    for engine in (Scripted(processors, ["up", "down"]), Streaming(processors, ["up", "down"])):
        finished: list[str] = []
        trajectories = rollouts_of(tiny_plain, maze5).run(
            engine,
            pairs,
            RolloutSettings(1, 8, 1.0),
            training_seed(1, 0),
            lambda t, f=finished: f.append(f"{t.task.uid}{t.sample}"),
        )
        played.append([(t.task.uid, t.sample, [turn.token_ids for turn in t.turns]) for t in trajectories])
        assert sorted(finished) == sorted(f"{t.uid}{s}" for t, s in pairs)
    assert played[0] == played[1]


BRITTLE = """
from vismaze_hooks import hookimpl

def brittle(transition):
    if "left" in transition.answer:
        raise ZeroDivisionError("nothing to the left")
    return 0.0

@hookimpl
def vismaze_rewards():
    return {"brittle": lambda: brittle}
"""


def test_an_environment_or_reward_that_fails_ends_its_own_episode_and_is_left_out(tiny_plain: Path, tmp_path: Path) -> None:
    (tmp_path / "brittle.py").write_text(BRITTLE)
    plugins = load_plugins(["brittle.py"], folder=tmp_path)
    offer = plugins.create("environment", "VisMaze-v0", {"size": 5, "cell_px": 8, "reward": "brittle"})
    engine = Scripted(load_processors(tiny_plain), ["up", "left"])
    task = offer.stream()(5)
    nowhere = replace(task, uid="nowhere", options={"maze": "no maze"})
    rollouts, settings, told = rollouts_of(tiny_plain, offer), RolloutSettings(1, 8, 1.0), []
    turns = {0: [0, 0, 1], 1: [0] * 100}  # by sample: the word of each turn
    found = rollouts.run(
        engine, [(task, 0), (nowhere, 0), (task, 1)], settings, lambda t, sample, turn: turns[sample][turn], told.append
    )
    fails, lost, whole = found
    assert fails.error == "ZeroDivisionError: nothing to the left" and fails.moves == 2, "what was played before is kept"
    assert lost.error is not None and lost.moves == 0 and samples_of(1, lost) == []
    assert all(t.reward is None and not t.success and t.ending is Ending.FAILURE for t in (fails, lost))
    assert whole.error is None and whole.reward == 0.0 and whole.ending is Ending.LIMIT
    assert {(t.task.uid, t.sample) for t in told} == {(t.task.uid, t.sample) for t in found}
    (again,) = rollouts.run(engine, [(task, 1)], settings, lambda t, sample, turn: 0)
    assert again.error is None and again.ending is Ending.LIMIT
