"""The environment offers: how the runner and Gymnasium's registry see the mazes."""

from __future__ import annotations

from functools import partial
from typing import Any

from mazeenv import env, fixed, tasks, wording
from mazeenv.config import MazeConfig
from mazeenv.grid import WORDS
from vismaze_hooks import EnvironmentOffer

ID = "VisMaze-v0"
VIEW_OPTIONS = ("observation", "observation_options", "reward", "cell_px", "theme", "render_mode")


def maze_offer(id: str = ID, **options: Any) -> EnvironmentOffer:
    """Offer `VisMaze-v0` with these options of `VisMazeEnv`; its fixed sets are those of the board's size.

    Raises:
        ValueError: an unknown option, or one out of range.
    """
    config = MazeConfig.of({name: value for name, value in options.items() if name not in VIEW_OPTIONS})
    names = [name for name, entry in fixed.SETS.items() if entry.size == config.sides]
    return EnvironmentOffer(
        id=id,
        entry_point="mazeenv.env:VisMazeEnv",
        words=WORDS,
        prompt=wording.prompt,
        kwargs=options,
        stream=partial(tasks.training_stream, config, id),
        fixed_sets={name: partial(tasks.eval_set, name, config) for name in names},
        solver=env.solve,
        baselines={"random": env.random_action, "greedy": env.greedy_action},
    )
