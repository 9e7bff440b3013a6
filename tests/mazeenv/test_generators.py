"""Generators: trees, uniformity, golden mazes."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mazeenv import Level, draw_level, grid
from mazeenv.batch import draw_levels
from mazeenv.generators import depth_first, division, kruskal, prim, wilson
from mazeenv.make_sets import spanning_trees
from mazeenv.maze import check
from mazeenv.openings import flip
from vismaze_hooks.integers import Integers, mix64

GENERATORS = (wilson, depth_first, prim, kruskal, division)
SIDES = range(3, 27, 2)


def openings(walls: bytes, height: int, width: int) -> int:
    return sum(not walls[door] for door, _, _ in grid.doors(height, width))


def reached(walls: bytes, height: int, width: int) -> bool:
    cells = grid.rooms(height, width)
    field = grid.distances(walls, width, cells[0])
    return all(field[cell] >= 0 for cell in cells)


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("height", SIDES)
def test_every_generator_makes_a_spanning_tree_of_every_size(generator, height):
    for width in (height, 5, 21):
        if height * width < 15:
            continue
        walls = generator(height, width, Integers(height * width))
        rooms = grid.rooms(height, width)
        assert len(walls) == height * width and set(walls) <= {0, 1}
        assert openings(walls, height, width) == len(rooms) - 1 and reached(walls, height, width)
        corners = [r * width + c for r in range(0, height, 2) for c in range(0, width, 2)]
        assert all(walls[cell] for cell in corners), "a cell between four walls is open"
        rim = [i for i in range(height * width) if i // width in (0, height - 1) or i % width in (0, width - 1)]
        assert all(walls[cell] for cell in rim)


def chi_squared(generator) -> float:
    """Return χ² of 19,200 draws over the 192 spanning trees of 3×3 rooms (191 degrees of freedom)."""
    counts = Counter(generator(7, 7, Integers(mix64(seed))) for seed in range(19_200))
    trees = spanning_trees(7, 7)
    assert len(trees) == len(set(trees)) == 192 and set(counts) <= set(trees)
    return sum((counts[tree] - 100) ** 2 / 100 for tree in trees)


LIMIT = 257.0  # the 0.999 quantile of χ² with 191 degrees of freedom is 256.6


def test_wilson_is_uniform_over_spanning_trees():
    assert chi_squared(wilson) < LIMIT


@pytest.mark.parametrize(("generator", "at_least"), [(depth_first, 10_000), (prim, 1_000), (kruskal, 400), (division, 1_000)])
def test_the_same_test_sees_that_the_others_are_not(generator, at_least):
    assert chi_squared(generator) > at_least > LIMIT


GOLDEN = {
    wilson: "5f285407b911",
    depth_first: "c82c27238c64",
    prim: "f4712cd1237e",
    kruskal: "3499033b1330",
    division: "f6a981505153",
}


@pytest.mark.parametrize("generator", GENERATORS)
def test_draws_stay_the_same_for_years(generator):
    """Golden: a change here changes every maze that anybody ever drew, so it needs new ids."""
    drawn = b"".join(
        generator(height, width, Integers(seed)) for seed, height, width in [(0, 9, 9), (1, 5, 13), (2**64 - 1, 21, 21)]
    )
    assert hashlib.sha256(drawn).hexdigest()[:12] == GOLDEN[generator]


def test_the_integers_are_those_of_shake_128_and_splitmix():
    assert Integers(0).words(2) == Integers(2**64).words(2)  # 64 bits count
    expected = hashlib.shake_128(bytes(24)).digest(16)
    assert Integers(0).words(2) == (int.from_bytes(expected[:8], "little"), int.from_bytes(expected[8:], "little"))
    assert mix64(0) == 0xE220A8397B1DCDAF and mix64(0x9E3779B97F4A7C15) == 0x6E789E6AA1B965F4  # SplitMix64's published stream


def test_below_is_even_and_shuffle_is_a_permutation():
    integers = Integers(7)
    counts = Counter(integers.below(5) for _ in range(20_000))
    assert sorted(counts) == [0, 1, 2, 3, 4] and sum((n - 4000) ** 2 / 4000 for n in counts.values()) < 18.5
    orders = Counter()
    for _ in range(6000):
        items = [0, 1, 2]
        integers.shuffle(items)
        orders[tuple(items)] += 1
    assert len(orders) == 6 and sum((n - 1000) ** 2 / 1000 for n in orders.values()) < 20.5


@given(
    st.sampled_from([(9, 9), (3, 7), (11, 5), (15, 15)]),
    st.sampled_from(["rooms", "corners"]),
    st.integers(0, 2**64 - 1),
)
@settings(max_examples=60)
def test_the_batch_draws_the_same_mazes(size, ends, seed):
    bins = [None] if ends == "corners" else [None, (4, 8)]
    for shortest in bins:
        level = Level(*size, ends=ends, shortest=shortest)
        seeds = [mix64(seed + k) for k in range(20)]
        drawn = draw_levels(level, seeds)
        for row, one in enumerate(seeds):
            maze = draw_level(level, one)
            assert drawn.walls[row].tobytes() == maze.walls
            assert (drawn.start[row], drawn.goal[row], drawn.shortest[row]) == (maze.start, maze.goal, maze.shortest)


def dead_ends(walls: bytes, height: int, width: int) -> int:
    return sum(len(grid.open_actions(walls, width, cell)) == 1 for cell in grid.rooms(height, width))


def test_braiding_opens_dead_ends():
    seeds = range(50)
    left = {
        fraction: sum(dead_ends(draw_level(Level(11, 11, braid=fraction), seed).walls, 11, 11) for seed in seeds)
        for fraction in (0.0, 0.5, 1.0)
    }
    assert left[1.0] == 0 and 0.35 * left[0.0] < left[0.5] < 0.65 * left[0.0]


@pytest.mark.parametrize("loops", [0, 1, 5, 16])
def test_loops_open_exactly_that_many_walls(loops):
    """5×5 rooms: 40 inner walls, 24 of them opened by the tree."""
    for seed in range(20):
        maze = draw_level(Level(11, 11, loops=loops), seed)
        assert openings(maze.walls, 11, 11) == 24 + loops and reached(maze.walls, 11, 11)


@pytest.mark.parametrize("ends", ["rooms", "corners"])
def test_blocking_walls_up_exactly_that_many_passages_and_never_parts_start_from_goal(ends):
    cut_off = 0
    for seed in range(40):
        maze = draw_level(Level(11, 11, loops=6, blocked=5, ends=ends), seed)
        assert openings(maze.walls, 11, 11) == 24 + 6 - 5 and maze.shortest > 0
        cut_off += not reached(maze.walls, 11, 11)
    assert cut_off, "some boards have rooms that nothing leads to"


def test_flipping_changes_exactly_that_many_cells_inside_the_rim_pillars_and_rooms_too():
    changed = Counter()
    for seed in range(60):
        before, after = (draw_walls(flipped, seed) for flipped in (0, 3))
        cells = [cell for cell in range(9 * 9) if before[cell] != after[cell]]
        assert len(cells) == 3 and all(0 < cell // 9 < 8 and 0 < cell % 9 < 8 for cell in cells)
        changed.update((cell // 9 % 2, cell % 9 % 2) for cell in cells)
    assert set(changed) == {(0, 0), (0, 1), (1, 0), (1, 1)}


def draw_walls(flipped, seed):
    """The walls that the first draw of a seed gives, whether or not start and goal fit them."""
    integers = Integers(seed, 0)
    return flip(wilson(9, 9, integers), 9, 9, flipped, integers)


@pytest.mark.parametrize(
    "change", [{}, {"braid": 0.5}, {"loops": 2}, {"blocked": 2}, {"flipped": 3}, {"loops": 1, "flipped": 1}]
)
@pytest.mark.parametrize("ends", ["rooms", "corners"])
def test_changed_boards_have_open_ends_with_a_way_between_them_and_the_batch_draws_the_same(change, ends):
    level = Level(7, 7, ends=ends, **change)
    drawn = draw_levels(level, range(80))
    for row, seed in enumerate(range(80)):
        maze = draw_level(level, seed)
        check(maze)
        assert maze.walls == drawn.walls[row].tobytes() and (maze.start, maze.goal) == (drawn.start[row], drawn.goal[row])
