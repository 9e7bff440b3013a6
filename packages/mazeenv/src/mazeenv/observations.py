"""How a state is shown: records of a space and a pure function. The functions are methods of records, for pickling."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import radians
from typing import TYPE_CHECKING

import numpy as np
from gymnasium import spaces

from mazeenv import drawing, raycast, sizes
from mazeenv.state import MazeState
from mazeenv.themes import THEMES, look
from vismaze_hooks import Observation, pick

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class Picture:
    """The maze from above in flat colours."""

    cell_px: int | str
    theme: str
    rim: bool

    def space(self, state: MazeState) -> spaces.Box:
        inside = state.maze.height - 2 * (not self.rim), state.maze.width - 2 * (not self.rim)
        return _image(sizes.picture_size(*inside, self.cell_px))

    def observe(self, state: MazeState) -> np.ndarray:
        drawn = drawing.draw_rgb(state, self.cell_px, self.theme)
        return drawn if self.rim else np.ascontiguousarray(drawn[self._inside(state)])

    def palette_image(self, state: MazeState) -> Image.Image:
        image = drawing.draw_palette(state, self.cell_px, self.theme)
        if self.rim:
            return image
        rows, columns = self._inside(state)
        return image.crop((columns.start, rows.start, columns.stop, rows.stop))

    def legend(self, state: MazeState) -> str:
        around = "" if self.rim else ", beyond the picture are walls"
        return f"A maze from above: {look(self.theme, state.maze).legend}{around}"

    def _inside(self, state: MazeState) -> tuple[slice, slice]:
        return _inside(state.maze.height, state.maze.width, self.cell_px)


@lru_cache(maxsize=32)
def _inside(height: int, width: int, cell_px: int | str) -> tuple[slice, slice]:
    px = sizes.cell_size(cell_px).cell_px
    return slice(px, (height - 1) * px), slice(px, (width - 1) * px)


def rgb(*, cell_px: int | str = 32, theme: str = "plain", rim: bool = True) -> Observation:
    """Make the picture from above: uint8 [height·cell_px, width·cell_px, 3].

    Args:
        cell_px: pixels per cell, or a model whose visual token then is one cell: "qwen2.5-vl" (28) or "qwen3-vl" (32, and a
            rim as thick as its least picture needs).
        rim: show the walls around the board, which are the same in every maze. Without them the picture is two cells
            smaller each way: of a 7×7 board 25 cells in place of 49.

    Raises:
        ValueError: `cell_px` is neither a whole number from 1 to 256 nor a known name, the theme is unknown, or a rim that
            `cell_px` needs shall not be shown.
    """
    size = sizes.cell_size(cell_px)
    pick("theme", theme, THEMES)
    if not isinstance(rim, bool):
        raise ValueError(f"rim={rim!r}: must be true or false")
    if not rim and size.least_pixels:
        raise ValueError(f"rim=False: cell_px={cell_px!r} widens the rim of small boards; give cell_px as a number of pixels")
    picture = Picture(cell_px, theme, rim)
    return Observation("image", picture.space, picture.observe, palette_image=picture.palette_image, legend=picture.legend)


@dataclass(frozen=True)
class Crop:
    """The cells around the player, who is always in the middle."""

    view: int
    fog: bool
    cell_px: int | str
    theme: str

    def space(self, state: MazeState) -> spaces.Box:
        return _image(sizes.picture_size(self.view, self.view, self.cell_px))

    def cells(self, state: MazeState) -> np.ndarray:
        """Return the kinds of the cells that are shown, uint8 [view, view]."""
        reach = self.view // 2
        every = np.pad(drawing.kinds(state), reach, constant_values=drawing.WALL)
        row, column = divmod(state.cell, state.maze.width)
        window = (slice(row, row + self.view), slice(column, column + self.view))
        shown = every[window]
        if self.fog:
            seen = np.pad(in_sight(state), reach)[window]
            shown = np.where(seen, shown, np.uint8(drawing.FOG))
        return shown

    def observe(self, state: MazeState) -> np.ndarray:
        chosen = look(self.theme, state.maze)
        drawn = drawing.lay(self.cells(state), drawing.tiles(sizes.cell_size(self.cell_px).cell_px, chosen))
        size = sizes.picture_size(self.view, self.view, self.cell_px)
        if drawn.shape[:2] == size:
            return drawn
        picture = np.full((*size, 3), chosen.fog if self.fog else chosen.wall, dtype=np.uint8)
        picture[: drawn.shape[0], : drawn.shape[1]] = drawn
        return picture

    def legend(self, state: MazeState) -> str:
        fog = ", squares out of your sight are covered" if self.fog else ""
        return f"The part of a maze around you, from above: {look(self.theme, state.maze).legend}{fog}"


def in_sight(state: MazeState) -> np.ndarray:
    """Return which cells the player sees, bool [height, width]: along the four straight ways to the first wall, and the
    cells that touch those, corners included."""
    maze = state.maze
    seen = np.zeros((maze.height, maze.width), dtype=np.bool_)
    for step in (-maze.width, maze.width, -1, 1):
        cell = state.cell
        while not maze.walls[cell]:  # the rim is wall, so every way ends, and what touches it is on the board
            row, column = divmod(cell, maze.width)
            seen[row - 1 : row + 2, column - 1 : column + 2] = True
            cell += step
    return seen


def egocentric(*, view: int = 5, fog: bool = False, cell_px: int | str = 32, theme: str = "plain") -> Observation:
    """Make the crop around the player: uint8 [view·cell_px, view·cell_px, 3]; beyond the board stand walls.

    Args:
        view: cells a side, odd.
        fog: cover what is not in a straight line from the player, or beside such a line.

    Raises:
        ValueError: a value out of range, or an unknown theme or cell size.
    """
    if isinstance(view, bool) or not isinstance(view, int) or not 3 <= view <= 99 or view % 2 == 0:
        raise ValueError(f"view={view!r}: must be an odd number of cells from 3 to 99")
    if not isinstance(fog, bool):
        raise ValueError(f"fog={fog!r}: must be true or false")
    sizes.cell_size(cell_px)
    pick("theme", theme, THEMES)
    crop = Crop(view, fog, cell_px, theme)
    return Observation("image", crop.space, crop.observe, legend=crop.legend)


@dataclass(frozen=True)
class Inside:
    """The maze from where the player stands, looking up on the map."""

    height: int
    width: int
    fov: int
    theme: str

    def space(self, state: MazeState) -> spaces.Box:
        return _image((self.height, self.width))

    def observe(self, state: MazeState) -> np.ndarray:
        theme, size = look(self.theme, state.maze), (self.height, self.width)
        return raycast.view(state.maze, state.cell, raycast.HEADINGS[0], size, radians(self.fov), theme)

    def legend(self, state: MazeState) -> str:
        around = (
            "the middle of the picture is up, a quarter to the left of it is left, a quarter to the right is right, both edges "
            "are down"
            if self.fov == 360
            else f"the middle of the picture is up, {self.fov // 2} degrees are seen to each side"
        )
        return f"A maze from inside: {around}; the goal is the pillar that stands on the floor"


def first_person(*, width: int = 256, height: int = 128, fov: int = 360, theme: str = "plain") -> Observation:
    """Make the view from inside the maze: uint8 [height, width, 3]. Moves stay those of the map: up is straight ahead.

    Args:
        fov: degrees from the left edge to the right; 360 is all around.

    Raises:
        ValueError: a value out of range, or an unknown theme.
    """
    check_view(width, height, fov)
    pick("theme", theme, THEMES)
    inside = Inside(height, width, fov, theme)
    return Observation("image", inside.space, inside.observe, legend=inside.legend)


def check_view(width: int, height: int, fov: int) -> None:
    """Refuse the sizes of a view from inside that cannot be drawn.

    Raises:
        ValueError: names the option and its range.
    """
    for name, value, least, most in (("width", width, 8, 2048), ("height", height, 8, 2048), ("fov", fov, 30, 360)):
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"{name}={value!r}: must be a whole number from {least} to {most}")


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

    def legend(self, state: MazeState) -> str:
        return "A maze from above: # is a wall, . is free, A is you, G is the goal, @ is you on the goal"


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
    return Observation("text", letters.space, letters.observe, to_text=letters.to_text, legend=letters.legend)


def symbolic() -> Observation:
    """Make planes of zeros and ones, uint8 [4, height, width]: walls, free cells, player, goal."""
    planes = Planes()
    return Observation("array", planes.space, planes.observe)


def _image(size: tuple[int, int]) -> spaces.Box:
    return spaces.Box(0, 255, (*size, 3), np.uint8)
