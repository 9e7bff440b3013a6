"""What is particular to each plugin's game: its rules, its levels, and what it refuses."""

from __future__ import annotations

import dataclasses
import pickle
import tomllib
from pathlib import Path
from typing import ClassVar

import gymnasium
import numpy as np
import pytest

from mazeenv import Maze
from mazeenv.registry import register_environments
from vismaze_firstperson.game import begin, solution, turned
from vismaze_hooks import Ending, PluginWarning, Transition, load_plugins
from vismaze_hooks.levels import FixedLevels, LevelSets
from vismaze_hooks.testing import check_observation, check_reward
from vismaze_jigsaw.game import JigsawConfig, cycles
from vismaze_jigsaw.pictures import PAINTERS, paint
from vismaze_klotski import board
from vismaze_klotski.levels import KlotskiConfig, same
from vismaze_matchstick.sticks import PLACES, equations, is_true, mask_of, puzzles


def made(name, **options):
    env = gymnasium.make(name, **options).unwrapped
    env.reset(seed=0)
    return env


# Klotski


def test_blocks_slide_by_a_square_and_stop_at_what_is_in_the_way():
    env = made("Klotski-v0", size=(4, 3), dominoes=1, singles=3, cell_px=8)
    env.reset(options={"board": "..B\n.CB\nDAA\nEAA"})
    said = [env.step(env.action_words.index(word))[4]["feedback"] for word in ("red up", "red down", "green up")]
    assert said == ["Something is in the way.", "Something is in the way.", ""]
    assert board.letters(env.state) == ".CB\n..B\nDAA\nEAA" and env.state.moves == 3


def test_a_shortest_solution_is_found_that_brute_force_confirms():
    config = KlotskiConfig((3, 3), 0, 2, (1, 6))
    for seed in range(40):
        start = config.draw(seed)
        way = board.solution(3, 3, start.blocks, start.goal)
        ring = {start.blocks}
        for _ in way:
            assert all(blocks[0] != start.goal for blocks in ring)
            ring |= {
                to
                for blocks in ring
                for block in range(3)
                for move in range(4)
                if (to := board.moved(blocks, block, move, 3, 3)) is not None
            }
        assert any(blocks[0] == start.goal for blocks in ring)


@pytest.mark.parametrize("moves", [(1, 1), (3, 3), (6, 8)])
def test_the_knob_of_klotski_is_exact(moves):
    config = KlotskiConfig((4, 3), 1, 3, moves)
    for seed in range(20):
        start = config.draw(seed)
        assert moves[0] <= len(board.solution(4, 3, start.blocks, start.goal)) <= moves[1]
        assert board.read_letters(board.letters(start)) == (4, 3, start.blocks)


def test_mirrored_boards_are_the_same_where_the_goal_is_in_the_middle():
    left = KlotskiConfig((4, 4), 1, 2).read({"board": "AABC\nAADD\n....\n...."})
    right = KlotskiConfig((4, 4), 1, 2).read({"board": "BCAA\nDDAA\n....\n...."})
    assert same(left) == same(right) and left.blocks != right.blocks


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": (5, 4), "dominoes": 8}, "two are needed"),
        ({"size": "5x4"}, "pair of whole numbers"),
        ({"size": (9, 9)}, "2 to 6"),
        ({"moves": (0, 3)}, "1 or more"),
        ({"singles": -1}, "0 or more"),
        ({"size": (6, 6), "dominoes": 4, "singles": 10}, "colour of their own"),
        ({"cell_px": 2}, "from 4 to 256"),
        ({"reward": "sparze"}, "Did you mean 'sparse'"),
    ],
)
def test_a_board_that_cannot_be_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        gymnasium.make("Klotski-v0", **options)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("AA.\nAA", "unequal length"),
        ("AA.\nAA.\nC..\n...", "without a gap"),
        ("AB.\nAA.\nB..\n...", "block A"),
        ("AA.\nAAB\nB..\n...", "block B"),
        ("...\nAA.\nAAB\nCDE", "an environment of"),
        ("BC.\nDE.\nAAF\nAAF", "at its goal already"),
    ],
)
def test_a_text_that_is_no_board_is_refused(text, said):
    env = made("Klotski-v0", size=(4, 3), dominoes=1, singles=4, cell_px=8)
    with pytest.raises(ValueError, match=said):
        env.reset(options={"board": text})


# Jigsaw


def test_a_solved_jigsaw_shows_the_picture_as_it_was_painted():
    env = made("Jigsaw-v0", tiles=2, px=32, line=0, pictures=["gradient"])
    for word in (env.action_words[action] for action in load_plugins().create("environment", "Jigsaw-v0").solver(env)):
        shown, reward, *_ = env.step(env.action_words.index(word))
    assert reward == 1.0
    smooth = np.abs(np.diff(shown.astype(int), axis=0)).max(), np.abs(np.diff(shown.astype(int), axis=1)).max()
    assert max(smooth) <= 9, "a gradient in which nothing jumps"


@pytest.mark.parametrize("kind", PAINTERS)
def test_pictures_are_functions_of_the_seed_and_of_any_size(kind):
    small, large = paint(kind, 5, 2, 16), paint(kind, 5, 2, 64)
    assert large.shape == (4, 32, 32, 3) and not large.flags.writeable
    assert not np.array_equal(paint(kind, 6, 2, 64), large)
    apart = np.abs(small.mean(axis=(1, 2)) - large.mean(axis=(1, 2))).mean()
    assert apart < 25, "the same picture, drawn finer"


@pytest.mark.parametrize("swaps", [(1, 1), (5, 5), (8, 8)])
def test_the_knob_of_the_jigsaw_is_exact(swaps):
    for seed in range(50):
        assert 9 - cycles(JigsawConfig(3, swaps).draw(seed).order) == swaps[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tiles": 5}, "2, 3 or 4"),
        ({"swaps": (0, 2)}, "from 1 to 3"),
        ({"pictures": ["gradiant"]}, "Did you mean 'gradient'"),
        ({"tiles": 3, "px": 100}, "multiple of 3"),
        ({"line": -1}, "line=-1"),
    ],
)
def test_a_jigsaw_that_cannot_be_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        gymnasium.make("Jigsaw-v0", **options)


# Matchsticks


def test_matches_are_those_of_a_pocket_calculator():
    assert mask_of(8, True, 8, 8).bit_count() == 22 and len(equations()) == 2000
    digits = [mask_of(digit, False, 1, 1).bit_count() - 2 * 2 for digit in range(10)]
    assert digits == [6, 2, 5, 5, 4, 5, 6, 3, 7, 6]


@pytest.mark.parametrize("changes", [1, 2, 3])
def test_no_puzzle_is_mended_with_fewer_matches(changes):
    true = [mask for mask, text in equations().items() if is_true(text)]
    for mask in puzzles(changes):
        nearest = min((mask & ~to).bit_count() for to in true if to.bit_count() == mask.bit_count())
        assert nearest == changes and not is_true(equations()[mask])


def test_a_match_is_taken_and_put_and_can_be_put_back():
    env = made("Matchstick-v0", unit=6)
    env.reset(options={"equation": "9-3=4"})
    steps = {
        "3-bottom": "There is no match to take.",
        "1-top": "You have a match in hand.",
        "1-upper-left": "There is a match already.",
    }
    for word, said in steps.items():
        assert env.step(PLACES.index(word))[4]["feedback"] == said
    assert env.game.letters(env.state) == "?-3=4 (one in hand)"
    assert env.step(PLACES.index("1-top"))[4]["feedback"] == "The match lies." and env.game.letters(env.state) == "9-3=4"
    assert env.state.moves == 4


@pytest.mark.parametrize(
    ("text", "said"), [("1+1=2", "true already"), ("1+1=22", "three digits"), ("1+1=1", "true already, or no")]
)
def test_an_equation_that_is_no_puzzle_is_refused(text, said):
    with pytest.raises(ValueError, match=said):
        made("Matchstick-v0").reset(options={"equation": text})


# First person


def test_a_walk_turns_on_the_spot_and_the_way_is_shortest():
    maze = Maze.from_text("#####\n#S..#\n###.#\n#G..#\n#####")
    walk = begin(maze)
    assert turned(maze, maze.start, 0, 0) == (maze.start, 0), "a wall is ahead"
    assert [turned(maze, maze.start, 0, action)[1] for action in range(4)] == [0, 3, 1, 2]
    for heading, count in ((1, 8), (0, 9), (3, 9)):
        assert len(solution(maze, maze.start, heading)) == count
    assert walk.limit == len(solution(maze, maze.start, walk.heading)) + 4


def test_mazes_from_inside_are_held_out_as_mazeenv_holds_them_out():
    offer = load_plugins().create("environment", "FirstPersonMaze-v0", {"size": 7})
    of_mazes = load_plugins().create("environment", "VisMaze-v0", {"size": 7})
    assert set(offer.fixed_sets) == set(of_mazes.fixed_sets)
    for name, tasks in offer.fixed_sets.items():
        assert [task.content_hash for task in tasks()] == [task.content_hash for task in of_mazes.fixed_sets[name]()]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_moves": 9}, "not an option here"),
        ({"theme": "plian"}, "Did you mean 'plain'"),
        ({"width": 1}, "from 8 to 2048"),
        ({"siez": 7}, "Did you mean 'size'"),
    ],
)
def test_a_walk_that_cannot_be_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        gymnasium.make("FirstPersonMaze-v0", **options)


# Gymnasium

LAKE = {"env": "FrozenLake-v1", "words": ["left", "down", "right", "up"], "kwargs": {"is_slippery": False}, "shrink": 16}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "env is missing"),
        ({"env": "FrozenLake-v1"}, "words is missing"),
        ({**LAKE, "env": "FrozenLak-v1"}, "FrozenLake"),
        ({**LAKE, "env": "no_such_module:Lake-v1"}, "no_such_module"),
        ({**LAKE, "words": ["left", "right"]}, "has 4 actions, 2 words were given"),
        ({**LAKE, "words": ["left", "left", "up", "down"]}, "stands there twice"),
        ({**LAKE, "words": {"left": 4}}, "has the actions 0 to 3"),
        ({**LAKE, "words": "left"}, "must be a list of words"),
        ({**LAKE, "kwargs": {"slipery": True}}, "slipery"),
        ({**LAKE, "success": "always"}, "'positive' or 'terminated'"),
        ({**LAKE, "search": 0}, "move_limit: must be given"),
        ({**LAKE, "plan_by": "state"}, "'picture' or 'observation'"),
        ({**LAKE, "draw_by": "picture"}, "'step' or 'observation'"),
        ({**LAKE, "scramble": -1}, "scramble=-1"),
        ({**LAKE, "env": "Pendulum-v1", "kwargs": {}}, "discrete actions are needed"),
    ],
)
def test_a_foreign_environment_that_cannot_be_used_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        gymnasium.make("Gymnasium-v0", **options)


def test_an_environment_with_one_start_says_how_to_get_more():
    offer = load_plugins().create("environment", "Gymnasium-v0", LAKE)
    with pytest.raises(ValueError, match=r"only 1 of 16 different levels .* choose options that give more"):
        offer.fixed_sets["evaluation"]()


def test_the_frames_and_the_native_reward_are_the_environments_own():
    env = made(
        "Gymnasium-v0", env="CliffWalking-v1", words=["up", "right", "down", "left"], success="terminated", reward="native"
    )
    theirs = gymnasium.make("CliffWalking-v1", render_mode="rgb_array")
    theirs.reset(seed=env.state.seed)
    assert np.array_equal(env.state and env.game.observation.observe(env.state), theirs.render())
    for word in ("up", "right", "down"):
        action = env.action_words.index(word)
        shown, reward, *_ = env.step(action)
        _, paid, *_ = theirs.step(action)
        assert reward == float(paid) and np.array_equal(shown, theirs.render())
    assert env.ending is Ending.RUNNING and reward == -100.0


def test_plans_by_picture_and_by_observation_are_equally_short():
    by_picture = made("Gymnasium-v0", **{**LAKE, "scramble": 8})
    by_observation = made("Gymnasium-v0", **{**LAKE, "scramble": 8, "plan_by": "observation"})
    for seed in range(20):
        pictures, observations = (env.game.draw(seed) for env in (by_picture, by_observation))
        assert pictures == observations  # the limit is the fewest moves + 4
        plan = by_observation.foreign.plan(observations)
        assert len(plan) == observations.limit - 4 == len(by_picture.foreign.plan(pictures))


CLIFF = {"env": "CliffWalking-v1", "words": ["up", "right", "down", "left"], "success": "terminated", "shrink": 8}


@pytest.mark.parametrize("options", [LAKE, CLIFF])
def test_pictures_that_are_kept_are_those_that_would_be_drawn(options):
    kept, drawn = (made("Gymnasium-v0", **options, draw_by=by, plan_by="observation") for by in ("observation", "step"))
    random = np.random.default_rng(0)
    for seed in range(12):
        state = other = kept.game.draw(seed)
        for action in random.integers(4, size=20).tolist():
            state, ending, _ = kept.game.advance(state, action)
            other, _, _ = drawn.game.advance(other, action)
            assert state == other
            if ending is not Ending.RUNNING:
                break
    assert kept.foreign.simulator._reused > 60, "some were drawn again and compared"


class Blinking(gymnasium.Env):
    """Its picture depends on how often it was drawn."""

    action_space = gymnasium.spaces.Discrete(1)
    observation_space = gymnasium.spaces.Discrete(1)
    metadata: ClassVar = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode=None):
        self.render_mode, self.drawn = render_mode, 0

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return 0, 0.0, False, False, {}

    def render(self):
        self.drawn += 1
        return np.full((8, 8, 3), self.drawn, dtype=np.uint8)


def test_pictures_that_cannot_be_kept_are_noticed(monkeypatch):
    monkeypatch.setitem(
        gymnasium.registry, "Blinking-v0", gymnasium.envs.registration.EnvSpec("Blinking-v0", entry_point=Blinking)
    )
    env = made("Gymnasium-v0", env="Blinking-v0", words=["wait"], search=0, move_limit=1000, draw_by="observation")
    with pytest.raises(ValueError, match="in two ways, so its pictures cannot be kept: remove draw_by"):
        for _ in range(100):
            env.step(0)


@pytest.mark.parametrize("name", ["frozenlake", "cliffwalking"])
def test_no_training_episode_begins_on_a_square_that_is_held_out(name):
    options = tomllib.loads((Path(__file__).parents[2] / "examples" / f"{name}.toml").read_text())["environment"]["options"]
    offer = load_plugins().create("environment", "Gymnasium-v0", options)
    env = made("Gymnasium-v0", **options)

    def squares(tasks):
        return [
            env.foreign.simulator.play(*(task.options[k] for k in ("seed", "actions")), frame=False).observation
            for task in tasks
        ]

    held_out = squares([task for name in ("evaluation", "tuning") for task in offer.fixed_sets[name]()])
    assert len(set(held_out)) == len(held_out) == options["evaluation"] + options["tuning"]
    draw = offer.stream(extra_moves=4)
    trained = set(squares([draw(seed) for seed in range(200)]))
    assert len(trained) > 8 and not trained & set(held_out)


def test_slippery_ice_is_the_same_ice_after_pickling():
    env = made("Gymnasium-v0", **{**LAKE, "kwargs": {"is_slippery": True}, "search": 0, "move_limit": 30, "scramble": 3})
    env.step(2)
    twin = pickle.loads(pickle.dumps(env))
    for _ in range(10):
        a, b = env.step(1), twin.step(1)
        assert np.array_equal(a[0], b[0]) and a[1:] == b[1:]
        if a[2] or a[3]:
            break


# The contract


def test_every_picture_and_reward_keeps_the_contract(game):
    name, options = game
    env = gymnasium.make(name, **options).unwrapped
    states, steps = [], []
    for seed in range(5):
        env.reset(seed=seed)
        states.append(env.state)
        for action in (0, 1, None):
            if env.ending is Ending.RUNNING:
                before = env.state
                env.act(action, "x")
                states.append(env.state)
                steps.append(Transition(before, "x", action, env.state, env.ending))
    check_observation(env.observation, states)
    for reward in ("sparse", "format", *(["native"] if name == "Gymnasium-v0" else [])):
        check_reward(reward, steps)


def test_a_changed_generator_is_noticed_by_the_hash_of_its_set():
    config = KlotskiConfig((3, 3), 0, 2, (1, 6))
    sets = {"s": FixedLevels(config.draw, 4, 0, "0" * 64)}
    levels = LevelSets("X-v0", lambda p: {"board": board.letters(p)}, same, lambda p: {}, sets)
    with pytest.raises(ValueError, match="s: its levels have the hash"):
        levels.fixed("s")
    with pytest.raises(ValueError, match="Did you mean 's'"):
        dataclasses.replace(levels, sets={"s": FixedLevels(config.draw, 4, 0)}).fixed("S")


def test_an_offer_that_cannot_be_made_is_reported_and_the_others_are_registered(monkeypatch):
    plugins = load_plugins()
    offers = {
        **plugins.offers,
        "environment": {"Broken-v0": lambda: 1 / 0, "Klotski-v0": plugins.offers["environment"]["Klotski-v0"]},
    }
    owners = {**plugins.owners, ("environment", "Broken-v0"): "broken"}
    monkeypatch.delitem(gymnasium.registry, "Klotski-v0")
    with pytest.warns(PluginWarning, match=r"plugin 'broken' cannot offer Broken-v0: ZeroDivisionError"):
        register_environments(dataclasses.replace(plugins, offers=offers, owners=owners))
    assert "Klotski-v0" in gymnasium.registry
