"""Prompts, and VisGym's tuples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mazeenv.grammars import GRAMMARS, parse_tuple
from mazeenv.grid import WORDS
from mazeenv.offer import maze_offer, visgym_easy_offer
from vismaze_hooks.text import make_text_environment

READ = {
    "('move', 0)": "right",
    "('move', 1)": "up",
    "('move', 2)": "left",
    "('move', 3)": "down",
    "('stop', 'stop')": "stop",
    '("move", 3)': "down",
    "(move, 3)": "down",
    "( 'move' , 3 )": "down",
    "('move',3,)": "down",
    "('MOVE', 3)": "down",
    "('stop', stop)": "stop",
    "(stop, stop)": "stop",
    "```python\n('move', 1)\n```": "up",
    "Action: ('move', 1)": "up",
    "`('move', 1)`": "up",
    "I could ('move', 0) but I ('move', 2).": "left",
    "('move', 9) ('move', 2)": "left",
    "(the wall) ('move', 2) (I think)": "left",
    "(('move', 2))": "left",
    "（'move'， ２）": "left",
}
UNREADABLE = (
    "",
    "move 0",
    "'move', 0",
    "('move', 4)",
    "('move', -1)",
    "('move', '0')",
    "('move', 0.0)",
    "('move', True)",
    "('move')",
    "('move', 0",
    "['move', 0]",
    "('go', 0)",
    "('stop', 0)",
    "('stop', 'abcd')",
    "('move', 2) ('move', 9)",
    "<action>left</action>",
    "(" * 1_000_000,
    "('move'," * 100_000,
    "( " * 500_000,
    "('" + "a" * 1_000_000,
    "(" + " " * 1_000_000,
)


@pytest.mark.parametrize(("answer", "word"), READ.items())
def test_tuples_that_are_read(answer, word):
    assert parse_tuple(answer, WORDS) == WORDS.index(word)


@pytest.mark.parametrize("answer", UNREADABLE, ids=lambda answer: repr(answer[:30]))
def test_tuples_that_are_not(answer):
    assert parse_tuple(answer, WORDS) is None


@given(st.text(alphabet="('move, stp)0123\"\\ \n"), st.binary())
def test_reading_tuples_never_raises(text, data):
    for answer in (text, data.decode("utf-8", "surrogateescape")):
        assert parse_tuple(answer, WORDS) in (None, 0, 1, 2, 3, 4)


@pytest.mark.parametrize("name", GRAMMARS)
def test_each_grammar_reads_what_it_writes_and_describes_it(name):
    grammar = GRAMMARS[name]
    for action, word in enumerate(WORDS):
        assert grammar.parse(grammar.answer(word), WORDS) == action
        assert grammar.parse(f"{grammar.answer('up')} no, {grammar.answer(word)}", WORDS) == action
    assert grammar.answer("up") in grammar.describe(WORDS)


def test_the_prompt_is_complete_and_agrees_with_the_rules():
    offer = maze_offer(size=7)
    env = make_text_environment(offer)
    task = offer.stream()(3)
    _, info = env.start(task)
    prompt = info["prompt"]
    for needed in ("walls", "blue disc", "red square", f"{task.move_limit} moves", "wall", "unreadable", "<action>up</action>"):
        assert needed in prompt
    assert all(word in prompt for word in WORDS) and len(prompt) < 400


def test_the_prompt_under_visgyms_rule_asks_for_the_stop():
    offer = visgym_easy_offer(grammar="tuples")
    env = make_text_environment(offer)
    _, info = env.reset(seed=0)
    assert "then stop" in info["prompt"] and "20 moves" in info["prompt"] and "('move', 0) for right" in info["prompt"]
    for action in offer.solver(env.unwrapped):
        _, reward, terminated, _, info = env.step(offer.answer(WORDS[action]))
    assert terminated and reward == 1.0 and info["success"]


def test_the_prompt_of_letters_explains_letters():
    env = make_text_environment(maze_offer(size=5, observation="ascii"))
    _, info = env.reset(seed=0)
    assert "# is a wall" in info["prompt"] and "A" in info["text"]


def test_an_unknown_grammar_suggests_the_nearest():
    with pytest.raises(ValueError, match="Did you mean 'tuples'"):
        maze_offer(grammar="tuple")


def test_the_presets_are_visgyms():
    env = make_text_environment(visgym_easy_offer())
    shown, _ = env.reset(seed=0)
    maze = env.unwrapped.state.maze
    assert shown.shape == (225, 225, 3) and env.unwrapped.state.limit == 20 and env.unwrapped.state.stop_required
    assert {maze.start, maze.goal} in ({10, 70}, {16, 64})
    assert tuple(shown[0, 0]) == (169, 169, 169) and (shown == (255, 0, 0)).all(axis=2).sum() == 625
    assert (shown == (0, 0, 255)).all(axis=2).sum() == pytest.approx(3.14159 * 6.25**2, rel=0.06)
