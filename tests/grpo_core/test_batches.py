"""From trajectories to micro-batches: nothing lost, nothing re-made, nothing too large, one picture once."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_core import (
    Sample,
    Trajectory,
    Turn,
    balance_over_ranks,
    build_image_table,
    gather_images,
    mrope_positions,
    pack_batch,
    pad_batch,
    token_budget_batches,
    trajectory_samples,
)

lengths_of = st.lists(st.integers(0, 50), max_size=60)


@pytest.mark.parametrize("layout", ["packed", "padded"])
@given(lengths=lengths_of, budget=st.integers(50, 200))
def test_every_sample_is_in_one_batch_and_no_batch_is_over_the_budget(layout, lengths, budget):
    batches = token_budget_batches(lengths, budget, layout=layout)
    assert sorted(place for batch in batches for place in batch) == list(range(len(lengths)))
    for batch in batches:
        own = [lengths[place] for place in batch]
        assert (sum(own) if layout == "packed" else max(own) * len(own)) <= budget
    assert batches == token_budget_batches(list(lengths), budget, layout=layout)


@given(lengths=lengths_of, budget=st.integers(50, 200))
def test_packing_leaves_no_two_batches_that_would_fit_into_one(lengths, budget):
    loads = sorted(sum(lengths[place] for place in batch) for batch in token_budget_batches(lengths, budget))
    assert len(loads) < 2 or loads[0] + loads[1] > budget or loads[0] == 0


@given(lengths=lengths_of, ranks=st.integers(1, 8))
def test_ranks_differ_by_at_most_the_longest_sample(lengths, ranks):
    shares = balance_over_ranks(lengths, ranks)
    assert len(shares) == ranks and sorted(p for share in shares for p in share) == list(range(len(lengths)))
    loads = [sum(lengths[place] for place in share) for share in shares]
    assert max(loads) - min(loads) <= max(lengths, default=0)


@given(lengths=lengths_of, ranks=st.integers(1, 8))
def test_neighbours_stay_together_and_ranks_are_within_one_sample_of_their_share(lengths, ranks):
    shares = balance_over_ranks(lengths, ranks, neighbours=True)
    assert len(shares) == ranks and [p for share in shares for p in share] == list(range(len(lengths)))
    for share in shares:
        assert abs(sum(lengths[place] for place in share) * ranks - sum(lengths)) <= max(lengths, default=0) * ranks


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: token_budget_batches([3, 9], 8), "lengths: expected at most the budget of 8, got 9 at 1"),
        (lambda: token_budget_batches([3, -1], 8), "lengths: expected counts of at least 0, got -1 at 1"),
        (lambda: token_budget_batches([3], 0), "budget: expected a finite number above 0"),
        (lambda: token_budget_batches([3], 8, layout="ragged"), "layout: expected one of packed, padded"),
        (lambda: balance_over_ranks([3], 0), "ranks: expected a finite number above 0"),
        (lambda: balance_over_ranks([3, -1], 2), "lengths: expected counts of at least 0, got -1 at 1"),
        (lambda: balance_over_ranks([3, -1], 2, neighbours=True), "lengths: expected counts of at least 0, got -1 at 1"),
    ],
)
def test_bad_budgets_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


TRAJECTORY = Trajectory(
    "maze-3", 1.0, (Turn((5, 9, 9), (7, 2), (-0.1, -0.3), ("p0",)), Turn((4, 9, 9), (8, 2), (-0.2, -0.4), ("p1",)))
)


def test_one_row_keeps_the_sampled_ids_and_trains_the_answers_only():
    (sample,) = trajectory_samples(TRAJECTORY)
    assert sample.ids == (5, 9, 9, 7, 2, 4, 9, 9, 8, 2)
    assert [place for place, own in enumerate(sample.trained) if own] == [3, 4, 8, 9]
    assert sample.sampler_logprobs == (0, 0, 0, -0.1, -0.3, 0, 0, 0, -0.2, -0.4)
    assert sample.images == ("p0", "p1")


def test_one_row_per_turn_trains_every_answer_id_once():
    first, second = trajectory_samples(TRAJECTORY, per_turn=True)
    assert first.ids == (5, 9, 9, 7, 2) and second.ids == (5, 9, 9, 7, 2, 4, 9, 9, 8, 2)
    assert [place for place, own in enumerate(second.trained) if own] == [8, 9]
    assert second.sampler_logprobs[3] == 0 and first.sampler_logprobs[3] == -0.1
    assert first.images == ("p0",) and second.images == ("p0", "p1")


def test_a_trajectory_without_reward_trains_nothing_and_zero_is_a_reward():
    missing = Trajectory("maze-3", None, TRAJECTORY.turns)
    assert not any(trajectory_samples(missing)[0].trained)
    assert any(trajectory_samples(Trajectory("maze-3", 0.0, TRAJECTORY.turns))[0].trained)


def test_equal_turns_in_one_trajectory_stay_one_row():
    turn = Turn((5,), (7,), (-0.1,))
    samples = trajectory_samples(Trajectory("t", 1.0, (turn, turn, turn)))
    assert len(samples) == 1 and samples[0].ids == (5, 7, 5, 7, 5, 7)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Sample("t", (1, 2), (False,), (0.0, 0.0), ()), "expected one length"),
        (lambda: Sample("t", (1, 2), (True, True), (0.0, 0.0), ()), "trained: expected False for the first id"),
        (lambda: trajectory_samples(Trajectory("t", 1.0, (Turn((1,), (2, 3), (-0.1,)),))), "sampler_logprobs: expected one"),
        (lambda: pad_batch(trajectory_samples(TRAJECTORY), [0], pad_id=0), "image_index: expected an entry.*'p0'"),
        (lambda: pad_batch([SHORT, LONG], [0, 1], pad_id=0, width=2), "width: expected at least the longest sample, 4, got 2"),
        (lambda: pad_batch([SHORT], [0], pad_id=0, side="top"), "side: expected one of right, left"),
    ],
)
def test_bad_samples_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


SHORT = Sample("a", (1, 2, 3), (False, True, False), (0.0, -0.5, 0.0), ("x",))
LONG = Sample("b", (4, 5, 6, 7), (False, False, True, True), (0.0, 0.0, -1.0, -2.0), ("y", "x"))


@pytest.mark.parametrize("form", ["left", "right", "packed"])
def test_targets_predictors_and_pictures_say_the_same_in_every_layout(form):
    samples, chosen, index = [SHORT, LONG], [1, 0], {"x": 0, "y": 1}
    if form == "packed":
        batch = pack_batch(samples, chosen, image_index=index)
    else:
        batch = pad_batch(samples, chosen, pad_id=99, side=form, width=6, image_index=index)
    flat = batch.input_ids.reshape(-1)
    assert batch.targets.tolist() == [6, 7, 2] and batch.sample_of.tolist() == [1, 1, 0]
    assert flat[batch.predictor + 1].tolist() == batch.targets.tolist()
    assert flat[batch.predictor].tolist() == [5, 6, 1]
    assert batch.sampler_logprobs.tolist() == [-1.0, -2.0, -0.5]
    assert batch.images.tolist() == [1, 0, 0] and batch.boundaries.tolist() == [0, 4, 7]
    assert flat[batch.real.reshape(-1)].tolist() == [4, 5, 6, 7, 1, 2, 3]
    assert batch.positions[batch.real].tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert int(batch.mask.sum()) == 3 and not (batch.mask & ~batch.real).any()


def test_a_left_padded_rows_first_trained_token_looks_at_its_own_row():
    batch = pad_batch([SHORT, LONG], [0, 1], pad_id=99, side="left", image_index={"x": 0, "y": 1})
    assert batch.input_ids.tolist() == [[99, 1, 2, 3], [4, 5, 6, 7]] and batch.predictor.tolist() == [1, 5, 6]


def test_no_samples_make_an_empty_batch():
    assert pack_batch([], []).targets.shape == (0,) and pad_batch([], [], pad_id=0).input_ids.shape == (0, 0)


def test_a_picture_is_encoded_once_and_its_encoder_gets_the_gradient_of_all_uses():
    calls = []
    weight = torch.ones((), requires_grad=True)

    def encode(key):
        calls.append(key)
        return weight * torch.full((2 if key == "a" else 3, 4), float(ord(key)))

    table = build_image_table(["a", "b", "a", "a"], encode)
    assert calls == ["a", "b"] and table.offsets.tolist() == [0, 2, 5]
    rows = gather_images(table, torch.tensor([1, 0, 1]))
    assert rows[:, 0].tolist() == [98.0] * 3 + [97.0] * 2 + [98.0] * 3
    rows.sum().backward()
    assert weight.grad == 4 * (98 * 6 + 97 * 2)


def test_pictures_that_are_not_there_are_named():
    table = build_image_table(["a"], lambda key: torch.zeros(2, 3))
    assert gather_images(table, torch.zeros(0, dtype=torch.int64)).shape == (0, 3)
    with pytest.raises(ValueError, match=r"pictures: expected 0..0, got \[1\]"):
        gather_images(table, torch.tensor([1]))
    with pytest.raises(ValueError, match=r"pictures: expected shape \[I\]"):
        gather_images(table, torch.tensor([[0]]))
    with pytest.raises(ValueError, match=r"encode\('b'\): expected shape \[rows, D\], the same D for all, got \(2, 4\)"):
        build_image_table(["a", "b"], lambda key: torch.zeros(2, 3 if key == "a" else 4))


def test_two_adjacent_pictures_start_one_after_the_other():
    got = mrope_positions([1, (1, 2, 2), (1, 1, 3), 1])
    assert got.tolist() == [[0, 1, 1, 1, 1, 3, 3, 3, 6], [0, 1, 1, 2, 2, 3, 3, 3, 6], [0, 1, 2, 1, 2, 3, 4, 5, 6]]
