"""The rules of play, as functions of a state."""

from __future__ import annotations

from mazeenv.grid import STOP, UNREACHABLE
from mazeenv.maze import Maze
from mazeenv.state import MazeState
from vismaze_hooks import Ending

SPARE_MOVES = 4

MOVED = ""
BUMPED = "A wall is in the way."
UNREADABLE = "Cannot read the answer."
SOLVED = "Goal reached."
STOPPED = "Stopped off the goal."
OUT_OF_MOVES = "No moves left."

_RUNNING = Ending.RUNNING


def default_limit(maze: Maze, stop_required: bool = False) -> int:
    """Return the default move limit: the shortest path, four spare moves, and one for the stop where it is needed."""
    return maze.shortest + SPARE_MOVES + stop_required


def begin(maze: Maze, limit: int | None = None, stop_required: bool = False, trail: bool = False) -> MazeState:
    """Return the state at the start of an episode; with `trail` it records where one has been.

    Raises:
        ValueError: the limit is no whole number, or under what the shortest solution needs.
    """
    if limit is None:
        limit = default_limit(maze, stop_required)
    elif isinstance(limit, bool) or not isinstance(limit, int):
        raise ValueError(f"max_moves={limit!r}: must be a whole number")
    elif limit < maze.shortest + stop_required or maze.shortest == UNREACHABLE:
        needed = f"{maze.shortest} moves" + (" and a stop" if stop_required else "")
        raise ValueError(f"max_moves={limit}: this maze cannot be solved within it, its shortest solution has {needed}")
    return MazeState(maze, maze.start, 0, limit, stop_required, bytes(len(maze.walls)) if trail else None)


def advance(state: MazeState, action: int | None) -> tuple[MazeState, Ending, str]:
    """Take one action (None: an unreadable answer) and return the next state, whether it ended, and the feedback.

    A bump and an unreadable answer each use one move. Reaching the goal ends the episode at once, on the last move too;
    under `stop_required` only a stop does, and on the goal it succeeds. A stop off the goal fails.
    """
    maze, cell, moves, limit, stop_required, trail = state
    ending, feedback, moves = _RUNNING, MOVED, moves + 1
    if action is None:
        feedback = UNREADABLE
    elif action == STOP:
        ending, feedback = (Ending.SUCCESS, SOLVED) if cell == maze.goal else (Ending.FAILURE, STOPPED)
    else:
        width = maze.width
        to = cell + (-width if action == 0 else width if action == 1 else -1 if action == 2 else 1)
        if maze.walls[to]:
            feedback = BUMPED
        else:
            if trail is not None:
                trail = trail[:cell] + b"\1" + trail[cell + 1 :]
            cell = to
            if cell == maze.goal and not stop_required:
                ending, feedback = Ending.SUCCESS, SOLVED
    if ending is _RUNNING and moves >= limit:
        ending, feedback = Ending.LIMIT, f"{feedback} {OUT_OF_MOVES}".lstrip()
    return MazeState(maze, cell, moves, limit, stop_required, trail), ending, feedback
