"""The engine vllm samples what the trainer trains: same prompts, same tokens, same log-probs, same pictures."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from small import GREEDY, SETTINGS, exported, random_policy

from grpo_runner.engine_local import LocalEngine
from grpo_runner.engine_vllm import DisagreeingPromptError, VllmEngine
from grpo_runner.ledger import Trajectory, samples_of
from grpo_runner.pictures import identify
from grpo_runner.rollout import Rollouts, RolloutSettings, training_seed
from grpo_runner.scoring import Scorer
from vismaze_hooks import Completion, EnvironmentOffer, Request


def play(rollouts: Rollouts, engine, maze5: EnvironmentOffer, settings: RolloutSettings, tasks: int = 4) -> list[Trajectory]:
    pairs = [(maze5.stream()(100 + n), sample) for n in range(tasks) for sample in range(2)]
    return rollouts.run(engine, pairs, settings, training_seed(3, 0))


def gaps(scorer: Scorer, trajectories: list[Trajectory]) -> np.ndarray:
    """Differences between the sampler's and the trainer's log-probs of every sampled token."""
    samples = [s for n, t in enumerate(trajectories) for s in samples_of(n, t)]
    entries = scorer.entries(samples)
    scores = scorer.logprobs(entries)
    pairs = [(samples[u].sampler_logprobs, s.double().numpy()) for e, s in zip(entries, scores, strict=True) for u in e.uses]
    return np.concatenate([np.abs(ours - theirs) for ours, theirs in pairs])


@pytest.fixture(scope="module")
def sampled(shared_engine: VllmEngine, good: Path, rollouts: Rollouts, maze5: EnvironmentOffer) -> list[Trajectory]:
    """A multi-turn rollout at temperature 1 by vLLM, with an adapter."""
    shared_engine.publish(good, 0)
    return play(rollouts, shared_engine, maze5, SETTINGS)


def test_the_trainer_scores_a_multi_turn_rollout_as_vllm_sampled_it(sampled: list[Trajectory], scorer: Scorer) -> None:
    assert len(sampled) == 8 and all(t.moves > 2 for t in sampled)
    assert max(len(turn.images) for t in sampled for turn in t.turns) > 3, "the history must hold several pictures"
    found = gaps(scorer, sampled)
    assert len(found) > 100 and found.max() <= 1e-4


def test_prompts_extend_what_was_sampled_id_by_id(sampled: list[Trajectory]) -> None:
    for trajectory in sampled:
        for before, after in zip(trajectory.turns, trajectory.turns[1:], strict=False):
            prefix = before.prompt_ids + before.token_ids
            assert after.prompt_ids[: len(prefix)] == prefix


def test_the_adapter_matters_to_what_is_sampled(
    engine: VllmEngine, base: Path, tmp_path: Path, scorer: Scorer, rollouts: Rollouts, maze5: EnvironmentOffer
) -> None:
    engine.publish(exported(random_policy(base, 8), tmp_path, 1), 1)
    trajectories = play(rollouts, engine, maze5, SETTINGS, tasks=1)
    assert {turn.weights_version for t in trajectories for turn in t.turns} == {1}
    assert gaps(scorer, trajectories).max() > 1e-2


def test_at_temperature_zero_vllm_and_local_give_the_same_tokens(
    engine: VllmEngine, local: LocalEngine, rollouts: Rollouts, maze5: EnvironmentOffer
) -> None:
    ours = [t for tr in play(rollouts, local, maze5, GREEDY, tasks=8) for t in tr.turns]
    theirs = [t for tr in play(rollouts, engine, maze5, GREEDY, tasks=8) for t in tr.turns]
    same = sum(a.prompt_ids == b.prompt_ids and a.token_ids == b.token_ids for a, b in zip(ours, theirs, strict=False))
    assert len(ours) > 60 and same >= 0.99 * max(len(ours), len(theirs))


def test_the_same_seeds_give_the_same_tokens_whoever_else_is_asked(
    engine: VllmEngine, sampled: list[Trajectory], rollouts: Rollouts, maze5: EnvironmentOffer
) -> None:
    again = play(rollouts, engine, maze5, SETTINGS, tasks=2)
    turns = [(a, b) for t, u in zip(again, sampled, strict=False) for a, b in zip(t.turns, u.turns, strict=False)]
    assert sum(a.token_ids == b.token_ids for a, b in turns) >= 0.99 * len(turns)
    assert len({t.token_ids for tr in sampled for t in tr.turns}) > 20, "samples of a group must differ"


def test_each_picture_is_encoded_once_however_many_turns_show_it(engine: VllmEngine) -> None:
    """Six turns with a new picture each, the whole history in the prompt: 21 pictures are shown, 6 are encoded."""
    rng = np.random.default_rng(5)
    pictures = [identify(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)) for _ in range(6)]
    chat, end = engine.processors.chat, engine.processors.vocabulary.end_of_turn
    before, ids = engine.look().pictures_encoded, ()
    for turn in range(len(pictures)):
        closed = turn == 0 or ids[-1] == end
        ids += chat.observation("Go to the goal.\n", 1, first=turn == 0, closed=closed)
        (completion,) = engine.generate([Request(ids, tuple(pictures[: turn + 1]), turn, 4, 1.0)])
        ids += completion.token_ids
    assert engine.look().pictures_encoded - before == len(pictures)


def test_vision_placeholders_are_never_sampled(engine: VllmEngine) -> None:
    """At temperature 2 an untrained model's distribution is almost flat: unmasked, one token in 80 would be a placeholder."""
    chat, vocabulary = engine.processors.chat, engine.processors.vocabulary
    ids = chat.observation("Go to the goal.\n", 0, first=True)
    completions = engine.generate([Request(ids, (), seed, 200, 2.0) for seed in range(12)])
    tokens = [t for c in completions for t in c.token_ids]
    assert len(tokens) > 1_000 and not set(tokens) & set(vocabulary.banned)
    assert len(set(tokens)) > 200


def test_noise_instead_of_the_picture_changes_the_logprobs(
    engine: VllmEngine, maze5: EnvironmentOffer, rollouts: Rollouts
) -> None:
    """The engine is not blind, and neither is it told apart by the text."""
    (request,) = rollouts.questions([maze5.stream()(5)], GREEDY, [1], turns=1)
    rng = np.random.default_rng(0)
    noise = tuple(identify(rng.integers(0, 256, i.pixels.shape, dtype=np.uint8)) for i in request.images)
    seen, blind = engine.generate([request, Request(request.prompt_ids, noise, 1, request.max_new_tokens, 0.0)])
    assert abs(seen.logprobs[0] - blind.logprobs[0]) > 1e-3


def test_a_missing_picture_is_an_error(engine: VllmEngine, maze5: EnvironmentOffer, rollouts: Rollouts) -> None:
    (request,) = rollouts.questions([maze5.stream()(5)], GREEDY, [1], turns=1)
    with pytest.raises(ValueError, match="2 image placeholders for 1 pictures"):
        engine.generate([Request(request.prompt_ids, request.images[:1], 1, 4, 0.0)])


def test_a_prompt_that_is_expanded_otherwise_is_an_error(
    engine: VllmEngine, maze5: EnvironmentOffer, rollouts: Rollouts
) -> None:
    """As by an image processor with other settings: here the trainer believes in smaller pictures."""
    (request,) = rollouts.questions([maze5.stream()(5)], GREEDY, [1], turns=0)
    size = request.images[0].pixels.shape
    rows, columns = engine._rows.grids[size]
    engine._rows.grids[size] = (rows - 1, columns)
    try:
        with pytest.raises(DisagreeingPromptError, match="1 pictures to"):
            engine.generate([request])
    finally:
        engine._rows.grids[size] = (rows, columns)


def test_a_prompt_beyond_the_context_names_the_setting(engine: VllmEngine) -> None:
    ids = engine.processors.chat.encode("Go to the goal.\n" * 1_200)
    with pytest.raises(ValueError, match=r"max_model_len.*rollout\.history"):
        engine.generate([Request(ids, (), 0, 8, 1.0)])


def test_trajectories_do_not_wait_for_each_other(engine: VllmEngine) -> None:
    """Several short turns of one trajectory end before one long turn of another does; in lockstep only one could."""
    ids = engine.processors.chat.encode("Go to the goal.\n" * 4)
    done: list[int] = []

    def follow(number: int, completion: Completion) -> Request | None:
        done.append(number)
        return Request(ids, (), len(done), 1, 1.0) if number == 1 and len(done) < 10 else None

    # the long one may stop by chance at an end-of-turn token: take a seed that does not
    seed = next(s for s in range(40) if len(engine.generate([Request(ids, (), s, 400, 1.0)])[0].token_ids) == 400)
    engine.stream([Request(ids, (), seed, 400, 1.0), Request(ids, (), 1, 1, 1.0)], follow)
    assert sorted(done) == [0] + [1] * 10 or done.count(1) == 9  # the tenth is not asked for when the long one came before
    assert done.index(0) >= 3


def test_a_killed_engine_is_replaced_and_its_turns_are_redone_with_their_seeds(
    engine: VllmEngine, sampled: list[Trajectory], rollouts: Rollouts, maze5: EnvironmentOffer
) -> None:
    calls = 0
    stream = engine.stream

    def killing(requests, follow):
        def wrapped(number: int, completion: Completion) -> Request | None:
            nonlocal calls
            calls += 1
            if calls == 5:
                os.kill(engine._link.pid, signal.SIGKILL)
            return follow(number, completion)

        stream(requests, wrapped)

    deaths, redone = engine.deaths, engine.redone
    engine.stream = killing
    try:
        again = play(rollouts, engine, maze5, SETTINGS)
    finally:
        del engine.stream
    assert engine.deaths == deaths + 1 and engine.redone > redone
    turns = [(a, b) for t, u in zip(again, sampled, strict=True) for a, b in zip(t.turns, u.turns, strict=False)]
    assert sum(a.token_ids == b.token_ids for a, b in turns) >= 0.99 * len(turns)
    assert all(torch.isfinite(torch.tensor(a.logprobs)).all() for a, _ in turns)
