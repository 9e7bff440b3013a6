"""`VisMaze-v0` for Gymnasium. State, rules, drawing and rewards live in modules of their own; this one connects them."""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from mazeenv import rules
from mazeenv.config import MazeConfig
from mazeenv.grid import WORDS
from mazeenv.levels import draw_level
from mazeenv.maze import Maze, check
from mazeenv.observations import Letters, rgb
from mazeenv.png import png
from mazeenv.registry import make_observation, sparse_weight
from mazeenv.state import MazeState
from mazeenv.themes import THEMES
from vismaze_hooks import Ending, Observation, RewardChoice, RewardSum, Transition, make_reward
from vismaze_hooks.integers import MASK


def _masks() -> tuple[np.ndarray, ...]:
    """Return the action mask for each set of open moves, as bits; the stop is always possible."""
    return tuple(np.array([*(bits >> a & 1 for a in range(4)), 1], dtype=np.int8) for bits in range(16))


_MASKS = _masks()
# What the project's own pictures take from the options beside `observation_options`.
_TAKES = {"rgb": ("cell_px", "theme"), "egocentric": ("cell_px", "theme"), "first_person": ("theme",)}
_RUNNING, _SUCCESS = Ending.RUNNING, Ending.SUCCESS
_OVER = np.zeros(5, dtype=np.int8)


@dataclass(frozen=True)
class SavedState:
    """An environment at one instant, as `VisMazeEnv.save_state` returns it."""

    state: MazeState | None
    ending: Ending
    random: np.random.Generator
    random_seed: int | None
    action_random: Mapping[str, Any]  # state of the action space's generator


class VisMazeEnv(gymnasium.Env):
    """A maze seen from above.

    ## Description
    The player walks from the start to the goal of a maze, one cell a move, within a move limit. Every maze can be solved
    within its limit. The picture shows walls, free cells, the player (a disc) and the goal (a square).

    ## Actions
    `Discrete(5)`: 0 up, 1 down, 2 left, 3 right, 4 stop.

    ## Observations
    `rgb`: uint8 [height·cell_px, width·cell_px, 3]. Others by name; text never goes into the observation.

    ## Rewards
    `sparse`: 1.0 on reaching the goal within the limit, else 0.0. A list or a mapping of names makes a weighted sum, whose
    parts stand in `info["rewards"]`. A part that asks to leave the sample out sets `info["excluded"]`; the reward is 0.

    ## Termination
    The goal reached ends the episode at once, on the last move too; a stop off the goal ends it without success. With
    `stop_required` only a stop on the goal succeeds. The limit truncates. A move into a wall uses one move.

    ## Info
    `success`, `ending`, `moves`, `moves_left`, `position` (row, column), `feedback`, `rewards`, `excluded`, and a fresh
    `action_mask` (int8 [5]; all zero once the episode is over).

    ## Registered ids
    `VisMaze-v0`; `VisMaze-VisGymEasy-v0` and `VisMaze-VisGymHard-v0` (VisGym's boards, rules, colours and limits).
    """

    metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 4}  # noqa: RUF012 — as Gymnasium declares it
    action_words = WORDS

    def __init__(
        self,
        *,
        observation: str | Observation = "rgb",
        observation_options: Mapping[str, Any] | None = None,
        reward: RewardChoice | RewardSum = "sparse",
        cell_px: int | str = 32,
        theme: str = "plain",
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            observation: name of an installed observation, or a record.
            observation_options: for the observation's factory. The project's own pictures take `theme` and, but for
                `first_person`, `cell_px` from the options beside this one, and from here where they stand here.
            reward: a name, a list of names, or a mapping name -> weight.
            cell_px: pixels per cell of the picture, or the name of a model whose one visual token then is a cell.
            theme: the picture's colours: one of `mazeenv.themes.THEMES`.
            options: what kind of maze: the fields of `mazeenv.MazeConfig`, such as `size=9`, `generator="wilson"`,
                `max_moves=None`, `stop_required=False`, `ends="rooms"`, `shortest=None`, `braid=0.0`, `loops=0`.

        Raises:
            ValueError: an option out of range, or an unknown name; the nearest is suggested.
        """
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode={render_mode!r}: must be one of {self.metadata['render_modes']} or None")
        self.config = MazeConfig.of(options)
        self.render_mode = render_mode
        given, shared = dict(observation_options or {}), {"cell_px": cell_px, "theme": theme}
        takes = _TAKES.get(observation, ()) if isinstance(observation, str) else ()
        view = {**shared, **{name: given[name] for name in takes if name in given}}
        self.observation = make_observation(observation, {**{name: view[name] for name in takes}, **given})
        self.picture = self.observation if observation == "rgb" and given.get("rim", True) else rgb(**view)
        self.cell_px, self.theme, self._letters = view["cell_px"], view["theme"], Letters()
        self.trail = THEMES[self.theme].trail is not None
        self.is_flat = THEMES[self.theme].flat and self.theme != "random"
        self.reward = make_reward(reward)
        self._sparse = sparse_weight(self.reward)
        self._level = self.config.level()
        self._observe = self.observation.observe
        self._state: MazeState | None = None
        self._ending = Ending.RUNNING
        self.action_space = spaces.Discrete(len(WORDS))
        sample = rules.begin(draw_level(self._level, 0), None, self.config.stop_required, self.trail)
        self.observation_space = self.observation.space(sample)

    @property
    def state(self) -> MazeState:
        """The current state, a frozen record.

        Raises:
            gymnasium.error.ResetNeeded: there is none yet.
        """
        if self._state is None:
            raise gymnasium.error.ResetNeeded("call reset() first")
        return self._state

    @property
    def ending(self) -> Ending:
        """Why the episode is over, or that it is running."""
        return self._ending

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode on a new maze, or on a given one.

        Args:
            options: `maze` (its text, or a `Maze`) and `max_moves` for this episode.

        Raises:
            ValueError: unknown options, a maze that breaks a rule, is of another size, or cannot be solved within the limit.
        """
        super().reset(seed=seed)
        given = dict(options or {})
        maze, limit = given.pop("maze", None), given.pop("max_moves", self.config.max_moves)
        if given:
            raise ValueError(f"unknown reset option {sorted(given)[0]!r}: the options are 'maze' and 'max_moves'")
        state = self.begin(maze, limit)
        self._state, self._ending = state, Ending.RUNNING
        return self._observe(state), self._info(state, "", {}, False)

    def begin(self, maze: Maze | str | None, limit: int | None) -> MazeState:
        """Return the first state of an episode: the given maze, or the next one of the environment's own random numbers."""
        if maze is None:
            maze = self.config.draw(self._level, int(self.np_random.bit_generator.random_raw()) & MASK, limit)
        elif isinstance(maze, Maze):
            check(maze)
        elif isinstance(maze, str):
            maze = Maze.from_text(maze)
        else:
            raise ValueError(f"maze={maze!r}: must be the text of a maze, or a Maze")
        self._check_size(maze)
        return rules.begin(maze, limit, self.config.stop_required, self.trail)

    def _check_size(self, maze: Maze) -> None:
        if (maze.height, maze.width) != (self._level.height, self._level.width):
            raise ValueError(
                f"a maze of {maze.height}×{maze.width} cells was given to an environment of "
                f"{self._level.height}×{self._level.width}; make it with size=({maze.height}, {maze.width})"
            )

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take an action.

        Raises:
            gymnasium.error.InvalidAction: not an action; nothing has changed.
            gymnasium.error.ResetNeeded: the episode is over or was never begun.
        """
        try:
            index = operator.index(action)  # what `Discrete.contains` accepts, in a tenth of its time
        except TypeError:
            index = -1
        if not 0 <= index < len(WORDS):
            raise gymnasium.error.InvalidAction(f"action {action!r}: must be a whole number from 0 to {len(WORDS) - 1}")
        return self.act(index, WORDS[index])

    def act(self, action: int | None, answer: str) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take an action together with the raw answer that it was read from; None: the answer was unreadable.

        Raises:
            gymnasium.error.ResetNeeded: the episode is over or was never begun.
        """
        before = self._state
        if before is None or self._ending is not _RUNNING:
            raise gymnasium.error.ResetNeeded("the episode is over or was never begun: call reset() before step()")
        after, ending, feedback = rules.advance(before, action)
        total: float | None
        parts: dict[str, float | None]
        if self._sparse is not None:  # the usual case, without making a transition only to look at its ending
            value = 1.0 if ending is _SUCCESS else 0.0
            total, parts = self._sparse * value, {"sparse": value}
        else:
            price = self.reward(Transition(before, answer, action, after, ending))
            total, parts = price.total, dict(price.parts)
        self._state, self._ending = after, ending
        info = self._info(after, feedback, parts, total is None)
        terminated = ending is _SUCCESS or ending is Ending.FAILURE
        return self._observe(after), 0.0 if total is None else total, terminated, ending is Ending.LIMIT, info

    def save_state(self) -> SavedState:
        """Return everything that the future depends on, random numbers included."""
        action_random = self.action_space.np_random.bit_generator.state
        return SavedState(self._state, self._ending, copy.deepcopy(self.np_random), self.np_random_seed, action_random)

    def restore_state(self, saved: SavedState) -> None:
        """Go back to a saved state, exactly; it can be restored any number of times, in another instance too.

        Raises:
            ValueError: the state is of a board of another size.
        """
        if saved.state is not None:
            self._check_size(saved.state.maze)
        self._state, self._ending = saved.state, saved.ending
        self.np_random = copy.deepcopy(saved.random)
        self._np_random_seed = saved.random_seed
        self.action_space.np_random.bit_generator.state = saved.action_random

    def png(self) -> bytes:
        """Return the present picture as PNG; it decodes to exactly the pixels of the observation "rgb"."""
        return png(self.state, cell_px=self.cell_px, theme=self.theme)

    def render(self) -> Any:
        """Return the picture ("rgb_array") or the board as text ("ansi"), fresh; None without a render mode.

        Raises:
            gymnasium.error.ResetNeeded: before the first reset.
        """
        if self.render_mode is None:
            gymnasium.logger.warn("render() was called on an environment made without a render_mode")
            return None
        return self.show(self.state)

    def show(self, state: MazeState) -> Any:
        """Return any state as the render mode shows it."""
        if self.render_mode == "ansi":
            return self._letters.to_text(self._letters.observe(state))
        return self.picture.observe(state)

    def _info(self, state: MazeState, feedback: str, rewards: dict[str, float | None], excluded: bool) -> dict[str, Any]:
        maze, cell, moves, limit = state[:4]
        ending = self._ending
        if ending is _RUNNING:
            walls, width = maze.walls, maze.width
            shut = walls[cell - width] | walls[cell + width] << 1 | walls[cell - 1] << 2 | walls[cell + 1] << 3
            mask = _MASKS[15 - shut].copy()
        else:
            mask = _OVER.copy()
        return {
            "success": ending is _SUCCESS,
            "ending": ending,
            "moves": moves,
            "moves_left": limit - moves,
            "position": divmod(cell, maze.width),
            "feedback": feedback,
            "rewards": rewards,
            "excluded": excluded,
            "action_mask": mask,
        }
