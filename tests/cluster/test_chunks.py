"""Who plays which episodes, and what is said where ray is missing."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

import grpo_runner
from grpo_runner.config import ConfigError

pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::FutureWarning:ray")]


def pairs_of(groups: int) -> list[tuple[Any, int]]:
    return [(SimpleNamespace(uid=f"task {n}"), sample) for n in range(groups) for sample in range(2)]


def test_chunks_are_whole_groups_and_become_ever_smaller() -> None:
    from grpo_runner.cluster.parts import groups_of, next_chunk

    mixed = sorted(pairs_of(12), key=lambda pair: pair[1])  # the samples of a task do not lie together
    left, sizes, handed = groups_of(mixed), [], []
    while chunk := next_chunk(len(sizes) % 3, 3, left, []):
        uids = [task.uid for task, _ in chunk.pairs]
        assert all(uids.count(uid) == 2 for uid in uids), "whole groups"
        sizes.append(len(chunk.pairs) // 2)
        handed += chunk.pairs
    assert sizes == sorted(sizes, reverse=True) and sizes[0] == 2 and sizes[-1] == 1
    assert {(t.uid, s) for t, s in handed} == {(t.uid, s) for t, s in mixed} and len(handed) == len(mixed)


def test_a_chunk_goes_to_ranks_that_have_not_failed_on_it_while_there_are_any() -> None:
    from grpo_runner.cluster.parts import Chunk, next_chunk

    chunk = Chunk(pairs_of(1), failed=(0,))
    again = [chunk]
    assert next_chunk(0, 2, [], again) is None and again == [chunk], "rank 1 is to try it"
    assert next_chunk(1, 2, [], again) is chunk and not again
    alone = [Chunk(pairs_of(1), failed=(0, 0))]
    assert next_chunk(0, 1, [], alone) is not None and not alone, "there is nobody else"


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from grpo_runner import session

    for name in [name for name in sys.modules if name.startswith("grpo_runner.cluster")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(grpo_runner, "cluster", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'grpo-runner\[ray\]'"):
        session._cluster()
