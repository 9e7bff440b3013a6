"""How large a cell is drawn: pixels, or the name of a model whose one visual token then is one cell."""

from __future__ import annotations

from dataclasses import dataclass

from vismaze_hooks import pick


@dataclass(frozen=True)
class CellSize:
    """Pixels per cell, and the pixels that a picture must have so that the model's processor leaves it as it is."""

    cell_px: int
    least_pixels: int = 0


# A visual token of Qwen2.5-VL covers 28×28 pixels (patch 14, merge 2), one of Qwen3-VL 32×32 (patch 16, merge 2). The
# latter's processor enlarges, and so blurs, pictures under 65,536 pixels: smaller boards get a thicker rim instead.
CELL_SIZES = {"qwen2.5-vl": CellSize(28), "qwen3-vl": CellSize(32, 65_536)}


def cell_size(choice: int | str) -> CellSize:
    """Return what a choice of pixels or of a model's name means.

    Raises:
        ValueError: not a whole number from 1 to 256, or an unknown name (the nearest is suggested).
    """
    if isinstance(choice, str):
        return pick("cell size", choice, CELL_SIZES)
    if isinstance(choice, bool) or not isinstance(choice, int) or not 1 <= choice <= 256:
        raise ValueError(
            f"cell_px={choice!r}: must be a whole number of pixels from 1 to 256, or one of {', '.join(CELL_SIZES)}"
        )
    return CellSize(choice)


def picture_size(rows: int, columns: int, choice: int | str) -> tuple[int, int]:
    """Return height and width in pixels of a board's picture; the shorter side grows by whole cells until there are enough."""
    size = cell_size(choice)
    while rows * columns * size.cell_px**2 < size.least_pixels:
        rows, columns = (rows + 1, columns) if rows <= columns else (rows, columns + 1)
    return rows * size.cell_px, columns * size.cell_px
