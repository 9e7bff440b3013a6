"""Crop, fog, the view from inside, themes, cell sizes, and the rewards that came with them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from mazeenv import Level, Maze, MazeState, VisMazeEnv, draw_level, drawing, raycast
from mazeenv.observations import egocentric, first_person, in_sight, rgb
from mazeenv.rules import advance, begin
from mazeenv.sizes import CELL_SIZES, picture_size
from mazeenv.themes import THEMES, look
from mazeenv.wording import prompt
from vismaze_hooks import Ending, Transition, make_reward
from vismaze_hooks.rewards import form
from vismaze_hooks.testing import check_observation, check_reward

SMALL = Maze.from_text("#####\n#S..#\n###.#\n#G..#\n#####")


def states(count):
    """Some states of various boards, some on the goal."""
    draw = np.random.default_rng(1)
    for seed in range(count):
        maze = draw_level(Level(*[(5, 5), (9, 9), (7, 11)][seed % 3], braid=0.3), seed)
        free = [cell for cell, wall in enumerate(maze.walls) if not wall]
        yield MazeState(maze, maze.goal if seed % 7 == 0 else int(draw.choice(free)), 0, 99)


def played(stop_required):
    """The transitions of a walk that bumps, cannot be read, and arrives."""
    state = begin(SMALL, 20, stop_required)
    for action in (0, None, 3, 3, 1, 1, 2, 2, *((3, 2, 4) if stop_required else ())):
        before = state
        state, ending, _ = advance(before, action)
        yield Transition(before, "<action>left</action>" if action else "?", action, state, ending)
    assert ending is Ending.SUCCESS


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *[
            ("egocentric", {"view": v, "fog": f, "cell_px": 5, "theme": t})
            for v in (3, 7)
            for f in (False, True)
            for t in THEMES
        ],
        ("egocentric", {"cell_px": "qwen3-vl"}),
        *[("first_person", {"width": 40, "height": 24, "fov": fov, "theme": t}) for fov in (60, 120, 360) for t in THEMES],
        *[("rgb", {"cell_px": name}) for name in CELL_SIZES],
    ],
)
def test_every_view_keeps_the_observations_contract(name, options):
    check_observation(name, states(9), **options)


@pytest.mark.parametrize("view", [3, 5, 9])
def test_a_crop_shows_exactly_the_cells_around_the_player(view):
    px = 5
    for state in states(200):
        maze = state.maze
        picture, whole = egocentric(view=view, cell_px=px).observe(state), rgb(cell_px=px).observe(state)
        here = maze.position(state.cell)
        for row, column in itertools.product(range(view), range(view)):
            r, c = here[0] + row - view // 2, here[1] + column - view // 2
            shown = picture[row * px : (row + 1) * px, column * px : (column + 1) * px]
            if 0 <= r < maze.height and 0 <= c < maze.width:
                assert np.array_equal(shown, whole[r * px : (r + 1) * px, c * px : (c + 1) * px])
            else:
                assert (shown == THEMES["plain"].wall).all()


def test_fog_covers_what_no_straight_way_leads_beside():
    for state in states(200):
        maze, (row, column) = state.maze, state.maze.position(state.cell)
        seen = in_sight(state)
        for r, c in itertools.product(range(maze.height), range(maze.width)):
            near = [(a, b) for a in (r - 1, r, r + 1) for b in (c - 1, c, c + 1)]
            ways = []
            for a, b in near:
                if 0 <= a < maze.height and 0 <= b < maze.width and (a == row or b == column):
                    rows, columns = range(min(a, row), max(a, row) + 1), range(min(b, column), max(b, column) + 1)
                    ways.append(all(not maze.walls[x * maze.width + y] for x in rows for y in columns))
            assert seen[r, c] == any(ways)
        shown = egocentric(view=7, fog=True, cell_px=1).observe(state)
        assert tuple(shown[3, 3]) == THEMES["plain"].player


def test_rays_measure_the_free_cells_ahead():
    for state in states(100):
        maze = state.maze
        for step, heading in zip((-maze.width, maze.width, -1, 1), raycast.HEADINGS, strict=True):
            free, cell, goal_at = 0, state.cell, None
            while not maze.walls[cell + step]:
                cell, free = cell + step, free + 1
                goal_at = free if cell == maze.goal else goal_at
            rays = raycast.cast(maze, state.cell, heading, 101, math.radians(90))
            assert rays.distance[50] == pytest.approx(free + 0.5)
            expected = math.inf if goal_at is None else goal_at - raycast.PILLAR
            assert rays.pillar[50] == pytest.approx(expected)
            turned, flatten = raycast.angles(101, math.radians(90))
            assert (rays.distance >= 0.5 * flatten * 0.999).all() and np.allclose(turned, -turned[::-1])


def test_a_panorama_shows_each_direction_in_its_quarter():
    for state in states(50):
        maze = state.maze
        rays = raycast.cast(maze, state.cell, raycast.HEADINGS[0], 4001, 2 * math.pi)
        for step, column in zip((-maze.width, maze.width, -1, 1), (2000, 0, 1000, 3000), strict=True):
            free, cell = 0, state.cell
            while not maze.walls[cell + step]:
                cell, free = cell + step, free + 1
            assert rays.distance[column] == pytest.approx(free + 0.5, rel=0.01)


def test_the_pillar_is_seen_and_the_goal_is_underfoot():
    beside, on, away = (MazeState(SMALL, cell, 0, 9) for cell in (SMALL.goal + 2, SMALL.goal, SMALL.start))
    red = THEMES["plain"].goal
    share = [(first_person().observe(state) == red).all(axis=2).mean() for state in (beside, on, away)]
    assert min(share[:2]) > 0.005 and share[2] == 0.0


def test_the_trail_is_recorded_only_where_it_is_shown_and_marks_each_cell_left():
    for theme in THEMES:
        env = VisMazeEnv(size=5, theme=theme, cell_px=9, observation_options={})
        env.reset(options={"maze": SMALL.text})
        assert (env.state.trail is None) is (theme != "trail")
    env = VisMazeEnv(size=5, cell_px=9, observation_options={"theme": "trail"})
    env.reset(options={"maze": SMALL.text, "max_moves": 20})
    for action in (0, 3, 3, 2):  # a bump leaves nothing
        shown, *_ = env.step(action)
    walked = {cell for cell, been in enumerate(env.state.trail) if been}
    assert walked == {6, 7, 8} and env.state.cell == 7
    dots = (shown == THEMES["trail"].trail).all(axis=2).reshape(5, 9, 5, 9).any(axis=(1, 3))
    assert set(np.flatnonzero(dots)) == {6, 8}, "the player stands on the third"
    assert np.array_equal(np.asarray(rgb(cell_px=9, theme="trail").palette_image(env.state).convert("RGB")), shown)


def test_grid_lines_are_where_cells_begin():
    picture = rgb(cell_px=6, theme="grid").observe(begin(SMALL))
    lines = (picture == THEMES["grid"].grid).all(axis=2)
    assert lines[::6].all() and lines[:, ::6].all()
    assert not lines[1::6, 1::6].any()


def test_random_colours_are_a_function_of_the_maze_and_the_legend_names_them():
    looks = {}
    for seed in range(60):
        maze = draw_level(Level(5, 5), seed)
        looks[maze] = chosen = look("random", maze)
        assert chosen == look("random", Maze.from_text(maze.text))
        bright = [sum(colour) for colour in (chosen.wall, chosen.goal, chosen.player, chosen.floor)]
        assert bright[0] < min(bright[1:3]) and max(bright[1:3]) < bright[3], "walls are darkest, the floor is lightest"
        assert chosen.goal != chosen.player
    assert len(set(looks.values())) > 20
    env = VisMazeEnv(size=5, theme="random")
    env.reset(seed=0)
    assert look("random", env.state.maze).legend in prompt(env)


def test_the_colourblind_theme_is_told_apart_by_brightness_alone():
    theme = THEMES["colourblind"]
    light = sorted(0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (theme.floor, theme.wall, theme.goal, theme.player))
    assert min(b - a for a, b in itertools.pairwise(light)) > 50


@pytest.mark.parametrize(("name", "factor", "least"), [("qwen2.5-vl", 28, 56 * 56), ("qwen3-vl", 32, 65_536)])
def test_the_models_own_resizing_leaves_a_preset_as_it_is(name, factor, least):
    for rows, columns in itertools.product(range(3, 22, 2), repeat=2):
        if rows * columns < 15:
            continue
        height, width = picture_size(rows, columns, name)
        assert smart_resize(height, width, factor=factor, min_pixels=least, max_pixels=1 << 24) == (height, width)
        assert CELL_SIZES[name].cell_px == factor, "one visual token a cell"


@pytest.mark.parametrize("observation", ["egocentric", "first_person", "rgb", "ascii"])
def test_the_prompt_says_what_is_seen(observation):
    env = VisMazeEnv(size=5, observation=observation)
    env.reset(seed=0)
    said = prompt(env)
    assert said.startswith(
        {"egocentric": "The part of a maze", "first_person": "A maze from inside"}.get(observation, "A maze from above")
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"observation": "egocentrc"}, "Did you mean 'egocentric'"),
        ({"theme": "colorblind"}, "Did you mean 'colourblind'"),
        ({"cell_px": "qwen3vl"}, "Did you mean 'qwen3-vl'"),
        ({"observation": "egocentric", "observation_options": {"view": 4}}, "odd number"),
        ({"observation": "egocentric", "observation_options": {"fog": 1}}, "true or false"),
        ({"observation": "first_person", "observation_options": {"fov": 10}}, "from 30 to 360"),
        ({"observation": "first_person", "observation_options": {"cell_px": 3}}, "refused its options"),
        ({"reward": "shortest_pth"}, "Did you mean 'shortest_path'"),
        ({"reward": {"format": {"weight": 0.1, "strikt": True}}}, "refused its options"),
        ({"reward": {"format": {"weight": True}}}, "finite number"),
    ],
)
def test_wrong_options_are_refused_and_the_nearest_is_named(options, said):
    with pytest.raises(ValueError, match=said):
        VisMazeEnv(**options)


@pytest.mark.parametrize(("name", "options"), [("shortest_path", {}), ("format", {}), ("format", {"strict": True})])
@pytest.mark.parametrize("stop_required", [False, True])
def test_the_new_rewards_keep_their_contract(name, options, stop_required):
    check_reward(name, played(stop_required), **options)


def test_shortest_path_pays_the_shortest_way_fully_and_a_detour_less():
    for detour, paid in (((), 1.0), ((3, 2, 3, 2), 0.6)):
        state, total = begin(SMALL, 20), 0.0
        for action in (*detour, *SMALL.solution()):
            before = state
            state, ending, _ = advance(before, action)
            total += make_reward("shortest_path")(Transition(before, "", action, state, ending)).total
        assert total == pytest.approx(paid)


def test_format_fines_what_cannot_be_read_and_when_strict_what_stands_around():
    state = begin(SMALL)
    for answer, action, loose, strict in (
        ("<action>left</action>", 2, 0.0, 0.0),
        (" <Action>left</ACTION>\n", 2, 0.0, 0.0),
        ("I go <action>left</action>", 2, 0.0, -1.0),
        ("<action>up</action><action>left</action>", 2, 0.0, -1.0),
        ("left", None, -1.0, -1.0),
        ("<action>jump</action>", None, -1.0, -1.0),
    ):
        step = Transition(state, answer, action, state, Ending.RUNNING)
        assert (form()(step), form(strict=True)(step)) == (loose, strict)


def test_a_reward_takes_its_options_from_the_mapping():
    env = VisMazeEnv(size=5, reward={"sparse": 1.0, "format": {"weight": 0.25, "strict": True}})
    env.reset(options={"maze": SMALL.text})
    _, reward, *_, info = env.act(3, "so <action>right</action>")
    assert reward == -0.25 and info["rewards"] == {"sparse": 0.0, "format": -1.0}


def test_tiles_and_kinds_agree_with_the_fast_background():
    for state, theme in itertools.product(states(20), THEMES):
        slow = drawing.lay(drawing.kinds(state), drawing.tiles(4, look(theme, state.maze)))
        assert np.array_equal(slow, rgb(cell_px=4, theme=theme).observe(state))
