"""Discounted returns across observations, whitening, REINFORCE++ and GiGPO."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_core import discounted_returns, gigpo_advantages, group_advantages, reinforce_pp_advantages, whiten

MASK = torch.tensor([[0, 1, 1, 0, 0, 1, 0, 1, 1]]).bool()


def test_a_reward_on_an_observation_belongs_to_the_turn_before_it():
    rewards = torch.tensor([[0, 0, 0, 1.0, 0, 0, 0, 0, 0]])
    assert discounted_returns(rewards, MASK, gamma=0.5).tolist() == [[0, 0.5, 1, 0, 0, 0, 0, 0, 0]]


def test_turn_returns_are_shared_by_the_turns_tokens_and_discounted_per_turn():
    rewards = torch.tensor([[0, 0, 1.0, 0, 0, 2.0, 0, 0, 4.0]])
    got = discounted_returns(rewards, MASK, gamma=0.5, unit="turn")
    assert got.tolist() == [[0, 3, 3, 0, 0, 4, 0, 4, 4]]


@given(st.lists(st.tuples(st.booleans(), st.floats(-1, 1, width=32)), min_size=1, max_size=20), st.floats(0, 1))
def test_taking_the_observations_out_changes_no_return(tokens, gamma):
    mask = torch.tensor([[own for own, _ in tokens]])
    rewards = torch.tensor([[reward if own else 0.0 for own, reward in tokens]])
    full = discounted_returns(rewards, mask, gamma=gamma)
    short = discounted_returns(rewards[mask][None], mask[mask][None], gamma=gamma)
    torch.testing.assert_close(full[mask], short[0])
    assert (full[~mask] == 0).all()


def test_whiten_leaves_out_padding_and_survives_too_few_values():
    values = torch.tensor([[1.0, 2.0, float("nan")], [3.0, float("inf"), 7.0]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    torch.testing.assert_close(whiten(values, mask), torch.tensor([[-1.0, 0, 0], [1, 0, 0]]))
    assert (whiten(values, torch.zeros_like(mask)) == 0).all()
    assert (whiten(torch.full((2, 3), 0.35), torch.ones(2, 3).bool()) == 0).all()


def test_reinforce_pp_reaches_the_first_turn():
    rewards = torch.zeros(2, 9)
    rewards[0, 8] = 1.0
    advantages = reinforce_pp_advantages(rewards, MASK.expand(2, -1))
    assert (advantages[0][MASK[0]] > 0).all() and (advantages[1][MASK[0]] < 0).all()
    assert (advantages[:, ~MASK[0]] == 0).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: discounted_returns(torch.zeros(1, 9), MASK, gamma=1.5), "gamma: expected 0 to 1"),
        (lambda: discounted_returns(torch.zeros(1, 8), MASK), r"rewards: expected shape \(1, 9\).*got \(1, 8\)"),
        (lambda: discounted_returns(torch.zeros(1, 9), MASK.float()), "mask: expected dtype torch.bool, got torch.float32"),
        (lambda: discounted_returns(torch.zeros(9), MASK[0]), r"mask: expected shape \[B, T\]"),
        (lambda: discounted_returns(torch.zeros(1, 9), MASK, unit="word"), "unit: expected one of"),
        (lambda: whiten(torch.zeros(1, 8), MASK), "values: expected shape"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


EPISODES = {
    "rewards": [0, 0, 1, 0, 0, 0, 0],
    "uids": ["t"] * 7,
    "episodes": ["A"] * 3 + ["B"] * 4,
    "state_keys": ["s0", "s1", "s2", "s0", "s3", "s0", "s1"],
}


def test_gigpo_counts_an_episode_once_whatever_its_length():
    assert gigpo_advantages(**EPISODES).episode.tolist() == [0.5] * 3 + [-0.5] * 4
    by_step = gigpo_advantages(**EPISODES, episode_mean="step").episode
    torch.testing.assert_close(by_step, torch.tensor([4 / 7] * 3 + [-3 / 7] * 4))


def test_gigpo_never_mixes_equal_states_of_two_tasks():
    two = EPISODES | {"uids": ["t"] * 3 + ["u"] * 4}
    result = gigpo_advantages(**two)
    assert result.episode.abs().max() == 0 and result.step.abs().max() == 0


def test_gigpo_with_std_equals_the_group_advantage_of_each_part():
    result = gigpo_advantages(**EPISODES, scale="std", step_weight=0.5)
    keys = list(zip(EPISODES["uids"], EPISODES["state_keys"], strict=True))
    torch.testing.assert_close(result.step, group_advantages(result.returns, keys), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(result.total, result.episode + 0.5 * result.step)


def test_gigpo_leaves_out_an_episode_without_reward():
    missing = EPISODES | {"rewards": [0, None, 1, 0, 0, 0, 0], "uids": ["t"] * 7}
    result = gigpo_advantages(**missing)
    assert result.total[:3].abs().max() == 0 and torch.isfinite(result.total).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"uids": ["t"]}, r"uids: expected shape \(7,\)"),
        ({"uids": ["t"] * 6 + ["u"]}, "episodes: expected one uid per episode"),
        ({"gamma": -1}, "gamma: expected 0 to 1"),
        ({"episode_mean": "token"}, "episode_mean: expected one of"),
    ],
)
def test_gigpo_names_bad_input(change, message):
    with pytest.raises(ValueError, match=message):
        gigpo_advantages(**(EPISODES | change))
