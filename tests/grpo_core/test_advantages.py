"""Group advantages: what they equal, what they must not depend on, and what is refused."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core import group_advantages, kept_mask

rewards_of = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=30)
ESTIMATORS = ["grpo", "rloo", "maxrl", "opo", "reinforce_pp", "reinforce_pp_baseline"]


def by_hand(rewards, uids, eps=1e-6):
    groups = {}
    for reward, uid in zip(rewards, uids, strict=True):
        groups.setdefault(uid, []).append(reward)
    result = []
    for reward, uid in zip(rewards, uids, strict=True):
        own = groups[uid]
        mean = math.fsum(own) / len(own)
        if len(set(own)) == 1:
            result.append(0.0)
            continue
        variance = math.fsum((value - mean) ** 2 for value in own) / (len(own) - 1)
        result.append((reward - mean) / (math.sqrt(variance) + eps))
    return torch.tensor(result)


@given(rewards_of, st.randoms(use_true_random=False))
def test_grpo_equals_the_formula_by_hand_for_ragged_scattered_groups(rewards, draw):
    uids = [draw.choice(["a", ("b", 1), 7, None]) for _ in rewards]
    torch.testing.assert_close(group_advantages(rewards, uids), by_hand(rewards, uids), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(rewards=rewards_of, draw=st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_order_does_not_matter(estimator, rewards, draw):
    uids = [draw.randrange(4) for _ in rewards]
    lengths = [draw.randrange(1, 9) for _ in rewards]
    order = draw.sample(range(len(rewards)), len(rewards))
    plain = group_advantages(torch.tensor(rewards).double(), uids, estimator=estimator, lengths=lengths)
    mixed = group_advantages(
        torch.tensor([rewards[i] for i in order]).double(), [uids[i] for i in order],
        estimator=estimator, lengths=[lengths[i] for i in order],
    )  # fmt: skip
    torch.testing.assert_close(mixed, plain[order], atol=1e-6, rtol=1e-6)


@given(rewards_of, st.floats(-50, 50), st.floats(0.1, 50))
def test_grpo_ignores_shift_and_scale(rewards, shift, factor):
    uids = [place % 3 for place in range(len(rewards))]
    rewards = torch.tensor([round(reward, 2) for reward in rewards], dtype=torch.float64)
    plain = group_advantages(rewards, uids, eps=0.0)
    moved = group_advantages(shift + factor * rewards, uids, eps=0.0)
    spread = torch.tensor([len({r.item() for r in rewards[g::3]}) > 1 for g in uids])
    torch.testing.assert_close(moved[spread], plain[spread], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("estimator", [name for name in ESTIMATORS if name != "reinforce_pp"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@given(value=st.floats(-1e4, 1e4, width=16), size=st.integers(1, 9))
@settings(max_examples=25)
def test_equal_rewards_of_any_value_and_dtype_give_exactly_zero(estimator, dtype, value, size):
    rewards = torch.tensor([value] * size + [0.0, 1.0]).to(dtype)
    uids = [0] * size + [1, 1]
    result = group_advantages(rewards, uids, estimator=estimator, lengths=[3] * (size + 2), eps=0.0)
    assert (result[:size] == 0).all() and torch.isfinite(result).all() and (result[size:] != 0).any()


def test_reinforce_pp_of_an_equal_batch_is_exactly_zero():
    assert group_advantages([0.35] * 5, list("abcde"), estimator="reinforce_pp", lengths=[1, 2, 3, 4, 5]).abs().max() == 0


def test_reinforce_pp_whitens_over_tokens():
    lengths = [1, 3, 2]
    result = group_advantages([1.0, 0.0, 3.0], list("abc"), estimator="reinforce_pp", lengths=lengths, eps=0.0)
    tokens = torch.tensor([1.0, 0, 0, 0, 3, 3])
    expected = (tokens - tokens.mean()) / tokens.std()
    torch.testing.assert_close(result.repeat_interleave(torch.tensor(lengths)), expected)


def test_reinforce_pp_baseline_whitens_what_is_left_after_the_group_mean():
    result = group_advantages([1.0, 0.0, 3.0, 0.0], list("aabb"), estimator="reinforce_pp_baseline", lengths=[1] * 4, eps=0.0)
    centred = torch.tensor([0.5, -0.5, 1.5, -1.5])
    torch.testing.assert_close(result, centred / centred.std())


@pytest.mark.parametrize("missing", [None, math.nan])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_missing_reward_gets_zero_and_changes_nobody_else(missing, estimator):
    lengths = [2, 3, 4, 5, 1]
    with_it = group_advantages([1.0, missing, 0.0, 0.5, missing], list("aaaab"), estimator=estimator, lengths=lengths)
    without = group_advantages([1.0, 0.0, 0.5], list("aaa"), estimator=estimator, lengths=[2, 4, 5])
    torch.testing.assert_close(with_it, torch.tensor([without[0], 0.0, without[1], without[2], 0.0]))


def test_missing_rewards_in_a_tensor_and_with_batch_scale():
    rewards = torch.tensor([1.0, math.nan, 0.0, 2.0, 2.0])
    result = group_advantages(rewards, torch.tensor([5, 5, 5, 9, 9]), scale="batch")
    expected = group_advantages([1.0, 0.0, 2.0, 2.0], list("aabb"), scale="batch")
    torch.testing.assert_close(result[[0, 2, 3, 4]], expected)
    assert result[1] == 0


def test_missing_rewards_leave_the_mask():
    mask = torch.tensor([[True, False], [True, True]])
    assert kept_mask([None, 0.0], mask).tolist() == [[False, False], [True, True]]
    assert mask.tolist() == [[True, False], [True, True]]


def test_dtype_is_float32_unless_the_rewards_are_float64():
    assert group_advantages([1, 0], list("aa")).dtype == torch.float32
    assert group_advantages(torch.tensor([1, 0]), list("aa")).dtype == torch.float32
    assert group_advantages(torch.tensor([1.0, 0.0]).half(), list("aa")).dtype == torch.float32
    assert group_advantages(torch.tensor([1.0, 0.0]).double(), list("aa")).dtype == torch.float64


@pytest.mark.parametrize("uids", [[3, 3, 9, 9], [10**15, 10**15, -5, -5], [-2, -2, -1, -1]])
def test_integer_uids_of_any_range_equal_hashable_ones(uids):
    rewards = [1.0, 0.0, 0.25, 0.5]
    torch.testing.assert_close(group_advantages(rewards, torch.tensor(uids)), group_advantages(rewards, uids))


def test_no_samples_give_no_advantages():
    assert group_advantages([], []).shape == (0,)
    assert group_advantages(torch.zeros(0), torch.zeros(0, dtype=torch.int64)).shape == (0,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": torch.zeros(2, 2)}, r"rewards: expected shape \[N\], got \(2, 2\)"),
        ({"rewards": [1.0, math.inf]}, "rewards: expected finite"),
        ({"uids": ["a"]}, r"uids: expected shape \(2,\).*got \(1,\)"),
        ({"uids": torch.zeros(3, dtype=torch.int64)}, r"uids: expected shape \(2,\).*got \(3,\)"),
        ({"uids": torch.zeros(2)}, "uids: expected an integer dtype, got torch.float32"),
        ({"estimator": "gpro"}, "estimator: expected one of grpo"),
        ({"scale": "max"}, "scale: expected one of"),
        ({"scale": "none", "estimator": "rloo"}, "scale: read by estimator 'grpo' only"),
        ({"ddof": 2}, "ddof: expected 0 or 1, got 2"),
        ({"estimator": "opo"}, "lengths: needed for estimator 'opo'"),
        ({"estimator": "opo", "lengths": [1]}, r"lengths: expected shape \(2,\).*got \(1,\)"),
        ({"estimator": "opo", "lengths": [1, -1]}, "lengths: expected counts"),
    ],
)
def test_bad_input_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        group_advantages(**({"rewards": [1.0, 0.0], "uids": ["a", "a"]} | change))


def test_a_large_ragged_batch_agrees_with_the_formula():
    draw = random.Random(0)
    uids = [draw.randrange(700) for _ in range(5000)]
    rewards = [draw.random() for _ in uids]
    torch.testing.assert_close(group_advantages(rewards, torch.tensor(uids)), by_hand(rewards, uids), atol=1e-5, rtol=1e-5)
