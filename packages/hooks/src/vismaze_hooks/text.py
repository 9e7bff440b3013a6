"""The text environment: any environment with words for actions. Needs gymnasium (extra `text`)."""

from __future__ import annotations

import copy
import string
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from vismaze_hooks.answers import parse_tagged
from vismaze_hooks.records import Ending, EnvironmentOffer, Task


class TextEnvironment(gymnasium.Wrapper):
    """The same environment, answered in words: `env.step("<action>left</action>")`.

    The observation is the picture (or the array that the environment's text observation stands for); text never goes
    into it. `reset` adds `info["prompt"]`; every step adds `info["feedback"]`, `info["readable"]` (bool),
    `info["success"]` (bool), `info["ending"]` (an `Ending`), `info["excluded"]` (bool: a reward asked to leave this
    sample out) and, for a text observation, `info["text"]`. An unreadable answer uses one move and changes nothing else.

    An environment with a method `act(action: int | None, answer: str)` gets unreadable answers and the raw text itself,
    so that its rewards see them. For any other Gymnasium environment with discrete actions and `rgb_array` frames, this
    class counts the moves, ends the episode at the move limit, and calls an episode a success when it terminates with
    a positive return.
    """

    def __init__(self, env: gymnasium.Env, offer: EnvironmentOffer, *, prompt: str | None = None) -> None:
        """
        Args:
            env: made by `gymnasium.make(offer.id, **offer.kwargs)`.
            prompt: replaces the offer's prompt.

        Raises:
            ValueError: the environment has no discrete actions, not one word for each, or neither image observations
                nor `render_mode="rgb_array"`.
        """
        super().__init__(env)
        self.offer = offer
        self._prompt = prompt
        actions = env.action_space
        if not isinstance(actions, spaces.Discrete):
            raise ValueError(f"{offer.id}: a text environment needs discrete actions, got {actions}")
        if actions.n != len(offer.words):
            raise ValueError(f"{offer.id}: {actions.n} actions but {len(offer.words)} words {offer.words}")
        self.action_space = spaces.Text(max_length=1 << 20, min_length=0, charset=string.printable)
        self._inner: Any = env.unwrapped
        self._acts = hasattr(self._inner, "act")
        self._observation = getattr(env.unwrapped, "observation", None)
        self.modality = self._observation.modality if self._observation is not None else "image"
        self._renders = self._observation is None and not _is_image(env.observation_space)
        if self._renders and env.render_mode != "rgb_array":
            raise ValueError(f"{offer.id}: its observations are no pictures, so it must be made with render_mode='rgb_array'")
        self._limit = 0
        self._moves = 0
        self._return = 0.0
        self._last: Any = None
        self._over = True

    def start(self, task: Task) -> tuple[Any, dict[str, Any]]:
        """Reset to a task; the move limit of a foreign environment is the task's."""
        self._limit = task.move_limit
        return self.reset(seed=task.seed, options=dict(task.options))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        shown, info = self.env.reset(seed=seed, options=options)
        self._moves, self._return, self._over = 0, 0.0, False
        prompt = self._prompt if self._prompt is not None else self.offer.prompt(self.env.unwrapped)
        return self._shown(shown), {**info, "prompt": prompt, **self._text(shown)}

    def step(self, answer: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take an answer in words.

        Raises:
            gymnasium.error.ResetNeeded: the episode is over or was never begun.
        """
        if self._over:
            raise gymnasium.error.ResetNeeded("the episode is over: call reset() before step()")
        action = (self.offer.parse or parse_tagged)(answer, self.offer.words)
        if self._acts:
            shown, reward, terminated, truncated, info = self._inner.act(action, answer)
        else:
            shown, reward, terminated, truncated, info = self._foreign(action)
        self._over = terminated or truncated
        return (
            self._shown(shown),
            reward,
            terminated,
            truncated,
            {**info, "readable": action is not None, **self._text(shown)},
        )

    def _foreign(self, action: int | None) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._moves += 1
        info: dict[str, Any] = {}
        if action is None:
            shown, reward, terminated, truncated = copy.deepcopy(self._last), 0.0, False, False
            feedback = f"Cannot read the answer. Answer with one of: {', '.join(self.offer.words)}."
        else:
            shown, value, terminated, truncated, info = self.env.step(action)
            reward, feedback = float(value), f"Action {self.offer.words[action]} executed."
        self._return += reward
        truncated = bool(truncated or (self._limit and self._moves >= self._limit and not terminated))
        success = bool(terminated and self._return > 0)
        ending = Ending.SUCCESS if success else Ending.FAILURE if terminated else Ending.LIMIT if truncated else Ending.RUNNING
        extra = {"feedback": feedback, "success": success, "ending": ending, "moves": self._moves, "excluded": False}
        return shown, reward, bool(terminated), truncated, {**info, **extra}

    def _shown(self, observation: Any) -> Any:
        self._last = observation
        return np.ascontiguousarray(self.env.render()) if self._renders else observation

    def _text(self, observation: Any) -> dict[str, str]:
        if self.modality != "text":
            return {}
        assert self._observation is not None and self._observation.to_text is not None
        return {"text": self._observation.to_text(observation)}


def make_text_environment(offer: EnvironmentOffer, *, prompt: str | None = None) -> TextEnvironment:
    """Make an offered environment and give it words.

    Raises:
        ValueError: it cannot be a text environment; see `TextEnvironment`.
    """
    env = gymnasium.make(gymnasium.envs.registration.EnvSpec(id=offer.id, entry_point=offer.entry_point), **offer.kwargs)
    return TextEnvironment(env, offer, prompt=prompt)


def words_prompt(words: Sequence[str]) -> str:
    """Return the sentence that tells a model how to answer."""
    return f"Answer with <action>word</action>; the words are {', '.join(words)}."


def _is_image(space: spaces.Space) -> bool:
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3 and space.shape[2] == 3
