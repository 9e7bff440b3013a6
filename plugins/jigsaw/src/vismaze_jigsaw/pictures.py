"""Pictures from a seed: float arithmetic on a grid of pixels, rounded at the end."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from vismaze_hooks.integers import Integers

LEAST_DIFFERENCE = 4.0  # between any two tiles, of 255, the mean over pixels and colours

Painter = Callable[[int, Integers], np.ndarray]  # side in pixels, random integers -> float [side, side, 3] in 0 … 255


def _colours(count: int, integers: Integers) -> np.ndarray:
    return np.array([[integers.below(256) for _ in range(3)] for _ in range(count)], dtype=np.float64)


def _grid(side: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and columns of the pixels' middles in 0 … 1."""
    at = (np.arange(side) + 0.5) / side
    return at[:, None], at[None, :]


def gradient(side: int, integers: Integers) -> np.ndarray:
    """Four colours in the corners, and what lies between."""
    rows, columns = _grid(side)
    a, b, c, d = _colours(4, integers)
    top = a * (1 - columns[..., None]) + b * columns[..., None]
    bottom = c * (1 - columns[..., None]) + d * columns[..., None]
    return top * (1 - rows[..., None]) + bottom * rows[..., None]


def regions(side: int, integers: Integers) -> np.ndarray:
    """Flat regions around random points (Voronoi)."""
    rows, columns = _grid(side)
    points = np.array([[integers.below(1000) / 1000, integers.below(1000) / 1000] for _ in range(12)])
    colours = _colours(12, integers)
    away = (rows[..., None] - points[:, 0]) ** 2 + (columns[..., None] - points[:, 1]) ** 2
    return colours[away.argmin(axis=2)]


def noise(side: int, integers: Integers) -> np.ndarray:
    """Smooth value noise between two colours, in two octaves."""
    rows, columns = _grid(side)
    dark, light = _colours(2, integers) * np.array([[0.5], [1.0]])
    value = np.zeros((side, side))
    for cells, weight in ((4, 0.7), (8, 0.3)):
        knots = np.array([[integers.below(1000) / 999 for _ in range(cells + 1)] for _ in range(cells + 1)])
        value += weight * _smooth(knots, rows * cells, columns * cells)
    return dark + (light - dark) * np.clip(value * 1.6 - 0.3, 0, 1)[..., None]


def _smooth(knots: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    r, c = np.minimum(rows.astype(int), len(knots) - 2), np.minimum(columns.astype(int), len(knots) - 2)
    u, v = rows - r, columns - c
    u, v = u * u * (3 - 2 * u), v * v * (3 - 2 * v)
    top = knots[r, c] * (1 - v) + knots[r, c + 1] * v
    bottom = knots[r + 1, c] * (1 - v) + knots[r + 1, c + 1] * v
    return top * (1 - u) + bottom * u


def rings(side: int, integers: Integers) -> np.ndarray:
    """Rings of five colours around a random point, over a slant of light."""
    rows, columns = _grid(side)
    row, column = integers.below(1000) / 1000, integers.below(1000) / 1000
    colours = _colours(5, integers)
    distance = np.sqrt((rows - row) ** 2 + (columns - column) ** 2)
    return colours[(distance * 9).astype(int) % 5] * (0.6 + 0.4 * (rows + columns) / 2)[..., None]


PAINTERS: dict[str, Painter] = {"gradient": gradient, "regions": regions, "noise": noise, "rings": rings}


@lru_cache(maxsize=256)
def paint(kind: str, seed: int, tiles: int, side: int) -> np.ndarray:
    """Return the tiles of a picture in its own order, uint8 [tiles², px, px, 3]. Shared, so never written to."""
    cut = _cut(PAINTERS[kind](side, Integers(seed, _lane(kind, seed, tiles))), tiles)
    cut.flags.writeable = False
    return cut


@lru_cache(maxsize=4096)
def _lane(kind: str, seed: int, tiles: int) -> int:
    """Return which of a seed's pictures is taken: the first in which no two tiles are alike, as drawn small."""
    different = ~np.eye(tiles * tiles, dtype=bool)
    for lane in range(1_000):
        small = _cut(PAINTERS[kind](6 * tiles, Integers(seed, lane)), tiles).reshape(tiles * tiles, -1).astype(np.int64)
        if np.abs(small[:, None] - small[None]).mean(axis=2)[different].min() > LEAST_DIFFERENCE:
            return lane
    raise ValueError(f"no {kind} picture of seed {seed} has {tiles * tiles} different tiles; choose fewer tiles")


def _cut(picture: np.ndarray, tiles: int) -> np.ndarray:
    px = len(picture) // tiles
    whole = np.rint(np.clip(picture, 0, 255)).astype(np.uint8)
    return whole.reshape(tiles, px, tiles, px, 3).swapaxes(1, 2).reshape(tiles * tiles, px, px, 3)
