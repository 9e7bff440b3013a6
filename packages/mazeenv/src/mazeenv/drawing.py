"""Pictures of a state: one background per maze, kept in a bounded cache, and tiles for what changes."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mazeenv.maze import Maze
from mazeenv.sizes import cell_size, picture_size
from mazeenv.state import MazeState
from mazeenv.themes import Theme, look

if TYPE_CHECKING:
    from PIL import Image

FLOOR, WALL, GOAL, PLAYER, TRAIL, FOG, ON_GOAL = range(7)  # kinds of cells: floor, …, the player, …, the player on the goal
GRID = 6  # the palette has the colours of the first six kinds, then that of the lines
BACKGROUNDS = 64  # mazes whose background is kept


def colours(theme: Theme) -> np.ndarray:
    """Return the palette, uint8 [7, 3]."""
    chosen = [theme.floor, theme.wall, theme.goal, theme.player, theme.trail or theme.floor, theme.fog]
    return np.array([*chosen, theme.grid or theme.floor], dtype=np.uint8)


def disc(cell_px: int, radius: float) -> np.ndarray:
    """Return where a disc is in a cell, bool [cell_px, cell_px]; a dot at least."""
    middle = (cell_px - 1) / 2
    rows, columns = np.ogrid[:cell_px, :cell_px]
    return (rows - middle) ** 2 + (columns - middle) ** 2 <= max(radius * cell_px, 0.8) ** 2


@lru_cache(maxsize=64)
def index_tiles(cell_px: int, theme: Theme) -> np.ndarray:
    """Return each kind of cell as palette indices, uint8 [7, cell_px, cell_px]."""
    under = np.array([FLOOR, WALL, GOAL, FLOOR, FLOOR, FOG, GOAL], dtype=np.uint8)
    tiles = under.repeat(cell_px**2).reshape(7, cell_px, cell_px)
    if theme.grid is not None:
        tiles[:FOG, 0] = tiles[:FOG, :, 0] = tiles[ON_GOAL, 0] = tiles[ON_GOAL, :, 0] = GRID
    player = disc(cell_px, theme.radius)
    tiles[PLAYER][player] = tiles[ON_GOAL][player] = PLAYER
    tiles[TRAIL][disc(cell_px, 0.14)] = TRAIL
    return tiles


@lru_cache(maxsize=64)
def tiles(cell_px: int, theme: Theme) -> np.ndarray:
    """Return each kind of cell in colours, uint8 [7, cell_px, cell_px, 3]. Shared, so never written to."""
    return colours(theme)[index_tiles(cell_px, theme)]


def kinds(state: MazeState) -> np.ndarray:
    """Return the kind of each cell, uint8 [height, width]."""
    maze, cell, trail = state.maze, state.cell, state.trail
    cells = np.frombuffer(maze.walls, dtype=np.uint8).copy()
    if trail is not None:
        cells[np.frombuffer(trail, dtype=np.bool_)] = TRAIL
    cells[maze.goal] = GOAL
    cells[cell] = ON_GOAL if cell == maze.goal else PLAYER
    return cells.reshape(maze.height, maze.width)


def lay(cells: np.ndarray, cell_tiles: np.ndarray) -> np.ndarray:
    """Put tiles [kinds, px, px, …] side by side as the cells [rows, columns] say: [rows·px, columns·px, …]."""
    rows, columns = cells.shape
    px, more = cell_tiles.shape[1], cell_tiles.shape[3:]
    return np.ascontiguousarray(cell_tiles[cells].swapaxes(1, 2)).reshape(rows * px, columns * px, *more)


class Scenery(NamedTuple):
    """What all pictures of one maze have in common. Shared, so never written to."""

    background: np.ndarray  # the maze without its player, uint8 [height, width, 3] in pixels
    tiles: np.ndarray  # what may be put into a cell, uint8 [7, cell_px, cell_px, 3]
    places: tuple[tuple[slice, slice], ...]  # of each cell in the picture


@lru_cache(maxsize=BACKGROUNDS)
def scenery(maze: Maze, cell_px: int | str, theme: str) -> Scenery:
    """Draw a maze without its player."""
    chosen, px, width = look(theme, maze), cell_size(cell_px).cell_px, maze.width
    put, frame = tiles(px, chosen), np.empty((*picture_size(maze.height, width, cell_px), 3), dtype=np.uint8)
    where = places(maze.height, width, px)
    if chosen.grid is None:  # joining bytes is the fastest way to a new background
        flat = [bytes(colour) * px for colour in (chosen.floor, chosen.wall)]
        rows = []
        for at in range(0, len(maze.walls), width):
            rows.append(b"".join([flat[wall] for wall in maze.walls[at : at + width]]) * px)
        board = np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(maze.height * px, width * px, 3)
    else:
        board = lay(np.frombuffer(maze.walls, dtype=np.uint8).reshape(maze.height, width), put)
    if frame.shape != board.shape:
        frame[...] = chosen.wall
    frame[: board.shape[0], : board.shape[1]] = board
    frame[where[maze.goal]] = put[GOAL]
    frame.flags.writeable = False
    return Scenery(frame, put, where)


@lru_cache(maxsize=32)
def places(height: int, width: int, cell_px: int) -> tuple[tuple[slice, slice], ...]:
    """Return where each cell stands in the picture."""
    rows = [slice(row * cell_px, (row + 1) * cell_px) for row in range(height)]
    columns = [slice(column * cell_px, (column + 1) * cell_px) for column in range(width)]
    return tuple((row, column) for row in rows for column in columns)


def draw_rgb(state: MazeState, cell_px: int | str, theme: str = "plain") -> np.ndarray:
    """Return a fresh picture, uint8 [height·cell_px, width·cell_px, 3] (more where a named cell size asks for it)."""
    maze, cell = state.maze, state.cell
    background, put, where = scenery(maze, cell_px, theme)
    frame = background.copy()
    if state.trail is not None:
        for walked, been in enumerate(state.trail):
            if been and walked != maze.goal:
                frame[where[walked]] = put[TRAIL]
    frame[where[cell]] = put[ON_GOAL if cell == maze.goal else PLAYER]
    return frame


def draw_palette(state: MazeState, cell_px: int | str, theme: str = "plain") -> Image.Image:
    """Return the same picture as a PIL image of mode "P" with at most seven colours, for a small PNG."""
    from PIL import Image  # here, since it would take a fifth of the package's import time, and few need it

    chosen, maze = look(theme, state.maze), state.maze
    board = lay(kinds(state), index_tiles(cell_size(cell_px).cell_px, chosen))
    indices = np.full(picture_size(maze.height, maze.width, cell_px), WALL, dtype=np.uint8)
    indices[: board.shape[0], : board.shape[1]] = board
    image = Image.fromarray(indices)
    image.putpalette(colours(chosen).tobytes())
    return image
