"""The puzzle: which matches lie, whether one is in hand, and how that looks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from vismaze_hooks import Ending, Observation
from vismaze_hooks.game import UNREADABLE, spend
from vismaze_hooks.integers import mix64
from vismaze_matchstick.sticks import PLACES, equations, is_true, puzzles, solution, target

SPARE_MOVES = 4
TAKEN, PUT, NOTHING, OCCUPIED, SOLVED = (
    "You have a match in hand.",
    "The match lies.",
    "There is no match to take.",
    "There is a match already.",
    "The equation is true.",
)
ROWS, COLUMNS = 9, 21  # units of the picture
LEFT = (1, 9, 17)  # first column of each digit
OPERATOR, EQUALS = 6, 14  # middle columns
AT = ((0, 1), (1, 0), (1, 2), (2, 1), (3, 0), (3, 2), (4, 1))  # row and column of each segment in its digit
LYING = (True, False, False, True, False, False, True)
WOOD, HEAD, PAPER, PLACE = (196, 142, 78), (200, 40, 35), (252, 252, 250), (226, 228, 232)


class Sticks(NamedTuple):
    """A puzzle being played."""

    matches: int  # bits, in the order of `PLACES`
    held: bool  # one is in hand
    moves: int
    limit: int


@dataclass(frozen=True)
class MatchstickConfig:
    """What kind of puzzle."""

    changes: int = 1  # matches that must be moved, at least

    def __post_init__(self) -> None:
        """Refuse what cannot be a puzzle.

        Raises:
            ValueError: says what is possible.
        """
        if type(self.changes) is not int or not 1 <= self.changes <= 3:
            raise ValueError(f"changes={self.changes!r}: must be 1, 2 or 3 matches")

    def draw(self, seed: int) -> Sticks:
        """Draw a start: one of all puzzles of this difficulty, a pure function of the configuration and a 64-bit seed."""
        every = puzzles(self.changes)
        return Sticks(every[mix64(seed) % len(every)], False, 0, 2 * self.changes + SPARE_MOVES)

    def read(self, options: Mapping[str, Any]) -> Sticks:
        """Return the level of reset options: `equation`, such as `8-3=4`, and `limit`.

        Raises:
            ValueError: an unknown option, or no equation that can be made true within the limit.
        """
        if set(options) - {"limit"} != {"equation"}:
            raise ValueError(f"reset options are 'equation' and 'limit', got {sorted(options)}")
        found = {text: mask for mask, text in equations().items()}
        text = options["equation"]
        if text not in found:
            raise ValueError(f"equation={text!r}: must be three digits with a sign, such as 8-3=4")
        to = None if is_true(text) else target(found[text], False)
        if to is None:
            raise ValueError(f"equation={text!r}: is true already, or no moving of matches makes it true")
        needed = 2 * (found[text] & ~to).bit_count()
        limit = options.get("limit", needed + SPARE_MOVES)
        if type(limit) is not int or limit < needed:
            raise ValueError(f"limit={limit!r}: the shortest solution has {needed} moves")
        return Sticks(found[text], False, 0, limit)


def advance(sticks: Sticks, action: int | None) -> tuple[Sticks, Ending, str]:
    """Take a match, or put down the one in hand; what is impossible changes nothing but the moves."""
    matches, held, moves, limit = sticks
    ending, feedback = Ending.RUNNING, UNREADABLE
    if action is not None:
        there = bool(matches >> action & 1)
        if there is held:
            feedback = OCCUPIED if held else NOTHING
        else:
            matches, held = matches ^ 1 << action, not held
            feedback = TAKEN if held else PUT
            if not held and is_true(equations().get(matches, "1+1=1")):
                ending, feedback = Ending.SUCCESS, SOLVED
    return Sticks(matches, held, moves + 1, limit), *spend(moves + 1, limit, ending, feedback)


@dataclass(frozen=True)
class Picture:
    """The equation, each place in a square of its own: uint8 [9·unit, 21·unit, 3]. A match in hand lies below."""

    unit: int

    def space(self, sticks: Sticks) -> spaces.Box:
        return spaces.Box(0, 255, (ROWS * self.unit, COLUMNS * self.unit, 3), np.uint8)

    def observe(self, sticks: Sticks) -> np.ndarray:
        shown = np.full((ROWS * self.unit, COLUMNS * self.unit, 3), PAPER, dtype=np.uint8)
        wanted = [(bool(sticks.matches >> place & 1), place) for place in range(len(PLACES))]
        for there, place in sorted(wanted):  # empty places first, so that no match is covered
            number, segment = divmod(place, 7)
            if number == 3:
                self._lay(shown, 3, OPERATOR, False, there)
            else:
                row, column = AT[segment]
                self._lay(shown, 1 + row, LEFT[number] + column, LYING[segment], there)
        self._lay(shown, 3, OPERATOR, True, True)
        self._lay(shown, 2, EQUALS, True, True)
        self._lay(shown, 4, EQUALS, True, True)
        if sticks.held:
            self._lay(shown, 7, COLUMNS // 2, True, True)
        return shown

    def _lay(self, shown: np.ndarray, row: int, column: int, lying: bool, there: bool) -> None:
        """Draw a match, or its empty place, into the square at a row and column."""
        unit = self.unit
        half, thick = unit * 7 // 8, max(1, unit // 6)
        y, x = row * unit + unit // 2, column * unit + unit // 2
        height, width = (thick, half) if lying else (half, thick)
        area = shown[y - height : y + height, x - width : x + width]
        area[...] = WOOD if there else PLACE
        if there:
            head = max(2, unit // 3)
            (area[:, :head] if lying else area[:head])[...] = HEAD

    def legend(self, sticks: Sticks) -> str:
        hand = "; the match at the bottom is in your hand" if sticks.held else ""
        return f"An equation of matchsticks, three digits with a sign and an equals sign; pale places are empty{hand}"


def picture(unit: int = 24) -> Observation:
    """Make the picture.

    Raises:
        ValueError: `unit` is not a whole number from 6 to 96.
    """
    if isinstance(unit, bool) or not isinstance(unit, int) or not 6 <= unit <= 96:
        raise ValueError(f"unit={unit!r}: must be a whole number of pixels from 6 to 96")
    shown = Picture(unit)
    return Observation("image", shown.space, shown.observe, legend=shown.legend)


def letters(sticks: Sticks) -> str:
    """Return the equation as text; `?` where the matches are no digit."""
    text = equations().get(sticks.matches)
    hand = " (one in hand)" if sticks.held else ""
    if text is not None:
        return text + hand
    digits = {mask & 127: text[0] for mask, text in equations().items()}
    read = [digits.get(sticks.matches >> 7 * number & 127, "?") for number in range(3)]
    return f"{read[0]}{'+' if sticks.matches >> 21 & 1 else '-'}{read[1]}={read[2]}{hand}"


def shortest(sticks: Sticks) -> tuple[int, ...]:
    """Return a shortest sequence of actions."""
    return solution(sticks.matches, sticks.held)
