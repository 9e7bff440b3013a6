"""The environment offers: how the runner and Gymnasium's registry see the mazes."""

from __future__ import annotations

from functools import partial
from typing import Any

from mazeenv import fixed, policies, tasks, wording
from mazeenv.config import MazeConfig
from mazeenv.grammars import GRAMMARS
from mazeenv.grid import WORDS
from vismaze_hooks import EnvironmentOffer, pick

ID = "VisMaze-v0"
EASY = "VisMaze-VisGymEasy-v0"
HARD = "VisMaze-VisGymHard-v0"
VISGYM = {"ends": "corners", "stop_required": True, "cell_px": 25, "theme": "visgym"}


def maze_offer(id: str = ID, *, grammar: str = "tags", **options: Any) -> EnvironmentOffer:
    """Offer `VisMaze-v0` with these options of `VisMazeEnv`.

    Its fixed sets are those of the board's size whose mazes can all be solved within `max_moves`.

    Args:
        grammar: how answers are written: "tags", `<action>left</action>`, or "tuples", VisGym's `('move', 2)`.

    Raises:
        ValueError: an unknown option, or one out of range.
    """
    config = MazeConfig.of(options)
    written = pick("grammar", grammar, GRAMMARS)
    most = float("inf") if config.max_moves is None else config.max_moves - config.stop_required
    names = [name for name, entry in fixed.SETS.items() if entry.size == config.sides and entry.longest <= most]
    return EnvironmentOffer(
        id=id,
        entry_point="mazeenv.env:VisMazeEnv",
        words=WORDS,
        prompt=partial(wording.prompt, grammar=grammar),
        kwargs=options,
        vector_entry_point="mazeenv.vector:VisMazeVectorEnv",
        stream=partial(tasks.training_stream, config, id),
        fixed_sets={name: partial(tasks.eval_set, name, config) for name in names},
        solver=policies.solve,
        baselines={"random": policies.random_action, "greedy": policies.greedy_action},
        parse=written.parse,
        answer=written.answer,
    )


def visgym_easy_offer(**options: Any) -> EnvironmentOffer:
    """Offer VisGym's easy maze: 9×9 cells, opposite corners, 20 turns, stop required, 25 px, its colours."""
    return maze_offer(EASY, **{"size": 9, "max_moves": 20, **VISGYM, **options})


def visgym_hard_offer(**options: Any) -> EnvironmentOffer:
    """Offer VisGym's hard maze: 11×11 cells, opposite corners, 30 turns, stop required, 25 px, its colours."""
    return maze_offer(HARD, **{"size": 11, "max_moves": 30, **VISGYM, **options})
