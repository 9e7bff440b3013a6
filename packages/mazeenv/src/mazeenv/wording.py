"""What a model is told: the prompt. Feedback is in `mazeenv.rules`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mazeenv.grammars import GRAMMARS
from mazeenv.grid import WORDS

if TYPE_CHECKING:
    from mazeenv.env import VisMazeEnv


def prompt(env: VisMazeEnv, grammar: str = "tags") -> str:
    """Return the task in words: what is seen, what wins, how many moves, how to answer."""
    state = env.state
    legend = env.observation.legend(state) if env.observation.legend is not None else "A maze"
    finish = "Walk onto the goal, then stop." if state.stop_required else "Walk onto the goal; a stop anywhere else loses."
    return (
        f"{legend}. {finish} You have {state.limit - state.moves} moves; a bump into a wall or an "
        f"unreadable answer uses one. {GRAMMARS[grammar].describe(WORDS)}"
    )
