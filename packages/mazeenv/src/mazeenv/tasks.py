"""Tasks: the endless training stream, which avoids every fixed set, and the fixed sets themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from mazeenv import fixed, rules
from mazeenv.config import MazeConfig
from mazeenv.levels import ATTEMPTS, Level, attempt
from mazeenv.maze import Maze
from mazeenv.symmetry import canonical_hash, nearby, walls_hash
from vismaze_hooks import Task, pick
from vismaze_hooks.integers import MASK, mix64


def maze_task(maze: Maze, uid: str, config: MazeConfig, extra_moves: int = 0) -> Task:
    """Return the task of playing a maze; its labels are the path length and the class of the walls up to symmetry."""
    limit = config.max_moves if config.max_moves is not None else rules.default_limit(maze, config.stop_required)
    limit += extra_moves
    labels: dict[str, int | str] = {"shortest": maze.shortest, "class": walls_hash(maze.walls, maze.width)[:8]}
    return Task(uid, maze.sha256, {"maze": maze.text, "max_moves": limit}, limit, labels=labels)


def eval_set(name: str, config: MazeConfig | None = None) -> tuple[Task, ...]:
    """Return a fixed set as tasks.

    Raises:
        ValueError: an unknown set (the nearest is suggested), a changed file, or a limit of the configuration that leaves
            a maze unsolvable.
    """
    config = config or MazeConfig()
    mazes = fixed.mazes(name)
    for index, maze in enumerate(mazes):
        if config.max_moves is not None and config.max_moves < maze.shortest + config.stop_required:
            raise ValueError(f"max_moves={config.max_moves}: maze {index} of {name} cannot be solved within it")
    return tuple(maze_task(maze, f"{name}/{index}", config) for index, maze in enumerate(mazes))


@dataclass(frozen=True)
class Stream:
    """`stream(seed) -> Task`: a pure function of a 64-bit seed. Made by `training_stream`."""

    id: str
    config: MazeConfig
    levels: tuple[tuple[Level, ...], ...]  # by bin, drawn from in equal shares; then by kind of board, anew each attempt
    extra_moves: tuple[int, int]  # fewest, most
    walls_out: frozenset[str]  # classes of walls that are never drawn
    mazes_out: frozenset[str]  # classes of walls with start and goal that are never drawn

    def __call__(self, seed: int) -> Task:
        """Draw a task.

        Raises:
            ValueError: nothing is left to draw.
        """
        config, seed = self.config, seed & MASK
        kinds = self.levels[mix64(seed) % len(self.levels)]
        fewest, most = self.extra_moves
        extra = fewest + mix64(mix64(seed)) % (most - fewest + 1)
        for lane in range(ATTEMPTS):
            level = kinds[mix64(seed + lane) % len(kinds)]
            maze = attempt(level, seed, lane)
            if maze is None or self._held_out(maze, level.changes):
                continue
            if config.max_moves is None or maze.shortest + config.stop_required <= config.max_moves + extra:
                return maze_task(maze, f"{self.id}/{seed:016x}", config, extra)
        raise ValueError(
            f"nothing left to draw: of {ATTEMPTS:,} mazes each is held out by a fixed set, has no path of "
            f"{kinds[0].shortest} moves, or is beyond the limit"
        )

    def _held_out(self, maze: Maze, changed: bool) -> bool:
        """Tell whether a maze belongs to a fixed set. A changed board must keep its distance: two cells from any board of a
        set, as two different trees are apart at least."""
        if self.walls_out:
            boards = chain((maze.walls,), nearby(maze.walls, maze.width) if changed else ())
            if any(walls_hash(board, maze.width) in self.walls_out for board in boards):
                return True
        return bool(self.mazes_out) and canonical_hash(maze) in self.mazes_out


def training_stream(
    config: MazeConfig,
    id: str,
    *,
    shortest: Sequence[int] | None = None,
    bins: Sequence[Sequence[int]] | None = None,
    loops: int | Sequence[int] | None = None,
    blocked: int | Sequence[int] | None = None,
    flipped: int | Sequence[int] | None = None,
    extra_moves: int | Sequence[int] = 0,
    exclude: Sequence[str] | None = None,
) -> Stream:
    """Make the stream of training tasks.

    Args:
        config: the environment's options.
        id: the environment's id, the first part of each task's uid.
        shortest: bin (fewest, most) of path lengths, in place of the environment's own.
        bins: several such bins, drawn from in equal shares, as the fixed sets are made; excludes `shortest`.
        loops, blocked, flipped: further walls to open, then passages to wall up, then cells to turn from wall to floor or
            from floor to wall, in place of the environment's own; a pair (fewest, most) is drawn from, maze by maze. A small
            board has few trees, which a policy can learn by heart, and millions of changed ones.
        extra_moves: added to each task's move limit; a pair (fewest, most) is drawn from, task by task. Down to -4 the
            limit's spare moves are taken away.
        exclude: names of the fixed sets to avoid; None: all of them. A set holds out the walls of its mazes in all 8
            orientations, with changed boards that differ from them in a single cell, or, where it says so (5×5 has one tree
            only), walls, start and goal together.

    Raises:
        ValueError: an impossible bin, an unknown set, or nothing left to draw.
    """
    extra = _whole_pair("extra_moves", extra_moves, -rules.SPARE_MOVES)
    opened = _whole_pair("loops", config.loops if loops is None else loops, 0)
    shut = _whole_pair("blocked", config.blocked if blocked is None else blocked, 0)
    turned = _whole_pair("flipped", config.flipped if flipped is None else flipped, 0)
    if bins is not None and (shortest is not None or not bins):
        raise ValueError("bins: give at least one pair (fewest, most), and no `shortest` beside them")
    chosen: Sequence[Any] = bins if bins is not None else [config.shortest if shortest is None else shortest]
    levels = tuple(
        tuple(
            replace(config, shortest=pair, loops=more, blocked=fewer, flipped=other).level()
            for more in range(opened[0], opened[1] + 1)
            for fewer in range(shut[0], shut[1] + 1)
            for other in range(turned[0], turned[1] + 1)
        )
        for pair in chosen
    )
    names = tuple(fixed.SETS) if exclude is None else tuple(exclude)
    for name in names:
        pick("fixed set", name, fixed.SETS)
    walls_out, mazes_out = fixed.held_out(names, *config.sides)
    stream = Stream(id, config, levels, extra, walls_out, mazes_out)
    for seed in range(len(levels) * 4):
        stream(seed)  # refuse at once what would fail later
    return stream


def _whole_pair(name: str, given: Any, least: int) -> tuple[int, int]:
    pair = (given, given) if isinstance(given, int) else given
    whole = isinstance(pair, Sequence) and len(pair) == 2 and all(isinstance(n, int) and not isinstance(n, bool) for n in pair)
    if isinstance(given, bool) or not whole or not least <= pair[0] <= pair[1]:
        raise ValueError(f"{name}={given!r}: must be a whole number of at least {least}, or a pair (fewest, most) of them")
    return pair[0], pair[1]
