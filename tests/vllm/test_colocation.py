"""The phases of a colocated step on a CPU: rollout, release, update, wake, verify, with an engine that really stops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from grpo_runner.engine_vllm import PublishError, VllmEngine
from grpo_runner.publishing import Canary, lent
from vismaze_hooks import Request


def test_between_rollouts_the_engine_is_gone_and_comes_back_with_its_adapter(engine: VllmEngine, canary: Canary) -> None:
    request = Request(engine.processors.chat.encode("Go to the goal.\n"), (), 0, 2, 1.0)
    phases: list[str] = []

    @contextmanager
    def phase(name: str) -> Iterator[None]:
        phases.append(name)
        yield

    keep, engine.options = engine.options, engine.options.model_copy(update={"colocate": "stop"})
    pid = engine._link.pid
    try:
        with phase("rollout"):
            before = engine.generate([request])
        with lent(engine, phase), phase("update"):
            assert not psutil.pid_exists(pid), "weights and KV cache must be free while the trainer computes"
            with pytest.raises(PublishError, match="nothing is sampled"):
                engine.generate([request])
        with phase("verify"):
            assert canary.check(engine, engine.version)["agreement/canary_gap_max"] <= 1e-4
        assert engine.generate([request])[0].token_ids == before[0].token_ids
    finally:
        engine.options = keep
    assert phases == ["rollout", "release", "update", "wake", "verify"]
    assert engine._link.pid != pid


def test_an_engine_that_keeps_its_memory_is_left_alone(engine: VllmEngine, good: Path) -> None:
    pid = engine._link.pid
    engine.release()
    engine.wake()
    assert engine._link.pid == pid
