"""Somebody's environment, put into any state by its seed and the actions since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces


class Moment(NamedTuple):
    """What an environment shows and says after some actions."""

    frame: np.ndarray  # uint8 [height, width, 3]
    rewards: tuple[float, ...]  # one for each action
    terminated: bool
    truncated: bool
    observation: str  # the environment's own, as it prints


CHECKED = 64  # one in so many pictures that were drawn before is drawn again and compared
FRAMES = 4_096  # pictures that are kept

Frames = dict[tuple[str, tuple[int, ...]], np.ndarray]
"""Pictures by the environment's observation and the last action, if there was one."""


class Simulator:
    """Replays an environment. What it holds is only a cache: two simulators of one environment never differ."""

    def __init__(self, env: str, kwargs: Mapping[str, Any], shrink: int = 1, frames: Frames | None = None) -> None:
        """
        Args:
            env: Gymnasium id, with `module:` before it where an import registers it.
            kwargs: for the environment.
            shrink: pixels a side that are averaged into one.
            frames: where pictures are kept, for environments whose picture is a function of observation and last action.

        Raises:
            ValueError: no such environment (Gymnasium's own suggestion is passed on), arguments that it refuses, no discrete
                actions, or no frames.
        """
        self.env, self._kwargs, self._shrink = env, dict(kwargs), shrink
        self._frames, self._reused = frames, 0
        self._live: gymnasium.Env | None = None
        self._seed, self._actions, self._moment = -1, _NO_ACTIONS, _BEGINNING  # where the live one stands
        space = self._made().action_space
        if not isinstance(space, spaces.Discrete):
            raise ValueError(f"{env}: discrete actions are needed, it has {space}")
        self.first, self.count = int(space.start), int(space.n)

    def __getstate__(self) -> dict[str, Any]:
        # the live one need not be picklable: another is made when it is needed
        return {**self.__dict__, "_live": None, "_frames": None if self._frames is None else {}}

    def play(self, seed: int, actions: Sequence[int], *, frame: bool = True) -> Moment:
        """Return what there is after `reset(seed=seed)` and these actions, none of which but the last ends the episode.

        Args:
            frame: whether the picture is wanted; drawing takes most of the time.

        Raises:
            ValueError: pictures are kept, and one is not what the environment draws now.
        """
        actions = tuple(actions)
        live = self._made()
        if seed != self._seed or actions[: len(self._actions)] != self._actions:
            seen, _ = live.reset(seed=seed)
            self._seed, self._actions, self._moment = seed, _NO_ACTIONS, _BEGINNING._replace(observation=str(seen))
        for action in actions[len(self._actions) :]:
            seen, reward, terminated, truncated, _ = live.step(action)
            paid = (*self._moment.rewards, float(reward))
            self._actions = (*self._actions, action)
            self._moment = Moment(_NO_FRAME, paid, bool(terminated), bool(truncated), str(seen))
        return self._moment._replace(frame=self._seen(live)) if frame else self._moment

    def close(self) -> None:
        if self._live is not None:
            self._live.close()
            self._live = None

    def _made(self) -> gymnasium.Env:
        if self._live is None:
            try:
                self._live = gymnasium.make(self.env, render_mode="rgb_array", disable_env_checker=True, **self._kwargs)
            except (gymnasium.error.Error, ImportError, TypeError) as error:
                raise ValueError(f"env={self.env!r} with {self._kwargs}: {error}") from error
            self._seed, self._actions, self._moment = -1, _NO_ACTIONS, _BEGINNING
        return self._live

    def _seen(self, live: gymnasium.Env) -> np.ndarray:
        if self._frames is None:
            return self._picture(live)
        if len(self._frames) >= FRAMES:
            self._frames.clear()
        key = self._moment.observation, self._actions[-1:]
        kept = self._frames.get(key)
        self._reused += kept is not None
        if kept is None or self._reused % CHECKED == 0:
            drawn = self._picture(live)
            if kept is not None and not np.array_equal(kept, drawn):
                raise ValueError(
                    f"{self.env} draws observation {key[0]} after action {key[1]} in two ways, so its pictures cannot be kept: "
                    "remove draw_by"
                )
            self._frames[key] = kept = drawn
        return kept

    def _picture(self, live: gymnasium.Env) -> np.ndarray:
        try:
            frame = np.asarray(live.render())
        except gymnasium.error.DependencyNotInstalled as error:
            raise ValueError(f"{self.env} cannot draw its frames: {error}") from error
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
            raise ValueError(f"{self.env}: frames of uint8 [height, width, 3] are needed, got {frame.dtype} {frame.shape}")
        if self._shrink == 1:
            return frame.copy()
        from PIL import Image  # here, since importing it takes longer than all the rest of this package

        return np.array(Image.fromarray(frame).reduce(self._shrink))


_NO_FRAME = np.zeros((0, 0, 3), dtype=np.uint8)
_NO_ACTIONS: tuple[int, ...] = ()
_BEGINNING = Moment(_NO_FRAME, (), False, False, "")
