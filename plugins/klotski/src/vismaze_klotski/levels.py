"""What kind of board, and drawing one whose shortest solution has a wanted length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from vismaze_hooks.integers import Integers, mix64
from vismaze_klotski.board import LETTERS, Blocks, Position, Search, corner_block, letters, read_letters, solution

ATTEMPTS = 400  # boards that are tried before a request counts as impossible
EXPLORED = 300  # positions around a solved one that are looked at for others
BEAM = 32  # positions of each distance that are gone on from
SPARE_MOVES = 4


@dataclass(frozen=True)
class KlotskiConfig:
    """What kind of board."""

    size: tuple[int, int] = (5, 4)  # rows and columns of squares
    dominoes: int = 5  # blocks of one by two, lying or standing
    singles: int = 4  # blocks of one square
    moves: tuple[int, int] = (2, 12)  # fewest and most moves of a shortest solution: the difficulty

    def __post_init__(self) -> None:
        """Refuse what cannot be a board.

        Raises:
            ValueError: names the option and what is possible.
        """
        for name in ("size", "moves"):
            pair = getattr(self, name)
            if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(type(n) is int for n in pair):
                raise ValueError(f"{name}={pair!r}: must be a pair of whole numbers")
            object.__setattr__(self, name, tuple(pair))
        rows, columns = self.size
        if not (2 <= rows <= 6 and 2 <= columns <= 6 and rows * columns >= 6):
            raise ValueError(f"size={self.size}: must be 2 to 6 rows and columns, and six squares at least")
        for name in ("dominoes", "singles"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)!r}: must be a whole number, 0 or more")
        free = rows * columns - 4 - 2 * self.dominoes - self.singles
        if free < 2:
            raise ValueError(f"{self.dominoes} dominoes and {self.singles} singles leave {free} free squares; two are needed")
        if self.count > len(LETTERS):
            raise ValueError(f"{self.count} blocks: at most {len(LETTERS)} have a colour of their own")
        if not 1 <= self.moves[0] <= self.moves[1]:
            raise ValueError(f"moves={self.moves}: must be a pair (fewest, most), 1 or more")

    @property
    def count(self) -> int:
        return 1 + self.dominoes + self.singles

    @cached_property
    def goal(self) -> int:
        return Position(*self.size, (), 0, 0).goal

    def draw(self, seed: int) -> Position:
        """Draw a start: a pure function of the configuration and a 64-bit seed.

        A board with the red block at the goal is filled at random; a position is chosen that is as many moves away from such
        boards as were drawn, evenly, from the wanted numbers. A search confirms that no shorter way leads to any other.

        Raises:
            ValueError: none was found in `ATTEMPTS` boards.
        """
        low, high = self.moves
        wanted = low + mix64(seed) % (high - low + 1)
        for lane in range(ATTEMPTS):
            integers = Integers(seed, lane)
            blocks = self._filled(integers)
            if blocks is None:
                continue
            chosen = self._away(blocks, wanted, integers)
            if chosen is not None and len(solution(*self.size, chosen, self.goal) or ()) == wanted:
                return self.start(_in_reading_order(chosen))
        raise ValueError(
            f"no board of {self.size[0]}×{self.size[1]} with {self.dominoes} dominoes and {self.singles} singles that needs "
            f"{wanted} moves was found among {ATTEMPTS}; choose fewer moves"
        )

    def start(self, blocks: Blocks, limit: int | None = None) -> Position:
        """Return the first position of a level.

        Raises:
            ValueError: it cannot be solved, or not within the limit.
        """
        way = solution(*self.size, blocks, self.goal)
        if not way:
            raise ValueError("the red block is at its goal already" if way == () else "the board has no solution")
        if limit is None:
            limit = len(way) + SPARE_MOVES
        if type(limit) is not int or limit < len(way):
            raise ValueError(f"limit={limit!r}: the shortest solution has {len(way)} moves")
        return Position(*self.size, blocks, 0, limit)

    def read(self, options: Mapping[str, Any]) -> Position:
        """Return the level of reset options: `board`, rows of letters, and `limit`.

        Raises:
            ValueError: an unknown option, or no board of this kind.
        """
        unknown = sorted(options.keys() - {"board", "limit"})
        if unknown or not isinstance(options.get("board"), str):
            raise ValueError(f"reset options are 'board' (rows of letters) and 'limit', got {sorted(options)}")
        rows, columns, blocks = read_letters(options["board"])
        if (rows, columns) != self.size or len(blocks) != self.count:
            raise ValueError(
                f"a board of {rows}×{columns} with {len(blocks)} blocks was given to an environment of "
                f"{self.size[0]}×{self.size[1]} with {self.count}"
            )
        return self.start(blocks, options.get("limit"))

    def _filled(self, integers: Integers) -> Blocks | None:
        """Return a random board with the red block at the goal, or None when the shapes did not fit."""
        rows, columns = self.size
        blocks, taken = [self.goal], self.goal
        for height, width in [(0, 0)] * self.dominoes + [(1, 1)] * self.singles:
            if not height:
                height, width = ((1, 2), (2, 1))[integers.below(2)]
            places = [
                corner_block(columns, r, c, height, width) for r in range(rows - height + 1) for c in range(columns - width + 1)
            ]
            open_ones = [mask for mask in places if not mask & taken]
            if not open_ones:
                return None
            blocks.append(open_ones[integers.below(len(open_ones))])
            taken |= blocks[-1]
        return tuple(blocks)

    def _away(self, solved: Blocks, wanted: int, integers: Integers) -> Blocks | None:
        """Return a random position that is `wanted` moves from the nearest of the solved positions around a solved one."""
        search, goals = Search(*self.size, (solved,)), [solved]
        while search.ring and len(search) < EXPLORED:
            search.advance(0)
            goals.extend(blocks for blocks, _ in search.ring if blocks[0] == self.goal)
        search = Search(*self.size, goals)
        for _ in range(wanted):
            search.advance(0)
            if len(search.ring) > BEAM:  # enough to choose from; what is too near by another way, the search will say
                search.ring = [search.ring[integers.below(len(search.ring))] for _ in range(BEAM)]
        return search.ring[integers.below(len(search.ring))][0] if search.ring else None


def _in_reading_order(blocks: Blocks) -> Blocks:
    """Number the blocks but the red one by where they start, so that a board has one way to be lettered."""
    return (blocks[0], *sorted(blocks[1:], key=lambda mask: mask & -mask))


def same(position: Position) -> str:
    """Return text that is equal exactly for boards that show the same shapes, mirrored left to right or not."""
    rows = _shapes(position).split("\n")
    mirrored = [row[::-1].translate(_MIRRORED) for row in rows]
    middle = (position.columns - 2) % 2 == 0  # else the goal is not in the middle, and a mirrored board another one
    return min("\n".join(rows), "\n".join(mirrored)) if middle else "\n".join(rows)


_MIRRORED = str.maketrans("[]", "][")


def _shapes(position: Position) -> str:
    """Return each square's place in its block: `#` red, `[` `]` lying, `^` `v` standing, `o` single, `.` free."""
    cells = list(letters(position).replace("\n", ""))
    signs = {1: "o", 3: "[]", 1 | 1 << position.columns: "^v"}
    shown = ["."] * len(cells)
    for block, mask in enumerate(position.blocks):
        squares = [square for square in range(len(cells)) if mask >> square & 1]
        kind = signs.get(mask >> squares[0], "####")
        for square, sign in zip(squares, kind, strict=True):
            shown[square] = sign
        assert block < len(LETTERS)
    columns = position.columns
    return "\n".join("".join(shown[at : at + columns]) for at in range(0, len(shown), columns))
