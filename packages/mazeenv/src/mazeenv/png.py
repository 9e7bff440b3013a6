"""PNG bytes of a state: two bits a pixel, and a bounded cache, since a group plays the same maze over and over."""

from __future__ import annotations

import io
from functools import lru_cache

from mazeenv.drawing import draw_palette
from mazeenv.maze import Maze
from mazeenv.state import MazeState

CACHED = 4096  # pictures, of about half a kilobyte each at 9×9 cells


def png(state: MazeState, *, cell_px: int = 32, theme: str = "plain") -> bytes:
    """Return the picture of `rgb` with these options as PNG; it decodes to exactly the same pixels."""
    return _png(state.maze, state.cell, cell_px, theme)


@lru_cache(maxsize=CACHED)
def _png(maze: Maze, cell: int, cell_px: int, theme: str) -> bytes:
    file = io.BytesIO()
    draw_palette(MazeState(maze, cell, 0, 0), cell_px, theme).save(file, "PNG", bits=2, compress_level=1)
    return file.getvalue()
