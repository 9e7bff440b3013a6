"""Pictures of a state: one background per maze, kept in a bounded cache, and a sprite for the player."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mazeenv.maze import Maze
from mazeenv.state import MazeState
from mazeenv.themes import THEMES, Theme

if TYPE_CHECKING:
    from PIL import Image

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


class Scenery(NamedTuple):
    """What all pictures of one maze have in common. Shared, so never written to."""

    background: np.ndarray  # the maze without its player, uint8 [height·cell_px, width·cell_px, 3]
    player: np.ndarray  # a cell with the player on the floor, uint8 [cell_px, cell_px, 3]
    player_on_goal: np.ndarray
    places: tuple[tuple[slice, slice], ...]  # of each cell in the picture


@lru_cache(maxsize=BACKGROUNDS)
def scenery(maze: Maze, cell_px: int, theme: str) -> Scenery:
    """Draw a maze without its player."""
    look, width = THEMES[theme], maze.width
    tiles = [bytes(colour) * cell_px for colour in (look.floor, look.wall)]
    rows = []
    for at in range(0, len(maze.walls), width):
        rows.append(b"".join([tiles[wall] for wall in maze.walls[at : at + width]]) * cell_px)
    frame = np.frombuffer(bytearray(b"".join(rows)), dtype=np.uint8).reshape(maze.height * cell_px, width * cell_px, 3)
    where = places(maze.height, width, cell_px)
    frame[where[maze.goal]] = look.goal
    frame.flags.writeable = False
    return Scenery(frame, coloured_sprite(cell_px, theme, FLOOR), coloured_sprite(cell_px, theme, GOAL), where)


@lru_cache(maxsize=32)
def places(height: int, width: int, cell_px: int) -> tuple[tuple[slice, slice], ...]:
    """Return where each cell stands in the picture."""
    rows = [slice(row * cell_px, (row + 1) * cell_px) for row in range(height)]
    columns = [slice(column * cell_px, (column + 1) * cell_px) for column in range(width)]
    return tuple((row, column) for row in rows for column in columns)


@lru_cache(maxsize=32)
def coloured_sprite(cell_px: int, theme: str, under: int) -> np.ndarray:
    """Return `sprite` in colours, uint8 [cell_px, cell_px, 3]."""
    look = THEMES[theme]
    return colours(look)[sprite(cell_px, look.radius, under)]


def draw_rgb(state: MazeState, cell_px: int, theme: str = "plain") -> np.ndarray:
    """Return a fresh picture, uint8 [height·cell_px, width·cell_px, 3]."""
    maze, cell = state.maze, state.cell
    background, player, player_on_goal, where = scenery(maze, cell_px, theme)
    frame = background.copy()
    frame[where[cell]] = player_on_goal if cell == maze.goal else player
    return frame


def draw_palette(state: MazeState, cell_px: int, theme: str = "plain") -> Image.Image:
    """Return the same picture as a PIL image of mode "P" with four colours, for a small PNG."""
    from PIL import Image  # here, since it would take a fifth of the package's import time, and few need it

    maze, look = state.maze, THEMES[theme]
    cells = np.frombuffer(maze.walls, dtype=np.uint8).reshape(maze.height, maze.width).copy()
    cells[divmod(maze.goal, maze.width)] = GOAL
    indices = cells.repeat(cell_px, axis=0).repeat(cell_px, axis=1)
    under = GOAL if state.cell == maze.goal else FLOOR
    indices[places(maze.height, maze.width, cell_px)[state.cell]] = sprite(cell_px, look.radius, under)
    image = Image.fromarray(indices)
    image.putpalette(colours(look).tobytes())
    return image
