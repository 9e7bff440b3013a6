"""How a state is shown: records of a space and a pure function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from gymnasium import spaces

from mazeenv import drawing
from mazeenv.state import MazeState
from mazeenv.themes import THEMES
from vismaze_hooks import Observation, pick

if TYPE_CHECKING:
    from PIL import Image


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


@dataclass(frozen=True)
class Letters:
    """The board as letters: `#` wall, `.` free, `G` goal, `A` player, `@` player on the goal."""

    def space(self, state: MazeState) -> spaces.Box:
        return spaces.Box(ord("#"), ord("G"), (state.maze.height, state.maze.width), np.uint8)

    def observe(self, state: MazeState) -> np.ndarray:
        maze = state.maze
        codes = bytearray(maze.walls.translate(_CODES))
        codes[maze.goal] = ord("G")
        codes[state.cell] = ord("@") if state.cell == maze.goal else ord("A")
        return np.frombuffer(codes, dtype=np.uint8).reshape(maze.height, maze.width)

    def to_text(self, observation: np.ndarray) -> str:
        return "\n".join(bytes(row).decode("ascii") for row in observation)


@dataclass(frozen=True)
class Planes:
    """One plane of zeros and ones each for walls, free cells, the player and the goal."""

    def space(self, state: MazeState) -> spaces.Box:
        return spaces.Box(0, 1, (4, state.maze.height, state.maze.width), np.uint8)

    def observe(self, state: MazeState) -> np.ndarray:
        maze = state.maze
        planes = np.zeros((4, len(maze.walls)), dtype=np.uint8)
        planes[0] = np.frombuffer(maze.walls, dtype=np.uint8)
        planes[1] = 1 - planes[0]
        planes[2, state.cell] = planes[3, maze.goal] = 1
        return planes.reshape(4, maze.height, maze.width)


_CODES = bytes.maketrans(b"\0\1", b".#")


def ascii() -> Observation:
    """Make the board as letter codes, uint8 [height, width]; as text, rows of letters."""
    letters = Letters()
    return Observation("text", letters.space, letters.observe, to_text=letters.to_text)


def symbolic() -> Observation:
    """Make planes of zeros and ones, uint8 [4, height, width]: walls, free cells, player, goal."""
    planes = Planes()
    return Observation("array", planes.space, planes.observe)
