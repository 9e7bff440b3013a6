"""Observations, rewards, PNG bytes."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import mazeenv.png
from mazeenv import Level, Maze, MazeState, VisMazeEnv, draw_level
from mazeenv.observations import ascii, rgb, symbolic
from mazeenv.png import png
from mazeenv.rewards import invalid_penalty, progress
from mazeenv.rules import advance, begin
from mazeenv.themes import THEMES
from mazeenv.vector import VisMazeVectorEnv
from vismaze_hooks import Ending, Transition
from vismaze_hooks.rewards import sparse
from vismaze_hooks.testing import check_observation, check_reward

SMALL = Maze.from_text("#####\n#S..#\n###.#\n#G..#\n#####")


def states(count=60):
    """Some states of various boards, the player on the goal among them."""
    draw = np.random.default_rng(0)
    for seed in range(count):
        maze = draw_level(Level(*[(5, 5), (9, 9), (7, 11)][seed % 3], braid=0.3), seed)
        free = [cell for cell, wall in enumerate(maze.walls) if not wall]
        yield MazeState(maze, maze.goal if seed % 7 == 0 else int(draw.choice(free)), 0, 99)


@pytest.mark.parametrize("options", [{"cell_px": px, "theme": theme} for px in (1, 2, 7, 25) for theme in THEMES])
def test_the_picture_keeps_the_observations_contract(options):
    check_observation("rgb", states(12), **options)


def test_without_its_rim_the_picture_is_the_inside_of_the_whole_one():
    for theme in THEMES:
        check_observation("rgb", states(12), cell_px=7, theme=theme, rim=False)
        for state in states(12):
            whole, inside = (rgb(cell_px=7, theme=theme, rim=rim) for rim in (True, False))
            assert np.array_equal(inside.observe(state), whole.observe(state)[7:-7, 7:-7])
            assert inside.legend(state) == whole.legend(state) + ", beyond the picture are walls"
    options = {"size": 7, "cell_px": 8, "observation_options": {"rim": False}}
    env, vector = VisMazeEnv(**options, render_mode="rgb_array"), VisMazeVectorEnv(num_envs=3, **options)
    shown, _ = env.reset(seed=1)
    assert shown.shape == (40, 40, 3) and np.array_equal(vector.reset(seed=1)[0][0], shown)
    assert env.render().shape == (56, 56, 3), "people are shown the whole board"


@pytest.mark.parametrize(("options", "said"), [({"rim": 0}, "true or false"), ({"rim": False, "cell_px": "qwen3-vl"}, "rim")])
def test_a_rim_that_cannot_be_left_out_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        VisMazeEnv(size=7, observation_options=options)


@pytest.mark.parametrize("name", ["ascii", "symbolic"])
def test_the_other_views_keep_it_too(name):
    check_observation(name, states())


def test_letters_picture_and_planes_agree_with_the_board_cell_by_cell():
    px = 9
    look = THEMES["plain"]
    for state in states(1000):
        maze = state.maze
        picture = rgb(cell_px=px).observe(state)
        letters, planes = ascii().observe(state), symbolic().observe(state)
        for cell, wall in enumerate(maze.walls):
            row, column = maze.position(cell)
            here, goal = cell == state.cell, cell == maze.goal
            letter = "#" if wall else "@" if here and goal else "A" if here else "G" if goal else "."
            assert chr(letters[row, column]) == letter
            assert planes[:, row, column].tolist() == [wall, 1 - wall, here, goal]
            corner, middle = picture[row * px, column * px], picture[row * px + px // 2, column * px + px // 2]
            assert tuple(corner) == (look.wall if wall else look.goal if goal else look.floor)
            assert tuple(middle) == (look.player if here else tuple(corner))


def test_letters_can_be_read_back():
    for state in states():
        text = ascii().to_text(ascii().observe(state))
        assert text.count("A") + text.count("@") == 1
        read = text.replace("A", "S").replace("@", "G")
        if "S" in read:
            again = Maze.from_text(read)
            assert (again.walls, again.start, again.goal) == (state.maze.walls, state.cell, state.maze.goal)


def test_the_player_is_a_disc():
    picture = rgb(cell_px=25).observe(begin(SMALL))
    blue = (picture == THEMES["plain"].player).all(axis=2)[25:50, 25:50]
    assert blue[12, 12] and not blue[0, 0]
    assert (blue == blue[::-1]).all() and (blue == blue.T).all()
    assert blue.sum() == pytest.approx(np.pi * (0.36 * 25) ** 2, rel=0.05)
    assert blue.sum() == (picture == THEMES["plain"].player).all(axis=2).sum(), "blue is nowhere else"


@given(
    st.integers(0, 2**32),
    st.sampled_from([1, 4, 9, 32]),
    st.sampled_from(sorted(THEMES)),
    st.sampled_from([(5, 5), (9, 9), (5, 11)]),
)
@settings(max_examples=40)
def test_png_bytes_decode_to_exactly_the_observation(seed, cell_px, theme, size):
    maze = draw_level(Level(*size), seed)
    for cell in (maze.start, maze.goal):
        state = MazeState(maze, cell, 0, 9)
        decoded = np.asarray(Image.open(io.BytesIO(png(state, cell_px=cell_px, theme=theme))).convert("RGB"))
        assert np.array_equal(decoded, rgb(cell_px=cell_px, theme=theme).observe(state))


def test_png_bytes_are_small_cached_and_the_cache_is_bounded():
    env = VisMazeEnv(size=9, cell_px=25)
    env.reset(seed=0)
    first = env.png()
    assert len(first) < 700 and Image.open(io.BytesIO(first)).mode == "P"
    assert png(env.state, cell_px=25) is first, "the same picture is encoded once"
    assert mazeenv.png._png.cache_info().maxsize == mazeenv.png.CACHED == 4096
    assert mazeenv.drawing.scenery.cache_info().maxsize == mazeenv.drawing.BACKGROUNDS == 64
    again = VisMazeEnv(size=9, cell_px=25)
    again.reset(options={"maze": env.state.maze.text})
    hits = mazeenv.png._png.cache_info().hits
    assert again.png() is first and mazeenv.png._png.cache_info().hits == hits + 1, "a group shares it"


def transitions(stop_required=False):
    """Every transition of a walk that bumps, cannot be read, goes to and fro, and arrives."""
    state, ending = begin(SMALL, 20, stop_required), Ending.RUNNING
    for action in (0, None, 3, 2, 3, 3, 1, 1, 2, 2, *((3, 2, 4) if stop_required else ())):
        before = state
        state, ending, _ = advance(before, action)
        yield Transition(before, "", action, state, ending)
    assert ending is Ending.SUCCESS


@pytest.mark.parametrize("stop_required", [False, True])
@pytest.mark.parametrize("name", ["sparse", "progress", "invalid_penalty"])
def test_rewards_keep_their_contract(name, stop_required):
    check_reward(name, transitions(stop_required))


def test_rewards_by_hand():
    walked = list(transitions())
    assert [sparse()(t) for t in walked] == [0.0] * 9 + [1.0]
    assert [invalid_penalty()(t) for t in walked] == [-1.0, -1.0] + [0.0] * 8
    assert [round(progress()(t) * 6) for t in walked] == [0, 0, 1, -1, 1, 1, 1, 1, 1, 1]
    assert sum(progress()(t) for t in walked) == pytest.approx(1.0)


def test_sparse_pays_neither_the_limit_nor_a_wrong_stop():
    state = begin(SMALL, 6)
    for ending in (Ending.RUNNING, Ending.LIMIT, Ending.FAILURE):
        assert sparse()(Transition(state, "", 0, state, ending)) == 0.0


@given(st.lists(st.one_of(st.none(), st.integers(0, 3)), max_size=30), st.integers(0, 2**32))
def test_progress_depends_on_the_last_cell_only(actions, seed):
    state = begin(draw_level(Level(7, 7, braid=0.5), seed), 99)
    total, maze = 0.0, state.maze
    for action in actions:
        before = state
        state, ending, _ = advance(before, action)
        total += progress()(Transition(before, "", action, state, ending))
        if ending is not Ending.RUNNING:
            break
    assert total == pytest.approx((maze.shortest - maze.to_goal[state.cell]) / maze.shortest)


def test_the_environments_reward_is_the_configured_sum_and_can_be_computed_again():
    weights = {"sparse": 2.0, "progress": 0.5, "invalid_penalty": 0.25}
    env = VisMazeEnv(size=5, cell_px=1, reward=weights)
    env.reset(options={"maze": SMALL.text})
    for transition in itertools.islice(transitions(), 10):
        if transition.before.limit != env.state.limit:
            transition = Transition(
                transition.before._replace(limit=10), "", transition.action, transition.after, transition.ending
            )
        before = env.state
        _, reward, _, _, info = env.act(transition.action, "")
        again = env.reward(Transition(before, "", transition.action, env.state, env.ending))
        assert reward == again.total and info["rewards"] == again.parts
        assert reward == pytest.approx(sum(weights[name] * value for name, value in info["rewards"].items()))


def test_a_list_of_names_has_weight_one_each():
    env = VisMazeEnv(size=5, reward=["sparse", "progress"])
    env.reset(options={"maze": SMALL.text})
    assert env.step(3)[1] == pytest.approx(1 / 6)
