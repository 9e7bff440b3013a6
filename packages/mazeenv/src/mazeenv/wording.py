"""What a model is told: the prompt. Feedback is in `mazeenv.rules`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mazeenv.grid import WORDS
from mazeenv.themes import THEMES
from vismaze_hooks.answers import tagged

if TYPE_CHECKING:
    from mazeenv.env import VisMazeEnv


def prompt(env: VisMazeEnv) -> str:
    """Return the task in words: what is seen, what wins, how many moves, how to answer."""
    state = env.state
    finish = (
        "Walk onto the goal and then answer stop." if state.stop_required else "Walk onto the goal; a stop anywhere else loses."
    )
    return (
        f"A maze from above: {THEMES[env.theme].legend}. {finish} "
        f"You have {state.limit - state.moves} moves; a bump into a wall or an unreadable answer uses one. "
        f"Each turn, answer with one of {', '.join(WORDS)} in this form: {tagged(WORDS[0])}"
    )
