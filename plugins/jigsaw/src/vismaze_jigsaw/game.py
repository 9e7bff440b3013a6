"""The puzzle: a picture, and which of its tiles lies where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from vismaze_hooks import Ending, Observation, pick
from vismaze_hooks.game import UNREADABLE, spend
from vismaze_hooks.integers import Integers, mix64
from vismaze_jigsaw.pictures import PAINTERS, paint

SPARE_MOVES = 2
SOLVED = "The picture is whole."


class Puzzle(NamedTuple):
    """A puzzle being played.

    Example: `Puzzle("rings", 7, 2, (1, 0, 2, 3), 0, 3)` is one swap away from being solved.
    """

    kind: str  # of the picture
    picture: int  # its seed
    tiles: int  # tiles a side
    order: tuple[int, ...]  # at each place, row by row, the tile that lies there; sorted: solved
    moves: int
    limit: int


@dataclass(frozen=True)
class JigsawConfig:
    """What kind of puzzle."""

    tiles: int = 2  # tiles a side
    swaps: tuple[int, int] | None = None  # fewest and most swaps of a shortest solution; None: any
    pictures: tuple[str, ...] = tuple(PAINTERS)  # kinds of pictures, drawn in equal shares

    def __post_init__(self) -> None:
        """Refuse what cannot be a puzzle.

        Raises:
            ValueError: names the option and what is possible.
        """
        if type(self.tiles) is not int or not 2 <= self.tiles <= 4:
            raise ValueError(f"tiles={self.tiles!r}: must be 2, 3 or 4 tiles a side")
        most = self.tiles**2 - 1
        pair = (1, most) if self.swaps is None else self.swaps
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(type(n) is int for n in pair):
            raise ValueError(f"swaps={pair!r}: must be a pair of whole numbers")
        if not 1 <= pair[0] <= pair[1] <= most:
            raise ValueError(f"swaps={pair!r}: must be a pair (fewest, most) from 1 to {most}")
        object.__setattr__(self, "swaps", tuple(pair))
        kinds = (self.pictures,) if isinstance(self.pictures, str) else tuple(self.pictures)
        for kind in kinds:
            pick("picture", kind, PAINTERS)
        if not kinds:
            raise ValueError(f"pictures: at least one of {', '.join(PAINTERS)} is needed")
        object.__setattr__(self, "pictures", kinds)

    def draw(self, seed: int) -> Puzzle:
        """Draw a start: a pure function of the configuration and a 64-bit seed.

        The number of swaps is even over the wanted ones; that many are made, each joining two cycles of the arrangement, so
        that none can be saved.
        """
        integers = Integers(seed)
        assert self.swaps is not None
        low, high = self.swaps
        kind = self.pictures[integers.below(len(self.pictures))]
        wanted, order = low + integers.below(high - low + 1), list(range(self.tiles**2))
        while cycles(order) > len(order) - wanted:
            a, b = integers.below(len(order)), integers.below(len(order))
            swapped = swap(order, a, b)
            if cycles(swapped) < cycles(order):
                order = swapped
        return Puzzle(kind, mix64(seed), self.tiles, tuple(order), 0, wanted + SPARE_MOVES)

    def read(self, options: Mapping[str, Any]) -> Puzzle:
        """Return the level of reset options: `kind` and `picture` (its seed), `order`, `limit`.

        Raises:
            ValueError: an unknown option, or no puzzle of this kind.
        """
        if set(options) - {"limit"} != {"kind", "picture", "order"}:
            raise ValueError(f"reset options are 'kind', 'picture', 'order' and 'limit', got {sorted(options)}")
        pick("picture", options["kind"], PAINTERS)
        order, places = tuple(options["order"]), self.tiles**2
        if sorted(order) != list(range(places)):
            raise ValueError(f"order={order!r}: must hold each number from 0 to {places - 1} once")
        needed = places - cycles(order)
        limit = options.get("limit", needed + SPARE_MOVES)
        if not needed or type(limit) is not int or limit < needed:
            raise ValueError(f"limit={limit!r}: the puzzle needs {needed} swaps, and one at least")
        return Puzzle(options["kind"], int(options["picture"]), self.tiles, order, 0, limit)


def swap(order: Any, a: int, b: int) -> list[int]:
    """Return the order with the tiles at two places swapped."""
    to = list(order)
    to[a], to[b] = to[b], to[a]
    return to


def cycles(order: Any) -> int:
    """Return the cycles of an arrangement; places minus cycles is the fewest swaps that sort it."""
    seen: set[int] = set()
    count = 0
    for place in range(len(order)):
        count += place not in seen
        while place not in seen:
            seen.add(place)
            place = order[place]
    return count


def pairs(tiles: int) -> list[tuple[int, int]]:
    """Return the two places of each action."""
    return list(combinations(range(tiles * tiles), 2))


def words(tiles: int) -> tuple[str, ...]:
    """Return the word of each action: two places, counted from 1 in reading order."""
    return tuple(f"{a + 1}-{b + 1}" for a, b in pairs(tiles))


def advance(puzzle: Puzzle, action: int | None) -> tuple[Puzzle, Ending, str]:
    """Swap two tiles."""
    order, ending, feedback = puzzle.order, Ending.RUNNING, UNREADABLE
    if action is not None:
        order, feedback = tuple(swap(order, *pairs(puzzle.tiles)[action])), ""
        if list(order) == sorted(order):
            ending, feedback = Ending.SUCCESS, SOLVED
    moves = puzzle.moves + 1
    return puzzle._replace(order=order, moves=moves), *spend(moves, puzzle.limit, ending, feedback)


def solution(puzzle: Puzzle) -> tuple[int, ...]:
    """Return a shortest sequence of actions: each brings a tile to its place."""
    number = {pair: action for action, pair in enumerate(pairs(puzzle.tiles))}
    order, actions = list(puzzle.order), []
    for place in range(len(order)):
        while order[place] != place:
            other = order[place]
            actions.append(number[min(place, other), max(place, other)])
            order = swap(order, place, other)
    return tuple(actions)


@dataclass(frozen=True)
class Picture:
    """The tiles as they lie, with a thin line between them: uint8 [px, px, 3]."""

    px: int
    line: int

    def space(self, puzzle: Puzzle) -> spaces.Box:
        return spaces.Box(0, 255, (self.px, self.px, 3), np.uint8)

    def observe(self, puzzle: Puzzle) -> np.ndarray:
        n, side = puzzle.tiles, self.px // puzzle.tiles
        lying = paint(puzzle.kind, puzzle.picture, n, self.px)[list(puzzle.order)]
        shown = np.ascontiguousarray(lying.reshape(n, n, side, side, 3).swapaxes(1, 2)).reshape(self.px, self.px, 3)
        for at in range(side, self.px, side):
            shown[at - self.line : at + self.line] = shown[:, at - self.line : at + self.line] = 0
        return shown

    def legend(self, puzzle: Puzzle) -> str:
        n = puzzle.tiles
        return f"A picture, cut into {n} by {n} tiles that lie in the wrong order; black lines are between them"


def picture(px: int, tiles: int, line: int = 1) -> Observation:
    """Make the picture.

    Raises:
        ValueError: `px` is no multiple of the tiles, or out of range.
    """
    if isinstance(px, bool) or not isinstance(px, int) or not 8 * tiles <= px <= 2048 or px % tiles:
        raise ValueError(f"px={px!r}: must be a multiple of {tiles}, the tiles a side, from {8 * tiles} to 2048")
    if type(line) is not int or not 0 <= line <= 8:
        raise ValueError(f"line={line!r}: must be a whole number of pixels from 0 to 8")
    shown = Picture(px, line)
    return Observation("image", shown.space, shown.observe, legend=shown.legend)


def letters(puzzle: Puzzle) -> str:
    """Return which tile lies where, counted from 1."""
    n = puzzle.tiles
    return "\n".join(" ".join(f"{tile + 1:2}" for tile in puzzle.order[at : at + n]) for at in range(0, n * n, n))
