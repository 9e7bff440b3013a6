"""Writes the fixed sets: `python -m mazeenv.make_sets [FOLDER]`. A test runs it and compares, so the files have a source."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

from mazeenv import grid
from mazeenv.fixed import write_lines
from mazeenv.levels import Level, draw_level
from mazeenv.maze import Maze
from mazeenv.symmetry import canonical_hash, walls_hash
from vismaze_hooks.integers import Integers

BINS_7X7 = ((2, 4), (6, 8), (10, 12), (14, 16))
BINS_EASY = ((12, 12), (16, 16))  # what VisGym's 20 turns, one of them the stop, leave solvable between corners
BINS_HARD = ((16, 16), (20, 20), (24, 24), (28, 28))  # as above, 30 turns
BINS_9X9 = ((4, 8), (10, 14), (16, 20), (22, 30))

# The 28 classes of the 192 trees on 3×3 rooms, by the first letters of their hash. Evaluation and tuning have five each
# (32 and 36 trees), of all characters from comb to snake, and enough paths of 14 and 16 moves; training keeps 18 (124 trees).
EVALUATION_7X7 = ("415d1df7", "1885d698", "15b8dfff", "0ba337ae", "20440a78")
TUNING_7X7 = ("c148e87e", "11b9fb43", "8b6da7f3", "baf2df00", "4ec8d833")
# 5×5 boards: all 4 trees are one class of three passages in a row, rooms a-b-c-d. By the letters of start and goal:
EVALUATION_5X5 = ("ac", "ba")
TUNING_5X5 = ("bc",)


def spanning_trees(height: int, width: int) -> list[bytes]:
    """Return the walls of every perfect maze of a small size."""
    rooms, doors = grid.rooms(height, width), grid.doors(height, width)
    found = []
    for opened in combinations(doors, len(rooms) - 1):
        walls = bytearray(grid.closed(height, width))
        for door, _, _ in opened:
            walls[door] = 0
        if min(grid.distances(bytes(walls), width, rooms[0])[cell] for cell in rooms) >= 0:
            found.append(bytes(walls))
    return found


def every_maze(height: int, width: int) -> Iterator[Maze]:
    """Yield every tree with every start and goal."""
    for walls in spanning_trees(height, width):
        for start in grid.rooms(height, width):
            for goal in grid.rooms(height, width):
                if start != goal:
                    yield Maze(walls, width, start, goal)


def set_7x7(classes: Sequence[str], count: int, seed: int) -> list[Maze]:
    """Return `count` mazes, the four bins in turn, each bin's mazes taken from the classes in turn as far as they last."""
    pools: dict[tuple[int, str], list[Maze]] = {}
    for maze in every_maze(7, 7):
        tree = walls_hash(maze.walls, 7)[:8]
        if tree in classes:
            which = next(i for i, (low, high) in enumerate(BINS_7X7) if low <= maze.shortest <= high)
            pools.setdefault((which, tree), []).append(maze)
    integers = Integers(seed)
    for key in sorted(pools):
        integers.shuffle(pools[key])
    chosen: list[Maze] = []
    turns = [0] * len(BINS_7X7)
    while len(chosen) < count:
        which = len(chosen) % len(BINS_7X7)
        pool: list[Maze] = []
        while not pool:
            pool = pools.get((which, classes[turns[which] % len(classes)]), [])
            turns[which] += 1
        chosen.append(pool.pop())
    return chosen


def set_5x5(pairs: Sequence[str]) -> list[Maze]:
    """Return every maze, in all orientations, whose start and goal are one of the pairs of letters."""
    walls = spanning_trees(5, 5)[0]
    field = {cell: grid.distances(walls, 5, cell) for cell in grid.rooms(5, 5)}
    end = next(cell for cell, away in field.items() if max(away) == 6)
    letter = {"abcd"[away // 2]: cell for cell, away in enumerate(field[end]) if away >= 0 and away % 2 == 0}
    wanted = {canonical_hash(Maze(walls, 5, letter[pair[0]], letter[pair[1]])) for pair in pairs}
    return sorted((m for m in every_maze(5, 5) if canonical_hash(m) in wanted), key=lambda m: m.sha256)


def drawn_set(count: int, bins: Sequence[tuple[int, int]], size: int, ends: str, seed: int, used: set[str]) -> list[Maze]:
    """Return mazes, the bins in turn, whose trees are new up to symmetry; their classes are added to `used`."""
    chosen: list[Maze] = []
    while len(chosen) < count:
        seed += 1
        maze = draw_level(Level(size, size, ends=ends, shortest=bins[len(chosen) % len(bins)]), seed)  # type: ignore[arg-type]
        tree = walls_hash(maze.walls, maze.width)
        if tree not in used:
            used.add(tree)
            chosen.append(maze)
    return chosen


def build() -> dict[str, str]:
    """Return name -> file content of every fixed set."""
    used: set[str] = set()
    made = {
        "vismaze-5x5": set_5x5(EVALUATION_5X5),
        "vismaze-tune-5x5": set_5x5(TUNING_5X5),
        "vismaze-64-7x7": set_7x7(EVALUATION_7X7, 64, seed=64),
        "vismaze-tune-7x7": set_7x7(TUNING_7X7, 256, seed=256),
        "vismaze-64": drawn_set(64, BINS_9X9, 9, "rooms", 1_000_000, used),
        "vismaze-512": drawn_set(512, BINS_9X9, 9, "rooms", 2_000_000, used),
        "vismaze-tune": drawn_set(256, BINS_9X9, 9, "rooms", 3_000_000, used),
        "vismaze-visgym-easy": drawn_set(64, BINS_EASY, 9, "corners", 4_000_000, used),
        "vismaze-visgym-hard": drawn_set(64, BINS_HARD, 11, "corners", 5_000_000, used),
    }
    return {name: write_lines(mazes) for name, mazes in made.items()}


def main(folder: Path) -> None:
    for name, content in build().items():
        (folder / f"{name}.jsonl").write_bytes(content.encode("ascii"))
        print(f"{name}: {hashlib.sha256(content.encode('ascii')).hexdigest()}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "data")
