"""Draws the contact sheets of `docs/images`: every environment, observation and theme. `python docs/make_images.py`"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mazeenv.episodes import draw_task, offer_of, play_back, solved
from mazeenv.show import sheet
from mazeenv.themes import THEMES

IMAGES = Path(__file__).parent / "images"
THEME_SHEET = {theme: ("VisMaze-v0", {"size": 9, "cell_px": 16, "theme": theme}) for theme in THEMES}
OBSERVATION_SHEET = {
    "rgb": ("VisMaze-v0", {"size": 9, "cell_px": 16}),
    "rgb, qwen3-vl": ("VisMaze-v0", {"size": 5, "cell_px": "qwen3-vl"}),
    "egocentric": ("VisMaze-v0", {"size": 9, "cell_px": 24, "observation": "egocentric"}),
    "egocentric, fog": (
        "VisMaze-v0",
        {"size": 9, "cell_px": 24, "observation": "egocentric", "observation_options": {"view": 7, "fog": True}},
    ),
    "first_person": ("VisMaze-v0", {"size": 9, "observation": "first_person"}),
    "first_person, 90 degrees": (
        "VisMaze-v0",
        {"size": 9, "observation": "first_person", "observation_options": {"fov": 90, "width": 144, "height": 128}},
    ),
}
FEW = {"evaluation": 2, "tuning": 2}
ENVIRONMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "klotski": ("Klotski-v0", {"cell_px": 28}),
    "jigsaw": ("Jigsaw-v0", {"tiles": 3, "px": 144, "swaps": [3, 6]}),
    "matchstick": ("Matchstick-v0", {"unit": 9, "changes": 2}),
    "firstperson": ("FirstPersonMaze-v0", {"size": 7, "shortest": [4, 8]}),
    "frozenlake": (
        "Gymnasium-v0",
        {
            "env": "FrozenLake-v1",
            "words": ["left", "down", "right", "up"],
            "kwargs": {"is_slippery": False},
            "shrink": 2,
            "scramble": 10,
            **FEW,
        },
    ),
    "cliffwalking": (
        "Gymnasium-v0",
        {
            "env": "CliffWalking-v1",
            "words": ["up", "right", "down", "left"],
            "success": "terminated",
            "shrink": 4,
            "scramble": 40,
            **FEW,
        },
    ),
    "minigrid": (
        "Gymnasium-v0",
        {
            "env": "minigrid:MiniGrid-Empty-Random-5x5-v0",
            "words": {"left": 0, "right": 1, "forward": 2},
            "kwargs": {"tile_size": 24},
            **FEW,
        },
    ),
}


def moments(environment: str, options: dict[str, Any], seed: int, most: int) -> list[np.ndarray]:
    """Return the first pictures of the solver's way from a level."""
    task = draw_task(offer_of(environment, options), seed)
    return [moment.picture for moment in play_back(solved(environment, options, task))[1]][:most]


def middle(environment: str, options: dict[str, Any], seed: int = 5) -> np.ndarray:
    """Return the picture after half of the solver's way."""
    shown = moments(environment, options, seed, 99)
    return shown[len(shown) // 2]


def main() -> None:
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    sheets = {
        "themes": sheet([middle(*what) for what in THEME_SHEET.values()], across=4),
        "observations": sheet([middle(*what) for what in OBSERVATION_SHEET.values()], across=3),
        **{name: sheet(moments(*what, seed=3, most=6), across=6) for name, what in ENVIRONMENTS.items()},
    }
    for name, picture in sheets.items():
        Image.fromarray(picture).quantize(128).save(IMAGES / f"{name}.png", optimize=True)
        print(f"{name}.png: {picture.shape[1]}x{picture.shape[0]}")


if __name__ == "__main__":
    main()
