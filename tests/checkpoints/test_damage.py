"""The damage matrix: bad state is never loaded, the newest whole one is, and the message names the file."""

import json
import os
import random
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from grpo_runner import folders
from grpo_runner.checkpoints import (
    CheckpointError,
    ConfigMismatchError,
    DamagedFolderError,
    ForeignRunError,
    NothingWholeError,
    UnknownSchemaError,
    UnreadableCheckpointError,
    verify_folder,
)


def flip_a_bit(run):
    file = run.step(3) / "rank_1.bin"
    content = bytearray(file.read_bytes())
    content[777] ^= 0x10
    file.write_bytes(content)


def one_byte_short(run):
    os.truncate(run.step(3) / "rank_1.bin", 1983)


def half_gone(run):
    os.truncate(run.step(3) / "rank_1.bin", 1000)


def zero_tail(run):
    file = run.step(3) / "rank_1.bin"
    content = file.read_bytes()
    file.write_bytes(content[:-512] + bytes(512))


def longer(run):
    with (run.step(3) / "rank_1.bin").open("ab") as file:
        file.write(b"\0")


def shard_missing(run):
    (run.step(3) / "rank_1.bin").unlink()


def shard_swapped(run):
    shutil.copyfile(run.step(3) / "rank_0.bin", run.step(3) / "rank_1.bin")


def shard_of_another_step(run):
    shutil.copyfile(run.step(2) / "rank_1.bin", run.step(3) / "rank_1.bin")


def shard_is_a_link(run):
    file = run.step(3) / "rank_1.bin"
    file.rename(run.folder / "elsewhere")
    file.symlink_to(run.folder / "elsewhere")


def foreign_file(run):
    (run.step(3) / "rank_2.bin").write_bytes(b"left here by somebody")


def manifest_missing(run):
    (run.step(3) / "MANIFEST.json").unlink()


def manifest_empty(run):
    os.truncate(run.step(3) / "MANIFEST.json", 0)


def manifest_cut(run):
    os.truncate(run.step(3) / "MANIFEST.json", 200)


def manifest_edited(run):
    file = run.step(3) / "MANIFEST.json"
    file.write_text(file.read_text().replace('"step_seen": 3', '"step_seen": 4'))


def manifest_of_an_older_step(run):
    shutil.copyfile(run.step(2) / "MANIFEST.json", run.step(3) / "MANIFEST.json")


def manifest_from_elsewhere(run):
    folders.commit_folder(run.folder, "export", lambda f: (f / "x").write_bytes(b"1"), manifest={"kind": "adapter"})
    shutil.copyfile(run.folder / "export" / "MANIFEST.json", run.step(3) / "MANIFEST.json")


def reseal(run, **changes):
    """Write a manifest with a right digest: what an attacker or a bug of ours would leave."""
    file = run.step(3) / "MANIFEST.json"
    body = json.loads(file.read_text()) | changes
    del body["digest"]
    file.write_text(json.dumps({**body, "digest": folders._digest(body)}))


def manifest_leads_out(run):
    reseal(run, files={"../step_00000002/rank_1.bin": {"bytes": 1984, "sha256": "0" * 64}})


def manifest_of_nonsense(run):
    reseal(run, files=[1, 2])


def file_in_place_of_the_folder(run):
    shutil.rmtree(run.step(3))
    run.step(3).write_bytes(b"not a folder")


def link_in_place_of_the_folder(run):
    run.step(3).rename(run.folder / "elsewhere")
    run.step(3).symlink_to(run.folder / "elsewhere")


def older_step_under_this_name(run):
    shutil.rmtree(run.step(3))
    shutil.copytree(run.step(2), run.step(3))


MATRIX = {
    flip_a_bit: "rank_1.bin",
    one_byte_short: "rank_1.bin: 1983 bytes, 1984 were committed",
    half_gone: "rank_1.bin: 1000 bytes, 1984 were committed",
    zero_tail: "rank_1.bin",
    longer: "rank_1.bin: 1985 bytes, 1984 were committed",
    shard_missing: "rank_1.bin",
    shard_swapped: "rank_1.bin",
    shard_of_another_step: "rank_1.bin",
    shard_is_a_link: "rank_1.bin",
    foreign_file: "rank_2.bin",
    manifest_missing: "MANIFEST.json",
    manifest_empty: "MANIFEST.json",
    manifest_cut: "MANIFEST.json",
    manifest_edited: "MANIFEST.json",
    manifest_of_an_older_step: "MANIFEST.json",
    manifest_from_elsewhere: "MANIFEST.json",
    manifest_leads_out: "MANIFEST.json",
    manifest_of_nonsense: "MANIFEST.json",
    file_in_place_of_the_folder: "not a folder",
    link_in_place_of_the_folder: "not a folder",
    older_step_under_this_name: "MANIFEST.json",
}


@pytest.mark.parametrize(("damage", "named"), MATRIX.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_damage_is_named_and_the_newest_whole_one_is_used(three, tools, damage, named):
    damage(three)
    got, loaded = three.start().load(tools.read)
    assert got == tools.state(2) and loaded.step == 2 and loaded.meta == {"step_seen": 2}
    (lost,) = three.told("checkpoint_lost")
    assert lost["step"] == 3 and named in f"{lost['file']}: {lost['reason']}"
    assert lost["aside"] == "corrupt-step_00000003"
    assert "corrupt-step_00000003" in three.names() and "step_00000003" not in three.names()
    reason = (three.checkpoints / "corrupt-step_00000003.txt").read_text()
    assert named in reason and "step_00000003" in reason
    (fallback,) = three.told("checkpoint_fallback")
    assert fallback == {"used": 2, "lost": [3], "steps_to_redo": 1}
    # the next start finds its way at once, and the redone step can be saved under its own name
    three.events.clear()
    again = three.start()
    assert again.load(tools.read)[1].step == 2 and not three.told("checkpoint_lost") and not three.told("pointer_stale")
    again.save(3, tools.writer(3), {"step_seen": 3})
    assert three.start().load(tools.read)[0] == tools.state(3)


def test_damage_to_every_single_byte_is_found(three):
    """One random bit of each byte of each file, the manifest included."""
    draw = random.Random(5)
    folder = three.step(3)
    whole = verify_folder(folder)
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = file.read_bytes()
        for position in range(0, len(content), 1 if file.name == "MANIFEST.json" else 97):
            damaged = bytearray(content)
            damaged[position] ^= 1 << draw.randrange(8)
            file.write_bytes(damaged)
            try:
                found = verify_folder(folder)
            except (DamagedFolderError, UnknownSchemaError) as error:
                assert isinstance(error, DamagedFolderError)
            else:  # such as "1e-05" turned to "1E-05": another spelling of the same value
                assert found == whole, f"{file.name}, byte {position}"
        file.write_bytes(content)
    assert verify_folder(folder) == whole


def test_two_damaged_ones_fall_back_twice(three, tools):
    flip_a_bit(three)
    (three.step(2) / "rank_0.bin").unlink()
    got, loaded = three.start().load(tools.read)
    assert got == tools.state(1) and loaded.step == 1
    assert [lost["step"] for lost in three.told("checkpoint_lost")] == [3, 2]


def test_when_nothing_is_whole_the_run_does_not_quietly_start_again(three, tools):
    for step in (1, 2, 3):
        (three.step(step) / "rank_0.bin").unlink()
    for _ in range(2):  # the second start finds only what the first one set aside
        with pytest.raises(NothingWholeError, match=r"corrupt-step_00000001.*move this folder away"):
            three.start().load(tools.read)


def test_an_empty_store_is_none_and_tells_nothing(run, tools):
    assert run.start().load(tools.read) is None
    assert run.events == []


@pytest.mark.parametrize(
    ("pointer", "step", "event"),
    [
        ("step_00000002", 3, "pointer_stale"),  # killed between rename and pointer
        ("step_00000009", 3, "checkpoint_lost"),  # what it names is gone
        ("../../etc", 3, "pointer_stale"),
        ("", 3, "pointer_stale"),
        ("step_00000003", 3, None),
        (None, 3, None),
    ],
)
def test_the_pointer_is_never_trusted(three, tools, pointer, step, event):
    file = three.checkpoints / "LATEST"
    assert file.read_text() == "step_00000003\n"
    file.unlink()
    if pointer is not None:
        file.write_text(pointer)
    got, loaded = three.start().load(tools.read)
    assert got == tools.state(step) and loaded.step == step
    assert [name for name, _ in three.events if name in ("pointer_stale", "checkpoint_lost")] == ([event] if event else [])


def test_a_pointer_alone_is_not_an_empty_store(three, tools):
    for step in (1, 2, 3):
        shutil.rmtree(three.step(step))
    with pytest.raises(NothingWholeError, match=r"steps lost: \[3\]"):
        three.start().load(tools.read)


@pytest.mark.parametrize("whole", [False, True], ids=["half written", "whole but not renamed"])
def test_a_folder_that_was_not_renamed_does_not_exist(three, tools, whole):
    half = three.checkpoints / ".tmp-step_00000004-a1-0123abcd"
    shutil.copytree(three.step(3), half)
    if not whole:
        (half / "MANIFEST.json").unlink()
    got, loaded = three.start().load(tools.read)
    assert got == tools.state(3) and loaded.step == 3
    assert not half.exists() and not [name for name in three.names() if name.startswith(".")]


def test_a_half_renamed_replacement_comes_back(three, tools):
    """Killed after the old folder was set aside and before the new one took its name."""
    three.step(3).rename(three.checkpoints / ".aside-step_00000003-a1-0123abcd")
    (three.checkpoints / ".tmp-step_00000003-a1-0123abcd").mkdir()
    got, loaded = three.start().load(tools.read)
    assert got == tools.state(3) and loaded.step == 3 and not three.told("checkpoint_lost")
    assert three.names() == ["LATEST", "step_00000001", "step_00000002", "step_00000003"]


def test_half_deleted_ones_are_cleared(three, tools):
    three.step(1).rename(three.checkpoints / ".trash-step_00000001-a1-0123abcd")
    assert three.start().load(tools.read)[1].step == 3
    assert three.names() == ["LATEST", "step_00000002", "step_00000003"]


def test_a_folder_of_another_run_is_refused_and_left_alone(three, tools):
    before = three.names()
    with pytest.raises(ForeignRunError, match=r"step_00000003 belongs to run 'run-1', this is run 'run-2'"):
        three.start(run_id="run-2").load(tools.read)
    flip_a_bit(three)  # also a damaged one: it is not ours to rename
    with pytest.raises(ForeignRunError):
        three.start(run_id="run-2").load(tools.read)
    assert three.names() == before


def test_another_configuration_is_refused_with_the_keys_and_both_values(three, tools):
    other = {"optim": {"lr": 3e-5}, "steps": 20, "rewards": {"progress": 0.2}}
    with pytest.raises(ConfigMismatchError) as refused:
        three.start(config=other).load(tools.read, may_change=["steps"])
    text = str(refused.value)
    assert "optim.lr: 1e-05 in the checkpoint, 3e-05 now" in text
    assert "rewards.progress: absent in the checkpoint, 0.2 now" in text
    assert "steps" not in text and "step_00000003" in text
    assert three.start(config=other).load(tools.read, may_change=["steps", "optim", "rewards.progress"])[1].step == 3


def test_another_schema_is_refused_and_left_alone(three, tools):
    reseal(three, schema=0)
    with pytest.raises(UnknownSchemaError, match=r"step_00000003/MANIFEST.json: schema 0; this version reads schema 1"):
        three.start().load(tools.read)
    assert three.step(3).is_dir()


def test_a_reader_that_fails_on_a_verified_folder_is_an_error_and_no_damage(three):
    def failing(folder, meta):
        raise KeyError("optimizer")

    with pytest.raises(UnreadableCheckpointError, match=r"step_00000003 is as it was committed.*optimizer"):
        three.start().load(failing)
    assert three.step(3).is_dir() and not three.told("checkpoint_lost")


DISK_FULL = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import conftest
from grpo_runner.checkpoints import CheckpointError
run = conftest.Run(Path(sys.argv[1]))
store = run.start()
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
try:
    store.save(4, conftest.writer(4, int(sys.argv[4])), {})
except CheckpointError as error:
    print("failed:", error, "| counted:", store.failed, "| told:", run.told("checkpoint_failed")[0]["step"])
"""


@pytest.mark.parametrize(
    ("limit", "size"), [(0, 2000), (1500, 2000), (500, 200)], ids=["at once", "in a shard", "in the manifest"]
)
def test_a_full_disk_leaves_what_was_there(three, tools, limit, size):
    command = [sys.executable, "-c", DISK_FULL, str(three.folder), os.path.dirname(__file__), str(limit), str(size)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "File too large" in done.stdout and "counted: 1 | told: 4" in done.stdout, done.stdout + done.stderr
    assert three.names() == ["LATEST", "step_00000001", "step_00000002", "step_00000003"]
    assert three.start().load(tools.read)[0] == tools.state(3)


def test_too_little_space_is_said_before_anything_is_written(three, tools, monkeypatch):
    store = three.start()
    store.load(tools.read)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=3))
    with pytest.raises(CheckpointError, match="3 bytes are free, the last checkpoint took 4968"):
        store.save(4, lambda folder: pytest.fail("written"), {})
    assert store.failed == 1


def test_a_folder_that_cannot_be_written_fails_the_save_and_still_loads(three, tools):
    """Root ignores modes, so the refusal is one that root meets too: a read-only bind mount where that can be made."""
    store = three.start()
    with read_only(three.checkpoints):
        with pytest.raises(CheckpointError, match=r"Read-only file system|Operation not permitted"):
            store.save(4, tools.writer(4), {})
        assert three.start().load(tools.read)[0] == tools.state(3)
    assert three.start().load(tools.read)[0] == tools.state(3)


def test_damage_in_a_folder_that_cannot_be_written_is_told_and_passed_over(three, tools):
    flip_a_bit(three)
    with read_only(three.checkpoints):
        got, _ = three.start().load(tools.read)
    assert got == tools.state(2)
    assert three.told("quarantine_failed") and three.told("checkpoint_lost")[0]["aside"] is None


def test_a_file_in_the_place_of_the_store_is_said_at_the_start(run):
    run.folder.mkdir(parents=True)
    run.checkpoints.write_text("a file")
    with pytest.raises(FileExistsError, match="checkpoints"):
        run.start()


class read_only:
    """Make a folder unwritable for root as well: a read-only bind mount, else the immutable attribute, else its mode."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __enter__(self):
        self.undo = None
        tries = (
            (["mount", "--bind", self.folder, self.folder], ["umount", self.folder]),
            (["chattr", "+i", self.folder], ["chattr", "-i", self.folder]),
        )
        for do, undo in tries:
            if shutil.which(do[0]) and subprocess.run(do, capture_output=True).returncode == 0:
                self.undo = undo
                if do[0] == "mount":
                    again = ["mount", "-o", "remount,ro,bind", self.folder]
                    if subprocess.run(again, capture_output=True).returncode != 0:
                        subprocess.run(undo, check=True)
                        continue
                return
        if os.geteuid() == 0:
            pytest.skip("root, and neither a bind mount nor chattr is possible here")
        os.chmod(self.folder, 0o555)
        self.undo = ["chmod", "755", self.folder]

    def __exit__(self, *error):
        subprocess.run(self.undo, check=True)
