"""What a human needs when a run has given up: one folder, from what is still reachable."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
import tomli_w
from ray.util.placement_group import placement_group_table

from grpo_runner.cluster.calls import Member
from grpo_runner.config import Config
from grpo_runner.identity import versions, without_none
from grpo_runner.interruptions import RankLost

TAIL = 200  # lines of a log
ANSWER = 5.0  # seconds that a rank has to write its stacks


def write_diagnosis(run: Path, config: Config, why: RankLost, members: Sequence[Member]) -> Path:
    """Write `diagnosis/NNN/` in a run folder; returns it.

    It holds the last events, the configuration, versions, Ray's view of the cluster, the stack of every thread of the ranks
    that still answer, and the end of what each process wrote to stderr.
    """
    folder = run / "diagnosis" / f"{len(list(run.glob('diagnosis/*'))) + 1:03d}"
    folder.mkdir(parents=True)
    asked: list[ray.ObjectRef] = [
        m.actor.stacks.options(concurrency_group="health").remote(folder / "stacks" / f"rank-{m.rank}.txt") for m in members
    ]
    (folder / "reason.txt").write_text(f"{why}\n\n" + "\n\n".join(f"rank {o.rank}: {o.detail}" for o in why.lost) + "\n")
    (folder / "config.toml").write_text(tomli_w.dumps(without_none(config.model_dump(mode="json"))))
    (folder / "versions.json").write_text(json.dumps(versions() | {"ray": ray.__version__}, indent=1))
    (folder / "cluster.json").write_text(json.dumps(_cluster(members), indent=1, default=str))
    (folder / "events.jsonl").write_text(_tail(run / "events.jsonl"))
    for log in sorted((run / "logs").glob("*.log")):
        (folder / log.name).write_text(_tail(log))
    if asked:
        ray.wait(asked, num_returns=len(asked), timeout=ANSWER)
    return folder


def _cluster(members: Sequence[Member]) -> dict[str, Any]:
    found: dict[str, Any] = {"ranks": [{"rank": m.rank, "host": m.host, "pid": m.pid, "node": m.node} for m in members]}
    with suppress(ray.exceptions.RayError):  # the head may be what is lost
        found |= {"nodes": ray.nodes(), "groups": placement_group_table()}
    return found


def _tail(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True) if path.exists() else []
    return "".join(lines[-TAIL:])
