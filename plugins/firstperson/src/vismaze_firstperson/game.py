"""Walking in a maze with a heading: the state, its rules, shortest ways, the view."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import pi, radians
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from mazeenv import Maze, MazeConfig
from mazeenv.observations import check_view
from mazeenv.raycast import view
from mazeenv.themes import THEMES, look
from vismaze_hooks import Ending, Observation, pick
from vismaze_hooks.game import UNREADABLE, spend
from vismaze_hooks.integers import Integers

WORDS = ("forward", "left", "right", "around")
TURNS = (0, -1, 1, 2)  # quarters clockwise
ARROWS = "^>v<"  # headings: up, right, down, left on the map
SPARE_MOVES = 4
BUMPED, SOLVED = "A wall is in the way.", "Goal reached."


class Walk(NamedTuple):
    """A maze being walked."""

    maze: Maze
    cell: int
    heading: int  # quarters clockwise from up on the map
    moves: int  # actions used so far
    limit: int  # actions allowed


def ahead(width: int, heading: int) -> int:
    """Return what a step forward adds to the cell."""
    return (-width, 1, width, -1)[heading]


def turned(maze: Maze, cell: int, heading: int, action: int) -> tuple[int, int]:
    """Return cell and heading after an action; a wall leaves both."""
    if action:
        return cell, (heading + TURNS[action]) % 4
    to = cell + ahead(maze.width, heading)
    return (cell if maze.walls[to] else to), heading


@lru_cache(maxsize=65_536)
def solution(maze: Maze, cell: int, heading: int) -> tuple[int, ...]:
    """Return a shortest sequence of actions to the goal, by breadth-first search over cells and headings."""
    came: dict[tuple[int, int], tuple[tuple[int, int], int]] = {}
    start = (cell, heading)
    ring = [start]
    while True:
        reached = []
        for here in ring:
            if here[0] == maze.goal:
                actions: list[int] = []
                while here != start:
                    here, action = came[here]
                    actions.append(action)
                return tuple(actions[::-1])
            for action in range(4):
                there = turned(maze, *here, action)
                if there not in came and there != start:
                    came[there] = (here, action)
                    reached.append(there)
        ring = reached  # never empty before the goal: a maze has a way to it


def first_heading(maze: Maze) -> int:
    """Return the heading at the start: a function of the maze, so that a maze is a level."""
    return Integers(int(maze.sha256[:16], 16)).below(4)


def begin(maze: Maze, limit: int | None = None) -> Walk:
    """Return the first state of a level.

    Raises:
        ValueError: the limit is under what the shortest way needs.
    """
    heading = first_heading(maze)
    needed = len(solution(maze, maze.start, heading))
    if limit is None:
        limit = needed + SPARE_MOVES
    if type(limit) is not int or limit < needed:
        raise ValueError(f"limit={limit!r}: the shortest way has {needed} actions")
    return Walk(maze, maze.start, heading, 0, limit)


def advance(walk: Walk, action: int | None) -> tuple[Walk, Ending, str]:
    """Take a step or turn."""
    maze, cell, heading, moves, limit = walk
    ending, feedback = Ending.RUNNING, UNREADABLE
    if action is not None:
        cell, heading = turned(maze, cell, heading, action)
        feedback = BUMPED if (cell, heading) == (walk.cell, walk.heading) else ""
        if cell == maze.goal:
            ending, feedback = Ending.SUCCESS, SOLVED
    return Walk(maze, cell, heading, moves + 1, limit), *spend(moves + 1, limit, ending, feedback)


@dataclass(frozen=True)
class Levels:
    """Drawing and reading mazes of one kind."""

    config: MazeConfig

    def draw(self, seed: int) -> Walk:
        return begin(self.config.draw(self.config.level(), seed, None))

    def read(self, options: Mapping[str, Any]) -> Walk:
        """Return the level of reset options: `maze`, its text, and `limit`.

        Raises:
            ValueError: an unknown option, or no maze of this size.
        """
        if set(options) - {"limit"} != {"maze"} or not isinstance(options["maze"], str):
            raise ValueError(f"reset options are 'maze' (its text) and 'limit', got {sorted(options)}")
        maze = Maze.from_text(options["maze"])
        if (maze.height, maze.width) != self.config.sides:
            raise ValueError(f"a maze of {maze.height}×{maze.width} cells was given, the environment's are {self.config.sides}")
        return begin(maze, options.get("limit"))


@dataclass(frozen=True)
class View:
    """What is seen straight ahead: uint8 [height, width, 3]."""

    height: int
    width: int
    fov: int
    theme: str

    def space(self, walk: Walk) -> spaces.Box:
        return spaces.Box(0, 255, (self.height, self.width, 3), np.uint8)

    def observe(self, walk: Walk) -> np.ndarray:
        size, theme = (self.height, self.width), look(self.theme, walk.maze)
        return view(walk.maze, walk.cell, walk.heading * pi / 2, size, radians(self.fov), theme)

    def legend(self, walk: Walk) -> str:
        return "A maze from inside, as you look ahead; the goal is the pillar that stands on the floor"


def observation(width: int = 128, height: int = 128, fov: int = 90, theme: str = "plain") -> Observation:
    """Make the view ahead.

    Raises:
        ValueError: a value out of range, or an unknown theme.
    """
    check_view(width, height, fov)
    pick("theme", theme, THEMES)
    shown = View(height, width, fov, theme)
    return Observation("image", shown.space, shown.observe, legend=shown.legend)


def letters(walk: Walk) -> str:
    """Return the map with an arrow where one stands; `G` is the goal."""
    text = list(walk.maze.text.replace("S", "."))
    row, column = divmod(walk.cell, walk.maze.width)
    text[row * (walk.maze.width + 1) + column] = ARROWS[walk.heading]
    return "".join(text)
