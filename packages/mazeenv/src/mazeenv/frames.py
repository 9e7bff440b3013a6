"""The observations of N environments in one array: drawn once per maze, then only what has changed."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from mazeenv.board import Board
from mazeenv.drawing import FLOOR, GOAL, PLAYER, WALL, colours, tiles
from mazeenv.drawing import ON_GOAL as PLAYER_ON_GOAL
from mazeenv.themes import THEMES
from vismaze_hooks import Observation

ON_GOAL = WALL  # in the table of what is put into a cell: walls never are


class Frames(Protocol):
    """The observations, kept up to date."""

    shown: Any  # array [N, …]; the same for ever

    def begin(self, which: np.ndarray) -> None:
        """Episodes have begun in the environments `which`."""
        ...

    def move(self, before: np.ndarray) -> None:
        """All have taken a step; `before` are the cells they were on."""
        ...


class GenericFrames:
    """Any observation, made by its own function for each environment."""

    def __init__(self, board: Board, observation: Observation, space: spaces.Space) -> None:
        self._board, self._observation, self._space = board, observation, space
        self._count = len(board.cell)
        self._each = [space.sample() for _ in range(self._count)]
        self.shown: Any = create_empty_array(space, self._count, fn=np.zeros)

    def begin(self, which: np.ndarray) -> None:
        for i in which.tolist():
            self._each[i] = self._observation.observe(self._board.state(i))
        self.shown = concatenate(self._space, self._each, self.shown)

    def move(self, before: np.ndarray) -> None:
        self.begin(np.arange(self._count))


class RgbFrames:
    """The picture `rgb` in a flat theme. A row of a cell is one element of a void type: NumPy copies that fastest."""

    def __init__(self, board: Board, cell_px: int, theme: str) -> None:
        self._board = board
        count, height, width, row = len(board.cell), board.height, board.width, 3 * cell_px
        self.shown = np.zeros((count, height * cell_px, width * cell_px, 3), dtype=np.uint8)
        self._element = element = np.dtype((np.void, row))
        self._split = (count, height, cell_px, width, row)
        self._look()
        flat = np.repeat(colours(THEMES[theme])[:4], cell_px, axis=0).reshape(4, row)
        self._flat = flat.view(element)[:, 0]  # a row of a cell in each colour
        put = np.repeat(flat[:, None], cell_px, axis=1)
        drawn = tiles(cell_px, THEMES[theme]).reshape(-1, cell_px, row)
        put[PLAYER], put[ON_GOAL] = drawn[PLAYER], drawn[PLAYER_ON_GOAL]
        self._tiles = put.view(element)[..., 0]  # [4, px], by what is put
        self._what = np.repeat([FLOOR, PLAYER], count)
        self._usual = self._tiles[self._what]  # a step that neither leaves nor enters the goal
        self._twice = np.tile(np.arange(count), 2)
        self._row = np.repeat(np.arange(height), width)
        self._column = np.tile(np.arange(width), height)

    def _look(self) -> None:
        self._view = self.shown.reshape(self._split).view(self._element)[..., 0]  # [N, height, px, width]
        count, height, cell_px, width, row = self._split
        self._row_element = np.dtype((np.void, width * row))
        self._rows = self.shown.reshape(count, height, cell_px, width * row).view(self._row_element)[..., 0]  # [N, height, px]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._look()  # a copy of a view is no view

    def begin(self, which: np.ndarray) -> None:
        board = self._board
        rows = self._flat.take(board.walls[which]).view(self._row_element).reshape(-1, board.height, 1)
        self._rows[which] = rows  # each row of cells is cell_px rows of pixels
        self._put(which, board.goal[which], np.full(len(which), GOAL))
        self._put(which, board.cell[which], np.full(len(which), PLAYER))

    def move(self, before: np.ndarray) -> None:
        board, count = self._board, len(before)
        cells = np.concatenate([before, board.cell])  # first left, then entered: of a cell put twice the last counts
        put = self._usual
        on_goal = cells == np.concatenate([board.goal, board.goal])
        if np.count_nonzero(on_goal):
            what = self._what.copy()
            what[:count][on_goal[:count]] = GOAL
            what[count:][on_goal[count:]] = ON_GOAL
            put = self._tiles[what]
        self._view[self._twice, self._row.take(cells), :, self._column.take(cells)] = put

    def _put(self, which: np.ndarray, cells: np.ndarray, tiles: np.ndarray) -> None:
        self._view[which, self._row[cells], :, self._column[cells]] = self._tiles[tiles]
