"""Discovery: what is found, what is refused, what is reported."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import gymnasium
import pytest

from vismaze_hooks import DuplicateNameError, PluginWarning, UnknownNameError, load_plugins
from vismaze_hooks.plugins import EVENTS, OFFERS, current_plugins, when_loaded

REWARD = """
@hookimpl
def vismaze_rewards():
    return {"%s": lambda scale=1.0: (lambda transition: scale)}
"""


def test_the_projects_own_parts_come_through_the_hooks(plugins):
    assert "VisMaze-v0" in plugins.offers["environment"]
    assert {"rgb", "ascii", "symbolic"} <= set(plugins.offers["observation"])
    assert {"sparse", "progress", "invalid_penalty"} <= set(plugins.offers["reward"])
    assert "wilson" in plugins.offers["generator"]
    assert plugins.owners["reward", "sparse"] == "vismaze-hooks" and plugins.owners["reward", "progress"] == "mazeenv"


def test_an_installed_plugin_is_found_and_makes_what_it_offers(install):
    install("terseness", REWARD % "terseness")
    plugins = load_plugins()
    assert plugins.create("reward", "terseness", {"scale": 2.5})(None) == 2.5
    assert plugins.origins["terseness"] == "terseness 1.0"


def test_two_entry_points_of_one_name_are_an_error_that_names_both_owners(install):
    install("first", REWARD % "a", entry_point="rewards")
    install("second", REWARD % "b", entry_point="rewards")
    with pytest.raises(DuplicateNameError) as error:
        load_plugins()
    assert "'first'" in str(error.value) and "'second'" in str(error.value)


def test_one_name_offered_twice_is_an_error_that_names_both_owners(install):
    install("first", REWARD % "terseness")
    install("second", REWARD % "terseness")
    with pytest.raises(DuplicateNameError, match=r"reward 'terseness'.*'first' \(first 1\.0\) and 'second' \(second 1\.0\)"):
        load_plugins()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("this is no Python\n", "SyntaxError"),
        ("@hookimpl\ndef vismaze_reward():\n    return {}\n", "vismaze_reward"),  # misspelt
        ("def vismaze_rewards():\n    return {}\n", "not marked with @vismaze_hooks.hookimpl"),
        ("@hookimpl\ndef vismaze_rewards():\n    return 1 / 0\n", "ZeroDivisionError: division by zero"),
        ("@hookimpl\ndef vismaze_rewards():\n    return None\n", "TypeError"),
        ("@hookimpl\ndef vismaze_step_finished(step, colour):\n    pass\n", "colour"),  # an argument that no hook has
    ],
)
def test_a_broken_plugin_is_reported_and_the_others_work(install, source, said):
    install("broken", source)
    install("fine", REWARD % "fine")
    with pytest.warns(PluginWarning, match="broken"):
        plugins = load_plugins()
    assert plugins.create("reward", "fine")(None) == 1.0
    assert "sparse" in plugins.offers["reward"]
    (problem,) = plugins.problems
    assert problem.plugin == "broken" and problem.origin == "broken 1.0" and said in problem.error
    with pytest.raises(UnknownNameError, match="'broken' could not be loaded"):
        plugins.create("reward", "what-it-would-have-offered")


def test_an_unknown_name_lists_what_is_there_and_suggests_the_nearest(plugins):
    with pytest.raises(UnknownNameError, match=r"unknown reward 'spars'\. Did you mean 'sparse'\? Installed: .*progress"):
        plugins.create("reward", "spars")
    with pytest.raises(UnknownNameError, match="Did you mean 'VisMaze-v0'"):
        plugins.create("environment", "vismaze-v0")


def test_wrong_options_name_the_owner(plugins):
    with pytest.raises(ValueError, match=r"reward 'sparse' \(from plugin 'vismaze-hooks'\) refused its options"):
        plugins.create("reward", "sparse", {"scale": 3})
    with pytest.raises(ValueError, match=r"refused its options .*'rimm'\. Did you mean 'rim'\? Options: .*theme.*\.$"):
        plugins.create("observation", "rgb", {"rimm": False})
    with pytest.raises(
        ValueError, match=r"backend 'local' .* unexpected keyword argument 'windth'$"
    ):  # its factory takes any name
        plugins.create("checkpoint backend", "local", {"windth": 1})


@pytest.mark.parametrize(
    ("id", "wrong", "right"),
    [
        ("VisMaze-v0", "siz", "size"),
        ("VisMaze-v0", "cel_px", "cell_px"),
        ("VisMaze-VisGymEasy-v0", "observations", "observation"),
        ("FirstPersonMaze-v0", "heigth", "height"),
        ("Jigsaw-v0", "lines", "line"),
        ("Klotski-v0", "cell_pix", "cell_px"),
        ("Matchstick-v0", "units", "unit"),
    ],
)
def test_an_option_of_the_picture_is_suggested_as_one_of_the_level_is(plugins, id, wrong, right):
    with pytest.raises(ValueError, match=f"unknown option '{wrong}'. Did you mean '{right}'"):
        plugins.create("environment", id, {wrong: 1})
    with pytest.raises(ValueError, match=f"unknown option '{wrong}'. Did you mean '{right}'"):
        gymnasium.make(id, **{wrong: 1})


def test_a_local_file_is_a_plugin_in_three_lines(tmp_path: Path, install):
    (tmp_path / "my_rewards.py").write_text(
        "from vismaze_hooks import hookimpl\n"
        "@hookimpl\n"
        "def vismaze_rewards(): return {'mine': lambda: (lambda transition: 7.0)}\n"
    )
    plugins = load_plugins(["my_rewards"], folder=tmp_path)
    assert plugins.create("reward", "mine")(None) == 7.0
    assert plugins.origins["my_rewards"] == str(tmp_path / "my_rewards.py")
    assert load_plugins(["my_rewards.py"], folder=tmp_path).offers["reward"]["mine"]  # twice, and with its ending
    assert current_plugins().offers["reward"]["mine"]  # an environment made now finds it by name
    del sys.modules["my_rewards"]


def test_a_local_file_whose_folder_is_on_the_path_is_taken_for_itself(tmp_path: Path, install, monkeypatch):
    (tmp_path / "on_the_path.py").write_text("from vismaze_hooks import hookimpl\n" + REWARD % "there")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "there" in load_plugins(["on_the_path"], folder=tmp_path).offers["reward"]
    assert "there" in load_plugins(["on_the_path"], folder=tmp_path / "elsewhere").offers["reward"]
    del sys.modules["on_the_path"]


def test_a_missing_or_failing_local_plugin_raises(tmp_path: Path, install):
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        load_plugins(["nowhere"], folder=tmp_path)
    (tmp_path / "raises.py").write_text("raise RuntimeError('on purpose')\n")
    with pytest.raises(RuntimeError, match="on purpose"):
        load_plugins(["raises"], folder=tmp_path)
    assert "raises" not in sys.modules
    (tmp_path / "json.py").write_text("")
    with pytest.raises(DuplicateNameError, match="json"):
        load_plugins(["json"], folder=tmp_path)


def test_events_go_on_when_a_listener_fails(install, caplog):
    install("heard", "told = []\n@hookimpl\ndef vismaze_step_finished(step, metrics):\n    told.append((step, metrics))\n")
    install("fails", "@hookimpl\ndef vismaze_step_finished(step):\n    raise ValueError('on purpose')\n")
    plugins = load_plugins()
    with caplog.at_level(logging.ERROR):
        for step in range(3):
            (failed,) = plugins.emit("vismaze_step_finished", step=step, metrics={"loss": 1.0})
            assert failed.plugin == "fails" and failed.error == "ValueError: on purpose"
    assert [step for step, _ in sys.modules["heard_plugin"].told] == [0, 1, 2]
    assert plugins.failures == {"fails": 3}
    assert "on purpose" in caplog.text and "Traceback" in caplog.text


@pytest.mark.parametrize(
    ("event", "arguments"),
    [
        ("vismaze_run_started", {"config": {}}),
        ("vismaze_step_finished", {"step": 1, "metrics": {}}),
        ("vismaze_run_finished", {"step": 1, "error": None}),
    ],
)
def test_every_event_reaches_its_listener(install, event, arguments):
    names = ", ".join(arguments)
    install("listener", f"told = []\n@hookimpl\ndef {event}({names}):\n    told.append(({names},))\n")
    assert load_plugins().emit(event, **arguments) == []
    assert sys.modules["listener_plugin"].told == [tuple(arguments.values())]
    assert event in EVENTS


@pytest.mark.parametrize(("kind", "hook"), OFFERS.items())
def test_every_offer_hook_is_asked(install, kind, hook):
    install("offers", f"@hookimpl\ndef {hook}():\n    return {{'Mine-v0': lambda **options: options}}\n")
    assert load_plugins().create(kind, "Mine-v0", {"a": 1}) == {"a": 1}


def test_a_listener_hears_of_plugins_that_are_still_being_imported(install):
    """A plugin that imports a package which registers environments must be among those that are registered."""
    install(
        "early",
        "from vismaze_hooks.plugins import when_loaded\nheard = []\nwhen_loaded(heard.append)\n" + REWARD % "early",
    )
    plugins = load_plugins()
    (heard,) = sys.modules["early_plugin"].heard
    assert heard is plugins and "early" in heard.offers["reward"]
    later: list[object] = []
    when_loaded(later.append)
    assert later == [plugins]
