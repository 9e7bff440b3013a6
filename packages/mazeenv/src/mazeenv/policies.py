"""Who plays: the solver, for demonstrations, and the named baselines."""

from __future__ import annotations

import numpy as np

from mazeenv.env import VisMazeEnv
from mazeenv.grid import STOP, WORDS, open_actions, steps


def solve(env: VisMazeEnv) -> tuple[int, ...]:
    """Return a shortest sequence of actions from the environment's present state to success."""
    state = env.state
    return state.maze.solution(state.cell) + ((STOP,) if state.stop_required else ())


def random_action(env: VisMazeEnv, random: np.random.Generator) -> int:
    """Baseline: any of the five actions."""
    return int(random.integers(len(WORDS)))


def greedy_action(env: VisMazeEnv, random: np.random.Generator) -> int:
    """Baseline: an open move that comes nearest to the goal as the crow flies; ties are broken at random; stops on the goal."""
    state = env.state
    maze, cell = state.maze, state.cell
    if cell == maze.goal:
        return STOP
    row, column = maze.position(maze.goal)
    away = {}
    for action in open_actions(maze.walls, maze.width, cell):
        r, c = maze.position(cell + steps(maze.width)[action])
        away[action] = abs(r - row) + abs(c - column)
    best = [action for action, distance in away.items() if distance == min(away.values())]
    return best[int(random.integers(len(best)))]
