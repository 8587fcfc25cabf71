"""Tables on a server: the same rules, on fsspec's in-memory file system and on a real S3 protocol."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from cache.compact import compact
from cache.errors import ConflictError, StoreError, UsageError
from cache.folder import ReadOnlyError, UnreachableError
from cache.lock import ServerLock
from cache.remote import RemoteFolder, remote_folder, shown_url
from cache.schema import StoredRecord
from cache.session import TableSession
from cache.spool import spool_of, unsent_records, upload
from cache.store import ShapeStore, StoreWarning
from tests.slow_plugin import SHAPES_PER_TABLE, SlowRuns, finished
from tests.store_cases import IDENTITY, expected, record, shape, stored, table_at

BUCKET = "tables-of-a-test"


@pytest.fixture
def memory() -> Iterator[str]:
    """The URL of an empty in-memory store."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield "memory://store"
    system.store.clear()
    system.pseudo_dirs[:] = [""]


# URLs


@pytest.mark.parametrize(("url", "shown"), [
    ("s3://bucket/prefix", "s3://bucket/prefix"),
    ("s3://AKIA:secret@bucket/prefix", "s3://bucket/prefix"),
    ("sftp://user@host/path", "sftp://host/path"),
    ("https://host/path?X-Amz-Signature=secret&b=c", "https://host/path"),
    ("s3://bucket/a@b/prefix#secret", "s3://bucket/a@b/prefix"),
])  # fmt: skip
def test_urls_are_shown_without_secrets(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def test_a_url_with_a_password_is_refused_without_showing_it() -> None:
    with pytest.raises(UsageError, match="has a password in it") as caught:
        ShapeStore("s3://key:hunter2@bucket/prefix")
    assert "hunter2" not in str(caught.value)
    assert "key" not in str(caught.value).replace("keys", "")


def test_an_unknown_kind_of_url_is_refused() -> None:
    with pytest.raises(UsageError, match=r"foo://bar is of an unknown kind; .* such as s3://bucket/prefix\."):
        ShapeStore("foo://bar")


def test_a_backend_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    fsspec.registry  # noqa: B018
    with pytest.raises(StoreError, match=r"not installed: run pip install 'shapecast\[s3\]'"):
        remote_folder("s3://never-used-before/prefix")


def test_the_package_of_another_kind_of_url_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.implementations.http", None)
    monkeypatch.delitem(fsspec.registry, "http", raising=False)
    with pytest.raises(StoreError, match=r"not installed \(.*\"requests\" and \"aiohttp\".*\)\.$") as caught:
        remote_folder("http://example.invalid/prefix")
    assert "s3" not in str(caught.value).lower()


# the rules, on the in-memory file system


def test_records_are_read_as_they_were_written(memory: str) -> None:
    table_at(memory).append(stored(range(5)))
    table_at(memory).append(stored(range(4, 9)))
    assert ShapeStore(memory).ids() == [IDENTITY.id]
    assert ShapeStore(memory).open(IDENTITY.id).identity == IDENTITY
    assert dict(table_at(memory).load()) == expected(range(9))
    assert compact(table_at(memory)).records == 9
    assert len(table_at(memory).part_names()) == 1
    assert dict(table_at(memory).load()) == expected(range(9))


def test_a_damaged_object_is_set_aside(memory: str) -> None:
    table_at(memory).append(stored(range(3)))
    name = table_at(memory).append(stored(range(3, 5)))
    path = f"/store/{IDENTITY.id}/{name}"
    fsspec.filesystem("memory").pipe_file(path, b"damaged")
    with pytest.warns(StoreWarning, match=name):
        assert dict(table_at(memory).load()) == expected(range(3))
    assert fsspec.filesystem("memory").cat_file(f"/store/{IDENTITY.id}/quarantine/{name}") == b"damaged"
    assert table_at(memory).examine().quarantined == [name]


def test_conflicts_are_refused(memory: str) -> None:
    table_at(memory).append(stored(range(3)))
    table_at(memory).append([StoredRecord(shape(1), record(1, latency_ms=9.0), 1, 1.0)])
    with pytest.raises(ConflictError, match=r"differ in latency_ms: .* in memory://store/"):
        table_at(memory).load()


def test_a_table_on_a_server_is_deleted(memory: str) -> None:
    table_at(memory).append(stored(range(3)))
    table_at(memory).folder.delete_folder()
    assert ShapeStore(memory).ids() == []


class Failing:
    """A file system that stands for a server in trouble; it lists and reads as the one it wraps."""

    protocol = "memory"

    def __init__(self, error: Exception, *, reads: bool) -> None:
        self.error = error
        self.reads = reads
        self._real = fsspec.filesystem("memory")

    def __getattr__(self, name: str) -> object:
        if self.reads and name in ("ls", "cat_file", "invalidate_cache"):
            return getattr(self._real, name)

        def fail(*_: object, **__: object) -> None:
            raise self.error

        return fail


def failing_folder(error: Exception, *, reads: bool = False) -> RemoteFolder:
    return RemoteFolder(Failing(error, reads=reads), "/store", "s3://bucket/store")


class NoCredentialsError(Exception):
    pass


@pytest.mark.parametrize(("error", "kind", "message"), [
    (PermissionError("AWS secret"), ReadOnlyError, "credentials in the environment may not write s3://bucket"),
    (NoCredentialsError("secret"), StoreError, "There are no credentials for s3://bucket/store"),
    (ConnectionError("https://key:secret@host"), UnreachableError, r"cannot be reached \(ConnectionError\)"),
    (FileNotFoundError("secret"), StoreError, "bucket or share does not exist"),
    (RuntimeError("secret"), UnreachableError, r"cannot be reached \(RuntimeError\)"),
])  # fmt: skip
def test_every_trouble_of_a_server_is_a_sentence_without_secrets(
    error: Exception, kind: type[StoreError], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        failing_folder(error).publish("name", b"data")
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_reading_without_permission_is_an_error(memory: str) -> None:
    with pytest.raises(StoreError, match="may not read s3://bucket/store"):
        failing_folder(PermissionError("secret")).read("name")


# the spool


@pytest.fixture
def spooling(memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TableSession:
    """A session whose server has dropped out after the table was read."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store = ShapeStore(memory)
    store.table(IDENTITY).append(stored(range(3)))
    spool = spool_of(store)
    assert spool is not None
    table = store.table(IDENTITY)
    session = TableSession(table, spool.table(IDENTITY))
    session.refresh()
    table.folder = failing_folder(ConnectionError())
    return session


def test_records_that_a_server_does_not_take_are_kept_and_sent_later(
    spooling: TableSession, memory: str
) -> None:
    with pytest.warns(StoreWarning, match="The run goes on with what it knows"):
        spooling.refresh()
    with spooling.writing():
        for number in range(3, 300):
            spooling.add(shape(number), record(number), 0.0)
    spooling.close()
    store = ShapeStore(memory)
    assert unsent_records(store) == 297
    assert dict(store.table(IDENTITY).load()) == expected(range(3))
    assert upload(store) == 2
    assert unsent_records(store) == 0
    assert dict(store.table(IDENTITY).load()) == expected(range(300))
    assert upload(store) == 0


def test_what_is_not_sent_stays(spooling: TableSession, memory: str) -> None:
    spooling.add(shape(3), record(3), 9.0)
    store = ShapeStore(memory)
    broken = ShapeStore(memory)
    broken.table = lambda identity: _broken(store, identity)  # type: ignore[method-assign, assignment]
    with pytest.raises(UnreachableError):
        upload(broken)
    assert unsent_records(store) == 1


def _broken(store: ShapeStore, identity: object) -> object:
    table = store.table(identity)  # type: ignore[arg-type]
    table.folder = failing_folder(ConnectionError())
    return table


def test_write_permission_that_ends_during_a_run_loses_nothing(
    memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Temporary credentials expire; a store that was read-only from the start is another matter."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store = ShapeStore(memory)
    spool = spool_of(store)
    assert spool is not None
    table = store.table(IDENTITY)
    session = TableSession(table, spool.table(IDENTITY))
    session.refresh()
    session.add(shape(0), record(0), 9.0)
    table.folder = failing_folder(PermissionError("token has expired"), reads=True)
    session.add(shape(1), record(1), 9.0)
    session.close()
    assert unsent_records(store) == 1


# the lock


def claim_lock(memory: str) -> ServerLock:
    return ServerLock(table_at(memory).folder, beat_s=0.05, silent_s=0.5)


def test_one_run_at_a_time_holds_the_lock_of_a_table_on_a_server(memory: str) -> None:
    one, two = claim_lock(memory), claim_lock(memory)
    assert one.try_acquire()
    assert not two.try_acquire()
    time.sleep(1.0)  # Longer than a claim may be silent: it is renewed.
    assert not two.try_acquire()
    one.release()
    assert two.try_acquire()
    two.release()
    assert table_at(memory).load() == {}


def test_the_claim_of_a_dead_run_becomes_void(memory: str) -> None:
    table_at(memory).folder.child("claims").publish("0-dead", b"7")
    lock = claim_lock(memory)
    assert not lock.try_acquire()
    time.sleep(0.6)
    assert lock.try_acquire()
    lock.release()


def test_of_claims_at_once_at_most_one_holds_and_one_does_in_the_end(memory: str) -> None:
    folder = table_at(memory).folder
    barrier, held = threading.Barrier(4), []
    ended_s = time.monotonic() + 20

    def claim() -> None:
        lock = ServerLock(folder, beat_s=0.05, silent_s=5.0)
        barrier.wait()
        while not held and time.monotonic() < ended_s:
            if lock.try_acquire():
                held.append(lock)

    threads = [threading.Thread(target=claim) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(held) == 1
    held[0].release()


# S3, as far as moto speaks it


class S3Server:
    """A moto server in a process of its own, so that it can drop out and come back."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "moto.log"
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        import socket

        if not self.port:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.port = free.getsockname()[1]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
                stdout=log, stderr=log,
            )  # fmt: skip
        ended_s = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                break
            except OSError:
                assert time.monotonic() < ended_s
                time.sleep(0.1)
        client = fsspec.filesystem("s3", skip_instance_cache=True, client_kwargs={"endpoint_url": self.url})
        client.mkdir(BUCKET)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    pytest.importorskip("s3fs")
    pytest.importorskip("moto.server")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIASHOWNNOWHERE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2shownnowhere")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    server = S3Server(tmp_path)
    server.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    fsspec.filesystem("s3").clear_instance_cache()
    yield server
    server.stop()
    fsspec.filesystem("s3").clear_instance_cache()


@pytest.fixture
def runs(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlowRuns:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    return SlowRuns(tmp_path, f"s3://{BUCKET}/prefix")


def test_a_run_keeps_its_records_on_s3_and_shows_no_credentials(runs: SlowRuns) -> None:
    runs.finish("a")
    assert len(runs.calls) == SHAPES_PER_TABLE == len(runs.view())
    runs.finish("b", "--frozen")
    assert len(runs.calls) == SHAPES_PER_TABLE
    written = [path for path in runs.base.rglob("*") if path.is_file() and path.name != "moto.log"]
    assert any(path.name == "run.log" for path in written)
    for path in written:
        content = path.read_bytes()
        assert b"hunter2shownnowhere" not in content
        assert b"AKIASHOWNNOWHERE" not in content
    assert f"tables s3://{BUCKET}/prefix" in (runs.base / "a" / "run.log").read_text()
    assert (runs.base / "user-cache/shapecast/memo").exists()


def test_two_runs_at_once_on_s3_lose_nothing_and_compute_little_twice(runs: SlowRuns) -> None:
    both = [runs.start(name, call_s=0.003) for name in ("a", "b")]
    for process in both:
        finished(process)
    assert len(runs.view()) == SHAPES_PER_TABLE
    assert len(runs.calls) - len(set(runs.calls)) <= 5


def test_a_server_that_drops_out_during_a_run_loses_nothing(runs: SlowRuns, s3: S3Server) -> None:
    process = runs.start("out", call_s=0.004)
    ended_s = time.monotonic() + 60
    while not ShapeStore(runs.tables).table(runs.identity).part_names():
        assert time.monotonic() < ended_s
        time.sleep(0.05)
    s3.stop()
    message = finished(process, expect=1)
    (error,) = (line for line in message.splitlines() if line.startswith("shapecast: error: "))
    assert f"The server of the tables s3://{BUCKET}/prefix" in error
    assert "cannot be reached" in error
    assert f"new records are kept in {runs.base}/user-cache/shapecast/unsent/" in error
    assert f"the next run with --tables s3://{BUCKET}/prefix sends them." in error
    assert "hunter2" not in message
    assert (runs.base / "out" / "results.parquet").exists()
    assert len(runs.calls) == SHAPES_PER_TABLE
    unsent = unsent_records(ShapeStore(runs.tables))
    s3.start()  # moto forgets what it had, as no real server does; what was unsent must come back.
    runs.finish("out")
    assert len(runs.view()) == SHAPES_PER_TABLE
    assert len(runs.calls) == SHAPES_PER_TABLE + SHAPES_PER_TABLE - unsent
    assert unsent_records(ShapeStore(runs.tables)) == 0


def test_a_server_that_is_not_there_is_an_error_before_any_output(runs: SlowRuns, s3: S3Server) -> None:
    s3.stop()
    message = runs.finish("out", expect=1)
    assert message.count("\n") == 1
    assert "cannot be reached" in message
    assert not (runs.base / "out").exists()


def test_a_bucket_that_is_not_there_is_an_error(runs: SlowRuns) -> None:
    runs.tables = "s3://no-such-bucket-here/prefix"
    message = runs.finish("out", expect=1)
    assert "bucket or share does not exist" in message.splitlines()[-1]


def test_no_credentials_is_an_error(runs: SlowRuns) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        runs.environment.pop(name)
    runs.environment.update(
        HOME=os.fspath(runs.base), AWS_CONFIG_FILE="none", AWS_SHARED_CREDENTIALS_FILE="none"
    )
    message = runs.finish("out", expect=1)
    assert message.count("\n") == 1
    assert f"There are no credentials for s3://{BUCKET}/prefix" in message
