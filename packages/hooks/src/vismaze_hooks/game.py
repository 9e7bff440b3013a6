"""An environment from pure functions of a frozen state. Needs gymnasium (extra `text`).

Who writes a game writes its rules, its levels and its picture as functions; seeds, saving, copying, rewards, infos and
errors are here, once, and keep every rule of `vismaze_hooks.testing`.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium import spaces

from vismaze_hooks.integers import MASK
from vismaze_hooks.records import Ending, Observation, Transition
from vismaze_hooks.rewards import RewardChoice, RewardSum, make_reward

UNREADABLE, OUT_OF_MOVES = "Cannot read the answer.", "No moves left."


@dataclass(frozen=True)
class Game:
    """The functions that make a game. A state is any frozen record with `moves` (used so far) and `limit` (allowed)."""

    words: tuple[str, ...]  # the word of each action
    draw: Callable[[int], Any]  # 64-bit seed -> first state of a level, solvable within its limit
    read: Callable[[Mapping[str, Any]], Any]  # reset options -> first state; ValueError for what is no level
    advance: Callable[[Any, int | None], tuple[Any, Ending, str]]  # state, action (None: unreadable) -> state, ending, feedback
    observation: Observation  # of every state; all levels have one space
    letters: Callable[[Any], str]  # state as text, for people: render mode "ansi"


@dataclass(frozen=True)
class SavedGame:
    """An environment at one instant, as `GameEnv.save_state` returns it."""

    state: Any
    ending: Ending
    random: Any  # the environment's generator
    random_seed: int | None
    action_random: Mapping[str, Any]


def spend(moves: int, limit: int, ending: Ending, feedback: str) -> tuple[Ending, str]:
    """Return ending and feedback after a move that brought `moves` up to what they are: the last one ends a running game."""
    if ending is Ending.RUNNING and moves >= limit:
        return Ending.LIMIT, f"{feedback} {OUT_OF_MOVES}".lstrip()
    return ending, feedback


class GameEnv(gymnasium.Env):
    """A `Game` as a Gymnasium environment; what a plugin's environment class inherits from.

    Info: `success`, `ending`, `moves`, `moves_left`, `feedback`, `rewards` (the unweighted parts), `excluded`.
    """

    metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 4}  # noqa: RUF012 — as Gymnasium declares it

    def __init__(self, game: Game, *, reward: RewardChoice | RewardSum = "sparse", render_mode: str | None = None) -> None:
        """
        Args:
            reward: a name, a list of names, or a mapping name -> weight.

        Raises:
            ValueError: an unknown reward or render mode.
        """
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode={render_mode!r}: must be one of {self.metadata['render_modes']} or None")
        self.game, self.observation, self.action_words = game, game.observation, game.words
        self.reward, self.render_mode = make_reward(reward), render_mode
        self.action_space = spaces.Discrete(len(game.words))
        self.observation_space = game.observation.space(game.draw(0))
        self._state: Any = None
        self._ending = Ending.RUNNING

    @property
    def state(self) -> Any:
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

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode on the next level of the environment's random numbers, or on the one that the options describe.

        Raises:
            ValueError: the options are no level of this game, or of another size.
        """
        super().reset(seed=seed)
        if options:
            state = self.game.read(options)
            space = self.observation.space(state)
            if space != self.observation_space:
                raise ValueError(f"the level's picture is {space}, this environment's {self.observation_space}")
        else:
            state = self.game.draw(int(self.np_random.bit_generator.random_raw()) & MASK)
        self._state, self._ending = state, Ending.RUNNING
        return self.observation.observe(state), self._info("", {}, False)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take an action.

        Raises:
            gymnasium.error.InvalidAction: not an action; nothing has changed.
            gymnasium.error.ResetNeeded: the episode is over or was never begun.
        """
        try:
            index = operator.index(action)
        except TypeError:
            index = -1
        if not 0 <= index < len(self.action_words):
            raise gymnasium.error.InvalidAction(
                f"action {action!r}: must be a whole number from 0 to {len(self.action_words) - 1}"
            )
        return self.act(index, self.action_words[index])

    def act(self, action: int | None, answer: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take an action together with the raw answer that it was read from; None: the answer was unreadable.

        Raises:
            gymnasium.error.ResetNeeded: the episode is over or was never begun.
        """
        before = self._state
        if before is None or self._ending is not Ending.RUNNING:
            raise gymnasium.error.ResetNeeded("the episode is over or was never begun: call reset() before step()")
        after, ending, feedback = self.game.advance(before, action)
        price = self.reward(Transition(before, answer, action, after, ending))
        self._state, self._ending = after, ending
        terminated = ending in (Ending.SUCCESS, Ending.FAILURE)
        info = self._info(feedback, dict(price.parts), price.total is None)
        value = 0.0 if price.total is None else price.total
        return self.observation.observe(after), value, terminated, ending is Ending.LIMIT, info

    def render(self) -> Any:
        """Return the picture ("rgb_array") or the state as text ("ansi"), fresh; None without a render mode."""
        if self.render_mode is None:
            gymnasium.logger.warn("render() was called on an environment made without a render_mode")
            return None
        return self.game.letters(self.state) if self.render_mode == "ansi" else self.observation.observe(self.state)

    def save_state(self) -> SavedGame:
        """Return everything that the future depends on, random numbers included."""
        action_random = self.action_space.np_random.bit_generator.state
        return SavedGame(self._state, self._ending, copy.deepcopy(self.np_random), self.np_random_seed, action_random)

    def restore_state(self, saved: SavedGame) -> None:
        """Go back to a saved state, exactly; it can be restored any number of times, in another instance too."""
        self._state, self._ending = saved.state, saved.ending
        self.np_random = copy.deepcopy(saved.random)
        self._np_random_seed = saved.random_seed
        self.action_space.np_random.bit_generator.state = saved.action_random

    def _info(self, feedback: str, rewards: dict[str, float | None], excluded: bool) -> dict[str, Any]:
        return {
            "success": self._ending is Ending.SUCCESS,
            "ending": self._ending,
            "moves": self._state.moves,
            "moves_left": self._state.limit - self._state.moves,
            "feedback": feedback,
            "rewards": rewards,
            "excluded": excluded,
        }
