"""Small real models, built once per test session."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from grpo_runner.tiny_model import SHAPES, build_tiny_model

transformers.utils.logging.disable_progress_bar()

WORDS = ["<action>", "</action>", "up", "down", "left", "right", "stop"]
TEXTS = ["user\n", "assistant\n", "Go to the goal.\n", "A wall is in the way.", "No moves left.", "Cannot read the answer."] * 4


@pytest.fixture(scope="session", params=sorted(SHAPES))
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3-VL in Hugging Face format, once for each shape."""
    folder = tmp_path_factory.mktemp("models") / request.param
    build_tiny_model(folder, shape=SHAPES[request.param], seed=1, words=WORDS, texts=TEXTS)
    return folder


@pytest.fixture(scope="session")
def tiny_plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shape of the demo only, where one shape is enough."""
    folder = tmp_path_factory.mktemp("models") / "plain"
    build_tiny_model(folder, shape=SHAPES["tiny"], seed=1, words=WORDS, texts=TEXTS)
    return folder
