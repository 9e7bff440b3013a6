"""The kit passes what is right and catches what is broken."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from vismaze_hooks import Ending, EnvironmentOffer, Observation, Transition
from vismaze_hooks.conformance import keeps_gymnasiums_contract
from vismaze_hooks.testing import (
    ALL_RULES,
    ConformanceError,
    broken_rules,
    check_environment,
    check_observation,
    check_reward,
    subject,
)

BROKEN = Path(__file__).with_name("broken_environments.py")
_spec = importlib.util.spec_from_file_location("broken_environments", BROKEN)
broken = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(broken)


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """The entry points of the fixtures are strings, so their module must be importable, here and in other processes."""
    monkeypatch.syspath_prepend(str(BROKEN.parent))
    monkeypatch.setitem(sys.modules, "broken_environments", broken)


@pytest.mark.parametrize(
    "options", [{}, {"size": 5, "stop_required": True, "grammar": "tuples"}, {"observation": "symbolic", "size": (5, 9)}]
)
def test_mazeenv_keeps_every_rule(options):
    check_environment("VisMaze-v0", **options)


def test_the_sound_fixture_keeps_every_rule():
    check_environment(broken.offer("Sound"))


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("IgnoresItsSeed", {"same_seed_same_episode"}),
        ("LeaksItsState", {"keeps_its_state_to_itself"}),
        ("ShowsAStalePicture", {"shows_the_new_level_at_reset"}),
        ("HasUnsolvableLevels", {"every_level_can_be_solved"}),
        ("UsesTheGlobalRandom", {"leaves_global_random_alone"}),
        ("GivesUpTooLate", {"unreadable_answers_use_a_move"}),
        ("TakesAnyAction", {"refuses_wrong_actions"}),
        ("TrainsOnItsTest", {"tasks_are_pure_and_held_out"}),
        ("CannotBePickled", {"pickles_in_the_middle"}),
    ],
)
def test_each_broken_environment_is_caught_by_the_rule_for_it(name, rules):
    with pytest.raises(ConformanceError) as error:
        check_environment(broken.offer(name))
    found = {line.split(":")[0].strip() for line in str(error.value).splitlines()[1:]}
    assert rules <= found, str(error.value)


@pytest.mark.parametrize("name", ["LeaksItsState", "ShowsAStalePicture", "HasUnsolvableLevels", "IgnoresItsSeed"])
def test_gymnasiums_own_checker_sees_none_of_the_four(name):
    """Which is why the kit exists."""
    keeps_gymnasiums_contract(subject(broken.offer(name)))


def test_every_rule_says_in_its_docstring_what_it_demands():
    assert all(rule.__doc__ and rule.__doc__.endswith(".") for rule in ALL_RULES)
    assert len({rule.__name__ for rule in ALL_RULES}) == len(ALL_RULES) >= 18


def test_an_unknown_environment_suggests_the_nearest():
    with pytest.raises(ValueError, match="Did you mean 'VisMaze-v0'"):
        check_environment("VisMase-v0")


def test_an_environment_that_only_gymnasium_knows_can_be_checked():
    assert "same_seed_same_episode" not in dict(broken_rules("CliffWalking-v1"))


def run_pytest(folder: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-rA", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return done.returncode, done.stdout + done.stderr


def test_the_pytest_plugin_makes_a_test_of_each_rule(tmp_path):
    code, said = run_pytest(tmp_path, "--vismaze-env", "VisMaze-v0")
    assert code == 0, said
    assert said.count("VisMaze-v0::") == len(ALL_RULES)
    assert "PASSED ::VisMaze-v0::every_level_can_be_solved" in said


def test_the_pytest_plugin_fails_on_a_broken_environment_of_a_local_plugin(tmp_path):
    (tmp_path / "broken_environments.py").write_text(BROKEN.read_text())
    (tmp_path / "local_plugin.py").write_text(
        "import broken_environments\n"
        "from vismaze_hooks import hookimpl\n"
        "@hookimpl\n"
        "def vismaze_environments():\n"
        "    return {'Stale-v0': lambda: broken_environments.offer('ShowsAStalePicture')}\n"
    )
    (tmp_path / "conftest.py").write_text("from vismaze_hooks import load_plugins\nload_plugins(['local_plugin'])\n")
    code, said = run_pytest(tmp_path, "--vismaze-env", "Stale-v0")
    assert code == 1, said
    assert "something stale is shown" in said and "Traceback" not in said


def test_the_pytest_plugin_refuses_an_unknown_environment(tmp_path):
    code, said = run_pytest(tmp_path, "--vismaze-env", "VisMase-v0")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "Did you mean 'VisMaze-v0'" in said


# Observations and rewards, on states of the sound fixture: a cell on a line of nine.


class Line:
    """A view of a cell; each broken one changes one thing."""

    kept = np.zeros((1, 9, 3), dtype=np.uint8)

    def space(self, state):
        from gymnasium import spaces

        return spaces.Box(0, 255, (1, 9, 3), np.uint8)

    def observe(self, state):
        shown = np.zeros((1, 9, 3), dtype=np.uint8)
        shown[0, state] = 255
        return shown

    def alias(self, state):
        self.kept[:] = self.observe(state)
        return self.kept

    def random(self, state):
        return np.random.default_rng().integers(0, 255, (1, 9, 3), dtype=np.uint8)

    def floats(self, state):
        return self.observe(state) / 255

    def other_palette(self, state):
        from PIL import Image

        return Image.fromarray(self.observe(8 - state)).convert("P")

    def number(self, shown):
        return 3


VIEW = Observation("image", Line().space, Line().observe)


def test_a_right_observation_passes():
    check_observation(VIEW, range(9))
    check_observation("rgb", [_state()], cell_px=3)
    for name in ("ascii", "symbolic"):
        check_observation(name, [_state()])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"observe": Line().alias}, "share memory"),
        ({"observe": Line().random}, "not a pure function"),
        ({"observe": Line().floats}, "outside"),
        ({"palette_image": Line().other_palette}, "other pixels"),
        ({"modality": "text"}, "to_text"),
        ({"modality": "text", "to_text": Line().number}, "string"),
        ({"observe": lambda state: Line().observe(state)}, "pickled"),
    ],
)
def test_a_broken_observation_is_caught(change, said):
    with pytest.raises(ConformanceError, match=said):
        check_observation(dataclasses.replace(VIEW, **change), range(4, 6))


def _state():
    import mazeenv

    env = mazeenv.VisMazeEnv(size=5)
    env.reset(seed=0)
    return env.state


STEPS = [Transition(cell, "up", 0, cell + 1, Ending.RUNNING) for cell in range(5)]


def plain(transition):
    return float(transition.before) if transition.before != 2 else None


def whole(transition):
    return 1


def endless(transition):
    return float("inf")


_calls = []


def counting(transition):
    _calls.append(1)
    return float(len(_calls))


def test_a_right_reward_passes():
    check_reward(plain, STEPS)


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        (whole, "neither a finite float nor None"),
        (endless, "neither a finite float nor None"),
        (counting, "not a pure function"),
        (lambda transition: 0.0, "pickled"),
    ],
)
def test_a_broken_reward_is_caught(reward, said):
    with pytest.raises(ConformanceError, match=said):
        check_reward(reward, STEPS)


def test_nothing_given_is_nothing_checked():
    for check, given in ((check_observation, VIEW), (check_reward, plain)):
        with pytest.raises(ConformanceError, match="nothing was checked"):
            check(given, [])


def test_the_kit_takes_an_offer_without_sources():
    assert isinstance(broken.offer("Sound"), EnvironmentOffer)
