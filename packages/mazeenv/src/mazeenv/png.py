"""PNG bytes of a state, two bits a pixel (four with lines or dots), from a bounded cache: a group plays one maze again and
again."""

from __future__ import annotations

import io
from functools import lru_cache

from mazeenv.drawing import draw_palette
from mazeenv.maze import Maze
from mazeenv.state import MazeState
from mazeenv.themes import look

CACHED = 4096  # pictures, of about half a kilobyte each at 9×9 cells


def png(state: MazeState, *, cell_px: int | str = 32, theme: str = "plain") -> bytes:
    """Return the picture of `rgb` with these options as PNG; it decodes to exactly the same pixels."""
    return _png(state.maze, state.cell, state.trail, cell_px, theme)


@lru_cache(maxsize=CACHED)
def _png(maze: Maze, cell: int, trail: bytes | None, cell_px: int | str, theme: str) -> bytes:
    file = io.BytesIO()
    bits = 2 if look(theme, maze).flat else 4
    draw_palette(MazeState(maze, cell, 0, 0, trail=trail), cell_px, theme).save(file, "PNG", bits=bits, compress_level=1)
    return file.getvalue()
