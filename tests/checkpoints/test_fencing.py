"""Each start takes the next attempt number; an older attempt that wakes up publishes nothing."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from grpo_runner import attempts, folders
from grpo_runner.checkpoints import Superseded, commit_folder


def test_attempts_count_from_one_and_are_remembered(tmp_path):
    assert attempts.current(tmp_path) == 0
    assert [attempts.next_attempt(tmp_path) for _ in range(3)] == [1, 2, 3]
    (tmp_path / "attempts" / "notes.txt").write_text("not a number")
    assert attempts.current(tmp_path) == 3


def test_starts_at_once_get_different_numbers(tmp_path):
    take = "import sys, pathlib; from grpo_runner.attempts import next_attempt as n; sys.stdin.readline(); "
    take += "print(*[n(pathlib.Path(sys.argv[1])) for _ in range(10)])"
    command = [sys.executable, "-c", take, str(tmp_path)]
    starts = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for start in starts:
        start.stdin.write("\n")
        start.stdin.flush()
    with ThreadPoolExecutor(4) as pool:
        taken = [int(number) for out in pool.map(lambda start: start.communicate()[0], starts) for number in out.split()]
    assert sorted(taken) == list(range(1, 41))


def test_an_attempt_that_is_superseded_while_it_writes_publishes_nothing(three, tools):
    old = three.start()

    def write(folder):
        tools.writer(4)(folder)
        attempts.next_attempt(three.folder)  # another start, while this one is stalled here

    before = three.names()
    with pytest.raises(Superseded, match=r"attempt 2 .* superseded by attempt 3"):
        old.save(4, write, {})
    assert three.names() == before
    for call in (
        lambda: old.save(5, lambda folder: pytest.fail("must not write"), {}),
        lambda: old.load(tools.read),
        lambda: (old.save_async(5, tools.writer(5), {}), old.wait()),
    ):
        with pytest.raises(Superseded):
            call()
    assert three.names() == before and old.failed == 0


def test_the_moment_between_the_last_check_and_the_rename_is_closed(three, tools, monkeypatch):
    """The later attempt starts, sweeps and saves exactly there: the old rename finds nothing to rename."""
    old = three.start()
    rename, later = os.rename, []

    def stalled(a, b):
        if not later and os.path.basename(b) == "step_00000004":
            later.append(three.start())
            later[0].save(4, tools.writer(44), {"by": "later"})
        rename(a, b)

    monkeypatch.setattr(folders.os, "rename", stalled)
    with pytest.raises(Superseded) as refused:
        old.save(4, tools.writer(4), {"by": "old"})
    assert isinstance(refused.value.__cause__, FileNotFoundError) and old.failed == 0
    monkeypatch.undo()
    got, loaded = three.start().load(tools.read)
    assert got == tools.state(44) and loaded.meta == {"by": "later"}


def test_the_pointer_of_an_older_attempt_is_not_written(three, tools, monkeypatch):
    old = three.start()
    rename = os.rename

    def then_another_starts(a, b):
        rename(a, b)
        attempts.next_attempt(three.folder)

    monkeypatch.setattr(folders.os, "rename", then_another_starts)
    with pytest.raises(Superseded):
        old.save(4, tools.writer(4), {})
    assert (three.checkpoints / "LATEST").read_text() == "step_00000003\n"


def test_a_mirror_of_an_older_attempt_is_not_written(three, tools, monkeypatch):
    put = []

    class Mirror:
        def put(self, folder, name):
            put.append(name)

        def names(self):
            return put

    old = three.start(backend=Mirror())
    monkeypatch.setattr("grpo_runner.checkpoints.retain", lambda place, keep, fence: attempts.next_attempt(three.folder))
    with pytest.raises(Superseded):
        old.save(4, tools.writer(4), {})
    assert put == []


def test_an_adapter_of_an_older_attempt_is_not_published(tmp_path):
    attempt = attempts.next_attempt(tmp_path)

    def write(folder):
        (folder / "adapter_model.safetensors").write_bytes(b"1")
        attempts.next_attempt(tmp_path)

    with pytest.raises(Superseded):
        commit_folder(
            tmp_path / "adapters", "step_00000001", write, manifest={}, attempt=attempt, fence=attempts.fence(tmp_path, attempt)
        )
    assert os.listdir(tmp_path / "adapters") == []


def test_an_old_store_is_not_opened(three):
    number = attempts.current(three.folder)
    three.start()
    with pytest.raises(Superseded):
        from grpo_runner.checkpoints import CheckpointStore

        CheckpointStore(
            three.checkpoints, run_folder=three.folder, attempt=number, run_id="run-1", config_hash="", config={}, keep=1,
            on_event=lambda name, fields: None,
        )  # fmt: skip


def test_a_second_store_of_the_same_attempt_leaves_the_writer_alone(three, tools):
    """Such as an evaluation that reads while the training writes."""
    writing = three.start()
    number = attempts.current(three.folder)

    def write(folder):
        tools.writer(4)(folder)
        folders.sweep(three.checkpoints, number)

    assert writing.save(4, write, {}).step == 4


STALLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import conftest
from grpo_runner.checkpoints import Superseded
run = conftest.Run(Path(sys.argv[1]))
store = run.start()
def write(folder):
    conftest.writer(4)(folder)
    print("writing", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
try:
    store.save(4, write, {"by": "old"})
    print("published")
except Superseded as error:
    print("refused:", error)
"""


def test_a_stopped_process_that_wakes_up_is_refused(three, tools):
    """SIGSTOP stands for a partition or a long pause of the machine."""
    command = [sys.executable, "-c", STALLED, str(three.folder), os.path.dirname(__file__)]
    old = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert old.stdout.readline() == "writing\n"
        os.waitid(os.P_PID, old.pid, os.WSTOPPED)
        store = three.start()
        assert store.load(tools.read)[1].step == 3
        store.save(4, tools.writer(44), {"by": "later"})
        os.kill(old.pid, signal.SIGCONT)
        out, _ = old.communicate(timeout=30)
    finally:
        old.kill()
        old.wait()
    assert out.startswith("refused: attempt 2")
    assert three.start().load(tools.read)[0] == tools.state(44)
    assert not [name for name in three.names() if name.startswith(".")]
