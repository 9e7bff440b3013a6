"""Fixtures that every test may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from vismaze_hooks import EnvironmentOffer, Plugins, load_plugins


@pytest.fixture(scope="session")
def plugins() -> Plugins:
    """What is installed in the test environment."""
    return load_plugins()


@pytest.fixture(scope="session")
def maze5(plugins: Plugins) -> EnvironmentOffer:
    """5x5 mazes whose cells are one visual token of the tiny model."""
    return plugins.create("environment", "VisMaze-v0", {"size": 5, "cell_px": 8})


@pytest.fixture(scope="session")
def examples() -> Path:
    return Path(__file__).parents[1] / "examples"
