"""Every Fs behaves alike while nothing fails."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from topics.errors import DirectoryLocked
from topics.storage.fs import Fs, OsFs, join, opened, read_all, write_atomically
from topics.testing import BufferedFs, FakeDisk, FaultFs, MonitorFs

FS_MAKERS: dict[str, Callable[[], Any]] = {
    "OsFs": OsFs,
    "FakeDisk": FakeDisk,
    "BufferedFs-OsFs": lambda: BufferedFs(OsFs()),
    "BufferedFs-FakeDisk": lambda: BufferedFs(FakeDisk()),
    "MonitorFs-FakeDisk": lambda: MonitorFs(FakeDisk()),
    "FaultFs-FakeDisk": lambda: FaultFs(FakeDisk()),
}


@pytest.fixture(params=list(FS_MAKERS))
def fs(request: pytest.FixtureRequest) -> Any:
    return FS_MAKERS[request.param]()


@pytest.fixture
def top(fs: Fs, tmp_path: Path) -> str:
    directory = str(tmp_path / "data")
    fs.mkdir(directory)
    return directory


class TestContract:
    """What the engine may rely on from any Fs, in the absence of faults."""

    def test_bytes_are_readable_as_soon_as_they_are_written(self, fs: Fs, top: str) -> None:
        """pwrite makes bytes readable at once, through any handle, before any sync."""
        with opened(fs, join(top, "a"), create=True) as one, opened(fs, join(top, "a")) as two:
            one.pwrite(b"hello", 0)
            one.pwrite(memoryview(b"J"), 0)
            one.pwrite(bytearray(b"!"), 5)
            assert two.pread(100, 0) == b"Jello!"
            assert two.pread(3, 1) == b"ell"
            assert two.pread(10, 6) == b""
            assert two.size() == 6

    def test_a_write_beyond_the_end_leaves_zeros_between(self, fs: Fs, top: str) -> None:
        """A hole reads as zeros."""
        with opened(fs, join(top, "a"), create=True) as file:
            file.pwrite(b"x", 10_000)
            assert file.pread(20_000, 0) == bytes(10_000) + b"x"
            file.pwrite(b"", 50_000)
            assert file.size() == 10_001

    def test_truncated_bytes_do_not_come_back_when_the_file_grows(self, fs: Fs, top: str) -> None:
        """Bytes cut off read as zeros once the file is extended over them, synced or not."""
        with opened(fs, join(top, "a"), create=True) as file:
            file.pwrite(b"z" * 9000, 0)
            file.sync()
            file.truncate(100)
            assert file.size() == 100
            file.truncate(5000)
            assert file.pread(9000, 0) == b"z" * 100 + bytes(4900)
            file.allocate(9000)
            file.sync()
            assert file.pread(9000, 0) == b"z" * 100 + bytes(8900)

    def test_allocate_grows_with_zeros_and_never_shrinks(self, fs: Fs, top: str) -> None:
        """allocate extends to at least its length and keeps what is there."""
        with opened(fs, join(top, "a"), create=True) as file:
            file.allocate(65_536)
            file.pwrite(b"data", 4094)
            file.allocate(10)
            assert file.size() == 65_536
            file.sync()
            assert file.pread(8, 4092) == b"\0\0data\0\0"

    def test_a_missing_file_is_reported_by_every_call(self, fs: Fs, top: str) -> None:
        """open, rename and unlink of an absent name raise FileNotFoundError."""
        missing = join(top, "missing")
        assert not fs.exists(missing)
        with pytest.raises(FileNotFoundError):
            fs.open(missing)
        with pytest.raises(FileNotFoundError):
            fs.rename(missing, join(top, "b"))
        with pytest.raises(FileNotFoundError):
            fs.unlink(missing)
        with pytest.raises(FileNotFoundError):
            fs.open(join(missing, "a"), create=True)
        with pytest.raises(FileNotFoundError):
            fs.sync_dir(missing)
        assert fs.listdir(missing) == []

    def test_names_are_listed_in_byte_order(self, fs: Fs, top: str) -> None:
        """listdir sorts by bytes; mkdir is repeatable and makes parents."""
        fs.mkdir(join(top, "sub", "deeper"))
        fs.mkdir(join(top, "sub"))
        for name in ("b", "é", "B", "a10", "a9"):
            fs.open(join(top, name), create=True).close()
        assert fs.listdir(top) == ["B", "a10", "a9", "b", "sub", "é"]
        assert fs.listdir(join(top, "sub")) == ["deeper"]
        with pytest.raises(NotADirectoryError):
            fs.listdir(join(top, "b"))
        with pytest.raises(IsADirectoryError):
            fs.unlink(join(top, "sub"))
        with pytest.raises(IsADirectoryError):
            fs.open(join(top, "sub"))

    def test_an_open_handle_survives_rename_and_unlink(self, fs: Fs, top: str) -> None:
        """Handles follow the inode, not the name."""
        with opened(fs, join(top, "a"), create=True) as file:
            file.pwrite(b"one", 0)
            file.sync()
            fs.rename(join(top, "a"), join(top, "b"))
            file.pwrite(b"two", 3)
            assert read_all(fs, join(top, "b")) == b"onetwo"
            fs.unlink(join(top, "b"))
            fs.sync_dir(top)
            assert not fs.exists(join(top, "b"))
            file.pwrite(b"three", 6)
            assert file.pread(100, 0) == b"onetwothree"
        assert fs.listdir(top) == []

    def test_rename_replaces_its_target(self, fs: Fs, top: str) -> None:
        """After a rename the target has the new content and the source is gone."""
        for content in (b"old", b"new"):
            write_atomically(fs, top, "a", content)
            assert read_all(fs, join(top, "a")) == content
            assert fs.listdir(top) == ["a"]
        other = join(top, "other")
        fs.mkdir(other)
        fs.rename(join(top, "a"), join(other, "a"))
        assert fs.listdir(top) == ["other"]
        assert read_all(fs, join(other, "a")) == b"new"
        fs.sync_dir(other)
        fs.sync_dir(top)
        assert read_all(fs, join(other, "a")) == b"new"

    def test_a_read_only_or_closed_handle_refuses_writes(self, fs: Fs, top: str) -> None:
        """A handle does what it was opened for, until it is closed."""
        fs.open(join(top, "a"), create=True).close()
        file = fs.open(join(top, "a"), writable=False)
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
            file.pwrite(b"x", 0)
        file.close()
        file.close()
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
            file.pread(1, 0)

    def test_the_lock_has_one_owner_and_names_it(self, fs: Fs, top: str) -> None:
        """The second taker learns who holds the lock; release lets it in."""
        lock = fs.lock(join(top, "lock"), "pid 7")
        with pytest.raises(DirectoryLocked) as refused:
            fs.lock(join(top, "lock"), "pid 8")
        assert refused.value.detail["owner"] == "pid 7"
        lock.release()
        lock.release()
        fs.lock(join(top, "lock"), "pid 8").release()
        assert fs.listdir(top) == ["lock"]

    def test_the_boot_id_is_stable_while_the_machine_runs(self, fs: Fs, top: str) -> None:
        """Nothing short of a crash changes the boot id."""
        assert fs.boot_id() == fs.boot_id() != ""

    @pytest.mark.parametrize("seed", range(4))
    def test_random_work_reads_back_like_plain_dictionaries(
        self, fs: Fs, top: str, seed: int
    ) -> None:
        """Any mix of calls leaves the names and bytes that a dictionary would hold."""
        rng = random.Random(seed)
        model: dict[str, bytearray] = {}
        names = ["a", "b", "c", "d"]
        for _ in range(250):
            name = rng.choice(names)
            if name not in model or rng.random() < 0.8:
                with opened(fs, join(top, name), create=True) as file:
                    _change_alike(rng, file, model.setdefault(name, bytearray()))
            elif rng.random() < 0.5:
                fs.unlink(join(top, name))
                del model[name]
            else:
                target = rng.choice(names)
                with opened(fs, join(top, name)) as file:
                    file.sync()
                fs.rename(join(top, name), join(top, target))
                model[target] = model.pop(name)
            if rng.random() < 0.2:
                fs.sync_dir(top)
            assert fs.listdir(top) == sorted(model)
        for name, content in model.items():
            assert read_all(fs, join(top, name)) == content


def _change_alike(rng: random.Random, file: Any, content: bytearray) -> None:
    kind = rng.choice(["pwrite", "pwrite", "pwrite", "truncate", "allocate", "sync"])
    at = rng.randrange(12_000)
    if kind == "pwrite":
        data = rng.randbytes(rng.randrange(1, 9000))
        file.pwrite(data, at)
        content.extend(bytes(max(0, at - len(content))))
        content[at : at + len(data)] = data
    elif kind == "truncate":
        file.truncate(at)
        del content[at:]
        content.extend(bytes(at - len(content)))
    elif kind == "allocate":
        file.allocate(at + 1)
        content.extend(bytes(max(0, at + 1 - len(content))))
    else:
        file.sync()
    assert file.size() == len(content)
