"""What the runner and its vLLM process say to each other over one pipe. Plain data: imports neither torch nor vllm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Start:
    """The first message: how to build the engine. Answered by `Ready` or `Failed`."""

    arguments: Mapping[str, object]  # of vLLM's EngineArgs
    banned: tuple[int, ...]  # tokens that cannot be sampled
    end_of_turn: int


@dataclass(frozen=True)
class Ask:
    """One turn to sample."""

    ticket: int  # comes back with the answer
    prompt_ids: tuple[int, ...]  # image placeholders not expanded
    shas: tuple[str, ...]  # pictures in reading order
    seed: int
    max_new_tokens: int
    temperature: float


@dataclass(frozen=True)
class Asks:
    """Turns to sample, with the pictures that the process does not hold yet. Answered by `Answers`, in any order."""

    asks: tuple[Ask, ...]
    pictures: Mapping[str, np.ndarray] = field(default_factory=dict)  # sha256 -> uint8 [height, width, 3]
    forget: tuple[str, ...] = ()  # pictures that will not be asked about again


@dataclass(frozen=True)
class Answer:
    """What was sampled."""

    ticket: int
    prompt_ids: np.ndarray  # int64 [length]: the prompt as vLLM saw it, placeholders expanded
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[str, ...]  # weights versions of its tokens, without repeats
    cached_tokens: int  # of the prompt, from the prefix cache


@dataclass(frozen=True)
class Answers:
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class Load:
    """Serve an adapter from now on. Answered by `Loaded` or `Failed`."""

    folder: str  # absolute
    version: int


@dataclass(frozen=True)
class Loaded:
    """What the engine itself says of the adapter that it holds."""

    slot: Mapping[str, tuple[str, ...]]  # vLLM's module -> digest of each of its slices, in the active slot
    unbound: tuple[str, ...]  # modules of the file that no layer of the engine applies
    cache_reset: bool


@dataclass(frozen=True)
class Look:
    """Answered by `Seen`."""


@dataclass(frozen=True)
class Seen:
    """What has happened since the start."""

    same_adapter: bool  # the adapter in memory is the object that `Loaded` described
    pictures_encoded: int
    resident_bytes: int  # memory of the process


@dataclass(frozen=True)
class Do:
    """Call one of `release_kv`, `sleep`, `wake`. Answered by `Done` or `Failed`."""

    what: str


@dataclass(frozen=True)
class Done:
    pass


@dataclass(frozen=True)
class Ready:
    vllm: str  # its version
    device: str


@dataclass(frozen=True)
class Failed:
    """The request before could not be done; the process goes on where that makes sense."""

    error: str
