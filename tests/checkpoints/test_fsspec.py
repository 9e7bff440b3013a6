"""The fsspec backend without a server: order of writing, resumption, retries, damage, credentials."""

import json
import logging
import os

import pytest

if not os.environ.get("CI"):  # where CI lacks it, that is a failure
    pytest.importorskip("vismaze_fsspec", reason="needs the plugin vismaze-fsspec")

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

from vismaze_fsspec import DamagedObjectError, FsspecBackend, StoreUnavailableError
from vismaze_fsspec.backend import _digest
from vismaze_fsspec.secrets import redact
from vismaze_hooks.testing_checkpoints import check_checkpoint_backend

NAME = "step_00000003-a0001"


class Flaky(MemoryFileSystem):
    """A store in memory that can be told to fail, and that notes what is written."""

    protocol = "flaky"
    store: dict = {}  # noqa: RUF012 — shared by all instances, as the parent's is
    pseudo_dirs = [""]  # noqa: RUF012
    failures: list = []  # noqa: RUF012 — errors of the next calls; None lets one through
    written: list = []  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("flaky://"))

    def _maybe_fail(self):
        error = Flaky.failures.pop(0) if Flaky.failures else None
        if error is not None:
            raise error

    def put_file(self, local, remote, **options):
        self._maybe_fail()
        super().put_file(local, remote, **options)
        Flaky.written.append(remote)

    def pipe_file(self, path, value, **options):
        self._maybe_fail()
        super().pipe_file(path, value, **options)
        Flaky.written.append(path)


@pytest.fixture
def flaky(monkeypatch):
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    for name in ("store", "failures", "written"):
        getattr(Flaky, name).clear()
    Flaky.pseudo_dirs[:] = [""]
    waits = []
    monkeypatch.setattr("vismaze_fsspec.backend.time.sleep", waits.append)
    Flaky.waits = waits
    return FsspecBackend("flaky://bucket/run", retries=3, wait_seconds=1.0)


@pytest.mark.parametrize("protocol", ["file", "memory"])
def test_it_keeps_the_contract(protocol, tmp_path):
    check_checkpoint_backend(lambda: FsspecBackend(f"{protocol}://{tmp_path}/root", retries=0), tmp_path / "scratch")


def test_it_is_offered_by_name(plugins):
    backend = plugins.create("checkpoint backend", "fsspec", {"url": "memory://offered"})
    assert repr(backend) == "FsspecBackend('memory://offered')"


def test_the_record_is_written_last(flaky, three):
    flaky.put(three.step(3), NAME)
    assert Flaky.written[-1] == f"/bucket/run/{NAME}/COMMITTED.json" and len(Flaky.written) == 5
    Flaky.failures[:] = [None] * 4 + [OSError("gone")] * 9  # the data arrives, the record does not
    with pytest.raises(StoreUnavailableError, match="commit step_00000002-a0001 failed in 4 tries"):
        flaky.put(three.step(2), "step_00000002-a0001")
    assert flaky.names() == [NAME]
    with pytest.raises(FileNotFoundError, match="nothing whole"):
        flaky.get("step_00000002-a0001", three.folder / "back")


def test_a_cut_upload_goes_on_where_it_stopped(flaky, three, caplog):
    Flaky.failures[:] = [None, None] + [ConnectionResetError("cut")] * 4
    with pytest.raises(StoreUnavailableError):
        flaky.put(three.step(3), NAME)
    sent = list(Flaky.written)
    base = sent[0].rsplit("/", 1)[0]
    Flaky.store[sent[1]].seek(0)
    Flaky.store[sent[1]].write(b"\xff\xff")  # right size, wrong bytes: as a store that died while writing may leave
    Flaky.failures.clear()
    Flaky.written.clear()
    with caplog.at_level(logging.INFO, "vismaze_fsspec"):
        flaky.put(three.step(3), NAME)
    assert sent[0] not in Flaky.written and sent[1] in Flaky.written and len(Flaky.written) == 4
    assert f"already there: {base}/MANIFEST.json" in caplog.text
    flaky.get(NAME, three.folder / "back")
    assert (three.folder / "back" / "rank_0.bin").read_bytes() == (three.step(3) / "rank_0.bin").read_bytes()


def test_failures_are_retried_after_a_growing_wait(flaky, three):
    Flaky.failures[:] = [ConnectionResetError("cut"), TimeoutError("slow"), None, OSError("503")]
    flaky.put(three.step(3), NAME)
    assert flaky.names() == [NAME]
    bounds = [(0.75, 1.25), (1.5, 2.5), (0.75, 1.25)]
    assert all(low <= wait <= high for wait, (low, high) in zip(Flaky.waits, bounds, strict=True)), Flaky.waits


def test_what_cannot_get_better_is_not_retried(flaky, three):
    Flaky.failures[:] = [PermissionError("403 AccessDenied")]
    with pytest.raises(PermissionError, match=r"upload .*MANIFEST.json: 403"):
        flaky.put(three.step(3), NAME)
    assert Flaky.waits == []


def test_the_old_copy_stands_until_the_new_one_does(flaky, three, tools):
    flaky.put(three.step(3), NAME)
    Flaky.failures[:] = [None] * 2 + [OSError("down")] * 9
    with pytest.raises(StoreUnavailableError):
        flaky.put(three.step(2), NAME)
    Flaky.failures.clear()
    flaky.get(NAME, three.folder / "back")
    assert tools.read(three.folder / "back", {}) == tools.state(3)
    flaky.put(three.step(2), NAME)
    assert len({path.split("/")[4] for path in Flaky.store}) == 2  # the record and one generation


def _record(name=NAME):
    return f"/bucket/run/{name}/COMMITTED.json"


def _object(file, name=NAME):
    (path,) = (path for path in Flaky.store if path.startswith(f"/bucket/run/{name}/") and path.endswith(file))
    return path


def test_a_missing_or_short_object_takes_the_name_off_the_list(flaky, three):
    flaky.put(three.step(3), NAME)
    flaky.put(three.step(2), "step_00000002-a0001")
    Flaky.store[_object("rank_1.bin")].truncate(1983)
    del Flaky.store[_object("rank_0.bin", "step_00000002-a0001")]
    assert flaky.names() == []


def test_a_flipped_bit_is_named_and_leaves_no_folder(flaky, three):
    flaky.put(three.step(3), NAME)
    shard = Flaky.store[_object("rank_1.bin")]
    shard.seek(77)
    shard.write(b"\x00")
    assert flaky.names() == [NAME]  # sizes fit; the bytes are read when they are wanted
    with pytest.raises(DamagedObjectError, match=r"rank_1.bin failed in 4 tries"):
        flaky.get(NAME, three.folder / "back")
    assert not (three.folder / "back").exists()
    assert [path for path in three.folder.iterdir() if path.name.startswith(".tmp")] == []


@pytest.mark.parametrize("damage", ["cut", "edited", "empty", "foreign"])
def test_a_damaged_record_is_no_record(flaky, three, damage):
    flaky.put(three.step(3), NAME)
    text = Flaky.store[_record()].getvalue()
    replaced = {"cut": text[:-40], "edited": text.replace(b"1984", b"1985"), "empty": b"", "foreign": b'{"digest": 1}'}[damage]
    MemoryFileSystem.pipe_file(Flaky(), _record(), replaced)
    assert flaky.names() == []


def test_a_record_cannot_lead_out_of_the_folder(flaky, three):
    flaky.put(three.step(3), NAME)
    body = json.loads(Flaky.store[_record()].getvalue())
    del body["digest"]
    body["files"] = {"../../../outside.bin": {"bytes": 1, "sha256": "0" * 64}}
    MemoryFileSystem.pipe_file(Flaky(), _record(), json.dumps({**body, "digest": _digest(body)}).encode())
    with pytest.raises(DamagedObjectError, match="leads out"):
        flaky.get(NAME, three.folder / "back")


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://AKIAIOSFODNN7:hidden-value@bucket/x", {}),
        ("s3://bucket", {"key": "hidden-value"}),
        ("s3://bucket", {"secret": "hidden-value"}),
        ("s3://bucket", {"client_kwargs": {"aws_secret_access_key": "hidden-value"}}),
        ("s3://bucket", {"client_kwargs": {"aws_access_key_id": "hidden-value"}}),
        ("abfs://c", {"account_key": "hidden-value"}),
        ("abfs://c", {"connection_string": "hidden-value"}),
        ("gs://b", {"token": "hidden-value"}),
        ("sftp://h", {"password": "hidden-value"}),
    ],
)
def test_credentials_in_the_configuration_are_refused_and_not_repeated(url, options):
    with pytest.raises(ValueError, match=r"environment, not into the configuration") as refused:
        FsspecBackend(url, **options)
    assert "hidden-value" not in str(refused.value)


def test_ordinary_options_are_not_taken_for_credentials():
    FsspecBackend("memory://b", endpoint_url="http://x", use_ssl=False, config_kwargs={"max_pool_connections": 4}, token=None)


def test_messages_carry_no_credentials(flaky, three, monkeypatch, caplog):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden/value+1")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "hidden-token")
    leak = "PUT http://b/x?X-Amz-Signature=hidden-signature&y=1 hidden/value+1 hidden-token"
    Flaky.failures[:] = [OSError(leak)] * 4
    with caplog.at_level(logging.DEBUG), pytest.raises(StoreUnavailableError) as failed:
        flaky.put(three.step(3), NAME)
    assert "failed, again in" in caplog.text
    assert "hidden" not in caplog.text + str(failed.value) and failed.value.__cause__ is None
    assert redact("X-Amz-Security-Token=abc&z=2") == "X-Amz-Security-Token=…&z=2"
