"""MonitorFs lets the right order pass and stops the wrong one before it reaches the disk."""

from __future__ import annotations

import threading

import pytest

from topics.storage.fs import opened, write_atomically
from topics.testing import FakeDisk, Fault, FaultFs, MonitorFs, OrderViolation


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk()


@pytest.fixture
def fs(disk: FakeDisk) -> MonitorFs:
    return MonitorFs(disk)


def test_a_file_with_unsynced_bytes_is_not_renamed(fs: MonitorFs) -> None:
    """sync, then rename; the refused rename did not happen."""
    with opened(fs, "/a.tmp", create=True) as file:
        file.pwrite(b"x", 0)
        with pytest.raises(OrderViolation, match="1 unsynced bytes"):
            fs.rename("/a.tmp", "/a")
        assert fs.listdir("/") == ["a.tmp"]
        file.sync()
        file.truncate(0)
        with pytest.raises(OrderViolation):
            fs.rename("/a.tmp", "/a")
        file.sync()
    fs.rename("/a.tmp", "/a")
    assert fs.listdir("/") == ["a"]


def test_the_atomic_write_of_the_engine_passes(fs: MonitorFs) -> None:
    """write_atomically keeps every rule, also over an existing file, and leaks nothing."""
    for content in (b"one", b"two"):
        write_atomically(fs, "/", "a", content)
        assert fs.is_durable("/a", 3)
        fs.assert_no_leaks("/")


def test_bytes_are_durable_once_synced_below_a_durable_name(fs: MonitorFs) -> None:
    """is_durable wants the bytes, the size, the name and the names above it."""
    fs.mkdir("/d/e")
    with opened(fs, "/d/e/a", create=True) as file:
        file.pwrite(b"x" * 100, 0)
        assert fs.unsynced_bytes("/d/e/a") == 100
        file.sync()
        assert fs.unsynced_bytes("/d/e/a") == 0
        for directory in ("/d/e", "/d", "/"):
            assert not fs.is_durable("/d/e/a", 100)
            fs.sync_dir(directory)
        assert fs.is_durable("/d/e/a", 100)
        assert not fs.is_durable("/d/e/a", 101)
        file.pwrite(b"y" * 10, 95)
        assert fs.is_durable("/d/e/a", 95)
        assert not fs.is_durable("/d/e/a", 96)
        assert fs.unsynced_bytes("/d/e/a") == 10
        file.sync()
        file.truncate(50)
        assert fs.is_durable("/d/e/a", 50)
        assert not fs.is_durable("/d/e/a", 51)
    assert not fs.is_durable("/missing", 0)


def test_a_renamed_name_is_durable_only_after_its_directory(fs: MonitorFs) -> None:
    """A rename takes back the durability of the name until the next sync_dir."""
    write_atomically(fs, "/", "a", b"x")
    fs.rename("/a", "/b")
    assert not fs.is_durable("/b", 1)
    fs.sync_dir("/")
    assert fs.is_durable("/b", 1)


def test_a_directory_takes_its_files_along_when_renamed(fs: MonitorFs) -> None:
    """State follows the files below a renamed directory."""
    fs.mkdir("/d")
    with opened(fs, "/d/a", create=True) as file:
        file.pwrite(b"x", 0)
        fs.sync_dir("/d")
        fs.rename("/d", "/e")
        assert fs.unsynced_bytes("/e/a") == 1
        file.sync()
    assert not fs.is_durable("/e/a", 1)
    fs.sync_dir("/")
    assert fs.is_durable("/e/a", 1)


def test_a_file_is_not_unlinked_before_its_successor_is_durable(fs: MonitorFs) -> None:
    """declare_depends: bytes and name of the successor come first."""
    write_atomically(fs, "/", "old", b"x")
    fs.declare_depends("/old", on="/new")
    with pytest.raises(OrderViolation, match="/new"):
        fs.unlink("/old")
    with opened(fs, "/new.tmp", create=True) as file:
        file.pwrite(b"x", 0)
        file.sync()
    fs.rename("/new.tmp", "/new")
    with pytest.raises(OrderViolation):
        fs.unlink("/old")
    with pytest.raises(OrderViolation):
        fs.rename("/new", "/old")
    fs.sync_dir("/")
    with opened(fs, "/new") as file:
        file.pwrite(b"y", 0)
        with pytest.raises(OrderViolation):
            fs.unlink("/old")
        file.sync()
    fs.unlink("/old")
    assert fs.listdir("/") == ["new"]


def test_a_dependency_follows_renames_of_both_sides(fs: MonitorFs) -> None:
    """Moving the old or the new file does not shake the rule off."""
    write_atomically(fs, "/", "old", b"x")
    with opened(fs, "/new", create=True):
        pass
    fs.declare_depends("/old", on="/new")
    fs.rename("/old", "/older")
    fs.rename("/new", "/newer")
    with pytest.raises(OrderViolation, match="/newer"):
        fs.unlink("/older")
    fs.sync_dir("/")
    fs.unlink("/older")


@pytest.mark.parametrize("retry", ["sync", "pwrite", "truncate", "allocate"])
def test_a_file_is_not_used_after_its_sync_failed(disk: FakeDisk, retry: str) -> None:
    """No retries, ever: reads go on, writes and syncs are refused."""
    fs = MonitorFs(FaultFs(disk, Fault("sync", sync_effect="persisted")))
    with opened(fs, "/a", create=True) as file:
        file.pwrite(b"x", 0)
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        assert file.pread(1, 0) == b"x"
        assert not fs.is_durable("/a", 1)
        arguments = {"sync": (), "pwrite": (b"y", 1), "truncate": (0,), "allocate": (10,)}
        with pytest.raises(OrderViolation, match="after its sync failed"):
            getattr(file, retry)(*arguments[retry])
        with pytest.raises(OrderViolation):
            fs.rename("/a", "/b")


def test_bytes_written_while_a_sync_runs_are_not_covered_by_it(disk: FakeDisk) -> None:
    """A sync vouches for what was there when it began."""
    entered, leave = threading.Event(), threading.Event()

    def stall() -> None:
        entered.set()
        assert leave.wait(5)

    slow = FaultFs(disk, Fault("sync", nth=2, errno=0, sync_effect="persisted", action=stall))
    fs = MonitorFs(slow)
    with opened(fs, "/a", create=True) as file:
        fs.sync_dir("/")
        file.allocate(100)
        file.sync()
        assert fs.is_durable("/a", 100)
        file.pwrite(b"x" * 10, 0)
        syncing = threading.Thread(target=file.sync)
        syncing.start()
        assert entered.wait(5)
        assert not fs.is_durable("/a", 1)
        assert fs.unsynced_bytes("/a") == 10
        file.pwrite(b"y" * 10, 10)
        leave.set()
        syncing.join()
        assert fs.is_durable("/a", 10)
        assert not fs.is_durable("/a", 11)
        assert fs.unsynced_bytes("/a") == 10


def test_after_a_kill_nothing_is_durable_until_synced_again(disk: FakeDisk) -> None:
    """assume_durable=False: what an earlier process wrote counts as unsynced."""
    with opened(disk, "/a", create=True) as file:
        file.pwrite(b"x", 0)
    assert MonitorFs(disk).is_durable("/a", 1)
    fs = MonitorFs(disk.kill(), assume_durable=False)
    assert not fs.is_durable("/a", 1)
    with opened(fs, "/a") as again:
        again.sync()
    assert not fs.is_durable("/a", 1)
    fs.sync_dir("/")
    assert fs.is_durable("/a", 1)


def test_leaks_are_named(fs: MonitorFs) -> None:
    """Open handles, held locks and *.tmp files at any depth fail the check."""
    fs.assert_no_leaks("/")
    fs.mkdir("/d/e")
    handle = fs.open("/d/e/x.tmp", create=True)
    lock = fs.lock("/lock", "me")
    with pytest.raises(AssertionError, match=r"lock on '/lock'.*x\.tmp'; open handle on .*x\.tmp"):
        fs.assert_no_leaks("/")
    handle.close()
    lock.release()
    fs.assert_no_leaks()
    with pytest.raises(AssertionError, match=r"left behind '/d/e/x\.tmp'"):
        fs.assert_no_leaks("/d")
    fs.unlink("/d/e/x.tmp")
    fs.assert_no_leaks("/")
