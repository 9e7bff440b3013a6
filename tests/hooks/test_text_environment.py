"""Words for actions, around mazes and around anybody's environment."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from vismaze_hooks import Ending, EnvironmentOffer, Task
from vismaze_hooks.text import TextEnvironment, make_text_environment


class Counter(gymnasium.Env):
    """Foreign: knows nothing of words or limits. Three times action 1 wins."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012
    observation_space = spaces.Box(0, 9, (1,), np.int64)
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.array([0]), {}

    def step(self, action):
        self.count += int(action)
        return np.array([self.count]), float(self.count == 3), self.count == 3, False, {}

    def render(self):
        return np.full((4, 4, 3), self.count, dtype=np.uint8)


def counter_offer(words=("wait", "count"), **kwargs):
    return EnvironmentOffer("Counter-v0", "nowhere:Counter", words, lambda env: "Count to three.", kwargs)


@pytest.fixture
def counter():
    return TextEnvironment(Counter(render_mode="rgb_array"), counter_offer())


TASK = Task("counter/0", "0", {}, move_limit=4)


def test_a_foreign_environment_is_played_in_words_and_shown_as_pictures(counter):
    shown, info = counter.start(TASK)
    assert info["prompt"] == "Count to three." and shown.shape == (4, 4, 3)
    for count in (1, 2, 3):
        shown, reward, terminated, truncated, info = counter.step("<action>count</action>")
        assert (shown == count).all()
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["success"] and info["ending"] is Ending.SUCCESS and info["moves"] == 3
    with pytest.raises(gymnasium.error.ResetNeeded):
        counter.step("<action>count</action>")


def test_an_unreadable_answer_uses_a_move_and_the_limit_ends(counter):
    counter.start(TASK)
    for move in range(1, 5):
        shown, reward, terminated, truncated, info = counter.step("what?")
        assert not info["readable"] and "wait, count" in info["feedback"] and (shown == 0).all()
        assert (reward, terminated, truncated) == (0.0, False, move == 4)
    assert info["ending"] is Ending.LIMIT


def test_success_on_the_last_move_is_no_truncation(counter):
    counter.start(TASK)
    for answer in ("wait", "count", "count", "count"):
        *_, terminated, truncated, info = counter.step(f"<action>{answer}</action>")
    assert terminated and not truncated and info["success"]


@pytest.mark.parametrize(
    ("env", "offer", "said"),
    [
        (Counter(render_mode="rgb_array"), counter_offer(words=("wait",)), "2 actions but 1 words"),
        (Counter(), counter_offer(), "render_mode='rgb_array'"),
        (gymnasium.make("Pendulum-v1", render_mode="rgb_array").unwrapped, counter_offer(), "discrete actions"),
    ],
)
def test_what_cannot_be_a_text_environment_is_refused(env, offer, said):
    with pytest.raises(ValueError, match=said):
        TextEnvironment(env, offer)


def test_a_maze_gets_unreadable_answers_itself(maze5):
    env = make_text_environment(maze5)
    env.start(maze5.stream()(1))
    *_, info = env.step("?")
    assert not info["readable"] and info["moves"] == 1 and "read" in info["feedback"].lower()


def test_a_text_observation_comes_as_words_in_info(plugins):
    offer = plugins.create("environment", "VisMaze-v0", {"size": 5, "observation": "ascii"})
    env = make_text_environment(offer)
    shown, info = env.start(offer.stream()(1))
    assert shown.dtype == np.uint8 and info["text"].count("A") == 1
    *_, info = env.step("<action>stop</action>")
    assert info["text"].count("\n") == 4
