"""Pictures of a state: one background per maze, kept in a bounded cache, and a sprite for the player."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from PIL import Image

from mazeenv.maze import Maze
from mazeenv.state import MazeState
from mazeenv.themes import THEMES, Theme

FLOOR, WALL, GOAL, PLAYER = range(4)  # palette indices
BACKGROUNDS = 64  # mazes whose background is kept


@lru_cache(maxsize=32)
def sprite(cell_px: int, radius: float, under: int) -> np.ndarray:
    """Return the palette indices of a cell with the player on it, [cell_px, cell_px]: a disc over `under`."""
    middle = (cell_px - 1) / 2
    rows, columns = np.ogrid[:cell_px, :cell_px]
    disc = (rows - middle) ** 2 + (columns - middle) ** 2 <= max(radius * cell_px, 0.8) ** 2
    return np.where(disc, PLAYER, under).astype(np.uint8)


def colours(theme: Theme) -> np.ndarray:
    """Return the palette, uint8 [4, 3]."""
    return np.array([theme.floor, theme.wall, theme.goal, theme.player], dtype=np.uint8)


@lru_cache(maxsize=BACKGROUNDS)
def _background(maze: Maze, cell_px: int, theme: str) -> np.ndarray:
    """Return the maze without its player, uint8 [height·cell_px, width·cell_px, 3]; shared, so never written to."""
    look, width = THEMES[theme], maze.width
    tiles = [bytes(colour) * cell_px for colour in (look.floor, look.wall)]
    rows = []
    for at in range(0, len(maze.walls), width):
        rows.append(b"".join([tiles[wall] for wall in maze.walls[at : at + width]]) * cell_px)
    frame = np.frombuffer(bytearray(b"".join(rows)), dtype=np.uint8).reshape(maze.height * cell_px, width * cell_px, 3)
    row, column = divmod(maze.goal, width)
    frame[row * cell_px : (row + 1) * cell_px, column * cell_px : (column + 1) * cell_px] = look.goal
    frame.flags.writeable = False
    return frame


@lru_cache(maxsize=32)
def _coloured_sprite(cell_px: int, theme: str, under: int) -> np.ndarray:
    look = THEMES[theme]
    return colours(look)[sprite(cell_px, look.radius, under)]


def draw_rgb(state: MazeState, cell_px: int, theme: str = "plain") -> np.ndarray:
    """Return a fresh picture, uint8 [height·cell_px, width·cell_px, 3]."""
    maze, cell = state.maze, state.cell
    frame = _background(maze, cell_px, theme).copy()
    row, column = divmod(cell, maze.width)
    top, left = row * cell_px, column * cell_px
    under = GOAL if cell == maze.goal else FLOOR
    frame[top : top + cell_px, left : left + cell_px] = _coloured_sprite(cell_px, theme, under)
    return frame


def draw_palette(state: MazeState, cell_px: int, theme: str = "plain") -> Image.Image:
    """Return the same picture as a PIL image of mode "P" with four colours, for a small PNG."""
    maze, look = state.maze, THEMES[theme]
    cells = np.frombuffer(maze.walls, dtype=np.uint8).reshape(maze.height, maze.width).copy()
    cells[divmod(maze.goal, maze.width)] = GOAL
    indices = cells.repeat(cell_px, axis=0).repeat(cell_px, axis=1)
    row, column = divmod(state.cell, maze.width)
    top, left = row * cell_px, column * cell_px
    under = GOAL if state.cell == maze.goal else FLOOR
    indices[top : top + cell_px, left : left + cell_px] = sprite(cell_px, look.radius, under)
    image = Image.fromarray(indices)
    image.putpalette(colours(look).tobytes())
    return image


def draw_text(state: MazeState) -> str:
    """Return the board as rows of `#`, `.`, `G` and, for the player, `A`."""
    maze = state.maze
    rows = [list(row) for row in maze.text.replace("S", ".").split("\n")]
    row, column = divmod(state.cell, maze.width)
    rows[row][column] = "A"
    return "\n".join("".join(row) for row in rows)
