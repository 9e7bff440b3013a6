"""One real vLLM for all tests here: it takes most of a minute to start on a CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small import LORA, OPTIONS, SETTINGS, exported, random_policy, small_model

from grpo_runner.engine_local import LocalEngine
from grpo_runner.engine_vllm import VllmEngine
from grpo_runner.learner import Learner
from grpo_runner.pictures import FeatureCache
from grpo_runner.policy import Policy, load_processors
from grpo_runner.publishing import Canary
from grpo_runner.rollout import Rollouts
from grpo_runner.scoring import Scorer
from vismaze_hooks import EnvironmentOffer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(item.path).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.vllm)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def switch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that names the fault of the moment."""
    path = tmp_path_factory.mktemp("fault") / "name"
    path.write_text("")
    return path


@pytest.fixture
def fault(switch: Path) -> Iterator[Callable[[str], int]]:
    """Set the fault of the engine's process until the test is over."""
    yield switch.write_text
    switch.write_text("")


@pytest.fixture(scope="session")
def shared_engine(base: Path, switch: Path) -> Iterator[VllmEngine]:
    os.environ["GRPO_TEST_FAULT"] = str(switch)
    engine = VllmEngine(model=str(base), lora=LORA, **OPTIONS)
    yield engine
    engine.close()
    del os.environ["GRPO_TEST_FAULT"]


@pytest.fixture(scope="session")
def policy(base: Path) -> Policy:
    return random_policy(base, 7)


@pytest.fixture(scope="session")
def scorer(base: Path, policy: Policy) -> Scorer:
    return Scorer(policy, load_processors(base), features=FeatureCache(), token_budget=16_384, temperature=1.0)


@pytest.fixture(scope="session")
def rollouts(base: Path, maze5: EnvironmentOffer) -> Rollouts:
    processors = load_processors(base)
    return Rollouts(maze5, processors.chat, processors.vocabulary, prompt="Go to the goal.")


@pytest.fixture(scope="session")
def canary(policy: Policy, scorer: Scorer, rollouts: Rollouts, maze5: EnvironmentOffer) -> Canary:
    tasks = [maze5.stream()(n) for n in range(4)]
    learner = Learner(policy, scorer, weight_decay=0.0, max_norm=1.0)
    return Canary(learner.logprobs, rollouts.questions(tasks, SETTINGS, [11, 12, 13, 14], turns=2), 1e-4)


@pytest.fixture(scope="session")
def good(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(policy, tmp_path_factory.mktemp("good"))


@pytest.fixture
def engine(shared_engine: VllmEngine, good: Path) -> VllmEngine:
    """The engine with the policy's weights as version 0, whatever the test before did."""
    shared_engine.publish(good, 0)
    return shared_engine


@pytest.fixture(scope="session")
def local(base: Path, good: Path) -> LocalEngine:
    engine = LocalEngine(model=str(base), lora=LORA, keep_history=True)
    engine.publish(good, 0)
    return engine
