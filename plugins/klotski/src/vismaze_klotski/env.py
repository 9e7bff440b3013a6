"""`Klotski-v0`: the rules, and the environment that is made of them."""

from __future__ import annotations

from typing import Any

from vismaze_hooks import Ending, RewardChoice
from vismaze_hooks.game import UNREADABLE, Game, GameEnv, spend
from vismaze_hooks.names import record_of
from vismaze_klotski.board import MOVES, Position, letters, moved, solution
from vismaze_klotski.levels import KlotskiConfig
from vismaze_klotski.picture import COLOURS, picture

OF_THE_ENVIRONMENT = ("cell_px", "reward", "render_mode")  # options that no level depends on

BLOCKED, SOLVED = "Something is in the way.", "The red block is at its goal."


def words(count: int) -> tuple[str, ...]:
    """Return the words of all actions: each block's colour with each direction."""
    return tuple(f"{colour} {move}" for colour in list(COLOURS)[:count] for move in MOVES)


def advance(position: Position, action: int | None) -> tuple[Position, Ending, str]:
    """Slide a block by one square; what cannot slide stays, and the move is used."""
    rows, columns, blocks, moves, limit = position
    ending, feedback = Ending.RUNNING, UNREADABLE
    if action is not None:
        to = moved(blocks, action // 4, action % 4, rows, columns)
        feedback = BLOCKED if to is None else ""
        blocks = blocks if to is None else to
    if blocks[0] == position.goal:
        ending, feedback = Ending.SUCCESS, SOLVED
    return Position(rows, columns, blocks, moves + 1, limit), *spend(moves + 1, limit, ending, feedback)


class KlotskiEnv(GameEnv):
    """Sliding blocks.

    ## Description
    A board of blocks in different colours. The red one, two by two, must come to the middle of the bottom edge, within a move
    limit. Every board can be solved within its limit.

    ## Actions
    `Discrete(4·blocks)`: 4·block + 0 up, 1 down, 2 left, 3 right; blocks in the order of the colours, red first. A move
    slides a block by one square.

    ## Observations
    uint8 [rows·cell_px, columns·cell_px, 3].

    ## Rewards
    `sparse` by default: 1.0 for the red block at its goal within the limit, else 0.0.

    ## Termination
    The goal reached ends the episode, on the last move too. The limit, shortest solution + 4, truncates.

    ## Registered ids
    `Klotski-v0`.
    """

    def __init__(
        self, *, cell_px: int = 32, reward: RewardChoice = "sparse", render_mode: str | None = None, **options: Any
    ) -> None:
        """
        Args:
            options: what kind of board: the fields of `KlotskiConfig`, `size`, `dominoes`, `singles`, `moves`.

        Raises:
            ValueError: an option out of range, or an unknown one; the nearest is suggested.
        """
        self.config = record_of(KlotskiConfig, options, beside=OF_THE_ENVIRONMENT)
        game = Game(words(self.config.count), self.config.draw, self.config.read, advance, picture(cell_px), letters)
        super().__init__(game, reward=reward, render_mode=render_mode)


def solve(env: KlotskiEnv) -> tuple[int, ...]:
    """Return a shortest sequence of actions from the present position to the goal."""
    position: Position = env.state
    way = solution(position.rows, position.columns, position.blocks, position.goal)
    assert way is not None  # every move can be taken back, so no position that is reached has no solution
    return way
