"""What holds for the environment of every plugin."""

from __future__ import annotations

import os

import gymnasium
import numpy as np
import pytest

import mazeenv
from vismaze_hooks import Ending, Transition, load_plugins
from vismaze_hooks.testing import check_environment
from vismaze_hooks.text import make_text_environment

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame, where a foreign environment draws with it, needs no screen
SEEDS = 1_000


def offer_of(game):
    name, options = game
    return load_plugins().create("environment", name, options)


@pytest.mark.slow
def test_it_keeps_every_rule_of_the_kit(game):
    check_environment(game[0], **game[1])


@pytest.mark.slow
def test_the_solver_earns_exactly_one_on_a_thousand_seeds(game):
    offer = offer_of(game)
    env = gymnasium.make(game[0], **game[1]).unwrapped
    for seed in range(SEEDS):
        env.reset(seed=seed)
        actions, paid = offer.solver(env), 0.0
        for action in actions:
            _, reward, terminated, truncated, info = env.step(action)
            paid += reward
        assert (paid, terminated, truncated, info["ending"]) == (1.0, True, False, Ending.SUCCESS), f"seed {seed}"


def test_importing_mazeenv_registers_it(game):
    assert game[0] in gymnasium.registry and mazeenv.register_environments


def test_the_solver_goes_on_from_wherever_mistakes_lead(game):
    offer = offer_of(game)
    env, draw = make_text_environment(offer), np.random.default_rng(0)
    for seed in range(10):
        env.start(offer.stream(extra_moves=50)(seed))
        running = True
        for _ in range(6):
            *_, terminated, truncated, info = env.step(f"<action>{offer.words[draw.integers(len(offer.words))]}</action>")
            running = not (terminated or truncated)
            if not running:
                break
        if not running:
            continue
        for action in offer.solver(env.unwrapped):
            *_, info = env.step(f"<action>{offer.words[action]}</action>")
        assert info["success"], seed


def test_a_saved_state_is_restored_exactly_in_another_instance_too(game):
    env, other = (gymnasium.make(game[0], **game[1]).unwrapped for _ in range(2))
    other.reset(seed=5)
    env.reset(seed=1)
    saved = env.save_state()
    for one in (env, other):
        one.restore_state(saved)
    for _ in range(30):
        action = int(env.action_space.sample())
        assert action == int(other.action_space.sample()), "the action space's random numbers are part of the state"
        a, b = env.step(action), other.step(action)
        assert np.array_equal(a[0], b[0]) and a[1:] == b[1:]
        if a[2] or a[3]:
            assert np.array_equal(env.reset()[0], other.reset()[0])
    env.restore_state(saved)
    assert env.state == saved.state


def test_stored_transitions_are_priced_again_to_the_same_rewards(game):
    env = gymnasium.make(game[0], reward={"sparse": 1.0, "format": {"weight": 0.5}}, **game[1]).unwrapped
    env.reset(seed=3)
    for action, answer in ((0, env.action_words[0]), (None, "what?")):
        if env.ending is not Ending.RUNNING:
            env.reset()
        before = env.state
        _, reward, *_, info = env.act(action, answer)
        again = env.reward(Transition(before, answer, action, env.state, env.ending))
        assert reward == again.total and info["rewards"] == again.parts
    assert info["rewards"]["format"] == -1.0


def test_more_moves_are_allowed_where_the_stream_says_so(game):
    offer = offer_of(game)
    assert offer.stream(extra_moves=3)(7).move_limit == offer.stream()(7).move_limit + 3
    with pytest.raises(ValueError, match="extra_moves"):
        offer.stream(extra_moves=-1)


def test_the_prompt_names_the_moves_and_the_form_of_an_answer(game):
    offer = offer_of(game)
    env = make_text_environment(offer)
    task = offer.stream()(1)
    said = env.start(task)[1]["prompt"]
    assert f" {task.move_limit} " in said and any(f"<action>{word}</action>" in said for word in offer.words)


def test_an_unknown_option_suggests_the_nearest(game):
    typo = {
        "Klotski-v0": "dominos",
        "Jigsaw-v0": "tile",
        "Matchstick-v0": "change",
        "FirstPersonMaze-v0": "generatr",
        "Gymnasium-v0": "scrambel",
    }[game[0]]
    with pytest.raises(ValueError, match=r"Did you mean '"):
        load_plugins().create("environment", game[0], {**game[1], typo: 1})


def test_it_draws_and_writes_what_it_shows(game):
    env = gymnasium.make(game[0], render_mode="ansi", **game[1]).unwrapped
    env.reset(seed=0)
    assert isinstance(env.render(), str) and env.render()
    with pytest.raises(ValueError, match="render_mode"):
        type(env)(render_mode="human", **game[1])


def test_a_level_that_is_none_is_refused_and_says_why(game):
    env = gymnasium.make(game[0], **game[1]).unwrapped
    with pytest.raises(ValueError, match="reset options are"):
        env.reset(options={"colour": 3})
