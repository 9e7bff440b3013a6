"""The maze record: text, hashes, symmetry, distances."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mazeenv import Level, Maze, canonical_hash, draw_level, walls_hash
from mazeenv.grid import UNREACHABLE, rooms
from mazeenv.symmetry import images

SMALL = "#####\n#S..#\n###.#\n#G..#\n#####"
SIZES = st.tuples(st.sampled_from([3, 5, 7, 9, 13]), st.sampled_from([5, 7, 9, 11]))
SEEDS = st.integers(0, 2**64 - 1)


@given(SIZES, SEEDS)
def test_text_goes_there_and_back(size, seed):
    maze = draw_level(Level(*size), seed)
    assert Maze.from_text(maze.text) == maze
    assert Maze.from_text(maze.text.replace(".", " ")) == maze
    assert Maze.from_text(maze.text.split("\n")) == maze
    assert hash(Maze.from_text(maze.text)) == hash(maze)


def test_the_hash_is_the_sha256_of_the_text():
    maze = Maze.from_text(SMALL)
    assert maze.text == SMALL
    assert maze.sha256 == hashlib.sha256(SMALL.encode()).hexdigest()
    assert (maze.height, maze.width, maze.position(maze.start), maze.position(maze.goal)) == (5, 5, (1, 1), (3, 1))


def test_a_maze_is_frozen():
    maze = Maze.from_text(SMALL)
    with pytest.raises(AttributeError):
        maze.start = 3
    assert isinstance(maze.walls, bytes) and isinstance(maze.to_goal, tuple)


@given(SIZES, SEEDS)
@settings(max_examples=50)
def test_the_eight_orientations_have_one_canonical_hash(size, seed):
    maze = draw_level(Level(*size), seed)
    turned = images(maze)
    assert turned[0] == maze and len(turned) == 8
    assert len({canonical_hash(image) for image in turned}) == 1
    assert len({walls_hash(image.walls, image.width) for image in turned}) == 1
    assert {image.shortest for image in turned} == {maze.shortest}


def test_turning_is_what_it_says():
    """A corner drawn by hand: the images are the four quarter turns and their mirror images."""
    maze = Maze.from_text("#####\n#S..#\n#.#.#\n#.#G#\n#####")
    texts = {image.text for image in images(maze)}
    assert len(texts) == 8
    assert "#####\n#..S#\n#.#.#\n#G#.#\n#####" in texts  # left and right exchanged
    assert "#####\n#.#G#\n#.#.#\n#S..#\n#####" in texts  # top and bottom exchanged
    assert "#####\n#S..#\n#.###\n#..G#\n#####" in texts  # rows become columns
    assert "#####\n#..S#\n###.#\n#G..#\n#####" in texts  # a quarter turn


def test_different_mazes_have_different_canonical_hashes():
    """All mazes on 2×2 rooms: 4 trees, 48 mazes, by hand one class of walls and six of mazes."""
    found = {draw_level(Level(5, 5), seed) for seed in range(3000)}
    assert len(found) == 48
    assert len({walls_hash(maze.walls, 5) for maze in found}) == 1
    assert len({canonical_hash(maze) for maze in found}) == 6


def test_walls_alone_do_not_see_start_and_goal():
    maze = Maze.from_text(SMALL)
    swapped = Maze(maze.walls, maze.width, maze.goal, maze.start)
    assert walls_hash(maze.walls, 5) == walls_hash(swapped.walls, 5)
    assert maze.sha256 != swapped.sha256


def test_a_board_and_its_turned_shape_are_one_class_but_other_shapes_are_not():
    wide = Maze.from_text("#######\n#S...G#\n#######")
    tall = Maze.from_text("###\n#S#\n#.#\n#.#\n#.#\n#G#\n###")
    assert walls_hash(tall.walls, tall.width) == walls_hash(wide.walls, wide.width)
    assert canonical_hash(tall) == canonical_hash(wide)
    assert walls_hash(bytes(15), 3) != walls_hash(bytes(15), 15)


def test_the_distance_field_by_hand():
    maze = Maze.from_text(SMALL)
    rows = [maze.to_goal[at : at + 5] for at in range(0, 25, 5)]
    wall = UNREACHABLE
    assert rows[1] == (wall, 6, 5, 4, wall) and rows[2] == (wall, wall, wall, 3, wall) and rows[3] == (wall, 0, 1, 2, wall)
    assert maze.shortest == 6
    assert maze.solution() == (3, 3, 1, 1, 2, 2)
    assert maze.optimal_actions(maze.start) == (3,) and maze.optimal_actions(maze.goal) == ()


@given(SIZES, SEEDS, st.floats(0, 1))
@settings(max_examples=50)
def test_optimal_actions_are_exactly_those_that_come_nearer(size, seed, opened):
    maze = draw_level(Level(*size, braid=opened), seed)
    for cell in range(len(maze.walls)):
        if maze.walls[cell]:
            assert maze.to_goal[cell] == UNREACHABLE
            continue
        nearer = {
            a for a, step in enumerate((-maze.width, maze.width, -1, 1)) if 0 <= maze.to_goal[cell + step] < maze.to_goal[cell]
        }
        assert set(maze.optimal_actions(cell)) == nearer
        assert len(maze.solution(cell)) == maze.to_goal[cell]


def test_a_loop_has_two_optimal_actions():
    maze = Maze.from_text("#####\n#S..#\n#.#.#\n#..G#\n#####")
    assert maze.optimal_actions(maze.start) == (1, 3) and maze.solution() == (1, 1, 3, 3)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "size"),
        ("####\n#SG#\n####", "size 3×4"),
        ("#####\n#SG##\n#####\n#####", "size 4×5"),
        ("###\n#S#\n###", "two rooms"),
        ("#####\n#S.G#\n###", "unequal length"),
        ("#####\n#S.G.\n#####", "open border at row 1, column 4"),
        ("##.##\n#S.G#\n#####", "open border at row 0, column 2"),
        ("#####\n#S#G#\n#####", "unreachable goal"),
        ("#####\n#S.X#\n#####", "unknown character 'X'"),
        ("#####\n#S..#\n#####", "0 cells for the goal"),
        ("#####\n#G..#\n#####", "0 cells for the start"),
        ("#####\n#SGG#\n#####", "2 cells for the goal"),
        ("#####\n#SSG#\n#####", "2 cells for the start"),
    ],
)
def test_a_wrong_maze_is_refused_by_the_rule_it_breaks(text, rule):
    with pytest.raises(ValueError, match=rule):
        Maze.from_text(text)


def test_rooms_are_the_odd_cells():
    assert rooms(5, 7) == (8, 10, 12, 22, 24, 26)
