"""The cold tier's promises, asked of a directory and of a bucket on a real S3 server."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from tests.support.s3 import S3Server
from topics.errors import StorageError, StoreUnreachable
from topics.storage import objects
from topics.storage.fs import OsFs
from topics.storage.objects import ObjectStore
from topics.storage.tiers import DirectoryStore, Store, open_store

NAME = "segments/7/000123.seg"


class Interrupted(Exception):
    pass


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as server, server.environment():
        yield server


class StoreContract:
    """What every store promises; a subclass supplies `store`."""

    def test_what_was_put_is_read_back_whole(self, store: Store) -> None:
        store.put(NAME, [b"one ", b"", b"two ", b"three"])
        assert store.size(NAME) == 13
        assert store.get_range(NAME, 0, 13) == b"one two three"

    def test_an_empty_object_is_an_object(self, store: Store) -> None:
        store.put(NAME, [])
        assert store.exists(NAME)
        assert store.size(NAME) == 0
        assert store.get_range(NAME, 0, 10) == b""

    def test_parts_may_come_from_a_generator(self, store: Store) -> None:
        store.put(NAME, (bytes([n]) for n in range(256)))
        assert store.get_range(NAME, 0, 256) == bytes(range(256))

    @pytest.mark.parametrize(
        ("offset", "length", "expected"),
        [
            (0, 3, b"012"),
            (4, 3, b"456"),
            (7, 3, b"789"),
            (7, 100, b"789"),
            (10, 5, b""),
            (500, 5, b""),
            (3, 0, b""),
            (10, 0, b""),
        ],
    )
    def test_a_range_is_exact_and_short_only_at_the_end(
        self, store: Store, offset: int, length: int, expected: bytes
    ) -> None:
        store.put(NAME, [b"0123456789"])
        assert store.get_range(NAME, offset, length) == expected

    def test_a_large_object_survives_byte_for_byte(self, store: Store) -> None:
        part = os.urandom(700_001)
        store.put(NAME, (part for _ in range(30)))
        whole = part * 30
        assert store.size(NAME) == len(whole) > 2 * objects.UPLOAD_PART_BYTES
        assert store.get_range(NAME, 0, len(whole)) == whole
        middle = len(whole) // 2 - 7
        assert store.get_range(NAME, middle, 1000) == whole[middle : middle + 1000]

    @pytest.mark.parametrize("extra", [-1, 0, 1])
    def test_the_edge_between_one_request_and_parts(self, store: Store, extra: int) -> None:
        size = objects.UPLOAD_PART_BYTES + extra
        store.put(NAME, [b"x" * (size - 10), b"0123456789"])
        assert store.size(NAME) == size
        assert store.get_range(NAME, size - 12, 12) == b"xx0123456789"

    def test_put_replaces_a_longer_object(self, store: Store) -> None:
        store.put(NAME, [b"a longer first version"])
        store.put(NAME, [b"second"])
        assert store.size(NAME) == 6
        assert store.get_range(NAME, 0, 100) == b"second"

    @pytest.mark.parametrize("bytes_before", [0, 10, 20_000_000])
    def test_an_interrupted_put_shows_nothing(self, store: Store, bytes_before: int) -> None:
        def parts() -> Iterator[bytes]:
            yield b"z" * bytes_before
            raise Interrupted

        with pytest.raises(Interrupted):
            store.put(NAME, parts())
        assert not store.exists(NAME)
        assert store.list() == []

    def test_an_interrupted_put_keeps_the_object_that_was_there(self, store: Store) -> None:
        def parts() -> Iterator[bytes]:
            yield b"new"
            raise Interrupted

        store.put(NAME, [b"old"])
        with pytest.raises(Interrupted):
            store.put(NAME, parts())
        assert store.get_range(NAME, 0, 100) == b"old"

    def test_an_absent_object_is_file_not_found(self, store: Store) -> None:
        assert not store.exists(NAME)
        with pytest.raises(FileNotFoundError, match="000123"):
            store.size(NAME)
        for length in (0, 10):
            with pytest.raises(FileNotFoundError, match="000123"):
                store.get_range(NAME, 0, length)

    def test_delete_removes_and_may_be_repeated(self, store: Store) -> None:
        store.put(NAME, [b"x"])
        store.put("segments/7/000124.seg", [b"y"])
        store.delete(NAME)
        store.delete(NAME)
        assert not store.exists(NAME)
        assert store.list() == ["segments/7/000124.seg"]
        store.put(NAME, [b"again"])
        assert store.get_range(NAME, 0, 10) == b"again"

    def test_list_takes_any_prefix_and_is_in_byte_order(self, store: Store) -> None:
        names = ["a/1.seg", "a/10.seg", "a/2.seg", "a/b/3.seg", "ab/4.seg", "B.json", "a.seg"]
        for name in names:
            store.put(name, [b"x"])
        assert store.list() == sorted(names)
        assert store.list("a") == sorted(set(names) - {"B.json"})
        assert store.list("a/") == ["a/1.seg", "a/10.seg", "a/2.seg", "a/b/3.seg"]
        assert store.list("a/1") == ["a/1.seg", "a/10.seg"]
        assert store.list("a/1.s") == ["a/1.seg"]
        assert store.list("nothing/here") == []

    @pytest.mark.parametrize(
        "name",
        [
            "", "/", "a", "a/b", "/a.seg", "a//b.seg", "../a.seg", "a/../b.seg", ".a.seg", "a.seg/",
            "a.b/c.seg", "a b.seg", "a.seg\n", "a.", "ä.seg", "a/.b.tmp", "x" * 201 + ".seg",
        ],
    )  # fmt: skip
    def test_a_name_that_would_differ_between_stores_is_refused(
        self, store: Store, name: str
    ) -> None:
        with pytest.raises(StorageError):
            store.put(name, [b"x"])
        with pytest.raises(StorageError):
            store.get_range(name, 0, 1)
        with pytest.raises(StorageError):
            store.delete(name)
        assert store.list() == []

    def test_a_prefix_can_not_leave_the_store(self, store: Store) -> None:
        with pytest.raises(StorageError):
            store.list("../")

    @pytest.mark.parametrize(("offset", "length"), [(-1, 1), (0, -1)])
    def test_a_negative_range_is_refused(self, store: Store, offset: int, length: int) -> None:
        store.put(NAME, [b"x"])
        with pytest.raises(StorageError):
            store.get_range(NAME, offset, length)

    def test_bytes_fetched_counts_what_reads_returned(self, store: Store) -> None:
        store.put(NAME, [b"x" * 100_000])
        before = store.bytes_fetched
        store.get_range(NAME, 10, 1000)
        store.get_range(NAME, 99_990, 1000)
        assert store.bytes_fetched - before == 1010

    def test_threads_share_one_store(self, store: Store) -> None:
        def work(worker: int) -> None:
            for turn in range(5):
                name = f"threads/{worker}/{turn}.seg"
                content = f"{worker}-{turn}".encode() * 1000
                store.put(name, [content])
                assert store.get_range(name, 0, len(content)) == content

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        assert len(store.list("threads/")) == 40

    def test_racing_puts_of_one_name_leave_one_of_them_whole(self, store: Store) -> None:
        contents = [bytes([n]) * (1000 + n) for n in range(8)]
        start = threading.Barrier(len(contents))

        def work(content: bytes) -> None:
            start.wait()
            store.put(NAME, [content[:500], content[500:]])

        with ThreadPoolExecutor(len(contents)) as pool:
            list(pool.map(work, contents))
        assert store.get_range(NAME, 0, 10_000) in contents
        assert store.list() == [NAME]


class TestDirectoryStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return open_store(str(tmp_path / "new" / "cold"), OsFs())

    def test_no_temporary_file_outlives_its_put(self, store: Store, tmp_path: Path) -> None:
        def parts() -> Iterator[bytes]:
            yield b"some"
            raise Interrupted

        store.put("a/1.seg", [b"x"])
        with pytest.raises(Interrupted):
            store.put("a/2.seg", parts())
        files = [path.name for path in tmp_path.rglob("*") if path.is_file()]
        assert files == ["1.seg"]

    def test_sweep_removes_what_a_crash_left(self, store: Store, tmp_path: Path) -> None:
        store.put("a/1.seg", [b"x"])
        root = tmp_path / "new" / "cold"
        (root / "a" / ".2.seg.9.tmp").write_bytes(b"half")
        (root / ".3.seg.1.tmp").write_bytes(b"half")
        # What others have here is no object, and stays.
        (root / "lost+found").mkdir()
        for theirs in ("README", ".theirs.tmp", "lost+found/.4.seg.1.tmp"):
            (root / theirs).write_bytes(b"")
        assert store.list() == ["a/1.seg"]
        assert store.sweep() == 2
        assert store.sweep() == 0
        left = sorted(path.name for path in root.rglob("*.*"))
        assert left == [".4.seg.1.tmp", ".theirs.tmp", "1.seg"]

    def test_a_file_url_is_a_directory(self, tmp_path: Path) -> None:
        store = open_store(f"file://{tmp_path}/cold", OsFs())
        store.put("a.seg", [b"x"])
        assert (tmp_path / "cold" / "a.seg").read_bytes() == b"x"

    def test_put_syncs_data_then_renames_then_syncs_every_new_name(self, tmp_path: Path) -> None:
        fs = RecordingFs()
        store = DirectoryStore(fs, f"{tmp_path}/cold")
        store.put("a/b/1.seg", [b"x"])
        root = f"{tmp_path}/cold"
        assert fs.calls == [
            f"mkdir {root}", f"sync_dir {tmp_path}",
            f"mkdir {root}/a", f"sync_dir {root}",
            f"mkdir {root}/a/b", f"sync_dir {root}/a",
            "sync .1.seg.1.tmp", "rename 1.seg", f"sync_dir {root}/a/b",
        ]  # fmt: skip

    def test_a_directory_that_was_there_is_synced_again_by_a_new_store(
        self, tmp_path: Path
    ) -> None:
        """Whoever created it may have been killed between creating and syncing."""
        (tmp_path / "cold" / "a").mkdir(parents=True)
        fs = RecordingFs()
        DirectoryStore(fs, f"{tmp_path}/cold").put("a/1.seg", [b"x"])
        assert f"sync_dir {tmp_path}" in fs.calls
        assert f"sync_dir {tmp_path}/cold" in fs.calls

    def test_a_failed_directory_sync_is_never_retried(self, tmp_path: Path) -> None:
        fs = RecordingFs()
        store = DirectoryStore(fs, f"{tmp_path}/cold")
        store.put("1.seg", [b"before"])
        fs.failing_sync_dir = True
        with pytest.raises(OSError, match="injected"):
            store.put("2.seg", [b"x"])
        fs.failing_sync_dir = False
        for attempt in (lambda: store.put("3.seg", [b"x"]), lambda: store.delete("1.seg")):
            with pytest.raises(StoreUnreachable, match="injected"):
                attempt()
        assert store.get_range("1.seg", 0, 10) == b"before"


@pytest.mark.slow
class TestObjectStore(StoreContract):
    @pytest.fixture
    def store(self, s3: S3Server, request: pytest.FixtureRequest) -> Store:
        bucket = f"bucket-{abs(hash(request.node.name))}"
        return open_store(s3.url(f"{bucket}/some/prefix"), OsFs())

    def test_two_prefixes_of_one_bucket_are_two_stores(self, s3: S3Server) -> None:
        one, two = ObjectStore(s3.url("shared/one")), ObjectStore(s3.url("shared/two"))
        one.put("a.seg", [b"1"])
        two.put("a.seg", [b"22"])
        assert (one.size("a.seg"), two.size("a.seg")) == (1, 2)
        one.delete("a.seg")
        assert two.list() == ["a.seg"]

    def test_an_absent_bucket_is_an_error_and_not_an_absent_object(self, s3: S3Server) -> None:
        """Otherwise a misspelt bucket would look like the loss of every object."""
        store = ObjectStore("s3://no-such-bucket")
        for call in (
            lambda: store.exists(NAME),
            lambda: store.size(NAME),
            lambda: store.get_range(NAME, 0, 1),
            lambda: store.delete(NAME),
            lambda: store.put(NAME, [b"x"]),
            store.list,
        ):
            with pytest.raises(OSError, match="no-such-bucket") as raised:
                call()
            assert not isinstance(raised.value, FileNotFoundError)

    def test_wrong_credentials_are_a_permission_error(
        self, s3: S3Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        url = s3.url("guarded")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
        store = ObjectStore(url)
        with pytest.raises(PermissionError, match="guarded"):
            store.put(NAME, [b"x"])
        with pytest.raises(PermissionError):
            store.exists(NAME)

    def test_a_server_that_is_away_is_an_error_and_heals(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(objects, "RETRIES_MAX", 1)
        with S3Server(tmp_path) as server, server.environment():
            store = ObjectStore(server.url("bucket"))
            store.put(NAME, [b"x"])
            server.stop()
            for call in (lambda: store.exists(NAME), lambda: store.get_range(NAME, 0, 1)):
                with pytest.raises(OSError, match="bucket") as raised:
                    call()
                assert not isinstance(raised.value, FileNotFoundError)
            assert server.start()
            assert store.get_range(NAME, 0, 1) == b"x"

    @pytest.mark.parametrize("url", ["ftp://host/x", "s3://", "https://host/x", "memory:///"])
    def test_an_unknown_kind_of_store_is_refused_with_words(self, url: str) -> None:
        with pytest.raises(StorageError):
            open_store(url, OsFs())


@pytest.mark.slow
class TestObjectStoreWithNativeRanges(StoreContract):
    """The client's own range reads, which rclone's answers keep the other class from using."""

    @pytest.fixture
    def store(self, monkeypatch: pytest.MonkeyPatch) -> Store:
        store = ObjectStore("s3://in-memory")
        monkeypatch.setattr(store, "bucket", MemoryStore())
        return store


class TestMessages:
    def test_a_message_is_one_line_without_signatures_or_debug_output(self) -> None:
        error = OSError(
            "GET https://host/a?X-Signature=secret failed:\n<?xml?>\n\nDebug source:\nx"
        )
        assert objects.first_line(error) == "GET https://host/a failed: <?xml?>"

    def test_a_refused_url_is_shown_without_its_query(self) -> None:
        with pytest.raises(StorageError) as raised:
            open_store("ftp://host/x?sig=secret", OsFs())
        assert "secret" not in str(raised.value)


class RecordingFs(OsFs):
    """The real filesystem, with the order of what makes things durable written down."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.failing_sync_dir = False

    def open(self, path, *, create=False, writable=True):  # type: ignore[no-untyped-def]
        file = super().open(path, create=create, writable=writable)
        return RecordingFile(file, self.calls)

    def mkdir(self, path: str) -> None:
        self.calls.append(f"mkdir {path}")
        super().mkdir(path)

    def rename(self, source: str, target: str) -> None:
        self.calls.append(f"rename {Path(target).name}")
        super().rename(source, target)

    def sync_dir(self, path: str) -> None:
        self.calls.append(f"sync_dir {path}")
        if self.failing_sync_dir:
            raise OSError(errno.EIO, "injected", path)
        super().sync_dir(path)


class RecordingFile:
    def __init__(self, file, calls: list[str]) -> None:  # type: ignore[no-untyped-def]
        self._file = file
        self._calls = calls

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def sync(self) -> None:
        self._calls.append(f"sync {Path(self._file.path).name}")
        self._file.sync()
