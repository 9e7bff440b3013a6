"""Fixed sets: explicit mazes in committed JSON lines, checked to the last letter when they are read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from mazeenv.maze import Maze
from mazeenv.rules import default_limit
from mazeenv.symmetry import canonical_hash, walls_hash
from vismaze_hooks import pick


@dataclass(frozen=True)
class FixedSet:
    """A set that is shipped: where it is, what it holds out of training, and the sha256 that its file must have."""

    size: tuple[int, int]  # height and width in cells
    count: int
    longest: int  # of the shortest paths, in moves
    sha256: str  # of the file
    holds_out: str = "walls"  # in all 8 orientations: "walls" alone, or "maze": walls with start and goal


SETS = {
    "vismaze-5x5": FixedSet((5, 5), 16, 4, "2d9c15a1aebb838539ad75f98ec21af03ad246f6eb5060fe6b4f8f78f4d40a28", "maze"),
    "vismaze-tune-5x5": FixedSet((5, 5), 8, 2, "fe4beb881685caa3e07f5264c36a97500b92a3d841fce3e2ac14ff75b709128b", "maze"),
    "vismaze-64-7x7": FixedSet((7, 7), 64, 16, "4d72db3f4d66c90d64a0a9484e3aa00e0568ff483a07835cd75280360d080606"),
    "vismaze-tune-7x7": FixedSet((7, 7), 256, 16, "336cf23332c6f28130479adc0b75c92938b59d888551cd832689eff968b3114a"),
    "vismaze-64": FixedSet((9, 9), 64, 24, "bc03ccce1c9e9c8af5405b3212c38ea311dceea5579fae380a863d5528c11f48"),
    "vismaze-512": FixedSet((9, 9), 512, 26, "48875bbca54f87ce43db0890255948815e3e26336b6c338a080d40f18fe04e6a"),
    "vismaze-visgym-easy": FixedSet((9, 9), 64, 16, "6ab38364d235089fa2c9f5efc71b5b3ce3a3355873d5344c19175d66a6d56e74"),
    "vismaze-visgym-hard": FixedSet((11, 11), 64, 28, "d578c471ee05ea08c39a6d1ed393b1ead40cc7293dca321aea648a9df0852eaa"),
    "vismaze-tune": FixedSet((9, 9), 256, 26, "0d7e998503e0e3dd7587d18be10de72286fbc4362d4eabc6815cc3787b561e06"),
}
KEYS = ("rows", "start", "goal", "shortest", "limit", "class", "sha256")


def write_lines(mazes: Sequence[Maze]) -> str:
    """Return mazes as JSON lines: rows as text, start and goal as [row, column], shortest path, default move limit, the
    class of the walls under the 8 symmetries, and the sha256 of the maze's text."""
    lines = []
    for maze in mazes:
        values = (
            maze.text.split("\n"),
            maze.position(maze.start),
            maze.position(maze.goal),
            maze.shortest,
            default_limit(maze),
            walls_hash(maze.walls, maze.width),
            maze.sha256,
        )
        lines.append(json.dumps(dict(zip(KEYS, values, strict=True))) + "\n")
    return "".join(lines)


def read_lines(text: str, name: str) -> tuple[Maze, ...]:
    """Read JSON lines back; all of them or none.

    Args:
        name: of the file, for the message.

    Raises:
        ValueError: names the file, the line and the broken rule.
    """
    mazes = []
    seen: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        try:
            maze = _read_line(line)
            if maze.sha256 in seen:
                raise ValueError(f"the maze of line {seen[maze.sha256]} once more")
        except ValueError as error:
            raise ValueError(f"{name}, line {number}: {error}") from error
        seen[maze.sha256] = number
        mazes.append(maze)
    if not mazes:
        raise ValueError(f"{name}: no maze in it")
    return tuple(mazes)


def _read_line(line: str) -> Maze:
    try:
        record = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(record, dict) or set(record) != set(KEYS):
        raise ValueError(f"must be an object with exactly the keys {', '.join(KEYS)}")
    rows = record["rows"]
    if not isinstance(rows, list) or not rows or not all(isinstance(row, str) for row in rows):
        raise ValueError("rows must be a list of strings")
    maze = Maze.from_text(rows)
    true: dict[str, Any] = {
        "start": list(maze.position(maze.start)),
        "goal": list(maze.position(maze.goal)),
        "shortest": maze.shortest,
        "class": walls_hash(maze.walls, maze.width),
        "sha256": maze.sha256,
    }
    for key, value in true.items():
        if record[key] != value:
            raise ValueError(f"wrong {key}: {record[key]!r} is written, the rows give {value!r}")
    if type(record["limit"]) is not int or record["limit"] < maze.shortest:
        raise ValueError(f"limit {record['limit']!r}: the maze cannot be solved within it, it needs {maze.shortest} moves")
    return maze


def read_file(path: Path) -> tuple[Maze, ...]:
    """Read a file of mazes of your own, in the format of the shipped sets.

    Raises:
        ValueError: names the file, the line and the broken rule.
    """
    try:
        return read_lines(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text: {error}") from error


@lru_cache(maxsize=32)
def mazes(name: str) -> tuple[Maze, ...]:
    """Return the mazes of a shipped set.

    Raises:
        ValueError: an unknown set, or a file that is not the one that was shipped.
    """
    entry = pick("fixed set", name, SETS)
    file = resources.files("mazeenv").joinpath("data", f"{name}.jsonl")
    data = file.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest != entry.sha256:
        raise ValueError(f"{file}: sha256 {digest}, but {name} has {entry.sha256}: the file was changed")
    return read_lines(data.decode("utf-8"), f"{name}.jsonl")


@lru_cache(maxsize=32)
def held_out(names: tuple[str, ...], height: int, width: int) -> tuple[frozenset[str], frozenset[str]]:
    """Return what training must avoid on boards of this size: hashes of walls, and of walls with start and goal."""
    walls: set[str] = set()
    whole: set[str] = set()
    for name in names:
        if sorted(SETS[name].size) != sorted((height, width)):
            continue
        if SETS[name].holds_out == "walls":
            walls.update(walls_hash(maze.walls, maze.width) for maze in mazes(name))
        else:
            whole.update(canonical_hash(maze) for maze in mazes(name))
    return frozenset(walls), frozenset(whole)
