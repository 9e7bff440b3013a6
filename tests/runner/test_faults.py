"""Fault plans are read, drawn and refused; what they say is done to real processes."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from grpo_runner.faults import PHASES_OF, Fault, Kind, Phase, full_disk, plan_of, raylet_above, strike, struck

KILL = {"step": 3, "phase": "update", "rank": 1, "kind": "kill"}


def test_a_list_is_sorted_into_the_order_in_which_it_strikes() -> None:
    slow = {"step": 3, "phase": "rollout", "rank": 5, "kind": "slow", "seconds": 2}
    assert plan_of([KILL, slow, KILL | {"step": 1}], steps=3, ranks=6) == (
        Fault(1, Phase.UPDATE, 1, Kind.KILL),
        Fault(3, Phase.ROLLOUT, 5, Kind.SLOW, 2.0),
        Fault(3, Phase.UPDATE, 1, Kind.KILL),
    )


def test_the_same_place_may_be_struck_again() -> None:
    assert plan_of([KILL] * 3, steps=3, ranks=2) == (Fault(3, Phase.UPDATE, 1, Kind.KILL),) * 3


@pytest.mark.parametrize("plan", ["", [], "5:0"])
def test_no_plan_is_no_faults(plan: Any) -> None:
    assert plan_of(plan, steps=3, ranks=2) == ()


def test_a_drawn_plan_is_a_function_of_its_seed() -> None:
    plan = plan_of("7:40", steps=100, ranks=6)
    assert plan == plan_of(" 7 : 40 ", steps=100, ranks=6) != plan_of("8:40", steps=100, ranks=6)
    assert len(plan) == 40 and set(plan_of("7:10", steps=100, ranks=6)) <= set(plan)


def test_a_drawn_plan_strikes_everywhere_at_most_once_a_step() -> None:
    plan = plan_of("1:600", steps=600, ranks=3)
    assert [fault.step for fault in plan] == list(range(1, 601))
    assert all(fault.phase in PHASES_OF[fault.kind] for fault in plan)
    kinds, ranks = Counter(f.kind for f in plan), Counter(f.rank for f in plan)
    assert set(kinds) == set(Kind) and min(kinds.values()) > 80  # 120 each are expected
    assert set(ranks) == {0, 1, 2} and min(ranks.values()) > 160
    assert {(f.kind, f.phase) for f in plan} == {(kind, phase) for kind in Kind for phase in PHASES_OF[kind]}


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("x:y", "'seed:count'"),
        ("7", "'seed:count'"),
        ("7:", "'seed:count'"),
        ("7:-1", "'seed:count'"),
        ("-7:1", "'seed:count'"),
        ("7:1:2", "'seed:count'"),
        ("7:4", "4 faults do not fit into 3 steps"),
        ([KILL | {"stepp": 1}], "fault 1: unknown key 'stepp'. Did you mean 'step'?"),
        ([KILL, {"step": 1, "phase": "update", "kind": "kill"}], "fault 2: key 'rank' is missing"),
        ([KILL | {"kind": "kil"}], "got 'kil'. Did you mean 'kill'?"),
        ([KILL | {"phase": "updates"}], "got 'updates'. Did you mean 'update'?"),
        ([KILL | {"kind": 9}], "kind: expected one of"),
        ([KILL | {"step": 0}], "step: expected a whole number from 1 to 3, got 0"),
        ([KILL | {"step": 4}], "step: expected a whole number from 1 to 3, got 4"),
        ([KILL | {"step": "3"}], "got '3'"),
        ([KILL | {"step": True}], "got True"),
        ([KILL | {"rank": 2}], "rank: expected a whole number from 0 to 1, got 2"),
        ([KILL | {"rank": -1}], "got -1"),
        ([KILL | {"kind": "slow", "seconds": 0}], "seconds: expected a number above 0"),
        ([KILL | {"kind": "slow", "seconds": float("nan")}], "seconds: expected a number above 0"),
        ([KILL | {"seconds": 1}], "seconds is for kind 'slow'"),
        ([KILL | {"kind": "disk-full"}], "disk-full happens in phase checkpoint only"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused(plan: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        plan_of(plan, steps=3, ranks=2)
    assert message in str(caught.value)


def _striker(kind: str) -> list[str]:
    code = f"from grpo_runner.faults import *; strike(Fault(1, Phase.UPDATE, 0, Kind({kind!r}), 0.01)); print('on')"
    return [sys.executable, "-c", code]


def test_kill_ends_the_process_at_once() -> None:
    done = subprocess.run(_striker("kill"), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")


def test_stop_holds_the_process_until_it_is_continued() -> None:
    with subprocess.Popen(_striker("stop"), stdout=subprocess.PIPE, text=True) as child:
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status) and os.WSTOPSIG(status) == signal.SIGSTOP
        child.send_signal(signal.SIGCONT)
        assert child.communicate()[0] == "on\n" and child.returncode == 0


def test_slow_goes_on() -> None:
    assert subprocess.run(_striker("slow"), capture_output=True, text=True).stdout == "on\n"


def test_a_lost_node_takes_its_raylet_with_it(tmp_path: Path) -> None:
    raylet = tmp_path / "raylet"
    raylet.symlink_to("/bin/sh")  # a process is named after the file it was started from
    worker = shlex.join(["/bin/sh", "-c", f"{shlex.join(_striker('lost-node'))}; true"])
    done = subprocess.run([raylet, "-c", f"{worker}; echo went on"], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL and "on" not in done.stdout, (done.stdout, done.stderr)


def test_without_a_raylet_there_is_no_node_to_lose() -> None:
    with pytest.raises(RuntimeError, match="not started by a raylet"):
        raylet_above(os.getpid())


def test_on_a_full_disk_files_can_be_made_and_not_written(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_bytes(b"kept")
    with struck(Fault(1, Phase.CHECKPOINT, 0, Kind.DISK_FULL)):
        with pytest.raises(OSError, match="too large"):
            new.write_bytes(b"lost")
        with pytest.raises(OSError, match="too large"), old.open("ab") as file:
            file.write(b"more")
    assert (old.read_bytes(), new.read_bytes()) == (b"kept", b"")
    new.write_bytes(b"there is room again")


def test_an_error_of_the_phase_frees_the_disk(tmp_path: Path) -> None:
    with pytest.raises(OSError), full_disk():
        (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "a").write_bytes(b"x")


def test_disk_full_is_no_single_strike() -> None:
    with pytest.raises(ValueError, match="with struck"):
        strike(Fault(1, Phase.CHECKPOINT, 0, Kind.DISK_FULL))


def test_without_a_fault_the_phase_is_done() -> None:
    with struck(None):
        pass
