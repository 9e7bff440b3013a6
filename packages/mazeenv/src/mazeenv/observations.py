"""How a state is shown: records of a space and a pure function."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from gymnasium import spaces
from PIL import Image

from mazeenv import drawing
from mazeenv.state import MazeState
from mazeenv.themes import THEMES
from vismaze_hooks import Observation, pick


@dataclass(frozen=True)
class Picture:
    """The maze from above in flat colours. A record of functions rather than closures, so that it can be pickled."""

    cell_px: int
    theme: str

    def space(self, state: MazeState) -> spaces.Box:
        shape = (state.maze.height * self.cell_px, state.maze.width * self.cell_px, 3)
        return spaces.Box(0, 255, shape, np.uint8)

    def observe(self, state: MazeState) -> np.ndarray:
        return drawing.draw_rgb(state, self.cell_px, self.theme)

    def palette_image(self, state: MazeState) -> Image.Image:
        return drawing.draw_palette(state, self.cell_px, self.theme)


def rgb(*, cell_px: int = 32, theme: str = "plain") -> Observation:
    """Make the picture from above: uint8 [height·cell_px, width·cell_px, 3].

    Raises:
        ValueError: `cell_px` is not a whole number from 1 to 256, or the theme is unknown.
    """
    if isinstance(cell_px, bool) or not isinstance(cell_px, int) or not 1 <= cell_px <= 256:
        raise ValueError(f"cell_px={cell_px!r}: must be a whole number of pixels from 1 to 256")
    pick("theme", theme, THEMES)
    picture = Picture(cell_px, theme)
    return Observation("image", picture.space, picture.observe, palette_image=picture.palette_image)
