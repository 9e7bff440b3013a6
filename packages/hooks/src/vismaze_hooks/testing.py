"""What a third party runs on its own plugin; needs the extra `testing`.

    from vismaze_hooks.testing import check_environment, check_observation, check_reward

    def test_my_environment():
        check_environment("MyMaze-v0")

Or, without writing anything: `pytest --vismaze-env MyMaze-v0`.
"""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from vismaze_hooks.conformance import RULES, Skip, Subject, equal
from vismaze_hooks.conformance_offers import OFFER_RULES
from vismaze_hooks.names import pick
from vismaze_hooks.plugins import Plugins, current_plugins
from vismaze_hooks.records import EnvironmentOffer, Observation, Reward, Transition

ALL_RULES: tuple[Callable[[Subject], None], ...] = RULES + OFFER_RULES


class ConformanceError(AssertionError):
    """The rules that are broken, one a line."""


def subject(environment: str | EnvironmentOffer, **options: Any) -> Subject:
    """Return what the rules are run on.

    Args:
        environment: an id that a plugin offers or that Gymnasium knows, or an offer.
        options: of the environment, when it is given by its id.

    Raises:
        UnknownNameError: neither a plugin nor Gymnasium knows the id; suggests the nearest.
    """
    if isinstance(environment, EnvironmentOffer):
        return Subject(environment.id, environment.entry_point, dict(environment.kwargs), environment)
    plugins: Plugins = current_plugins()
    if environment in plugins.offers["environment"]:
        return subject(plugins.create("environment", environment, options))
    if environment not in gymnasium.registry:
        pick("environment", environment, plugins.offers["environment"])
    spec = gymnasium.spec(environment)
    return Subject(spec.id, spec.entry_point, {**spec.kwargs, **options}, None)


def broken_rules(environment: str | EnvironmentOffer, **options: Any) -> Iterator[tuple[str, str]]:
    """Yield (rule, what is wrong) for each rule that the environment breaks."""
    tried = subject(environment, **options)
    for rule in ALL_RULES:
        try:
            rule(tried)
        except Skip:
            continue
        except Exception as error:  # noqa: BLE001 — an environment may fail in any way; all of it is reported
            yield rule.__name__, f"{type(error).__name__}: {error}" if not isinstance(error, AssertionError) else str(error)


def check_environment(environment: str | EnvironmentOffer, **options: Any) -> None:
    """Run every rule on an environment.

    Raises:
        ConformanceError: lists every broken rule with what is wrong.
    """
    broken = list(broken_rules(environment, **options))
    if broken:
        name = environment if isinstance(environment, str) else environment.id
        raise ConformanceError(f"{name} breaks {len(broken)} rules:\n" + "\n".join(f"  {rule}: {why}" for rule, why in broken))


def check_observation(observation: str | Observation, states: Iterable[Any], **options: Any) -> None:
    """Check an observation on states of an environment, such as `[env.unwrapped.state, …]`.

    Args:
        observation: a record, or a name that a plugin offers.
        options: for the factory, when it is given by its name.

    Raises:
        ConformanceError: names the rule and the state's number.
    """
    shown = current_plugins().create("observation", observation, options) if isinstance(observation, str) else observation
    try:
        pickle.loads(pickle.dumps(shown))
    except Exception as error:
        raise ConformanceError(f"it cannot be pickled: {error}") from error
    count = 0
    for number, state in enumerate(states):
        count += 1
        try:
            _check_state(shown, state)
        except AssertionError as error:
            raise ConformanceError(f"state {number}: {error}") from error
    if not count:
        raise ConformanceError("no states were given, so nothing was checked")


def _check_state(observation: Observation, state: Any) -> None:
    kept = copy.deepcopy(state)
    space, shown, again = observation.space(state), observation.observe(state), observation.observe(state)
    assert isinstance(space, spaces.Space), f"space() returns {type(space).__name__}, not a Gymnasium space"
    assert isinstance(shown, np.ndarray), f"observe() returns {type(shown).__name__}, not an array"
    assert space.contains(shown), f"the array ({shown.dtype}, {shown.shape}) is outside {space}"
    assert equal(shown, again), "the same state is shown in two ways: observe() is not a pure function"
    assert not np.shares_memory(shown, again), "two calls share memory"
    right = again.copy()
    if shown.flags.writeable:
        shown[...] = 0
    assert equal(observation.observe(state), right), "writing into an observation changes later ones"
    assert kept == state, "observe() changes the state"
    if observation.modality == "image":
        assert right.dtype == np.uint8 and right.ndim == 3 and right.shape[2] == 3, "an image is uint8 [height, width, 3]"
    if observation.modality == "text":
        assert observation.to_text is not None, "modality 'text' needs to_text"
        assert isinstance(observation.to_text(right), str), "to_text() must return a string"
    if observation.palette_image is not None:
        decoded = np.asarray(observation.palette_image(state).convert("RGB"))
        assert np.array_equal(decoded, right), "palette_image() shows other pixels than observe()"


def check_reward(reward: str | Reward, transitions: Iterable[Transition], **options: Any) -> None:
    """Check a reward on transitions of an environment.

    Args:
        reward: a function, or a name that a plugin offers.
        options: for the factory, when it is given by its name.

    Raises:
        ConformanceError: names the rule and the transition's number.
    """
    function: Reward = current_plugins().create("reward", reward, options) if isinstance(reward, str) else reward
    try:
        twin = pickle.loads(pickle.dumps(function))
    except Exception as error:
        raise ConformanceError(f"it cannot be pickled: {error}") from error
    stored = list(transitions)
    if not stored:
        raise ConformanceError("no transitions were given, so nothing was checked")
    kept = copy.deepcopy(stored)
    values = [function(transition) for transition in stored]
    for number, value in enumerate(values):
        if value is not None and (type(value) is not float or not math.isfinite(value)):
            raise ConformanceError(f"transition {number}: {value!r} is neither a finite float nor None")
    backwards = [function(transition) for transition in reversed(stored)][::-1]
    if values != backwards:
        raise ConformanceError("the value of a transition depends on what was priced before: not a pure function")
    if values != [twin(transition) for transition in kept]:
        raise ConformanceError("stored transitions, priced again by a copy of the reward, give other values")
    if kept != stored:
        raise ConformanceError("it changes the transitions")
