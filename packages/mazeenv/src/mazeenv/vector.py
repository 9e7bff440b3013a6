"""`VisMazeVectorEnv`: many mazes stepped at once, equal step by step to Gymnasium's `SyncVectorEnv` over `VisMazeEnv`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from mazeenv.board import ENDINGS, FAILURE, FEEDBACK, LIMIT, SUCCESS, Board
from mazeenv.env import VisMazeEnv
from mazeenv.frames import Frames, GenericFrames, RgbFrames
from mazeenv.grid import WORDS
from mazeenv.registry import sparse_weight
from mazeenv.state import MazeState
from mazeenv.supply import Supply
from vismaze_hooks import Transition


class VisMazeVectorEnv(VectorEnv):
    """N mazes in lockstep; made by `gym.make_vec("VisMaze-v0", num_envs=64)`.

    Observations, rewards, flags, infos and seeds are those of `SyncVectorEnv` over `VisMazeEnv` in each of the three
    autoreset modes: environment i of `reset(seed=s)` has the seed s + i.

    In group mode the environments stand in groups of `group_size` neighbours, and all of a group play the same mazes in
    the same order: those of the seed s + g for group g. As a group waits for nobody, its members' n-th episodes are on the
    same maze, whenever they begin.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        group_size: int = 1,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        **options: Any,
    ) -> None:
        """
        Args:
            num_envs: N, a multiple of `group_size`.
            group_size: neighbours that play the same mazes.
            autoreset_mode: when a finished environment begins anew: "NextStep", "SameStep" or "Disabled".
            copy: whether observations are copies; False hands out the array that the next step draws into.
            options: those of `VisMazeEnv`.

        Raises:
            ValueError: `num_envs` is not a positive multiple of `group_size`, or an option that `VisMazeEnv` refuses.
        """
        for name, value in (("num_envs", num_envs), ("group_size", group_size)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r}: must be a whole number, 1 or more")
        if num_envs % group_size:
            raise ValueError(f"num_envs={num_envs} is not a multiple of group_size={group_size}")
        self._single = single = VisMazeEnv(**options)
        self.num_envs, self.group_size, self.copy = num_envs, group_size, copy
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {**single.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = single.render_mode
        self.single_action_space, self.single_observation_space = single.action_space, single.observation_space
        self.action_space = batch_space(single.action_space, num_envs)
        self.observation_space = batch_space(single.observation_space, num_envs)
        self._board = Board(single.config, num_envs, single.trail)
        self._supply = Supply(single.config, num_envs, group_size)
        self._sparse = sparse_weight(single.reward)
        native = single.observation is single.picture and isinstance(single.cell_px, int) and single.is_flat
        self._frames: Frames = (
            RgbFrames(self._board, single.cell_px, single.theme)
            if native
            else GenericFrames(self._board, single.observation, single.observation_space)
        )
        self._positions = np.empty(self._board.walls.shape[1], dtype=object)
        self._positions[:] = [divmod(cell, self._board.width) for cell in range(len(self._positions))]
        self._over = np.ones(num_envs, dtype=bool)  # finished, or never begun
        self._begun = False

    @property
    def states(self) -> tuple[MazeState, ...]:
        """The present state of each environment."""
        return tuple(self._board.state(i) for i in range(self.num_envs))

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The generator of each environment. Mazes are drawn ahead, so it stands further on than that of `VisMazeEnv`."""
        return self._supply.generators

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin new episodes everywhere, or where `options["reset_mask"]` (bool [N]) says so.

        Args:
            seed: s for s, s+1, …, or one for each environment (in group mode: for each group).
            options: `maze` and `max_moves` as for `VisMazeEnv.reset`, for all; and `reset_mask`.

        Raises:
            ValueError: a wrong number of seeds, or options that `VisMazeEnv.reset` refuses.
        """
        given = dict(options or {})
        mask = _checked_mask(given.pop("reset_mask", None), self.num_envs)
        which = np.flatnonzero(mask)
        maze, limit = given.pop("maze", None), given.pop("max_moves", self._single.config.max_moves)
        if given:
            raise ValueError(f"unknown reset option {sorted(given)[0]!r}: the options are 'maze', 'max_moves', 'reset_mask'")
        self._supply.seed(seed, mask)
        if maze is None:
            self._board.fill(which, self._supply.take(which, limit), limit)
        else:
            self._board.fill_one(which, self._single.begin(maze, limit))
        self._frames.begin(which)
        self._over[mask], self._begun = False, True
        said, excluded = np.zeros(self.num_envs, dtype=np.int64), np.zeros(self.num_envs, dtype=bool)
        return self._shown(), self._info(mask, said, {}, excluded)

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take one action in each environment.

        Raises:
            gymnasium.error.InvalidAction: not N whole numbers from 0 to 4; nothing has changed.
            gymnasium.error.ResetNeeded: never begun, or, with autoreset disabled, an episode is over.
        """
        actions = self._checked(actions)
        board, mode = self._board, self.autoreset_mode
        anew = (
            self._over if mode is AutoresetMode.NEXT_STEP and np.count_nonzero(self._over) else None
        )  # these begin instead of stepping
        before = None if self._sparse is not None else self.states
        board.ending = np.zeros(self.num_envs, dtype=np.int64)
        moved_from, feedback, ended = board.advance(actions)  # where it begins anew, this is overwritten below
        self._frames.move(moved_from)
        rewards, parts, excluded = self._price(before, actions, anew)
        if anew is not None:
            self._begin(np.flatnonzero(anew))
            feedback[anew] = 0
        if not ended:
            terminated, truncated = np.zeros((2, self.num_envs), dtype=bool)
            self._over = terminated.copy()
            return self._shown(), rewards, terminated, truncated, self._info(None, feedback, parts, excluded)
        terminated, truncated = (board.ending == SUCCESS) | (board.ending == FAILURE), board.ending == LIMIT
        self._over = terminated | truncated
        if mode is AutoresetMode.SAME_STEP and self._over.any():
            info = self._begin_in_same_step(feedback, parts, excluded)
        else:
            info = self._info(None, feedback, parts, excluded)
        return self._shown(), rewards, terminated, truncated, info

    def render(self) -> tuple[Any, ...] | None:
        """Return one picture ("rgb_array") or text ("ansi") for each environment; None without a render mode."""
        if self.render_mode is None:
            return None
        return tuple(self._single.show(state) for state in self.states)

    def _checked(self, actions: Any) -> np.ndarray:
        if not self._begun:
            raise gymnasium.error.ResetNeeded("call reset() before step()")
        array = np.asarray(actions)
        wrong = array.shape != (self.num_envs,) or array.dtype.kind not in "iu"
        if wrong or np.count_nonzero((array < 0) | (array >= len(WORDS))):
            raise gymnasium.error.InvalidAction(
                f"actions {actions!r}: must be {self.num_envs} whole numbers from 0 to {len(WORDS) - 1}"
            )
        if self.autoreset_mode is AutoresetMode.DISABLED and self._over.any():
            over = np.flatnonzero(self._over).tolist()
            raise gymnasium.error.ResetNeeded(f"the episodes of {over} are over: reset them with options['reset_mask']")
        return array

    def _shown(self) -> np.ndarray:
        return self._frames.shown.copy() if self.copy else self._frames.shown

    def _begin(self, which: np.ndarray) -> None:
        limit = self._single.config.max_moves
        self._board.fill(which, self._supply.take(which, limit), limit)
        self._frames.begin(which)

    def _price(
        self, before: tuple[MazeState, ...] | None, actions: np.ndarray, anew: np.ndarray | None
    ) -> tuple[np.ndarray, dict[str, Any], np.ndarray]:
        """Return rewards, their parts as they stand in infos, and which asked to be left out."""
        count, ending = self.num_envs, self._board.ending
        stepped = np.ones(count, dtype=bool) if anew is None else ~anew
        if before is None:
            assert self._sparse is not None
            solved = ((ending == SUCCESS) & stepped).astype(np.float64)
            parts = {"sparse": solved, "_sparse": stepped} if np.count_nonzero(stepped) else {}
            return self._sparse * solved, parts, np.zeros(count, dtype=bool)
        rewards, parts, excluded = np.zeros(count), {}, np.zeros(count, dtype=bool)
        after = self.states
        for i in np.flatnonzero(stepped).tolist():
            action = int(actions[i])
            price = self._single.reward(Transition(before[i], WORDS[action], action, after[i], ENDINGS[ending[i]]))
            excluded[i] = price.total is None
            rewards[i] = 0.0 if price.total is None else price.total
            parts = self._add_info(parts, dict(price.parts), i)
        return rewards, parts, excluded

    def _begin_in_same_step(self, feedback: np.ndarray, parts: dict[str, Any], excluded: np.ndarray) -> dict[str, Any]:
        """Begin anew what is over; its last observation and info go into `final_obs` and `final_info`."""
        over = self._over
        which = np.flatnonzero(over)
        final = np.full(self.num_envs, None, dtype=object)
        for i in which.tolist():
            final[i] = self._frames.shown[i].copy()
        final_info = self._info(over, feedback, _only(parts, over), excluded)
        self._begin(which)
        feedback[over], excluded[over] = 0, False
        info = self._info(None, feedback, _only(parts, ~over), excluded)
        return {**info, "final_obs": final, "_final_obs": over.copy(), "final_info": final_info, "_final_info": over.copy()}

    def _info(
        self, mask: np.ndarray | None, feedback: np.ndarray, parts: dict[str, Any], excluded: np.ndarray
    ) -> dict[str, Any]:
        """Return the infos as `SyncVectorEnv` joins them; those outside the mask (None: no one) are zero."""
        board = self._board
        info = {
            "success": board.ending == SUCCESS,
            "ending": ENDINGS.take(board.ending),
            "moves": board.moves.copy(),
            "moves_left": board.limit - board.moves,
            "position": self._positions.take(board.cell),
            "feedback": FEEDBACK.take(feedback),
            "excluded": excluded.copy(),
            "action_mask": board.masks(),
        }
        if mask is not None and not mask.all():
            for values in info.values():
                values[~mask] = None if values.dtype == object else 0
        every = np.ones(self.num_envs, dtype=bool) if mask is None else mask.copy()
        info["rewards"] = parts
        for name in tuple(info):
            info[f"_{name}"] = every  # one array for all: fresh in every call, like the rest
        return info


def _only(parts: dict[str, Any], mask: np.ndarray) -> dict[str, Any]:
    """Return the parts of the environments in the mask, or nothing when there are none."""
    kept: dict[str, Any] = {}
    for name, values in parts.items():
        if name.startswith("_"):
            continue
        there = parts[f"_{name}"] & mask
        if there.any():
            kept[name] = values.copy()
            kept[name][~there] = None if values.dtype == object else 0
            kept[f"_{name}"] = there
    return kept


def _checked_mask(mask: Any, count: int) -> np.ndarray:
    if mask is None:
        return np.ones(count, dtype=bool)
    if not isinstance(mask, np.ndarray) or mask.shape != (count,) or mask.dtype != np.bool_ or not mask.any():
        raise ValueError(f"options['reset_mask']: must be an array of {count} booleans, one or more of them true")
    return mask.copy()
