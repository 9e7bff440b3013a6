"""A foreign environment as a game: levels, rules and a solver, from nothing but its seed, its actions and its frames."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from gymnasium import spaces

from vismaze_gymnasium.simulator import Frames, Moment, Simulator
from vismaze_hooks import Ending, Observation
from vismaze_hooks.game import UNREADABLE, Game, spend
from vismaze_hooks.integers import Integers

ATTEMPTS = 200  # draws before a level counts as not to be had
PLANS = 100_000  # places whose plan is kept
SPARE_MOVES = 4
SUCCESS, OVER = "Done.", "The episode is over."


class Played(NamedTuple):
    """An episode of a foreign environment. The seed and the actions are the state; the rest follows from them."""

    seed: int
    actions: tuple[int, ...]  # the environment's own numbers, those of the scramble first
    scrambled: int  # how many of them are the scramble's
    moves: int
    limit: int
    paid: float  # for the last action
    frame: bytes  # the pixels that are shown
    shape: tuple[int, int, int]


@dataclass(frozen=True)
class GymnasiumConfig:
    """Which environment, in which words."""

    env: str  # Gymnasium id, or module:Id
    words: Any  # the word of every action in order, or a mapping word -> action
    kwargs: Mapping[str, Any] = field(default_factory=dict)  # of the environment
    prompt: str = "Solve the task that the picture shows."
    success: Literal["positive", "terminated"] = "positive"  # what a success is: a positive sum at the end, or any end
    move_limit: int | None = None  # None: the fewest moves + 4, which needs the search
    search: int = 2_000  # places that the solver looks at; 0: no solver
    plan_by: Literal["picture", "observation"] = "picture"  # what tells the solver that it has been at a place before
    draw_by: Literal["step", "observation"] = "step"  # "observation": once for each observation and last action
    scramble: int = 0  # random actions before an episode, at most
    shrink: int = 1  # pixels a side that are averaged into one
    evaluation: int = 16  # levels of the fixed set of this name
    tuning: int = 16

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            ValueError: names the option and what is possible.
        """
        for name in ("env", "prompt"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ValueError(f"{name}={getattr(self, name)!r}: must be a text")
        if self.success not in ("positive", "terminated"):
            raise ValueError(f"success={self.success!r}: must be 'positive' or 'terminated'")
        if self.plan_by not in ("picture", "observation"):
            raise ValueError(f"plan_by={self.plan_by!r}: must be 'picture' or 'observation'")
        if self.draw_by not in ("step", "observation"):
            raise ValueError(f"draw_by={self.draw_by!r}: must be 'step' or 'observation'")
        for name, least in (("search", 0), ("scramble", 0), ("shrink", 1), ("evaluation", 1), ("tuning", 1)):
            if type(getattr(self, name)) is not int or getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)!r}: must be a whole number, {least} or more")
        if self.move_limit is None and not self.search:
            raise ValueError("move_limit: must be given where search = 0, since the fewest moves are not known")
        if self.move_limit is not None and (type(self.move_limit) is not int or self.move_limit < 1):
            raise ValueError(f"move_limit={self.move_limit!r}: must be a whole number, 1 or more")
        if not self.table or not all(isinstance(w, str) and w and w == w.strip() for w in self.table):
            raise ValueError(f"words={self.words!r}: must be a list of words, or a table of word = action")
        if isinstance(self.words, list | tuple) and len(self.table) != len(self.words):
            raise ValueError(f"words={self.words!r}: one word stands there twice")

    @property
    def table(self) -> dict[str, int]:
        """Word -> number of the action, counted from the first one of its space in a list, as it stands in a table."""
        if isinstance(self.words, Mapping):
            return dict(self.words)
        return {word: number for number, word in enumerate(self.words)} if isinstance(self.words, list | tuple) else {}


class Foreign:
    """The functions of the game. What it holds beside the configuration is only there to save time."""

    def __init__(self, config: GymnasiumConfig) -> None:
        """
        Raises:
            ValueError: the environment cannot be made or shown, or words and actions do not fit.
        """
        self.config = config
        frames = _FRAMES.setdefault(_drawing(config), {}) if config.draw_by == "observation" else None
        self.simulator = Simulator(config.env, config.kwargs, config.shrink, frames)
        # another one plans, so that the player's stays where it is
        self._scout = Simulator(config.env, config.kwargs, config.shrink, frames)
        first, count = self.simulator.first, self.simulator.count
        if not isinstance(config.words, Mapping) and len(config.table) != count:
            raise ValueError(
                f"{config.env} has {count} actions, {len(config.table)} words were given: {', '.join(config.table)}. "
                "Name every action, or give a table of word = action for some"
            )
        shift = 0 if isinstance(config.words, Mapping) else first
        self.numbers = [number + shift for number in config.table.values()]
        for word, number in zip(config.table, self.numbers, strict=True):
            if type(number) is not int or not first <= number < first + count:
                raise ValueError(f"word {word!r} = {number!r}: {config.env} has the actions {first} to {first + count - 1}")
        self._sure: tuple[int, tuple[int, ...]] = (-1, ())  # seed and actions of the last success that was really played

    def close(self) -> None:
        self.simulator.close()
        self._scout.close()

    def game(self) -> Game:
        return Game(tuple(self.config.table), self.draw, self.read, self.advance, Observation("image", space, show), letters)

    def draw(self, seed: int) -> Played:
        """Draw a start: the environment's own from the seed, and the scramble.

        Raises:
            ValueError: none that can be solved was found in `ATTEMPTS` draws.
        """
        for lane in range(ATTEMPTS):
            integers = Integers(seed, lane)
            inner = integers.below(1 << 31)
            steps = integers.below(self.config.scramble + 1)
            started = self._begin(inner, self._wander(inner, steps, integers))
            if started is not None:
                return started
        raise ValueError(f"{self.config.env}: no start that can be solved within the limit in {ATTEMPTS} draws")

    def _wander(self, seed: int, steps: int, integers: Integers) -> tuple[int, ...]:
        """Return up to so many random actions, each to an observation that was not there before, none ending the episode.

        Actions drawn without looking mostly lead back to where they began: into walls, to and fro, off a cliff.
        """
        walked: tuple[int, ...] = ()
        seen = {self.simulator.play(seed, walked, frame=False).observation}
        for _ in range(steps):
            choices = list(self.numbers)
            integers.shuffle(choices)
            for number in choices:
                moment = self.simulator.play(seed, (*walked, number), frame=False)
                if moment.observation not in seen and not _ended(moment):
                    break
            else:
                return walked
            seen.add(moment.observation)
            walked = (*walked, number)
        return walked

    def read(self, options: Mapping[str, Any]) -> Played:
        """Return the level of reset options: `seed`, `actions` of the scramble, `limit`.

        Raises:
            ValueError: an unknown option, or no start of this environment.
        """
        if set(options) - {"limit"} != {"seed", "actions"}:
            raise ValueError(f"reset options are 'seed', 'actions' and 'limit', got {sorted(options)}")
        started = self._begin(int(options["seed"]), tuple(options["actions"]))
        if started is None:
            raise ValueError(f"{dict(options)}: no start of {self.config.env} that can be solved within the limit")
        return started._replace(limit=int(options.get("limit", started.limit)))

    def _begin(self, seed: int, actions: tuple[int, ...]) -> Played | None:
        for count in range(len(actions)):
            if _ended(self.simulator.play(seed, actions[: count + 1], frame=False)):
                return None
        start = self._played(seed, actions, len(actions), 0, self.config.move_limit or 0)
        if not self.config.search:
            return start
        plan = self.plan(start)
        if not plan or len(plan) > (self.config.move_limit or len(plan)):
            return None
        return start._replace(limit=self.config.move_limit or len(plan) + SPARE_MOVES)

    def _played(self, seed: int, actions: tuple[int, ...], scrambled: int, moves: int, limit: int) -> Played:
        moment = self.simulator.play(seed, actions)
        paid = moment.rewards[-1] if len(actions) > scrambled else 0.0
        shape = moment.frame.shape
        return Played(seed, actions, scrambled, moves, limit, paid, moment.frame.tobytes(), (shape[0], shape[1], shape[2]))

    def advance(self, state: Played, action: int | None) -> tuple[Played, Ending, str]:
        """Take an action; an unreadable answer takes none and uses a move."""
        moves = state.moves + 1
        if action is None:
            return state._replace(moves=moves, paid=0.0), *spend(moves, state.limit, Ending.RUNNING, UNREADABLE)
        actions = (*state.actions, self.numbers[action])
        after = self._played(state.seed, actions, state.scrambled, moves, state.limit)
        ending = self._ending(self.simulator.play(state.seed, actions, frame=False), state.scrambled)
        feedback = {Ending.SUCCESS: SUCCESS, Ending.FAILURE: OVER, Ending.LIMIT: OVER}.get(ending, "")
        return after, *spend(moves, state.limit, ending, feedback)

    def _ending(self, moment: Moment, scrambled: int) -> Ending:
        if moment.terminated:
            won = self.config.success == "terminated" or sum(moment.rewards[scrambled:]) > 0
            return Ending.SUCCESS if won else Ending.FAILURE
        return Ending.LIMIT if moment.truncated else Ending.RUNNING

    def plan(self, state: Played) -> tuple[int, ...]:
        """Return a shortest sequence of words, as numbers, from a state to success; empty when the search finds none.

        Breadth-first over places, each reached by a real replay from the state and known by its picture, or by the
        environment's own observation, which needs no drawing and is right where that is the whole state. A plan that was found
        for a place before is replayed too before it is believed: a picture that is not the whole state costs time, not truth.
        """
        seed, actions = self._sure
        if seed == state.seed and actions[: len(state.actions)] == state.actions and len(actions) > len(state.actions):
            return tuple(self.numbers.index(number) for number in actions[len(state.actions) :])
        plans = _plans(self.config)
        here = self.place(state)
        known = plans.get(here)
        if known and self._end(state, known) is Ending.SUCCESS:
            self._sure = state.seed, self._native(state, known)
            return known
        path: dict[tuple[int, ...], bytes] = {(): here}  # steps -> the place that they lead to
        seen, ring = set(path.values()), list(path)
        while ring:
            reached: list[tuple[int, ...]] = []
            for done in ring:
                for number in range(len(self.numbers)):
                    steps = (*done, number)
                    ending = self._end(state, steps)
                    if ending is Ending.SUCCESS:
                        self._sure = state.seed, self._native(state, steps)
                        plans.update({path[steps[:taken]]: steps[taken:] for taken in range(len(steps))})
                        return steps
                    if ending is not Ending.RUNNING:
                        continue
                    place = self.place(state, steps)
                    if place not in seen and len(seen) < self.config.search:
                        seen.add(place)
                        path[steps] = place
                        reached.append(steps)
            ring = reached
        return ()

    def place(self, state: Played, steps: Sequence[int] = ()) -> bytes:
        """Return what tells one place from another, `steps` after a state: the picture, or the observation (`plan_by`)."""
        if not steps and self.config.plan_by == "picture":
            return _key(state.frame)
        moment = self._scout.play(state.seed, self._native(state, steps), frame=self.config.plan_by == "picture")
        return _key(moment.frame.tobytes() if self.config.plan_by == "picture" else moment.observation.encode())

    def _native(self, state: Played, steps: Sequence[int]) -> tuple[int, ...]:
        return (*state.actions, *(self.numbers[step] for step in steps))

    def _end(self, state: Played, steps: Sequence[int]) -> Ending:
        """Return how an episode stands after steps, FAILURE also where it ended before the last."""
        for count in range(1, len(steps) + 1):
            moment = self._scout.play(state.seed, self._native(state, steps[:count]), frame=False)
            if _ended(moment) and count < len(steps):
                return Ending.FAILURE
        return self._ending(moment, state.scrambled)


_FRAMES: dict[str, Frames] = {}  # environment -> its pictures, shared by all its instances
_KEPT: dict[str, dict[bytes, tuple[int, ...]]] = {}  # environment -> place -> plan; no more than a guess for the next


def _plans(config: GymnasiumConfig) -> dict[bytes, tuple[int, ...]]:
    """Return the plans that were found in this environment, shared by all its instances."""
    plans = _KEPT.setdefault(repr((config.env, config.kwargs, config.words, config.success, config.shrink, config.plan_by)), {})
    if len(plans) > PLANS:
        plans.clear()
    return plans


def _drawing(config: GymnasiumConfig) -> str:
    return repr((config.env, config.kwargs, config.shrink))


def _ended(moment: Moment) -> bool:
    return moment.terminated or moment.truncated


def _key(place: bytes) -> bytes:
    return hashlib.sha256(place).digest()


def space(state: Played) -> spaces.Box:
    return spaces.Box(0, 255, state.shape, np.uint8)


def show(state: Played) -> np.ndarray:
    return np.frombuffer(state.frame, dtype=np.uint8).reshape(state.shape).copy()


def letters(state: Played) -> str:
    """Return what there is to say in text: foreign environments have pictures only."""
    return f"seed {state.seed}, actions {' '.join(map(str, state.actions[state.scrambled :])) or 'none'}"
