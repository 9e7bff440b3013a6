"""A maze seen from inside: one ray per column of the picture, all rays at once."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi

import numpy as np

from mazeenv.maze import Maze
from mazeenv.themes import Colour, Theme

HEADINGS = (0.0, pi, -pi / 2, pi / 2)  # of the moves up, down, left, right: radians clockwise from up
PILLAR = 0.3  # radius of the pillar on the goal, in cells
EDGE = 0.04  # width of the dark line at each cell's edges, in cells


@dataclass(frozen=True)
class Rays:
    """What the rays of a view meet. Distances are in cells, and along the view's axis where the picture is flat."""

    distance: np.ndarray  # float64 [columns], to the wall
    across: np.ndarray  # bool [columns]: the wall runs left to right on the map
    along: np.ndarray  # float64 [columns] in [0, 1): where on the cell's side
    pillar: np.ndarray  # float64 [columns], to the goal's pillar; infinite where it is not met


def angles(columns: int, fov: float) -> tuple[np.ndarray, np.ndarray]:
    """Return each column's angle from the middle, in radians, and what its distances are multiplied with.

    Up to 120° the picture is flat, as through a window; beyond, it is rolled off a cylinder, since no window is that wide.
    """
    middles = (np.arange(columns) + 0.5) / columns * 2 - 1  # -1 … 1
    if fov <= 2 * pi / 3:
        turned = np.arctan(middles * np.tan(fov / 2))
        return turned, np.cos(turned)
    return middles * fov / 2, np.ones(columns)


def cast(maze: Maze, cell: int, heading: float, columns: int, fov: float) -> Rays:
    """Follow a ray for each column from the middle of a cell to the first wall (Amanatides and Woo, Eurographics 1987)."""
    walls = np.frombuffer(maze.walls, dtype=np.bool_).reshape(maze.height, maze.width)
    turned, flatten = angles(columns, fov)
    direction = np.stack([-np.cos(heading + turned), np.sin(heading + turned)])  # [2, columns]: rows, columns of the map
    direction[np.abs(direction) < 1e-9] = 1e-9
    eye = np.array(divmod(cell, maze.width), dtype=np.float64)[:, None] + 0.5
    at = np.repeat(np.floor(eye).astype(np.int64), columns, axis=1)
    step, gap = np.sign(direction).astype(np.int64), 1 / np.abs(direction)  # gap: along the ray, from line to line
    line = 0.5 * gap  # to the next line across each axis; the eye is in the middle of a cell
    axis, distance = np.zeros(columns, dtype=np.int64), np.zeros(columns)
    rays = np.arange(columns)
    while len(rays):
        axis[rays] = nearer = (line[1, rays] < line[0, rays]).astype(np.int64)
        distance[rays] = line[nearer, rays]
        line[nearer, rays] += gap[nearer, rays]
        at[nearer, rays] += step[nearer, rays]
        rays = rays[~walls[at[0, rays], at[1, rays]]]
    met = eye + direction * distance
    along = np.where(axis == 0, met[1], met[0]) % 1.0
    towards = np.array(divmod(maze.goal, maze.width), dtype=np.float64)[:, None] + 0.5 - eye
    ahead, aside = (towards * direction).sum(axis=0), towards[0] * direction[1] - towards[1] * direction[0]
    reach = PILLAR**2 - aside**2
    pillar = np.where((reach > 0) & (ahead > PILLAR), ahead - np.sqrt(np.maximum(reach, 0)), np.inf)
    pillar[pillar > distance] = np.inf
    return Rays(distance * flatten, axis == 0, along, pillar * flatten)


def view(maze: Maze, cell: int, heading: float, size: tuple[int, int], fov: float, theme: Theme) -> np.ndarray:
    """Return what is seen from the middle of a cell: uint8 [height, width, 3].

    Walls are a cell high and darker with distance, those that run left to right on the map a little lighter; the sky is pale,
    the floor has the theme's colour, or the goal's where one stands on it; the goal is a pillar half as high as the walls.

    Args:
        heading: radians clockwise from up on the map.
        size: height and width in pixels.
        fov: radians from the left edge to the right.
    """
    height, width = size
    rays = cast(maze, cell, heading, width, fov)
    rows = np.arange(height)[:, None] + 0.5 - height / 2  # from the horizon down
    scale = height / 2 * (1.0 if fov <= 2 * pi / 3 else 1.6)  # a wall at the distance 1 is 2·scale/2 high
    picture = np.empty((height, width, 3), dtype=np.uint8)
    picture[rows[:, 0] < 0] = (200, 220, 240)
    picture[rows[:, 0] >= 0] = theme.goal if cell == maze.goal else theme.floor
    half = scale / np.maximum(rays.distance, 0.05)
    edge = (rays.along < EDGE) | (rays.along > 1 - EDGE)
    light = np.where(edge, 0.0, np.where(rays.across, 0.75, 0.55)) / (1 + 0.15 * rays.distance)
    wall = np.rint(_between(theme.wall, (235, 235, 235), light)).astype(np.uint8)  # [columns, 3]
    picture[...] = np.where((np.abs(rows) < half)[..., None], wall, picture)
    met = np.isfinite(rays.pillar)
    half = np.where(met, scale / np.maximum(rays.pillar, 0.05), 0.0)
    picture[(rows < half) & (rows > 0) & met] = theme.goal
    return picture


def _between(dark: Colour, light: Colour, share: np.ndarray) -> np.ndarray:
    a, b = np.array(dark, dtype=np.float64), np.array(light, dtype=np.float64)
    return a + (b - a) * share[:, None]
