"""The picture: each block in a colour of its own, a tile per square."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from gymnasium import spaces

from vismaze_hooks import Observation
from vismaze_klotski.board import Position

COLOURS = {
    "red": (220, 40, 40),
    "blue": (40, 90, 225),
    "green": (40, 160, 70),
    "yellow": (245, 215, 50),
    "purple": (140, 60, 180),
    "orange": (245, 145, 30),
    "cyan": (60, 200, 215),
    "pink": (250, 150, 190),
    "brown": (130, 80, 45),
    "gray": (130, 135, 140),
    "lime": (160, 225, 70),
    "navy": (20, 30, 95),
}
FREE, EXIT, EDGE = (250, 250, 250), (255, 205, 205), (30, 32, 38)


@dataclass(frozen=True)
class Picture:
    """A board from above: uint8 [rows·cell_px, columns·cell_px, 3]."""

    cell_px: int

    def space(self, position: Position) -> spaces.Box:
        return spaces.Box(0, 255, (position.rows * self.cell_px, position.columns * self.cell_px, 3), np.uint8)

    def observe(self, position: Position) -> np.ndarray:
        rows, columns, px = position.rows, position.columns, self.cell_px
        owner = np.full(rows * columns, -1)
        for block, mask in enumerate(position.blocks):
            owner[[square for square in range(rows * columns) if mask >> square & 1]] = block
        goal = [position.goal >> square & 1 for square in range(rows * columns)]
        palette = np.array([*COLOURS.values(), FREE, EXIT], dtype=np.uint8)
        colour = np.where(owner >= 0, owner, np.where(np.array(goal) == 1, len(COLOURS) + 1, len(COLOURS)))
        picture = palette[colour].reshape(rows, columns, 3).repeat(px, axis=0).repeat(px, axis=1)
        line = max(1, px // 16)
        for row in range(rows):
            for column in range(columns):
                mine = owner[row * columns + column]
                if mine < 0:
                    continue
                top, left = row * px, column * px
                cell = picture[top : top + px, left : left + px]
                if row == 0 or owner[(row - 1) * columns + column] != mine:
                    cell[:line] = EDGE
                if row == rows - 1 or owner[(row + 1) * columns + column] != mine:
                    cell[-line:] = EDGE
                if column == 0 or owner[row * columns + column - 1] != mine:
                    cell[:, :line] = EDGE
                if column == columns - 1 or owner[row * columns + column + 1] != mine:
                    cell[:, -line:] = EDGE
        return picture

    def legend(self, position: Position) -> str:
        colours = ", ".join(list(COLOURS)[: len(position.blocks)])
        free = "white squares are free, pale red ones are free squares of the goal"
        return f"A board of sliding blocks from above, {colours}; {free}"


def picture(cell_px: int = 32) -> Observation:
    """Make the picture.

    Raises:
        ValueError: `cell_px` is not a whole number from 4 to 256.
    """
    if isinstance(cell_px, bool) or not isinstance(cell_px, int) or not 4 <= cell_px <= 256:
        raise ValueError(f"cell_px={cell_px!r}: must be a whole number of pixels from 4 to 256")
    shown = Picture(cell_px)
    return Observation("image", shown.space, shown.observe, legend=shown.legend)
