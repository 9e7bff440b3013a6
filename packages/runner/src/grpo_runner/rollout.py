"""Rollouts: environments and an engine in turns, until every episode is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from grpo_runner.chat import Chat, Vocabulary
from grpo_runner.ledger import Trajectory, Turn
from grpo_runner.pictures import identify
from grpo_runner.seeds import derive_seed, uniform
from vismaze_hooks import (
    Baseline,
    Completion,
    Ending,
    Engine,
    EnvironmentOffer,
    Follow,
    Image,
    Request,
    StreamingEngine,
    Task,
    pick,
)
from vismaze_hooks.answers import tagged
from vismaze_hooks.text import TextEnvironment, make_text_environment


@dataclass(frozen=True)
class RolloutSettings:
    """How turns are asked for."""

    history: int | None  # past turns in the prompt; None: all of them
    max_new_tokens: int  # a turn
    temperature: float  # 0.0: greedy


@dataclass
class _Episode:
    """One running episode: what was shown and answered so far."""

    env: TextEnvironment
    task: Task
    sample: int
    prompt: str = ""
    shown: list[tuple[str, tuple[Image, ...]]] = field(default_factory=list)  # text and pictures of each turn
    turns: list[Turn] = field(default_factory=list)
    excluded: bool = False
    ending: Ending = Ending.RUNNING
    success: bool = False
    error: str | None = None


class Player(Protocol):
    """Plays episodes: `Rollouts` here, or the ranks of a cluster."""

    def run(
        self,
        engine: Engine,
        tasks: Sequence[tuple[Task, int]],
        settings: RolloutSettings,
        seed_of: Callable[[Task, int, int], int],
        finished: Callable[[Trajectory], None] = ...,
    ) -> list[Trajectory]:
        """As `Rollouts.run`."""
        ...


class Rollouts:
    """Keeps the environments and the picture identities between calls; holds no state that a result depends on."""

    def __init__(self, offer: EnvironmentOffer, chat: Chat, vocabulary: Vocabulary, *, prompt: str | None = None) -> None:
        self._offer = offer
        self._chat = chat
        self._vocabulary = vocabulary
        self._banned = frozenset(vocabulary.banned)
        self._prompt = prompt
        self._idle: list[TextEnvironment] = []
        self._pictures: dict[bytes, Image] = {}

    def run(
        self,
        engine: Engine,
        tasks: Sequence[tuple[Task, int]],
        settings: RolloutSettings,
        seed_of: Callable[[Task, int, int], int],
        finished: Callable[[Trajectory], None] = lambda trajectory: None,
    ) -> list[Trajectory]:
        """Play every (task, sample) to its end. An environment or reward that fails ends its own episode only.

        Args:
            seed_of: (task, sample, turn) -> the turn's 64-bit seed.
            finished: told each trajectory as soon as it is over.
        """
        episodes = [self._episode(task, sample) for task, sample in tasks]
        for episode in episodes:
            with _contained(episode):
                self._start(episode)

        def ask(episode: _Episode) -> Request:
            return self._request(episode, settings, seed_of(episode.task, episode.sample, len(episode.turns)))

        running = [e for e in episodes if e.ending is Ending.RUNNING]
        asked = [ask(e) for e in running]

        def follow(number: int, completion: Completion) -> Request | None:
            episode = running[number]
            with _contained(episode):
                self._advance(episode, asked[number], completion)
            if episode.ending is not Ending.RUNNING:
                if episode.error is None:
                    self._idle.append(episode.env)
                finished(_finish(episode))
                return None
            asked[number] = ask(episode)
            return asked[number]

        for episode in episodes:
            if episode.ending is not Ending.RUNNING:
                finished(_finish(episode))
        stream(engine, asked, follow)
        self._pictures.clear()
        return [_finish(e) for e in episodes]

    def demonstrate(
        self,
        tasks: Sequence[Task],
        settings: RolloutSettings,
        *,
        turns: int | None = None,
        noise: float = 0.0,
        habits: Mapping[str, float] | None = None,
        seed: int = 0,
    ) -> list[Trajectory]:
        """Play every task as the offer's solver does, in the words and ids that the model would use.

        Args:
            turns: keep this many successive turns of each episode, from a random one on, in a conversation that begins
                there; None: the whole episode. A few turns of many episodes are more independent of each other.
            noise: share of turns in which a random word is played instead and not trained on. The solver goes on from
                where that leads, so the demonstrations hold the states that mistakes lead to, and the last answer does
                not give away the next one (Laskey et al. 2017, DART).
            habits: baseline of the offer -> share of the turns without noise in which its answer is shown, and trained on,
                instead of the solver's. A policy that imitates the mixture knows more ways than it takes greedily.
            seed: of noise and choice.

        Raises:
            ValueError: the environment offers no solver, or no baseline of such a name.
        """
        if self._offer.solver is None:
            raise ValueError(f"environment {self._offer.id} offers no solver, so there are no demonstrations to learn from")
        others = [(pick("baseline", name, self._offer.baselines), share) for name, share in (habits or {}).items()]
        episodes = [self._begin(task, 0) for task in tasks]
        for episode in episodes:
            while episode.ending is Ending.RUNNING:
                draw = derive_seed(seed, "noise", episode.task.uid, len(episode.turns))
                noisy = uniform(draw, 0) < noise
                action = int(uniform(draw, 1) * len(self._offer.words)) if noisy else self._shown_action(episode, others, draw)
                self._advance(episode, self._request(episode, settings, 0), self._written(action), trained=not noisy)
            self._idle.append(episode.env)
            if turns is not None:
                places = max(1, len(episode.turns) - turns + 1)
                self._cut(episode, int(uniform(derive_seed(seed, "cut", episode.task.uid), 0) * places), turns, settings)
        self._pictures.clear()
        return [_finish(e) for e in episodes]

    def questions(self, tasks: Sequence[Task], settings: RolloutSettings, seeds: Sequence[int], *, turns: int) -> list[Request]:
        """Return one request of each task, after a few turns of fixed play: always the same, whatever the policy does.

        Args:
            turns: answers before the request, where the episode does not end earlier; they go through the words in turn.
        """
        found = []
        for task, seed in zip(tasks, seeds, strict=True):
            episode = self._begin(task, 0)
            request = self._request(episode, settings, seed)
            for turn in range(turns):
                self._advance(episode, request, self._written(turn % len(self._offer.words)))
                if episode.ending is not Ending.RUNNING:
                    break
                request = self._request(episode, settings, seed)
            self._idle.append(episode.env)
            found.append(request)
        self._pictures.clear()
        return found

    def _cut(self, episode: _Episode, start: int, turns: int, settings: RolloutSettings) -> None:
        """Keep some turns, as if the conversation had begun with the first of them."""
        first = episode.shown[start]
        end = start + turns
        played, episode.turns = episode.turns[start:end], []
        episode.shown = [("", first[1]), *episode.shown[start + 1 : end + 1]]
        for turn in played:
            request = self._request(episode, settings, 0)
            episode.turns.append(replace(turn, prompt_ids=request.prompt_ids, images=request.images))

    def _shown_action(self, episode: _Episode, others: Sequence[tuple[Baseline, float]], draw: int) -> int:
        left = uniform(draw, 2)
        for baseline, share in others:
            if left < share:
                return baseline(episode.env.unwrapped, np.random.default_rng(draw))
            left -= share
        assert self._offer.solver is not None
        return self._offer.solver(episode.env.unwrapped)[0]

    def _written(self, action: int) -> Completion:
        """Return a well-formed answer as if it had been sampled."""
        form = self._offer.answer or tagged
        ids = (*self._chat.encode(form(self._offer.words[action])), self._vocabulary.end_of_turn)
        return Completion(ids, (0.0,) * len(ids), True, 0)

    def _begin(self, task: Task, sample: int) -> _Episode:
        episode = self._episode(task, sample)
        self._start(episode)
        return episode

    def _episode(self, task: Task, sample: int) -> _Episode:
        env = self._idle.pop() if self._idle else make_text_environment(self._offer, prompt=self._prompt)
        return _Episode(env, task, sample)

    def _start(self, episode: _Episode) -> None:
        observation, info = episode.env.start(episode.task)
        episode.prompt = info["prompt"]
        self._show(episode, observation, info, "")

    def _show(self, episode: _Episode, observation: Any, info: dict[str, Any], feedback: str) -> None:
        if episode.env.modality == "image":
            key = np.ascontiguousarray(observation).tobytes()
            picture = self._pictures.get(key)
            if picture is None:
                picture = self._pictures[key] = identify(observation)
            episode.shown.append((feedback, (picture,)))
        else:
            episode.shown.append(("\n".join(filter(None, (feedback, info.get("text", "")))), ()))

    def _request(self, episode: _Episode, settings: RolloutSettings, seed: int) -> Request:
        now = len(episode.turns)
        first = 0 if settings.history is None else max(0, now - settings.history)
        ids: list[int] = []
        images: list[Image] = []
        for turn in range(first, now + 1):
            text, pictures = episode.shown[turn]
            lead = f"{episode.prompt}\n{text}" if turn == first else text
            before = episode.turns[turn - 1] if turn > first else None
            closed = before is None or before.token_ids[-1:] == (self._vocabulary.end_of_turn,)
            ids.extend(self._chat.observation(lead, len(pictures), first=turn == first, closed=closed))
            images.extend(pictures)
            if turn < now:
                ids.extend(episode.turns[turn].token_ids)
        session = f"{episode.task.uid}#{episode.sample}"
        return Request(tuple(ids), tuple(images), seed, settings.max_new_tokens, settings.temperature, session)

    def _advance(self, episode: _Episode, request: Request, completion: Completion, *, trained: bool = True) -> None:
        ids, logprobs = completion.token_ids, completion.logprobs
        if not self._banned.isdisjoint(ids):  # from an engine without the mask: a picture was claimed, none was shown
            kept = [n for n, token in enumerate(ids) if token not in self._banned]
            completion = replace(completion, token_ids=tuple(ids[n] for n in kept), logprobs=tuple(logprobs[n] for n in kept))
            answer, trained = "", False  # nothing readable; what was sampled has no probability that could be trained
        else:
            answer = self._chat.decode(completion.token_ids, self._vocabulary)
        observation, reward, _, _, info = episode.env.step(answer)
        episode.turns.append(
            Turn(
                request.prompt_ids,
                request.images,
                completion.token_ids,
                completion.logprobs,
                request.seed,
                completion.weights_version,
                answer,
                info["readable"],
                info["feedback"],
                float(reward),
                trained,
            )
        )
        episode.excluded |= info["excluded"]
        episode.ending, episode.success = info["ending"], info["success"]
        self._show(episode, observation, info, info["feedback"])


def stream(engine: Engine, requests: Sequence[Request], follow: Follow) -> None:
    """Sample all requests and whatever follows from them: each on its own where the engine can, else all turns together."""
    if isinstance(engine, StreamingEngine):
        engine.stream(list(requests), follow)
        return
    running = list(enumerate(requests))
    while running:
        completions = engine.generate([request for _, request in running])
        followed = [(n, follow(n, completion)) for (n, _), completion in zip(running, completions, strict=True)]
        running = [(n, request) for n, request in followed if request is not None]


@contextmanager
def _contained(episode: _Episode) -> Iterator[None]:
    """Let what an environment or a reward raises end its episode, which is then left out and counted."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 — whatever a third party's code raises; it goes into the trajectory
        episode.error = f"{type(error).__name__}: {error}"
        episode.excluded, episode.success, episode.ending = True, False, Ending.FAILURE


def _finish(episode: _Episode) -> Trajectory:
    reward = None if episode.excluded else float(sum(t.reward for t in episode.turns))
    turns = tuple(episode.turns)
    return Trajectory(episode.task, episode.sample, turns, reward, episode.success, episode.ending, episode.error)


def training_seed(run_seed: int, step: int) -> Callable[[Task, int, int], int]:
    """Return the seeds of one training step's turns."""
    return lambda task, sample, turn: derive_seed(run_seed, "sample", step, task.uid, sample, turn)


def evaluation_seed(run_seed: int) -> Callable[[Task, int, int], int]:
    """Return the seeds of an evaluation's turns: the same at every evaluation of a run."""
    return lambda task, sample, turn: derive_seed(run_seed, "evaluate", task.uid, sample, turn)
