"""Whatever dies, the run goes on: one run through all kinds of loss, the death of the driver, and a step that keeps failing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Set
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
import tomli_w

from grpo_runner import main_job
from grpo_runner.config import Config
from grpo_runner.identity import without_none
from grpo_runner.interruptions import GaveUpError
from grpo_runner.runs import read_lines
from grpo_runner.session import Session
from grpo_runner.stopping import Stopped
from vismaze_hooks import load_plugins

pytest.importorskip("ray")

from grpo_runner.cluster import Supervisor
from grpo_runner.cluster.calls import Member

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning:ray")]

STEPS = 11
FAULTS = [
    {"step": 2, "phase": "rollout", "rank": 1, "kind": "kill"},
    {"step": 3, "phase": "update", "rank": 0, "kind": "stop"},
    {"step": 4, "phase": "checkpoint", "rank": 2, "kind": "disk-full"},
    {"step": 5, "phase": "publish", "rank": 1, "kind": "lost-node"},
]


@dataclass(frozen=True)
class Campaign:
    """What one run wrote, and when its last machine was made silent."""

    run: Path
    events: list[dict[str, Any]]
    frozen: float  # seconds, as `when`

    def of(self, name: str) -> list[dict[str, Any]]:
        return [e for e in self.events if e["event"] == name]

    def noticed(self, struck: float) -> tuple[float, dict[str, Any]]:
        """Return the first loss after a moment, and how many seconds later it was."""
        lost = next(e for e in self.of("rank_lost") if when(e) >= struck)
        return when(lost) - struck, lost


def when(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()


def train(config: Config, tell: Callable[[str], None] = lambda line: None) -> Path:
    main_job.run_training(config, load_plugins(config.plugins, folder=Path(config.run.folder).parent), tell)
    return Path(config.run.folder)


@pytest.fixture(scope="module")
def campaign(machines: Any, config_of: Callable[..., Config]) -> Campaign:
    """Three machines; a killed rank, a stopped one, a full disk, a dead machine, a new machine, a silent machine."""
    frozen: list[float] = []

    def tell(line: str) -> None:
        if line.startswith("step 6/"):
            machines.add()
        if line.startswith("step 9/") and not frozen:
            frozen.append(time.time())
            machines.freeze(-1)

    cluster = {"kind": "ray", "nodes": 3, "min_nodes": 2, "wait": 3.0, "faults": FAULTS}
    run = train(config_of("campaign", run={"steps": STEPS}, cluster=cluster), tell)
    found = Campaign(run, read_lines(run / "events.jsonl"), frozen[0])
    for event in (*found.of("recovered"), *found.of("resized")):
        print(event["event"], "after step", event["step"], event["seconds"])
    return found


def test_the_run_ends_with_every_step_done_once(campaign: Campaign) -> None:
    assert [record["step"] for record in read_lines(campaign.run / "metrics.jsonl")] == list(range(1, STEPS + 1))
    assert len(campaign.of("run_started")) == len(campaign.of("run_finished")) == 1, "one attempt, unattended"
    assert (campaign.run / "adapters" / f"step_{STEPS:08d}" / "adapter_model.safetensors").is_file()
    assert [e["kind"] for e in campaign.of("fault_struck")] == [fault["kind"] for fault in FAULTS]


def test_every_loss_is_named_by_its_cause(campaign: Campaign) -> None:
    struck = {e["kind"]: when(e) for e in campaign.of("fault_struck")}
    for what, at, cause in (
        ("kill", struck["kill"], "died"),
        ("stop", struck["stop"], "silent"),
        ("lost-node", struck["lost-node"], "died"),
        ("silent node", campaign.frozen, "died"),
    ):
        seconds, lost = campaign.noticed(at)
        print(f"{what}: noticed after {seconds:.1f} s in {lost['phase']}")  # on a quiet machine 0.3, 10, 1.5 and 12
        assert lost["cause"] == cause, (what, lost)


def test_at_most_one_step_is_done_again(campaign: Campaign) -> None:
    losses = campaign.of("rank_lost")
    assert len(losses) == 4
    for lost in losses:
        stood = [e["step"] for e in campaign.of("checkpoint_loaded") if when(e) > when(lost)][:1] or [0]
        assert lost["step"] - stood[0] <= 1, lost


def test_every_recovery_is_an_event_and_metrics_with_the_time_split(campaign: Campaign) -> None:
    recovered = campaign.of("recovered")
    assert [e["lost"] for e in recovered[:3]] == [[1], [0], [1]] and len(recovered) == 4
    for event in recovered:
        parts = event["seconds"]
        assert list(parts) == ["detect", "tear_down", "schedule", "load", "first_step", "total"]
        assert parts["total"] == pytest.approx(sum(v for k, v in parts.items() if k != "total"), abs=0.05)
    metrics = read_lines(campaign.run / "metrics.jsonl")
    assert sum(record["cluster/recovery_seconds"] > 0 for record in metrics) == 5, "four losses and a resize"


def test_a_full_disk_costs_that_checkpoint_only(campaign: Campaign) -> None:
    failed = [e for e in campaign.of("checkpoint_failed") if "File too large" in e["error"]]
    assert [e["step"] for e in failed] == [4]
    assert 5 in [e["step"] for e in campaign.of("checkpoint_committed")]


def test_three_machines_then_two_then_three_in_one_run(campaign: Campaign) -> None:
    ranks = [int(record["cluster/ranks"]) for record in read_lines(campaign.run / "metrics.jsonl")]
    sizes = [size for n, size in enumerate(ranks) if n == 0 or ranks[n - 1] != size]
    assert sizes == [3, 2, 3, 2], "the last machine fell silent"
    (resized,) = campaign.of("resized")
    committed = [e["step"] for e in campaign.of("checkpoint_committed") if when(e) < when(resized)]
    assert committed[-1] == resized["step"], "at a checkpoint, so that no step is done again"
    assert [e["nodes"] for e in campaign.of("fewer_nodes")] == [2, 2]


def test_nothing_that_was_started_is_left(campaign: Campaign) -> None:
    pids = {int(log.stem.rpartition("-")[2]) for log in (campaign.run / "logs").glob("*.log")}
    assert len(pids) >= 6, "three, one in place of each that was lost on a live machine, one on the new machine"
    silent = {e["pid"] for e in campaign.of("rank_lost")[-1:]}  # on a machine that nobody reaches: its lease ends it
    ours = living(pids - silent)
    _, left = psutil.wait_procs(ours, timeout=20)  # Ray ends them when it has been told, not while it is being told
    assert not left


def test_the_driver_is_killed_and_stopped_and_the_same_command_goes_on(
    machines: Any, config_of: Callable[..., Config], tmp_path: Path
) -> None:
    config = config_of("driver", run={"steps": 6}, cluster={"kind": "ray", "nodes": 1, "address": machines.address})
    file = Path(config.run.folder).parent / "driver.toml"
    file.write_text(tomli_w.dumps(without_none(config.model_dump(mode="json"))))
    command = [sys.executable, "-m", "grpo_runner.cli", "train", str(file)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any(line.startswith("step 2/") for line in process.stderr), "it ended by itself"
        process.send_signal(signal.SIGKILL)
    (log,) = (Path(config.run.folder) / "logs").glob("*.log")
    rank = int(log.stem.rpartition("-")[2])
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any(line.startswith("step ") for line in process.stderr), "it ended by itself"
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
    assert process.returncode == 143, "Ray's own answer to SIGTERM would be another one"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert not psutil.pid_exists(rank), "the ranks died with their driver"
    events = read_lines(Path(config.run.folder) / "events.jsonl")
    resumed = [e for e in events if e["event"] == "resumed"]
    (stopped,) = [e for e in events if e["event"] == "run_stopped"]
    assert [e["attempt"] for e in resumed] == [2, 3] and resumed[0]["step"] >= 1
    assert stopped["signal"] == "stopped by SIGTERM" and stopped["saved"] == stopped["step"] == resumed[1]["step"]


def test_a_step_that_fails_three_times_stops_the_run_with_a_diagnosis(
    machines: Any, config_of: Callable[..., Config], capfd: pytest.CaptureFixture[str]
) -> None:
    same = [{"step": 1, "phase": "update", "rank": 1, "kind": "kill"}] * 3
    config = config_of("hopeless", cluster={"kind": "ray", "nodes": 2, "faults": same})
    with pytest.raises(GaveUpError, match="step 1 failed 3 times") as caught:
        train(config)
    folder = Path(config.run.folder) / "diagnosis" / "001"
    assert str(folder) in str(caught.value)
    assert "rank 1" in (folder / "reason.txt").read_text()
    for name in ("config.toml", "versions.json", "cluster.json", "events.jsonl"):
        assert (folder / name).read_text(), name
    assert "Thread" in (folder / "stacks" / "rank-0.txt").read_text(), "rank 0 still answers"
    assert len(list(folder.glob("*.log"))) == 4, "the end of what each process wrote: two at first, two in place of rank 1"
    names = [e["event"] for e in read_lines(Path(config.run.folder) / "events.jsonl")]
    assert names.count("rank_lost") == 3 and names[-2:] == ["gave_up", "run_failed"]
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


def kill_once(member: Member) -> None:
    os.kill(member.pid, signal.SIGKILL)
    psutil.wait_procs(living({member.pid}), timeout=20)


def living(pids: Set[int]) -> list[psutil.Process]:
    """Return the processes that are there; any may go while it is being looked for."""
    found = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found


def test_ranks_lost_while_the_run_opens_and_while_it_ends_are_replaced(
    machines: Any, config_of: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    everybody, summarise, waiting = Supervisor.all, main_job.summarise, ["open", "questions"]

    def all_of_them(self: Supervisor, phase: str, method: str, *arguments: Any, **options: Any) -> list[Any]:
        if waiting[:1] == [method]:
            waiting.pop(0)
            kill_once(self.members[0 if method == "questions" else 1])
        return everybody(self, phase, method, *arguments, **options)

    def summary(session: Session, *outcomes: Any) -> dict[str, Any]:
        if not waiting:
            waiting.append("over")
            assert session.supervisor is not None
            kill_once(session.supervisor.members[0])
        return summarise(session, *outcomes)

    monkeypatch.setattr(Supervisor, "all", all_of_them)
    monkeypatch.setattr(main_job, "summarise", summary)
    run = train(config_of("windows", cluster={"kind": "ray", "nodes": 2}))
    assert waiting == ["over"]
    events = read_lines(run / "events.jsonl")
    lost = [(e["rank"], e["cause"], e["step"]) for e in events if e["event"] == "rank_lost"]
    assert lost == [(1, "died", 0), (0, "died", 0), (0, "died", 2)]
    names = [e["event"] for e in events]
    assert names.count("run_started") == names.count("run_finished") == 1
    assert [record["step"] for record in read_lines(run / "metrics.jsonl")] == [1, 2]
    assert (run / "summary.json").is_file() and (run / "report.html").is_file()


def test_a_rank_lost_while_the_run_leaves_costs_that_checkpoint_only(
    machines: Any, config_of: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave = Session.leave

    def leaving(self: Session) -> int:
        assert self.supervisor is not None
        kill_once(self.supervisor.members[0])
        return leave(self)

    monkeypatch.setattr(Session, "leave", leaving)
    config = config_of("leaving", cluster={"kind": "ray", "nodes": 1}, run={"steps": 4}, checkpoint={"every": 2})

    def tell(line: str) -> None:
        if line.startswith("step 3/"):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped):
        train(config, tell)
    events = read_lines(Path(config.run.folder) / "events.jsonl")
    (stopped,) = [e for e in events if e["event"] == "run_stopped"]
    assert (stopped["step"], stopped["saved"]) == (3, 2)
    assert [e["step"] for e in events if e["event"] == "leave_interrupted"] == [3]
    monkeypatch.undo()
    train(config)
    assert [record["step"] for record in read_lines(Path(config.run.folder) / "metrics.jsonl")] == [1, 2, 3, 4]
