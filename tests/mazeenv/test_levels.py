"""Difficulty: bins of path lengths, sizes, and what is impossible."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import pytest

from mazeenv import Level, MazeConfig, VisMazeEnv, draw_level, grid
from mazeenv.generators import depth_first
from mazeenv.levels import longest_path
from mazeenv.make_sets import spanning_trees
from vismaze_hooks import Ending


@pytest.mark.parametrize("shortest", [(2, 2), (4, 8), (10, 14), (16, 20), (22, 30)])
def test_a_bin_is_kept(shortest):
    mazes = [draw_level(Level(9, 9, shortest=shortest), seed) for seed in range(200)]
    assert {shortest[0] <= maze.shortest <= shortest[1] for maze in mazes} == {True}
    assert len({maze.sha256 for maze in mazes}) > 190


@pytest.mark.parametrize("ends", ["rooms", "corners"])
@pytest.mark.parametrize("size", [(5, 5), (7, 7), (5, 7), (3, 9), (9, 5)])
def test_the_longest_path_is_right(size, ends):
    """By trying every order of the rooms' trees: the bound is reached, and never passed."""
    height, width = size
    cells = grid.rooms(height, width)
    corners = {cells[0], cells[width // 2 - 1], cells[-(width // 2)], cells[-1]}
    longest = 0
    for walls in spanning_trees(height, width):
        for start, goal in permutations(cells, 2):
            opposite = {start, goal} <= corners and start + goal == cells[0] + cells[-1]
            if ends == "rooms" or opposite:
                longest = max(longest, grid.distances(walls, width, start)[goal])
    assert longest == longest_path(height, width, ends)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shortest": (32, 40)}, "from 2 to 30"),
        ({"shortest": (30, 40), "ends": "corners"}, "from 12 to 28"),
        ({"shortest": (2, 10), "ends": "corners"}, "from 12 to 28"),
        ({"shortest": (7, 7)}, "even number"),
        ({"shortest": (8, 4)}, "pair"),
        ({"shortest": (-2, 4)}, "pair"),
        ({"size": 4}, "odd"),
        ({"size": 1}, "odd"),
        ({"size": 3}, "two rooms"),
        ({"size": -9}, "odd"),
        ({"size": (9, 8)}, "odd"),
        ({"size": (9, 9, 9)}, "pair"),
        ({"size": "9"}, "size"),
        ({"size": 9.0}, "size"),
        ({"size": True}, "odd"),
        ({"size": 100_001}, "cells"),
        ({"shortest": 5}, "pair"),
        ({"shortest": (2, "x")}, "pair"),
        ({"braid": 1.5}, "fraction"),
        ({"braid": float("nan")}, "fraction"),
        ({"braid": "much"}, "fraction"),
        ({"loops": -1}, "0 to 9"),
        ({"loops": 10}, "0 to 9"),
        ({"loops": 1.0}, "0 to 9"),
        ({"blocked": -1}, "0 or more"),
        ({"blocked": True}, "0 or more"),
        ({"flipped": -1}, "0 or more"),
        ({"flipped": 1.0}, "0 or more"),
        ({"ends": "rims"}, "rooms"),
        ({"max_moves": 0}, "1 or more"),
        ({"max_moves": -5}, "1 or more"),
        ({"max_moves": 2.5}, "1 or more"),
        ({"max_moves": 5, "shortest": (6, 8)}, "solved"),
        ({"max_moves": 12, "ends": "corners", "stop_required": True}, "solved"),
        ({"stop_required": 1}, "true or false"),
        ({"generator": "wilsn"}, "Did you mean 'wilson'"),
        ({"observation": "rbg"}, "Did you mean 'rgb'"),
        ({"reward": "spares"}, "Did you mean 'sparse'"),
        ({"reward": ["sparse", "progres"]}, "Did you mean 'progress'"),
        ({"reward": []}, "at least one"),
        ({"reward": {"sparse": float("nan")}}, "finite"),
        ({"reward": {"sparse": "1"}}, "finite"),
        ({"theme": "plian"}, "Did you mean 'plain'"),
        ({"cell_px": 0}, "cell_px"),
        ({"cell_px": 1000}, "cell_px"),
        ({"cell_px": 8.0}, "cell_px"),
        ({"max_move": 5}, "Did you mean 'max_moves'"),
        ({"render_mode": "human"}, "render_mode"),
    ],
)
def test_an_impossible_request_is_refused_with_what_is_possible(options, said):
    with pytest.raises(ValueError, match=said):
        VisMazeEnv(**options)


def test_a_request_that_is_possible_but_hopeless_ends_too(monkeypatch):
    """A path through all 100 rooms of 21×21 exists, but a random tree has none: bounded draws, then an error."""
    monkeypatch.setattr("mazeenv.levels.ATTEMPTS", 50)
    with pytest.raises(ValueError, match=r"50 draws.*too rare"):
        draw_level(Level(21, 21, shortest=(198, 198)), 0)


def test_lengths_are_drawn_evenly_over_what_a_start_offers():
    """On a corridor the start's offers are known: a room in the middle of five offers 2 and 4, one at the end 2, 4, 6, 8."""
    counts = Counter(draw_level(Level(3, 11), seed).shortest for seed in range(20_000))
    expected = {2: (2 / 4 + 2 / 3 + 1 / 2) / 5, 4: (2 / 4 + 2 / 3 + 1 / 2) / 5, 6: (2 / 4 + 2 / 3) / 5, 8: (2 / 4) / 5}
    assert sum((counts[n] - 20_000 * p) ** 2 / (20_000 * p) for n, p in expected.items()) < 16.3


def test_start_and_goal_are_rooms_or_opposite_corners():
    cells = set(grid.rooms(9, 9))
    drawn = [draw_level(Level(9, 9), seed) for seed in range(500)]
    assert {maze.start for maze in drawn} == {maze.goal for maze in drawn} == cells
    ends = Counter((m.start, m.goal) for m in (draw_level(Level(9, 9, ends="corners"), seed) for seed in range(400)))
    assert set(ends) == {(10, 70), (70, 10), (16, 64), (64, 16)} and min(ends.values()) > 70


PRESETS = {
    "default": {},
    "5x5": {"size": 5},
    "7x7": {"size": 7},
    "visgym easy": {"size": 9, "ends": "corners", "stop_required": True, "max_moves": 20},
    "visgym hard": {"size": 11, "ends": "corners", "stop_required": True, "max_moves": 30},
    "braided": {"size": 9, "braid": 0.5, "generator": "prim"},
}


@pytest.mark.parametrize("options", PRESETS.values(), ids=PRESETS)
def test_each_of_10_000_mazes_can_be_solved_within_its_limit(options):
    config = MazeConfig(**options)
    level = config.level()
    for seed in range(10_000):
        maze = config.draw(level, seed, config.max_moves)
        limit = config.max_moves or maze.shortest + 4 + config.stop_required
        assert maze.start != maze.goal and 0 < maze.shortest + config.stop_required <= limit


@pytest.mark.parametrize("options", PRESETS.values(), ids=PRESETS)
def test_the_solver_earns_exactly_one(options):
    env = VisMazeEnv(**options, cell_px=1)
    for seed in range(100):
        env.reset(seed=seed)
        actions = env.state.maze.solution() + ((4,) if env.config.stop_required else ())
        rewards = []
        for action in actions:
            _, reward, terminated, truncated, info = env.step(action)
            rewards.append(reward)
        assert sum(rewards) == 1.0 and rewards[-1] == 1.0 and terminated and not truncated
        assert info["ending"] is Ending.SUCCESS and info["moves"] == len(actions) <= env.state.limit


def test_what_visgyms_limits_leave_unsolvable_is_not_drawn():
    level = Level(9, 9, ends="corners")
    lost = sum(draw_level(level, seed).shortest + 1 > 20 for seed in range(4000)) / 4000
    assert 0.04 < lost < 0.09  # 6.1 % of VisGym's own mazes
    level = Level(11, 11, ends="corners")
    lost = sum(draw_level(level, seed).shortest + 1 > 30 for seed in range(4000)) / 4000
    assert 0.004 < lost < 0.02  # 1.1 %


def test_generators_are_picked_by_name_or_given():
    assert MazeConfig(generator="depth_first").level().generator is depth_first
    assert MazeConfig(generator=depth_first).level().generator is depth_first
