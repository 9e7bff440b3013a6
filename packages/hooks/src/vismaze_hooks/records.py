"""The records that cross package borders. Plain data: nothing here imports numpy, gymnasium or torch at run time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import gymnasium
    import numpy as np


class Ending(StrEnum):
    """Why an episode is over, or that it is not."""

    RUNNING = "running"
    SUCCESS = "success"  # the goal was reached within the limit
    FAILURE = "failure"  # the environment ended it without success, such as a stop off the goal
    LIMIT = "limit"  # the move limit was used up: Gymnasium's `truncated`


@dataclass(frozen=True)
class Task:
    """What a rollout starts from. All samples of a GRPO group share one task; groups are formed by `uid`.

    Example: `Task(uid="vismaze-64-7x7/0", content_hash="5c1e…", options={"maze": "#######\\n#S…"}, move_limit=12,
    labels={"shortest": 8})`.
    """

    uid: str  # unique within a run; never derived from prompt text
    content_hash: str  # sha256 of what the task is, the same in whatever set or stream it appears
    options: Mapping[str, Any]  # for `env.reset(options=...)`; JSON-able
    move_limit: int  # moves; enforced by the environment, or by the text layer for a foreign one
    seed: int | None = None  # for `env.reset(seed=...)`, where the options alone do not fix the task
    labels: Mapping[str, int | str] = field(default_factory=dict)  # strata of the results, such as path length


@dataclass(frozen=True)
class Transition:
    """One step as a reward sees it. `before` and `after` are the environment's own frozen states."""

    before: Any
    answer: str  # the raw answer; the action's word when the step came as an action
    action: int | None  # None: the answer was unreadable
    after: Any
    ending: Ending


Reward = Callable[[Transition], "float | None"]
"""A pure function of one transition. None leaves the whole sample out: of the group's mean, of the loss and its count."""


Baseline = Callable[[Any, "np.random.Generator"], int]
"""Plays without a model: (unwrapped environment, random draws) -> action."""


@dataclass(frozen=True)
class Observation:
    """How a state is shown: a Gymnasium space and a pure function from state to a fresh array."""

    modality: Literal["image", "text", "array"]  # image: uint8 [height, width, 3]; text: `to_text` makes words of it
    space: Callable[[Any], gymnasium.Space]  # from any state of the environment: shapes depend on the board's size
    observe: Callable[[Any], np.ndarray]  # state -> array inside `space`; never shares memory between calls
    to_text: Callable[[np.ndarray], str] | None = None  # for modality "text"
    palette_image: Callable[[Any], Any] | None = None  # state -> PIL "P" image of the same pixels, for a small PNG
    legend: Callable[[Any], str] | None = None  # state -> what is seen and what its signs mean: the prompt's first sentence


@dataclass(frozen=True)
class EnvironmentOffer:
    """An environment as the runner and the registry see it; made by the factory `(**options) -> EnvironmentOffer`."""

    id: str  # Gymnasium id with version, such as "VisMaze-v0"
    entry_point: str  # "module:Class"
    words: tuple[str, ...]  # the word of each action, in the order of the action space
    prompt: Callable[[Any], str]  # unwrapped environment after reset -> the task in words
    kwargs: Mapping[str, Any] = field(default_factory=dict)  # for `gym.make(id, **kwargs)`
    vector_entry_point: str | None = None
    stream: Callable[..., Callable[[int], Task]] | None = None
    """`stream(**options)` gives `draw(seed) -> Task`, a pure function of a 64-bit seed that avoids every fixed set."""
    fixed_sets: Mapping[str, Callable[[], tuple[Task, ...]]] = field(default_factory=dict)
    solver: Callable[[Any], Sequence[int]] | None = None  # unwrapped environment -> actions from its state to success
    baselines: Mapping[str, Baseline] = field(default_factory=dict)  # to compare with, and to imitate
    parse: Callable[[str, Sequence[str]], int | None] | None = None  # answer, words -> action; None: the tag grammar
    answer: Callable[[str], str] | None = None  # word -> a well-formed answer; None: `<action>word</action>`


@dataclass(frozen=True)
class Image:
    """A picture with its identity, so that every cache and every wire can key on the content."""

    pixels: np.ndarray  # uint8 [height, width, 3]
    sha256: str  # of shape and bytes


@dataclass(frozen=True)
class Request:
    """One turn to sample: ids in, ids out."""

    prompt_ids: tuple[int, ...]  # image placeholders not expanded: one per image
    images: tuple[Image, ...]
    seed: int  # 64 bits; a function of (run seed, purpose, step, task, sample, turn)
    max_new_tokens: int
    temperature: float  # 0.0: greedy
    session: str = ""  # one per trajectory: turns of one session extend each other when the history is kept


@dataclass(frozen=True)
class Completion:
    """What was sampled. `logprobs` are of the sampling distribution: temperature applied, banned tokens out."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stopped: bool  # True: ended by an end-of-turn token (the last of `token_ids`); False: the token limit
    weights_version: int
    cached_tokens: int | None = None  # of the prompt, from an earlier request's cache; None: the engine cannot tell


class Engine(Protocol):
    """Samples turns. Made by the factory `(**options)`; each process builds its own."""

    def generate(self, requests: Sequence[Request]) -> list[Completion]: ...

    def publish(self, adapter_folder: Path, version: int) -> None:
        """Load the weights in `adapter_folder`; every later completion carries `version`."""
        ...

    def close(self) -> None: ...


Follow = Callable[[int, Completion], "Request | None"]
"""(place of the request, its completion) -> the next request of the same trajectory, or None when that is over."""


@runtime_checkable
class StreamingEngine(Engine, Protocol):
    """An engine in which no trajectory waits for another."""

    def stream(self, requests: Sequence[Request], follow: Follow) -> None:
        """Sample all requests; whenever one is done, go on with what `follow` returns. Returns when nothing is left."""
        ...


@runtime_checkable
class ReleasingEngine(Engine, Protocol):
    """An engine that can lend its memory to the trainer between rollouts."""

    def release(self) -> None:
        """Give memory back; nothing can be sampled until `wake`. Harmless when there is nothing to give."""
        ...

    def wake(self) -> None:
        """Take the memory again, with the weights that were published last."""
        ...


@runtime_checkable
class CountingEngine(Engine, Protocol):
    """An engine that counts what happens to it: tokens that are paid for, turns that had to be asked again."""

    def counts(self) -> Mapping[str, int]:
        """Return what was counted since the engine was made, by name."""
        ...


class CheckpointBackend(Protocol):
    """Moves a folder under a name. `names` lists only what is whole."""

    def put(self, folder: Path, name: str) -> None: ...

    def get(self, name: str, folder: Path) -> None: ...

    def names(self) -> list[str]: ...

    def delete(self, name: str) -> None: ...


class Tracker(Protocol):
    """Receives the metrics of each step beside the run's own `metrics.jsonl`."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...
