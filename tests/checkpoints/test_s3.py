"""The fsspec backend against a real S3 server process on loopback: kept, killed in the middle, connections cut."""

import logging
import os
import shutil
import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest

if not os.environ.get("CI"):  # where CI lacks it, that is a failure
    pytest.importorskip("vismaze_fsspec", reason="needs the plugin vismaze-fsspec")

from vismaze_fsspec import FsspecBackend, StoreUnavailableError
from vismaze_hooks.testing_checkpoints import check_checkpoint_backend

MIB = 2**20
NAME = "step_00000001-a0001"


class Proxy:
    """Passes bytes between a client and the server; cuts connections after a number of bytes sent upstream."""

    def __init__(self, port: int) -> None:
        self.upstream = port
        self.sent = 0  # bytes passed upstream, all connections together
        self.cuts: list[int] = []  # total bytes upstream at which the connection that reaches them is cut, ascending
        self.cut = 0  # connections cut
        self.at: dict[int, threading.Event] = {}  # told when so many bytes have passed
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.lock = threading.Lock()
        self.connections: list[socket.socket] = []
        self.threads = [threading.Thread(target=self._accept, daemon=True)]
        self.threads[0].start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.upstream))
            except OSError:
                client.close()
                continue
            self.connections.append(client)
            for source, target, up in ((client, server, True), (server, client, False)):
                thread = threading.Thread(target=self._pass, args=(source, target, up), daemon=True)
                thread.start()
                self.threads.append(thread)

    def _pass(self, source: socket.socket, target: socket.socket, up: bool) -> None:
        try:
            while data := source.recv(65536):
                if up and self._count(len(data)):
                    break
                target.sendall(data)
        except OSError:
            pass
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        source.close()

    def _count(self, number: int) -> bool:
        with self.lock:
            self.sent += number
            for bytes_, event in self.at.items():
                if self.sent >= bytes_:
                    event.set()
            if self.cuts and self.sent >= self.cuts[0]:
                self.cuts.pop(0)
                self.cut += 1
                return True
        return False

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join(10)


@pytest.fixture
def proxy(s3):
    proxy = Proxy(s3.port)
    yield proxy
    proxy.close()


@pytest.fixture
def place(request):
    """A URL of the test's own."""
    return f"s3://grpo-checkpoints/{request.node.name.split('[')[0]}"


@pytest.fixture
def big(tmp_path) -> Path:
    """A folder of three files, the largest in several parts."""
    folder = tmp_path / "big"
    folder.mkdir()
    for name, size in (("a.bin", 2 * MIB), ("b.bin", 22 * MIB + 3), ("c.bin", 1 * MIB)):
        (folder / name).write_bytes(os.urandom(size))
    return folder


def backend(url, endpoint, **options) -> FsspecBackend:
    return FsspecBackend(url, endpoint_url=endpoint, part_mib=5, **{"retries": 8, "wait_seconds": 0.1, **options})


def same(a: Path, b: Path) -> bool:
    def content(folder: Path) -> dict[Path, bytes]:
        return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    return content(a) == content(b)


def test_it_keeps_the_contract(s3, place, tmp_path):
    check_checkpoint_backend(lambda: backend(place, s3.endpoint), tmp_path / "scratch")


def test_objects_outlive_the_server(s3, place, big, tmp_path):
    """Guards the test bed as much as the backend: a server that forgets would make the tests below worthless."""
    backend(place, s3.endpoint).put(big, NAME)
    s3.kill()
    s3.start()
    assert backend(place, s3.endpoint).names() == [NAME]
    backend(place, s3.endpoint).get(NAME, tmp_path / "back")
    assert same(big, tmp_path / "back")


def test_a_server_killed_in_the_middle_of_an_upload_and_started_again(s3, proxy, place, big, tmp_path, caplog):
    """The upload waits for the server and goes on; nothing is listed before it is whole."""
    middle, failures = threading.Event(), []
    proxy.at[14 * MIB] = middle  # within the parts of b.bin

    def upload():
        try:
            backend(place, proxy.endpoint).put(big, NAME)
        except OSError as error:
            failures.append(error)

    with caplog.at_level(logging.INFO, "vismaze_fsspec"):
        thread = threading.Thread(target=upload)
        thread.start()
        assert middle.wait(60)
        s3.kill()
        s3.start()
        names = backend(place, s3.endpoint).names()
        assert names == [] or not thread.is_alive()
        thread.join(120)
    assert not thread.is_alive() and failures == []
    assert backend(place, s3.endpoint).names() == [NAME]
    backend(place, s3.endpoint).get(NAME, tmp_path / "back")
    assert same(big, tmp_path / "back")


def test_an_upload_that_was_given_up_is_not_listed_and_is_gone_on_with(s3, proxy, place, big, tmp_path, caplog):
    middle = threading.Event()
    proxy.at[14 * MIB] = middle
    failures = []

    def upload():
        try:
            backend(place, proxy.endpoint, retries=0).put(big, NAME)
        except StoreUnavailableError as error:
            failures.append(error)

    thread = threading.Thread(target=upload)
    thread.start()
    assert middle.wait(60)
    s3.kill()
    thread.join(120)
    assert len(failures) == 1 and "b.bin failed in 1 tries" in str(failures[0])
    s3.start()
    assert backend(place, s3.endpoint).names() == []
    with pytest.raises(FileNotFoundError):
        backend(place, s3.endpoint).get(NAME, tmp_path / "back")
    with caplog.at_level(logging.INFO, "vismaze_fsspec"):
        backend(place, s3.endpoint).put(big, NAME)
    assert (
        "a.bin" in caplog.text and "already there" in caplog.text and "already there: grpo-checkpoints/c.bin" not in caplog.text
    )
    backend(place, s3.endpoint).get(NAME, tmp_path / "back")
    assert same(big, tmp_path / "back")


def test_cut_connections_cost_retries_and_nothing_else(s3, proxy, place, big, tmp_path):
    proxy.cuts = [1 * MIB, 5 * MIB, 12 * MIB, 20 * MIB]
    backend(place, proxy.endpoint).put(big, NAME)
    assert proxy.cut == 4
    proxy.cuts = [proxy.sent + 100]
    backend(place, proxy.endpoint).get(NAME, tmp_path / "back")
    assert same(big, tmp_path / "back") and proxy.cut == 5


def test_a_lost_disk_is_restored_from_s3(s3, place, run, tools):
    mirror = backend(place, s3.endpoint)
    store = run.start(keep=2, backend=mirror)
    for step in (1, 2, 3):
        store.save_async(step, tools.writer(step), {"step_seen": step}, score=-step)
    store.wait()
    assert mirror.names() == ["step_00000001-a0001", "step_00000002-a0001", "step_00000003-a0001"]
    assert run.told("mirror_failed") == []
    shutil.rmtree(run.checkpoints)
    got, loaded = run.start(backend=mirror).load(tools.read)
    assert got == tools.state(3) and loaded.meta == {"step_seen": 3}


def test_no_credential_is_logged_at_any_level(s3, place, three, caplog):
    secret = os.environ["AWS_SECRET_ACCESS_KEY"]
    with caplog.at_level(logging.DEBUG):
        backend(place, s3.endpoint).put(three.step(3), NAME)
        ours = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("vismaze"))
    assert "committed" in ours and secret not in caplog.text and os.environ["AWS_ACCESS_KEY_ID"] not in ours


def test_wrong_credentials_fail_at_once_and_are_not_repeated(s3, place, three, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAWRONG")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret-value")
    with pytest.raises(PermissionError) as refused:
        backend(place, s3.endpoint, retries=3, anon=False, skip_instance_cache=True).put(three.step(3), NAME)
    assert "wrong-secret-value" not in str(refused.value)
