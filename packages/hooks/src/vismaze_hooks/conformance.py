"""The rules that an environment must keep, one function each. `vismaze_hooks.testing` runs them.

Each takes a `Subject`, raises `AssertionError` with what is wrong, and `Skip` where the rule says nothing about it.
"""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
import random
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from vismaze_hooks.records import EnvironmentOffer

SEEDS = (0, 1, 2, 3, 7, 42, 2**31 - 1, 2**32 - 1)


class Skip(Exception):
    """The rule does not apply; the message says why."""


@dataclass(frozen=True)
class Subject:
    """The environment under test."""

    id: str
    entry_point: Any  # "module:Class", or a callable
    kwargs: dict[str, Any]
    offer: EnvironmentOffer | None  # None: known to Gymnasium only

    def make(self, **more: Any) -> gymnasium.Env:
        """Return a new instance without wrappers."""
        spec = gymnasium.envs.registration.EnvSpec(id=self.id, entry_point=self.entry_point)
        return gymnasium.make(spec, disable_env_checker=True, **{**self.kwargs, **more}).unwrapped


def play(env: gymnasium.Env, seed: int, steps: int = 60) -> Iterator[tuple[Any, ...]]:
    """Yield what reset and each step return, over as many episodes as the steps last, with actions drawn from the seed."""
    draw = np.random.default_rng(seed)
    yield env.reset(seed=seed)
    for _ in range(steps):
        result = env.step(_action(env.action_space, draw))
        yield result
        if result[2] or result[3]:
            yield env.reset()


def _action(space: spaces.Space, draw: np.random.Generator) -> Any:
    if isinstance(space, spaces.Discrete):
        return int(space.start) + int(draw.integers(space.n))
    space.seed(int(draw.integers(1 << 31)))
    return space.sample()


def equal(a: Any, b: Any) -> bool:
    """Whether two results are the same by type and value."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        same = isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape
        return (
            same and all(equal(x, y) for x, y in zip(a.flat, b.flat, strict=True))
            if same and a.dtype == object
            else (same and np.array_equal(a, b))
        )
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def arrays(value: Any) -> Iterator[np.ndarray]:
    """Yield every array inside an observation or info."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from arrays(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from arrays(inner)


def has_versioned_id(subject: Subject) -> None:
    """The id ends with a version: results change only with it."""
    assert re.fullmatch(r"(?:[\w:-]+/)?[\w:.-]+-v\d+", subject.id), f"id {subject.id!r} must end with a version such as -v0"


def keeps_gymnasiums_contract(subject: Subject) -> None:
    """Gymnasium's own `check_env` passes without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(subject.make(), skip_render_check=False)


def same_seed_same_episode(subject: Subject) -> None:
    """The seed fixes observations, rewards, ends and infos: in one instance twice, and in two instances."""
    one, two = subject.make(), subject.make()
    for seed in SEEDS:
        first = copy.deepcopy(list(play(one, seed)))
        for other, name in ((one, "the same instance"), (two, "another instance")):
            for step, (a, b) in enumerate(zip(first, play(other, seed), strict=True)):
                assert equal(a, b), f"reset(seed={seed}) twice, in {name}: result {step} differs, so the seed is not respected"


def other_seed_other_level(subject: Subject) -> None:
    """Levels differ between seeds, unless the environment has one level only; every one of `SEEDS` is taken."""
    env = subject.make()
    shown = {_bytes(env.reset(seed=seed)[0]) for seed in range(100)}
    if len(shown) > 1:
        return
    unseeded = {_bytes(subject.make().reset()[0]) for _ in range(20)}
    assert len(unseeded) == 1, "100 seeds give one level, resets without a seed give several: the seed is ignored"
    raise Skip("the environment has a single level")


def same_in_another_process(subject: Subject) -> None:
    """The first observations of a seed do not depend on the process or on PYTHONHASHSEED."""
    try:
        settings = json.dumps([subject.entry_point, subject.kwargs])
    except TypeError:
        raise Skip("its options are not JSON, so no other process can make it") from None
    code = (
        "import sys, json, hashlib, gymnasium, vismaze_hooks.conformance as c\n"
        "entry, kwargs = json.loads(sys.argv[1])\n"
        "env = gymnasium.make(gymnasium.envs.registration.EnvSpec(id='Subject-v0', entry_point=entry), **kwargs).unwrapped\n"
        "print(hashlib.sha256(b''.join(c._bytes(env.reset(seed=s)[0]) for s in c.SEEDS)).hexdigest())\n"
    )
    found = set()
    for hash_seed in ("1", "2"):
        more = {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", code, settings], env={**os.environ, **more}, capture_output=True, text=True
        )
        if "ModuleNotFoundError" in done.stderr:
            raise Skip("its module cannot be imported in another process")
        assert done.returncode == 0, f"another process cannot make it: {done.stderr.strip().splitlines()[-1:]}"
        found.add(done.stdout)
    assert len(found) == 1, "PYTHONHASHSEED changes the observations of a seed"


def leaves_global_random_alone(subject: Subject) -> None:
    """Neither `random` nor `numpy.random` is used or seeded, nor does reseeding them change anything."""
    before = random.getstate(), np.random.get_state()
    first = copy.deepcopy(list(play(subject.make(), 5)))
    after = random.getstate(), np.random.get_state()
    assert before[0] == after[0], "the global `random` was used or seeded"
    assert equal(list(before[1]), list(after[1])), "the global `numpy.random` was used or seeded"
    try:
        random.seed(123)
        np.random.seed(123)
        assert equal(first, list(play(subject.make(), 5))), "results depend on the global random state"
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def shows_the_new_level_at_reset(subject: Subject) -> None:
    """What reset returns in a used instance is what it returns in a new one, and is what `render` then shows."""
    used = subject.make()
    renders = "rgb_array" in used.metadata.get("render_modes", ())
    drawn = subject.make(render_mode="rgb_array") if renders else None
    for seed in SEEDS:
        for _ in play(used, seed + 1, steps=5):
            pass
        fresh = subject.make().reset(seed=seed)
        assert equal(used.reset(seed=seed), fresh), (
            f"reset(seed={seed}) after another episode differs from that of a new instance: something stale is shown"
        )
        if drawn is not None:
            shown = drawn.reset(seed=seed)[0]
            picture = np.asarray(drawn.render())
            if isinstance(shown, np.ndarray) and shown.shape == picture.shape:
                assert np.array_equal(shown, picture), f"reset(seed={seed}) returns a picture that render() does not show"


def keeps_its_state_to_itself(subject: Subject) -> None:
    """Results never change afterwards, share no memory, and writing into them changes nothing inside."""
    kept, copies = [], []
    for result in play(subject.make(), 11):
        kept.append(result)
        copies.append(copy.deepcopy(result))
    for step, (now, then) in enumerate(zip(kept, copies, strict=True)):
        assert equal(now, then), f"result {step} was changed by a later call: it is a view of the inside"
    for step in range(1, len(kept)):
        for new in arrays(kept[step]):
            for old in arrays(kept[step - 1]):
                assert not np.shares_memory(new, old), f"results {step - 1} and {step} share memory"
    untouched = copy.deepcopy(list(play(subject.make(), 12)))
    for step, (result, right) in enumerate(zip(play(subject.make(), 12), untouched, strict=True)):
        assert equal(result, right), f"writing into earlier results changed result {step}: they are views of the inside"
        _scribble(result)


def _scribble(result: Any) -> None:
    for array in arrays(result):
        if array.flags.writeable and array.dtype != object:
            array[...] = 1 - array if array.dtype == bool else 255 if array.dtype == np.uint8 else 0
    for info in (part for part in result if isinstance(part, dict)):
        for value in list(info.values()):
            if isinstance(value, list | dict):
                value.clear()
        info.clear()


def returns_plain_types(subject: Subject) -> None:
    """Rewards are finite Python floats, flags Python bools; no NaN anywhere."""
    for result in play(subject.make(), 3):
        if len(result) == 2:
            continue
        _, reward, terminated, truncated, info = result
        assert type(reward) is float and math.isfinite(reward), f"reward {reward!r} must be a finite float"
        assert type(terminated) is bool and type(truncated) is bool, f"flags {terminated!r}, {truncated!r} must be bools"
        for array in arrays(info):
            assert array.dtype.kind != "f" or np.isfinite(array).all(), "a NaN or infinity stands in info"


def refuses_wrong_actions(subject: Subject) -> None:
    """An action outside the space raises and changes nothing."""
    env = subject.make()
    if not isinstance(env.action_space, spaces.Discrete):
        raise Skip("its actions are not discrete")
    first, last = int(env.action_space.start), int(env.action_space.start + env.action_space.n - 1)
    right, tried = subject.make(), env
    right.reset(seed=4), tried.reset(seed=4)
    for wrong in (last + 1, first - 1, "up", 0.5, None):
        try:
            tried.step(wrong)
        except Exception:  # noqa: BLE001 — which error is the environment's matter
            continue
        raise AssertionError(f"step({wrong!r}) was taken though it is outside {env.action_space}")
    assert equal(right.step(first), tried.step(first)), "a refused action changed the state"


def pickles_in_the_middle(subject: Subject) -> None:
    """`pickle` and `deepcopy` in mid-episode give an environment that goes on alike, its next reset included."""
    env = subject.make()
    for _ in play(env, 8, steps=3):
        pass
    for name, other in (("pickle", pickle.loads(pickle.dumps(env))), ("deepcopy", copy.deepcopy(env))):
        twin = copy.deepcopy(env)
        a, b = _rest(twin), _rest(other)
        assert equal(a, b), f"{name} in mid-episode: the copy goes on otherwise than the original"


def _rest(env: gymnasium.Env) -> list[Any]:
    draw, results = np.random.default_rng(1), []
    for _ in range(20):
        results.append(copy.deepcopy(env.step(_action(env.action_space, draw))))
        if results[-1][2] or results[-1][3]:
            break
    return [*results, env.reset(), env.reset()]


def _bytes(observation: Any) -> bytes:
    return b"".join(array.tobytes() for array in arrays(observation)) or repr(observation).encode()


RULES: tuple[Callable[[Subject], None], ...] = (
    has_versioned_id,
    keeps_gymnasiums_contract,
    same_seed_same_episode,
    other_seed_other_level,
    same_in_another_process,
    leaves_global_random_alone,
    shows_the_new_level_at_reset,
    keeps_its_state_to_itself,
    returns_plain_types,
    refuses_wrong_actions,
    pickles_in_the_middle,
)
