"""The configurations of `examples/`: each names an environment, sets and streams that are there, and a prompt that fits."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_runner.config import load
from grpo_runner.session import find_environment, fixed_set
from vismaze_hooks import load_plugins
from vismaze_hooks.text import make_text_environment

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_names_what_is_there(path):
    config = load(path)
    offer = find_environment(config, load_plugins())
    sets = [fixed_set(offer, name) for name in (config.tasks.evaluation, config.tasks.tuning) if name is not None]
    held_out = {task.content_hash for tasks in sets for task in tasks}
    assert len(held_out) == sum(map(len, sets)), "the two sets share nothing"
    env = make_text_environment(offer, prompt=config.environment.prompt)
    for options in (config.tasks.stream, *([config.warm_start.stream] if config.warm_start else [])):
        task = offer.stream(**options)(0)
        assert task.content_hash not in held_out
        _, info = env.start(task)
        assert info["prompt"] == config.environment.prompt if config.environment.prompt else info["prompt"]
        assert offer.solver is not None and offer.solver(env.unwrapped)


def test_every_environment_that_is_shipped_has_an_example():
    shown = {load(path).environment.id for path in EXAMPLES}
    assert {name for name in load_plugins().offers["environment"] if "VisGym" not in name and "Corridor" not in name} <= shown
