"""Saving: the order of the protocol, one save in flight, failures that are told, retention that keeps the best."""

import os
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo_runner import files, folders
from grpo_runner.checkpoints import CheckpointError, commit_folder, ring, verify_folder
from grpo_runner.mirrors import surplus
from grpo_runner.recovery import config_differences


def test_everything_is_on_the_disk_before_the_rename_and_the_pointer_is_last(run, tools, monkeypatch):
    """Records what is synced and renamed: after a power cut only what was synced is there."""
    store = run.start()
    log = []
    fsync, rename, replace = os.fsync, os.rename, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda handle: (log.append(("sync", os.readlink(f"/proc/self/fd/{handle}"))), fsync(handle))
    )
    monkeypatch.setattr(os, "rename", lambda a, b: (log.append(("rename", str(a), str(b))), rename(a, b)))
    monkeypatch.setattr(os, "replace", lambda a, b: (log.append(("replace", str(a), str(b))), replace(a, b)))
    store.save(1, tools.writer(1), {})
    moves = [entry for entry in log if entry[0] != "sync"]
    assert [(move[0], move[2]) for move in moves] == [
        ("rename", str(run.step(1))),
        ("replace", str(run.checkpoints / "LATEST")),
    ]
    temporary, at = moves[0][1], log.index(moves[0])
    synced = {entry[1] for entry in log[:at]}
    inside = {str(path).replace(str(run.step(1)), temporary) for path in run.step(1).rglob("*")}
    assert inside | {temporary} <= synced
    between = log[at + 1 : log.index(moves[1])]
    assert ("sync", str(run.checkpoints)) in between and ("sync", moves[1][1]) in between
    assert log[-1] == ("sync", str(run.checkpoints))


def test_the_manifest_says_what_the_checkpoint_is(three):
    manifest = verify_folder(three.step(3))
    assert manifest.fields["run_id"] == "run-1" and manifest.fields["attempt"] == 1 and manifest.fields["step"] == 3
    assert manifest.fields["config"] == {"optim": {"lr": 1e-5}, "steps": 10} and len(manifest.fields["config_hash"]) == 64
    assert manifest.fields["meta"] == {"step_seen": 3} and manifest.fields["score"] == -2
    assert {file: entry.bytes for file, entry in manifest.files.items()} == {
        "optimizer/moments.bin": 1000,
        "rank_0.bin": 1984,
        "rank_1.bin": 1984,
    }


def test_save_returns_what_stands(run, tools):
    committed = run.start().save(7, tools.writer(7), {})
    assert (committed.step, committed.folder, committed.bytes) == (7, run.step(7), 4968) and committed.seconds > 0
    assert run.told("checkpoint_committed") == [{"step": 7, "folder": str(run.step(7)), "bytes": 4968}]


def test_retention_keeps_the_newest_and_the_best(run, tools):
    store = run.start(keep=2)
    for step, score in ((1, 0.1), (2, 0.9), (3, None), (4, 0.9), (5, 0.3), (6, float("nan"))):
        store.save(step, tools.writer(step), {}, score=score)
    assert run.names() == ["LATEST", "step_00000002", "step_00000005", "step_00000006"]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no fault
@given(
    st.dictionaries(st.integers(0, 40), st.none() | st.floats(allow_nan=True), max_size=12),
    st.integers(1, 5),
)
def test_retention_never_takes_the_newest_nor_the_best(scores, keep):
    gone = surplus(scores, keep)
    left = sorted(scores.keys() - set(gone))
    assert left[-keep:] == sorted(scores)[-keep:] and len(left) <= keep + 1
    known = [score for score in scores.values() if score is not None and score == score]
    assert not known or max(known) in [scores[step] for step in left]


def test_retention_does_not_count_damaged_ones(three, tools):
    """With keep = 1 and the new one whole, the damaged one is left for the next start to name."""
    (three.step(3) / "rank_0.bin").unlink()
    store = three.start(keep=2)
    store.save(4, tools.writer(4), {})
    assert {"step_00000002", "step_00000003", "step_00000004"} < set(three.names())


def test_a_retention_that_fails_is_told_and_the_checkpoint_stands(three, tools, monkeypatch):
    store = three.start(keep=1)

    def refuse(path, attempt):
        raise OSError("stale file handle")

    monkeypatch.setattr("grpo_runner.mirrors.remove", refuse)
    assert store.save(4, tools.writer(4), {}).step == 4
    assert three.told("retention_failed") and store.failed == 0


def test_a_step_can_be_saved_again_and_the_old_one_stands_until_the_new_one_does(three, tools):
    store = three.start()

    def failing(folder):
        tools.writer(9)(folder)
        raise OSError("No space left on device")

    with pytest.raises(CheckpointError):
        store.save(3, failing, {})
    assert three.start().load(tools.read)[0] == tools.state(3)
    three.start().save(3, tools.writer(9), {"again": True})
    got, loaded = three.start().load(tools.read)
    assert got == tools.state(9) and loaded.meta == {"again": True}


@pytest.mark.parametrize("error", [OSError("No space left on device"), RuntimeError("shape"), ValueError("x")])
def test_a_failed_save_is_counted_told_and_leaves_nothing(three, error):
    store = three.start()

    def failing(folder: Path):
        (folder / "rank_0.bin").write_bytes(b"part")
        raise error

    with pytest.raises(CheckpointError, match="step 4") as raised:
        store.save(4, failing, {})
    assert raised.value.__cause__ is error
    store.save_async(5, failing, {})
    assert store.wait() is None and store.failed == 2
    assert [told["step"] for told in three.told("checkpoint_failed")] == [4, 5]
    assert three.names() == ["LATEST", "step_00000001", "step_00000002", "step_00000003"]


def test_dcps_exception_which_is_no_exception_is_caught_by_name(three, tools):
    api = pytest.importorskip("torch.distributed.checkpoint.api")
    store = three.start()
    failure = api.CheckpointException("write", {0: (OSError("No space left on device"), None)})
    assert not isinstance(failure, Exception)

    def failing(*arguments):
        raise failure

    with pytest.raises(CheckpointError):
        store.save(4, failing, {})
    store.save_async(5, failing, {})
    assert store.wait() is None and store.failed == 2
    with pytest.raises(RuntimeError, match="step_00000003 is as it was committed"):
        store.load(failing)


def test_keyboard_interrupt_is_not_a_failed_save(three):
    store = three.start()

    def interrupted(folder):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.save(4, interrupted, {})
    assert store.failed == 0 and three.names() == ["LATEST", "step_00000001", "step_00000002", "step_00000003"]


def test_one_save_is_in_flight_and_the_caller_goes_on(run, tools):
    store = run.start()
    started, go = threading.Event(), threading.Event()

    def slow(folder):
        started.set()
        assert go.wait(30)
        tools.writer(1)(folder)

    meta = {"history": [1]}
    store.save_async(1, slow, meta, 0.5)
    assert started.wait(30) and run.told("checkpoint_committed") == []  # the caller is here while the save is not done
    meta["history"].append(2)  # what the caller changes now is not in the checkpoint
    threading.Timer(0.05, go.set).start()
    store.save_async(2, tools.writer(2), {})  # waits for the first
    assert run.told("checkpoint_committed")[0]["step"] == 1
    assert store.wait().step == 2 and store.wait() is None
    assert verify_folder(run.step(1)).fields["meta"] == {"history": [1]}
    assert verify_folder(run.step(1)).fields["score"] == 0.5


def test_load_and_save_wait_for_the_save_in_flight(run, tools):
    store = run.start()
    store.save_async(1, tools.writer(1), {})
    assert store.load(tools.read)[1].step == 1
    store.save_async(2, tools.writer(2), {})
    assert store.save(3, tools.writer(3), {}).step == 3
    assert [told["step"] for told in run.told("checkpoint_committed")] == [1, 2, 3]


def test_what_the_writer_may_not_leave(run, tmp_path):
    store = run.start()
    for leave, message in (
        (lambda f: (f / "l").symlink_to(tmp_path), "neither a file nor a folder"),
        (lambda f: os.mkfifo(f / "p"), "neither a file nor a folder"),
        (lambda f: (f / "MANIFEST.json").write_text("{}"), "leave MANIFEST.json to the commit"),
    ):
        with pytest.raises(CheckpointError, match=message):
            store.save(1, leave, {})
    assert run.names() == []


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "/x", "a/b", "a\0b", ".hidden", "a\n", "ü", "n" * 129])
def test_names_cannot_leave_their_folder(tmp_path, name):
    with pytest.raises(ValueError, match="not a name"):
        commit_folder(tmp_path, name, lambda folder: None, manifest={})
    assert list(tmp_path.iterdir()) == []


def test_the_ring_keeps_the_last_and_touches_nothing_else(tmp_path):
    for step in (1, 2, 3, 10):
        commit_folder(tmp_path, f"step_{step:08d}", lambda f: (f / "a").write_bytes(b"1"), manifest={"step": step})
    (tmp_path / "notes.txt").write_text("mine")
    assert ring(tmp_path, 3) == ["step_00000001"]
    assert ring(tmp_path, 3) == []
    assert sorted(os.listdir(tmp_path)) == ["notes.txt", "step_00000002", "step_00000003", "step_00000010"]


def test_no_foreign_object_is_ever_unpickled():
    """The modules that read what others may have written know no format but JSON and bytes."""
    for module in (files, folders):
        source = Path(module.__file__).parent
        for name in ("files", "folders", "recovery", "checkpoints", "mirrors", "attempts", "backends"):
            text = (source / f"{name}.py").read_text()
            assert "pickle" not in text and "torch.load" not in text and "eval(" not in text


def test_config_differences_see_kinds_and_whole_branches():
    before = {"a": 1, "b": {"c": [1, 2], "d": None}, "e": {}, "f": True}
    now = {"a": 1.0, "b": {"c": [1, 3]}, "e": {"g": 2}, "f": 1}
    assert config_differences(before, now) == [
        "a: 1 in the checkpoint, 1.0 now",
        "b.c: [1, 2] in the checkpoint, [1, 3] now",
        "b.d: None in the checkpoint, absent now",
        "e: {} in the checkpoint, absent now",
        "e.g: absent in the checkpoint, 2 now",
        "f: True in the checkpoint, 1 now",
    ]
    assert config_differences(before, now, ["a", "b", "e", "f"]) == []
    assert config_differences({"step": 1}, {"step": 2, "steps": 3}, ["steps"]) == ["step: 1 in the checkpoint, 2 now"]
