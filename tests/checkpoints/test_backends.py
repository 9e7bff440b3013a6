"""Backends against their contract, and the store over a backend: mirrored, restored, pruned, told when it fails."""

import os
import shutil
from pathlib import Path

import pytest

from grpo_runner.backends import LocalBackend
from grpo_runner.checkpoints import DamagedFolderError, ForeignRunError, NothingWholeError
from vismaze_hooks.testing_checkpoints import check_checkpoint_backend


def test_local_keeps_the_contract(tmp_path):
    check_checkpoint_backend(lambda: LocalBackend(tmp_path / "root"), tmp_path / "scratch")


def test_both_are_offered_by_name(plugins, tmp_path):
    assert plugins.create("checkpoint backend", "local", {"root": tmp_path}) == LocalBackend(tmp_path)


class ListsEarly(LocalBackend):
    def put(self, folder, name):
        super().put(folder, name) if name.startswith("step") else (Path(self.root) / name).mkdir()

    def names(self):
        return sorted(os.listdir(self.root)) if Path(self.root).is_dir() else []


class Merges(LocalBackend):
    def put(self, folder, name):
        if name in self.names():
            shutil.copytree(folder, Path(self.root) / name / "data", dirs_exist_ok=True)
            folder = Path(self.root) / name / "data"
        super().put(folder, name)


class Overwrites(LocalBackend):
    def get(self, name, folder):
        shutil.rmtree(folder, ignore_errors=True)
        super().get(name, folder)


class LosesEmptyFiles(LocalBackend):
    def get(self, name, folder):
        super().get(name, folder)
        for path in folder.rglob("*"):
            if path.is_file() and not path.stat().st_size:
                path.unlink()


class LeavesPartOfAFolder(LocalBackend):
    def get(self, name, folder):
        if not folder.exists() and name == "unknown":
            folder.mkdir()
        super().get(name, folder)


class DeletesByPrefix(LocalBackend):
    def delete(self, name):
        super().delete(name)
        for other in self.names():
            if other.startswith(name):
                super().delete(other)


class TakesAnyName(LocalBackend):
    def delete(self, name):
        shutil.rmtree(Path(self.root) / name.replace("\0", ""), ignore_errors=True) if name not in ("", ".", "..") else None


class MissesADeletion(LocalBackend):
    def delete(self, name):
        if name not in self.names():
            raise FileNotFoundError(name)
        super().delete(name)


class FollowsLinks(LocalBackend):
    def put(self, folder, name):
        copy = Path(f"{folder}-copy")
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        super().put(copy, name)


class RemembersInMemory:
    def __init__(self):
        self.kept = {}

    def put(self, folder, name):
        self.kept[name] = folder

    def names(self):
        return sorted(self.kept)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (ListsEarly, "left its name|must raise"),
        (Merges, "mixture"),
        (Overwrites, "into a folder that is there"),
        (LosesEmptyFiles, "did not give back"),
        (LeavesPartOfAFolder, "unknown"),
        (DeletesByPrefix, "begins like it"),
        (TakesAnyName, "deleting the name"),
        (FollowsLinks, "symbolic link"),
        (lambda root: RemembersInMemory(), "after two puts"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_check_finds_a_broken_backend(broken, message, tmp_path):
    with pytest.raises(AssertionError, match=message):
        check_checkpoint_backend(lambda: broken(tmp_path / "root"), tmp_path / "scratch")


def test_the_check_wants_a_repeated_deletion_to_be_no_error(tmp_path):
    with pytest.raises((AssertionError, FileNotFoundError)):
        check_checkpoint_backend(lambda: MissesADeletion(tmp_path / "root"), tmp_path / "scratch")


def test_local_lists_no_damaged_copy_and_gives_none_back(tmp_path, three):
    backend = LocalBackend(tmp_path / "root")
    for step in (1, 2, 3):
        backend.put(three.step(step), f"step_{step:08d}-a0001")
    (tmp_path / "root" / "step_00000001-a0001" / "data" / "rank_0.bin").unlink()
    file = tmp_path / "root" / "step_00000002-a0001" / "data" / "rank_0.bin"
    file.write_bytes(bytes(1984))
    shutil.copytree(tmp_path / "root" / "step_00000003-a0001", tmp_path / "root" / ".tmp-step_00000004-a0-01234567")
    assert backend.names() == ["step_00000002-a0001", "step_00000003-a0001"]
    with pytest.raises(DamagedFolderError, match=r"step_00000002-a0001: data/rank_0.bin: sha256"):
        backend.get("step_00000002-a0001", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_each_commit_is_mirrored_and_pruned_like_the_folder(run, tools, tmp_path):
    mirror = LocalBackend(tmp_path / "mirror")
    store = run.start(keep=2, backend=mirror)
    for step, score in ((1, 0.1), (2, 0.9), (3, 0.2), (4, 0.3), (5, 0.1)):
        store.save(step, tools.writer(step), {}, score=score)
    assert mirror.names() == ["step_00000002-a0001", "step_00000004-a0001", "step_00000005-a0001"]


def test_a_lost_disk_is_restored_from_the_backend(run, tools, tmp_path):
    mirror = LocalBackend(tmp_path / "mirror")
    store = run.start(backend=mirror)
    for step in (1, 2):
        store.save(step, tools.writer(step), {"step_seen": step})
    shutil.rmtree(run.checkpoints)
    got, loaded = run.start(backend=mirror).load(tools.read)
    assert got == tools.state(2) and loaded.meta == {"step_seen": 2} and loaded.folder == run.step(2)
    assert run.told("checkpoint_restored")[0]["name"] == "step_00000002-a0001"
    assert run.start().load(tools.read)[0] == tools.state(2)  # it stands here now, without the backend


def test_a_damaged_one_comes_back_from_the_backend_and_no_step_is_lost(run, tools, tmp_path):
    mirror = LocalBackend(tmp_path / "mirror")
    store = run.start(backend=mirror)
    for step in (1, 2):
        store.save(step, tools.writer(step), {})
    os.truncate(run.step(2) / "rank_0.bin", 5)
    assert run.start(backend=mirror).load(tools.read)[1].step == 2
    assert run.told("checkpoint_fallback") == [{"used": 2, "lost": [2], "steps_to_redo": 0}]


def test_a_damaged_copy_in_the_backend_is_told_and_passed_over(run, tools, tmp_path):
    mirror = LocalBackend(tmp_path / "mirror")
    store = run.start(backend=mirror)
    for step in (1, 2):
        store.save(step, tools.writer(step), {})
    (tmp_path / "mirror" / "step_00000002-a0001" / "data" / "rank_0.bin").write_bytes(bytes(1984))
    shutil.rmtree(run.checkpoints)
    assert run.start(backend=mirror).load(tools.read)[0] == tools.state(1)
    assert "data/rank_0.bin" in run.told("checkpoint_lost")[0]["reason"]
    shutil.rmtree(run.checkpoints)
    shutil.rmtree(tmp_path / "mirror" / "step_00000001-a0001")
    with pytest.raises(NothingWholeError, match=r"steps lost: \[2\]"):
        run.start(backend=mirror).load(tools.read)


def test_the_backend_of_another_run_is_refused(run, tools, tmp_path):
    mirror = LocalBackend(tmp_path / "mirror")
    run.start(backend=mirror, run_id="somebody-else").save(1, tools.writer(1), {})
    shutil.rmtree(run.checkpoints)
    with pytest.raises(ForeignRunError, match="belongs to run 'somebody-else'"):
        run.start(backend=mirror).load(tools.read)
    assert run.names() == []


class Down:
    def put(self, folder, name):
        raise ConnectionError("no route")

    get = delete = put

    def names(self):
        raise ConnectionError("no route")


def test_a_backend_that_is_down_costs_the_mirror_and_nothing_else(three, tools):
    store = three.start(backend=Down())
    assert store.load(tools.read)[1].step == 3
    assert store.save(4, tools.writer(4), {}).step == 4
    assert store.failed == 0 and "no route" in three.told("mirror_failed")[0]["error"]
    os.truncate(three.step(4) / "rank_0.bin", 5)
    assert three.start(backend=Down()).load(tools.read)[1].step == 3
    assert three.told("backend_failed")


def test_a_backend_that_is_down_is_no_empty_store(run, tools):
    with pytest.raises(NothingWholeError, match="the backend cannot be asked"):
        run.start(backend=Down()).load(tools.read)


def test_what_a_backend_that_was_down_has_missed_is_made_up_for(three, tools, tmp_path):
    mirror = LocalBackend(tmp_path / "mirror")
    (three.step(2) / "rank_0.bin").write_bytes(bytes(1984))  # damaged since: not worth a copy
    three.start(backend=mirror, keep=4).save(4, tools.writer(4), {})
    assert mirror.names() == ["step_00000001-a0001", "step_00000003-a0001", "step_00000004-a0002"]
    (failed,) = three.told("mirror_failed")
    assert failed["step"] == 2 and "rank_0.bin" in failed["error"]


def test_the_best_copy_outlives_the_disk_it_was_made_on(run, tools, tmp_path):
    mirror = LocalBackend(tmp_path / "mirror")
    store = run.start(keep=1, backend=mirror)
    for step, score in ((1, 0.5), (2, 0.9), (3, 0.1)):
        store.save(step, tools.writer(step), {}, score=score)
    shutil.rmtree(run.checkpoints)
    store = run.start(keep=1, backend=mirror)
    assert store.load(tools.read)[1].step == 3
    store.save(4, tools.writer(4), {}, score=0.2)
    store.save(5, tools.writer(5), {})
    assert [name[:13] for name in mirror.names()] == ["step_00000002", "step_00000004", "step_00000005"]
    assert run.names() == ["LATEST", "step_00000004", "step_00000005"]
