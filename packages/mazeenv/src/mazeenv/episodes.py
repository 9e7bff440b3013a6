"""Episodes on disk and played back: an episode is its environment, its task and its answers, a line of JSON; what was seen is
played again when it is wanted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vismaze_hooks import EnvironmentOffer, Task, pick
from vismaze_hooks.answers import tagged
from vismaze_hooks.plugins import current_plugins
from vismaze_hooks.text import TextEnvironment, make_text_environment


@dataclass(frozen=True)
class Recorded:
    """An episode as it is stored."""

    environment: str  # id under which a plugin offers it
    task: Task
    answers: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)  # of the environment
    prompt: str | None = None  # in place of the environment's own

    def line(self) -> str:
        """Return it as a line of JSON."""
        return json.dumps({**asdict(self), "answers": list(self.answers)}, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class Shown:
    """What there was after an answer; the first of an episode has none."""

    picture: np.ndarray  # uint8 [height, width, 3]
    answer: str
    readable: bool
    feedback: str
    reward: float
    ending: str
    state: Any  # of the environment, where it has one


def read_episode(
    path: Path, number: int = 0, *, environment: str = "VisMaze-v0", options: Mapping[str, Any] | None = None
) -> Recorded:
    """Read a line of a file of episodes.

    A line that `Recorded.line` wrote holds everything. A line of an evaluation of `grpo-run` has `uid` and `answers`; the task
    is then looked for in the fixed sets of the environment that is named beside it.

    Args:
        number: of the line among those that hold an episode, from 0; negative from the end.

    Raises:
        ValueError: no such line, or one that is no episode; names the file and the line.
    """
    found: list[tuple[int, dict[str, Any]]] = []
    for at, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            record = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {at}: not JSON: {error}") from error
        if isinstance(record, dict) and "answers" in record:
            found.append((at, record))
    if not -len(found) <= number < len(found):
        raise ValueError(f"{path}: no episode {number}; {len(found)} lines hold one")
    at, record = found[number]
    try:
        answers = tuple(str(answer) for answer in record["answers"])
        if "task" in record:
            task = Task(**record["task"])
            return Recorded(record["environment"], task, answers, record.get("options", {}), record.get("prompt"))
        return Recorded(environment, find_task(offer_of(environment, options or {}), record["uid"]), answers, options or {})
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}, line {at}: no episode: {error}") from error


def offer_of(environment: str, options: Mapping[str, Any]) -> EnvironmentOffer:
    """Return the offer of an environment; an unknown id suggests the nearest."""
    return current_plugins().create("environment", environment, options)


def find_task(offer: EnvironmentOffer, uid: str) -> Task:
    """Return the task `SET/NUMBER` of a fixed set.

    Raises:
        ValueError: no such set (the nearest is suggested) or number.
    """
    name, _, number = uid.rpartition("/")
    tasks = pick("fixed set", name, offer.fixed_sets)()
    if not number.isdecimal() or int(number) >= len(tasks):
        raise ValueError(f"{uid}: {name} has the tasks 0 to {len(tasks) - 1}")
    return tasks[int(number)]


def draw_task(offer: EnvironmentOffer, seed: int) -> Task:
    """Return the task of a seed: of the training stream, or of a plain reset where there is none."""
    if offer.stream is not None:
        return offer.stream()(seed)
    return Task(f"seed/{seed}", f"seed/{seed}", {}, 0, seed=seed)


def solved(environment: str, options: Mapping[str, Any], task: Task) -> Recorded:
    """Return the episode that the environment's solver plays.

    Raises:
        ValueError: it offers no solver.
    """
    offer = offer_of(environment, options)
    if offer.solver is None:
        raise ValueError(f"{environment} offers no solver")
    env = make_text_environment(offer)
    env.start(task)
    write = offer.answer or tagged
    return Recorded(environment, task, tuple(write(offer.words[action]) for action in offer.solver(env.unwrapped)), options)


def play_back(recorded: Recorded) -> tuple[str, list[Shown]]:
    """Play an episode again; return its prompt and what was shown, the start first.

    Raises:
        ValueError: answers go on after the episode's end, so it was recorded with other rules.
    """
    offer = offer_of(recorded.environment, recorded.options)
    env = make_text_environment(offer, prompt=recorded.prompt)
    observation, info = env.start(recorded.task)
    shown = [Shown(picture_of(env, observation), "", True, "", 0.0, "running", _state(env))]
    for number, answer in enumerate(recorded.answers):
        if shown[-1].ending != "running":
            raise ValueError(f"the episode is over after {number} answers, {len(recorded.answers)} are recorded: other rules?")
        observation, reward, _, _, more = env.step(answer)
        picture = picture_of(env, observation)
        shown.append(Shown(picture, answer, more["readable"], more["feedback"], reward, str(more["ending"]), _state(env)))
    env.close()
    return info["prompt"], shown


def picture_of(env: TextEnvironment, observation: Any) -> np.ndarray:
    """Return the present picture, also where the observation is none."""
    bare: Any = env.unwrapped
    if env.modality == "image":
        return np.asarray(observation)
    return bare.picture.observe(bare.state)


def _state(env: TextEnvironment) -> Any:
    return getattr(env.unwrapped, "state", None)


def write_episodes(path: Path, episodes: Sequence[Recorded]) -> None:
    """Add episodes to a file."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(episode.line() for episode in episodes)


def cells_of(shown: Sequence[Shown]) -> Iterator[tuple[int, int]]:
    """Yield (row, column) of where the player was, for states of a maze."""
    for moment in shown:
        yield divmod(moment.state.cell, moment.state.maze.width)
