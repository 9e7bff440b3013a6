"""The learner's gradient is one number, however the work is cut; and it is taken on what the sampler saw."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText

from grpo_core import group_advantages
from grpo_runner.agreement import DisagreementError, Gap
from grpo_runner.engine_local import LocalEngine
from grpo_runner.learner import Batch, Learner, LossSettings, share_of
from grpo_runner.ledger import Sample, Trajectory, samples_of
from grpo_runner.pictures import FeatureCache, identify
from grpo_runner.policy import Lora, Policy, Row, digest, load_processors, save_weights
from grpo_runner.rollout import Rollouts, RolloutSettings, training_seed
from grpo_runner.scoring import PASS_TOKENS, PASSES, Entry, Scorer
from vismaze_hooks import EnvironmentOffer

LOSS = LossSettings("ppo", 0.2, 0.28, 0.0, 0.0)
LORAS = {"full": None, "language": Lora(4, 8.0, "language"), "all-linear": Lora(4, 8.0, "all-linear")}


def learner_of(folder: Path, lora: Lora | None, *, budget: int = 16_384, temperature: float = 1.0, seed: int = 3) -> Learner:
    policy = Policy(folder, lora=lora, seed=seed)
    if lora is not None:
        with torch.no_grad():  # an adapter that does something
            for number, parameter in enumerate(policy.trained.values()):
                generator = torch.Generator().manual_seed(number)
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    scorer = Scorer(policy, load_processors(folder), features=FeatureCache(), token_budget=budget, temperature=temperature)
    return Learner(policy, scorer, weight_decay=0.0, max_norm=1e9)


def rollout_of(
    folder: Path,
    learner: Learner,
    offer: EnvironmentOffer,
    tmp_path: Path,
    lora: Lora | None,
    history: int | None,
    temperature=1.0,
) -> list[Trajectory]:
    engine = LocalEngine(model=str(folder), lora=None if lora is None else vars(lora), keep_history=history is None)
    save_weights(learner.policy, tmp_path / "weights")
    engine.publish(tmp_path / "weights", 5)
    processors = load_processors(folder)
    rollouts = Rollouts(offer, processors.chat, processors.vocabulary, prompt="Go to the goal.")
    draw = offer.stream(shortest=(2, 2))
    pairs = [(draw(task), sample) for task in range(2) for sample in range(4)]
    return rollouts.run(engine, pairs, RolloutSettings(history, 5, temperature), training_seed(7, 0))


def batch_of(trajectories: list[Trajectory], rewards: list[float | None] | None = None) -> Batch:
    if rewards is None:  # untrained models never arrive: any uneven rewards will do
        rewards = [float((n * 7) % 5 == 0) for n in range(len(trajectories))]
    advantages = group_advantages(rewards, [t.task.uid for t in trajectories])
    samples = [s for number, trajectory in enumerate(trajectories) for s in samples_of(number, trajectory)]
    owner = torch.tensor([s.trajectory for s in samples])
    return Batch(samples, advantages[owner], torch.tensor([r is not None for r in rewards])[owner])


def gradient(learner: Learner, batch: Batch, loss: LossSettings = LOSS) -> dict[str, torch.Tensor]:
    learner.optimizer.zero_grad(set_to_none=True)
    learner.gradient(learner.plan(batch, range(len(batch.samples)), loss), loss, None)
    return {n: p.grad.clone() for n, p in learner.policy.trained.items() if p.grad is not None}


def distance(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert a.keys() == b.keys()
    difference = sum(float((a[n] - b[n]).double().pow(2).sum()) for n in a) ** 0.5
    return difference / sum(float(a[n].double().pow(2).sum()) for n in a) ** 0.5


@pytest.mark.parametrize("weights", LORAS)
@pytest.mark.parametrize("history", [None, 1])
def test_sampler_and_learner_agree_on_every_sampled_token(
    tiny: Path, maze5: EnvironmentOffer, tmp_path: Path, weights: str, history: int | None
) -> None:
    lora = LORAS[weights]
    learner = learner_of(tiny, lora)
    trajectories = rollout_of(tiny, learner, maze5, tmp_path, lora, history)
    batch = batch_of(trajectories)
    # with one turn of history, the first two turns still extend each other
    assert len(batch.samples) == sum(1 if history is None else max(1, t.moves - history) for t in trajectories)
    assert all((s.versions == 5).all() for s in batch.samples)
    gap = Gap()
    metrics = learner.gradient(learner.plan(batch, range(len(batch.samples)), LOSS), LOSS, gap)
    assert (
        gap.tokens == sum(len(s.trained) for s in batch.samples) == sum(len(u.token_ids) for t in trajectories for u in t.turns)
    )
    assert gap.largest <= 1e-4
    assert float(metrics["policy/ratio_max"]) == 1.0 and float(metrics["policy/ratio_min"]) == 1.0


@pytest.mark.parametrize("copies", [1, 3, 20, 400])
def test_a_cpu_has_passes_to_share_unless_they_would_be_small(
    tiny: Path, maze5: EnvironmentOffer, tmp_path: Path, copies: int
) -> None:
    learner = learner_of(tiny, LORAS["language"], budget=4000)
    batch = batch_of(rollout_of(tiny, learner, maze5, tmp_path, LORAS["language"], 1))
    entries = learner.scorer.entries(batch.samples) * copies
    passes = learner.scorer._batches(entries)
    assert sorted(n for members in passes for n in members) == list(range(len(entries)))
    lengths = [len(entry.row.ids) for entry in entries]
    padded = [len(members) * max(lengths[n] for n in members) for members in passes]
    assert max(padded) <= 4000
    if sum(lengths) >= PASSES * PASS_TOKENS:
        assert len(passes) >= PASSES
    assert len(passes) <= 1 + 2 * sum(padded) // PASS_TOKENS


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_share_the_pictures_of_no_more_tasks_than_there_are_borders(
    tiny: Path, maze5: EnvironmentOffer, tmp_path: Path, ranks: int
) -> None:
    learner = learner_of(tiny, LORAS["language"])
    trajectories = rollout_of(tiny, learner, maze5, tmp_path, LORAS["language"], 1)
    entries = learner.scorer.entries(batch_of(trajectories).samples)
    shares = [share_of(entries, rank, ranks).entries for rank in range(ranks)]
    assert sorted(id(entry) for share in shares for entry in share) == sorted(id(entry) for entry in entries)
    tasks = [{trajectories[entry.sample.trajectory].task.uid for entry in share} for share in shares]
    assert sum(len(each) for each in tasks) <= len(set().union(*tasks)) + ranks - 1


def test_the_first_of_several_steps_has_ratio_exactly_one(tiny: Path, maze5: EnvironmentOffer, tmp_path: Path) -> None:
    learner = learner_of(tiny, LORAS["all-linear"], budget=700)
    batch = batch_of(rollout_of(tiny, learner, maze5, tmp_path, LORAS["all-linear"], 1))
    halves = [list(range(0, len(batch.samples), 2)), list(range(1, len(batch.samples), 2))]
    plans = [learner.plan(batch, half, LOSS) for half in halves]
    learner.score_now(plans, Gap())
    first = learner.gradient(plans[0], LOSS, None)
    assert float(first["policy/ratio_max"]) == 1.0 and float(first["policy/ratio_min"]) == 1.0
    learner._step(1e-2)
    second = learner.gradient(plans[1], LOSS, None)
    assert float(second["policy/ratio_max"]) > 1.0


@pytest.mark.parametrize("history", [None, 1])
def test_the_gradient_does_not_depend_on_the_micro_batches(
    tiny: Path, maze5: EnvironmentOffer, tmp_path: Path, history: int | None
) -> None:
    lora = LORAS["all-linear"]
    learner = learner_of(tiny, lora, budget=1_000_000)
    batch = batch_of(rollout_of(tiny, learner, maze5, tmp_path, lora, history))
    longest = max(len(e.row.ids) for e in learner.scorer.entries(batch.samples))
    whole = gradient(learner, batch)
    for budget in (longest, 3 * longest):
        assert distance(whole, gradient(learner_of(tiny, lora, budget=budget), batch)) < 1e-6


@pytest.mark.parametrize("weights", LORAS)
def test_the_gradient_does_not_depend_on_the_threads(
    tiny: Path, maze5: EnvironmentOffer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: str
) -> None:
    lora, loss = LORAS[weights], replace(LOSS, entropy=0.01, kl=0.1 if LORAS[weights] else 0.0)
    learner = learner_of(tiny, lora, budget=700)
    batch = batch_of(rollout_of(tiny, learner, maze5, tmp_path, lora, 1))
    one = gradient(learner, batch, loss)
    found = []
    for count in (2, 3):
        with ThreadPoolExecutor(count) as threads:
            monkeypatch.setattr("grpo_runner.lanes._pool", threads)
            found.extend(gradient(learner, batch, loss) for _ in range(2))
    assert distance(one, found[0]) < 1e-6
    assert all(torch.equal(found[0][name], other[name]) for other in found[1:] for name in other)


def test_the_gradient_does_not_depend_on_sharing_equal_sequences(
    tiny_plain: Path, maze5: EnvironmentOffer, tmp_path: Path
) -> None:
    learner = learner_of(tiny_plain, LORAS["all-linear"])
    trajectories = rollout_of(tiny_plain, learner, maze5, tmp_path, LORAS["all-linear"], 0)
    batch = batch_of(trajectories)
    doubled = Batch([*batch.samples, *batch.samples], batch.advantages.repeat(2), batch.kept.repeat(2))
    assert len(learner.scorer.entries(doubled.samples)) == len(learner.scorer.entries(batch.samples))
    assert distance(gradient(learner, batch), gradient(learner, doubled)) < 1e-6


def test_the_gradient_is_that_of_the_plain_formula(tiny: Path, maze5: EnvironmentOffer, tmp_path: Path) -> None:
    learner = learner_of(tiny, None)
    batch = batch_of(rollout_of(tiny, learner, maze5, tmp_path, None, None))
    mine = gradient(learner, batch)
    core, processors = AutoModelForImageTextToText.from_pretrained(tiny, dtype=torch.float32), load_processors(tiny)
    total = sum(len(s.trained) for s in batch.samples)
    for sample, advantage in zip(batch.samples, batch.advantages.tolist(), strict=True):  # row by row, transformers alone
        entry = learner.scorer.entries([sample])[0]
        patches = processors.patches.get(sample.images)
        ids = torch.from_numpy(entry.row.ids)[None]
        logits = core(
            input_ids=ids,
            mm_token_type_ids=(ids == processors.vocabulary.image_pad).int(),
            pixel_values=torch.cat([p.values for p in patches]),
            image_grid_thw=torch.tensor([p.grid for p in patches]),
        ).logits[0]
        banned = torch.zeros(logits.shape[1])
        banned[list(processors.vocabulary.banned)] = -torch.inf
        logprobs = torch.log_softmax(logits + banned, -1)[torch.from_numpy(entry.places - 1), torch.from_numpy(entry.targets)]
        (-advantage * logprobs.sum() / total).backward()
    plain = {n: p.grad for n, p in core.named_parameters() if p.grad is not None}
    assert distance(plain, mine) < 1e-4


def test_a_sample_that_a_reward_leaves_out_leaves_loss_and_denominator(
    tiny_plain: Path, maze5: EnvironmentOffer, tmp_path: Path
) -> None:
    lora = LORAS["language"]
    learner = learner_of(tiny_plain, lora)
    trajectories = rollout_of(tiny_plain, learner, maze5, tmp_path, lora, 1)
    rewards: list[float | None] = [1.0, 0.0, None, 0.0] * 2
    without = [t for t, r in zip(trajectories, rewards, strict=True) if r is not None]
    a = gradient(learner, batch_of(trajectories, rewards))
    b = gradient(learner, batch_of(without, [r for r in rewards if r is not None]))
    assert distance(a, b) < 1e-6


def test_equal_rewards_give_no_gradient_but_count_in_the_denominator(
    tiny_plain: Path, maze5: EnvironmentOffer, tmp_path: Path
) -> None:
    lora = LORAS["language"]
    learner = learner_of(tiny_plain, lora)
    trajectories = rollout_of(tiny_plain, learner, maze5, tmp_path, lora, 1)
    assert not gradient(learner, batch_of(trajectories, [1.0] * 8))
    rewards: list[float | None] = [1.0, 0.0, 0.0, 0.0] + [0.35] * 4
    both = gradient(learner, batch_of(trajectories, rewards))
    part = batch_of(trajectories[:4], [1.0, 0.0, 0.0, 0.0])
    alone = gradient(learner, part)
    share = sum(len(s.trained) for s in part.samples) / sum(len(s.trained) for s in batch_of(trajectories).samples)
    assert distance(both, {n: g * share for n, g in alone.items()}) < 1e-5


def test_another_temperature_is_the_same_for_sampler_and_learner(
    tiny_plain: Path, maze5: EnvironmentOffer, tmp_path: Path
) -> None:
    learner = learner_of(tiny_plain, None, temperature=0.6)
    batch = batch_of(rollout_of(tiny_plain, learner, maze5, tmp_path, None, 1, temperature=0.6))
    gap = Gap()
    learner.gradient(learner.plan(batch, range(len(batch.samples)), LOSS), LOSS, gap)
    assert gap.largest <= 1e-4
    other = Gap()
    wrong = learner_of(tiny_plain, None, temperature=1.0)
    wrong.gradient(wrong.plan(batch, range(len(batch.samples)), LOSS), LOSS, other)
    assert other.largest > 1e-2


def test_stale_weights_in_the_engine_stop_the_run(tiny_plain: Path, maze5: EnvironmentOffer, tmp_path: Path) -> None:
    lora = LORAS["all-linear"]
    learner = learner_of(tiny_plain, lora)
    batch = batch_of(rollout_of(tiny_plain, learner, maze5, tmp_path, lora, 1))
    for parameter in learner.policy.trained.values():
        parameter.data.mul_(1.5)
    before = digest(learner.policy.trained)
    for groups in ([list(range(len(batch.samples)))], [[0, 1], [2, 3]]):
        with pytest.raises(DisagreementError, match="does not hold the weights"):
            learner.policy_step(batch, groups, loss=LOSS, lr=lambda _: 1e-3, verify=1e-4)
    assert digest(learner.policy.trained) == before, "nothing was updated"


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_one_wrong_token_anywhere_stops_an_update_and_leaves_nothing(
    tiny_plain: Path, maze5: EnvironmentOffer, tmp_path: Path, steps: int
) -> None:
    lora = LORAS["all-linear"]
    learner, untouched = learner_of(tiny_plain, lora), learner_of(tiny_plain, lora)
    trajectories = rollout_of(tiny_plain, learner, maze5, tmp_path, lora, 1)
    batch = batch_of(trajectories, [float(n < 2) for n in range(len(trajectories))])  # with a gradient and without
    groups = [list(range(n, len(batch.samples), steps)) for n in range(steps)]
    assert {bool(a) for a in batch.advantages} == {True, False}
    before = digest(learner.policy.trained)
    places = range(0, len(batch.samples), 5)
    assert {number % steps for number in places} == set(range(steps)), "one in each optimizer step"
    for number in places:
        samples = list(batch.samples)
        wrong = samples[number].sampler_logprobs.copy()
        wrong[-1] -= 1e-2
        samples[number] = replace(samples[number], sampler_logprobs=wrong)
        with pytest.raises(DisagreementError, match=f"trajectory {samples[number].trajectory}, trained token {len(wrong) - 1}"):
            learner.policy_step(replace(batch, samples=samples), groups, loss=LOSS, lr=lambda _: 1e-3, verify=1e-3)
    assert digest(learner.policy.trained) == before, "nothing was updated"
    for one in (learner, untouched):
        one.policy_step(batch, groups, loss=LOSS, lr=lambda _: 1e-3, verify=1e-3)
    assert digest(learner.policy.trained) == digest(untouched.policy.trained) != before


def test_another_picture_gives_other_logprobs(tiny: Path, maze5: EnvironmentOffer, tmp_path: Path) -> None:
    learner = learner_of(tiny, None)
    batch = batch_of(rollout_of(tiny, learner, maze5, tmp_path, None, 1))
    noise = identify(np.random.default_rng(0).integers(0, 256, batch.samples[0].images[0].pixels.shape, dtype=np.uint8))
    blind = replace(batch.samples[0], images=(noise,) * len(batch.samples[0].images))
    seen, unseen = (learner.scorer.logprobs(learner.scorer.entries([s]))[0] for s in (batch.samples[0], blind))
    assert (seen - unseen).abs().max() > 1e-4


def test_the_reference_is_the_model_with_its_adapter_off(tiny_plain: Path, maze5: EnvironmentOffer, tmp_path: Path) -> None:
    fresh = Learner(
        policy := Policy(tiny_plain, lora=LORAS["language"], seed=3),
        Scorer(policy, load_processors(tiny_plain), features=FeatureCache(), token_budget=9999, temperature=1.0),
        weight_decay=0.0,
        max_norm=1.0,
    )
    batch = batch_of(rollout_of(tiny_plain, fresh, maze5, tmp_path, LORAS["language"], 1))
    settings = replace(LOSS, kl=0.5)
    plan = fresh.plan(batch, range(len(batch.samples)), settings)
    assert float(fresh.gradient(plan, settings, None)["kl/value_sum"]) == pytest.approx(0.0, abs=1e-5)
    moved = learner_of(tiny_plain, LORAS["language"])
    assert float(moved.gradient(moved.plan(batch, range(len(batch.samples)), settings), settings, None)["kl/value_sum"]) > 1e-3


@pytest.mark.parametrize("weights", LORAS)
def test_weights_and_optimizer_come_back_bit_for_bit(tiny: Path, maze5: EnvironmentOffer, tmp_path: Path, weights: str) -> None:
    lora = LORAS[weights]
    learner = learner_of(tiny, lora)
    batch = batch_of(rollout_of(tiny, learner, maze5, tmp_path, lora, 1))
    groups = [list(range(len(batch.samples)))]

    def step(of: Learner) -> None:
        of.policy_step(batch, groups, loss=LOSS, lr=lambda _: 1e-3, verify=None)

    step(learner)
    folder = tmp_path / "state"
    folder.mkdir()
    learner.snapshot()(folder)
    step(learner)
    other = learner_of(tiny, lora, seed=99)
    other.load(folder)
    step(other)
    assert digest(other.policy.trained) == digest(learner.policy.trained)


def test_the_gradient_is_the_same_every_time_on_several_threads(tiny: Path, maze5: EnvironmentOffer, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    learner = learner_of(tiny, None)
    batch = batch_of(rollout_of(tiny, learner, maze5, tmp_path, None, 1))
    try:
        torch.set_num_threads(4)
        first = gradient(learner, batch)
        for _ in range(8):
            again = gradient(learner, batch)
            assert all(torch.equal(first[name], again[name]) for name in first)
    finally:
        torch.set_num_threads(threads)


def test_a_gap_that_is_no_number_stays_the_largest_and_stops_the_run() -> None:
    def sample(value: float) -> Sample:
        return Sample(0, (1, 2), (), np.array([1]), np.array([value]), np.array([0]))

    entry = Entry(Row(np.array([1, 2]), np.zeros((3, 2)), ()), sample(0.0), np.array([1]), np.array([2]), (0,))
    gap = Gap()
    for value in (0.0, np.nan, 1e-3):  # what comes after must not hide it
        gap.compare(entry, [sample(value)], torch.zeros(1))
    with pytest.raises(DisagreementError, match="disagree by nan"):
        gap.check(1e-4)
