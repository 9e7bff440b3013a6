"""Rewards: pure functions of one transition, made by factories."""

from __future__ import annotations

from vismaze_hooks import Ending, Reward, Transition


def _progress(transition: Transition) -> float:
    before, after = transition.before, transition.after
    to_goal = before.maze.to_goal
    return (to_goal[before.cell] - to_goal[after.cell]) / before.maze.shortest


def _invalid_penalty(transition: Transition) -> float:
    if transition.action is None:
        return -1.0
    before, after = transition.before, transition.after
    moved = transition.action == 4 or after.cell != before.cell
    return 0.0 if moved else -1.0


def _shortest_path(transition: Transition) -> float:
    after = transition.after
    return after.maze.shortest / after.moves if transition.ending is Ending.SUCCESS else 0.0


def shortest_path() -> Reward:
    """Make the reward for reaching the goal, less for a longer way: shortest path / moves used, so 1.0 for a shortest one.

    That is SPL of a single episode (Anderson et al., arXiv 1807.06757); a stop that must be said counts as a move.
    """
    return _shortest_path


def progress() -> Reward:
    """Make the reward for coming nearer to the goal: moves gained, as a fraction of the shortest path.

    r = (d(before) − d(after)) / d(start), with d the moves to the goal. The sum over an episode depends on its last cell
    only (1 at the goal), so walking to and fro gains nothing: Ng, Harada and Russell, ICML 1999, with γ = 1.
    """
    return _progress


def invalid_penalty() -> Reward:
    """Make the reward −1.0 for an unreadable answer or a move into a wall, else 0.0; choose its weight."""
    return _invalid_penalty
