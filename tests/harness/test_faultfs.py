"""FaultFs fails the call it was told to fail, in the way it was told, and no other."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from topics.storage.fs import OsFs
from topics.testing import CrashPlan, FakeDisk, Fault, FaultFs

LOSE_ALL, KEEP_ALL = CrashPlan.standard()[:2]


def started(fault: Fault | None = None, content: bytes = b"") -> tuple[FakeDisk, FaultFs, Any]:
    disk = FakeDisk()
    file = disk.open("/a", create=True)
    file.pwrite(content, 0)
    file.sync()
    disk.sync_dir("/")
    fs = FaultFs(disk, fault)
    return disk, fs, fs.open("/a")


def errno_of(call: Any, *arguments: Any) -> int:
    try:
        call(*arguments)
    except OSError as error:
        return error.errno or -1
    return 0


def test_the_nth_call_fails_once_and_the_next_succeeds() -> None:
    """Once: call N and only call N raises; calls and fired count."""
    fault = Fault("pwrite", nth=2, errno=errno.EDQUOT)
    _, fs, file = started(fault)
    outcomes = [errno_of(file.pwrite, b"x", offset) for offset in range(4)]
    assert outcomes == [0, errno.EDQUOT, 0, 0]
    assert file.pread(4, 0) == b"x\0xx"
    assert fault.fired == 1
    assert fs.calls["pwrite"] == 4


def test_a_lasting_fault_fails_every_call_from_the_nth() -> None:
    """Forever: call N and every one after it raises."""
    fault = Fault("pwrite", nth=2, forever=True)
    _, _, file = started(fault)
    outcomes = [errno_of(file.pwrite, b"x", offset) for offset in range(4)]
    assert outcomes == [0, errno.EIO, errno.EIO, errno.EIO]
    assert fault.fired == 3


def test_a_fault_befalls_only_matching_paths() -> None:
    """path_contains limits both the failing and the counting towards N."""
    fault = Fault("pwrite", nth=1, path_contains="wal")
    _, fs, file = started(fault)
    file.pwrite(b"x", 0)
    assert errno_of(fs.open("/wal", create=True).pwrite, b"x", 0) == errno.EIO
    assert fault.matched == 1


@pytest.mark.parametrize(
    "operation",
    ["open", "create", "rename", "unlink", "mkdir", "listdir", "sync_dir", "lock"],
)
def test_each_operation_on_names_can_fail(operation: Any) -> None:
    """The call raises the errno asked for and leaves the names as they were."""
    disk, fs, _ = started()
    fs.fault = Fault(operation, errno=errno.EACCES)
    calls = {
        "open": lambda: fs.open("/a"),
        "create": lambda: fs.open("/b", create=True),
        "rename": lambda: fs.rename("/a", "/b"),
        "unlink": lambda: fs.unlink("/a"),
        "mkdir": lambda: fs.mkdir("/d"),
        "listdir": lambda: fs.listdir("/"),
        "sync_dir": lambda: fs.sync_dir("/"),
        "lock": lambda: fs.lock("/lock", "me"),
    }
    assert errno_of(calls[operation]) == errno.EACCES
    assert disk.listdir("/") == ["a"]
    assert errno_of(calls[operation]) == 0
    assert fs.fault.fired == 1


@pytest.mark.parametrize("operation", ["allocate", "truncate"])
def test_a_failed_resize_changes_nothing(operation: Any) -> None:
    """allocate and truncate fail before they touch the file."""
    _, _, file = started(Fault(operation, errno=errno.ENOSPC), b"abc")
    assert errno_of(getattr(file, operation), 9000) == errno.ENOSPC
    assert file.size() == 3


def test_a_short_write_leaves_its_prefix() -> None:
    """short_bytes are there, the rest is not, and the call fails."""
    _, _, file = started(Fault("pwrite", errno=errno.ENOSPC, short_bytes=3))
    assert errno_of(file.pwrite, b"abcdef", 0) == errno.ENOSPC
    assert file.pread(10, 0) == b"abc"


def test_a_failed_sync_that_dropped_its_pages_lost_them_everywhere() -> None:
    """dropped: neither readable nor on the disk after any crash."""
    disk, _, file = started(Fault("sync", sync_effect="dropped"), b"old")
    file.pwrite(b"newer", 0)
    assert errno_of(file.sync) == errno.EIO
    assert file.pread(10, 0) == b"old"
    file.sync()
    assert disk.crash(KEEP_ALL).files() == {"/a": b"old"}


def test_a_failed_sync_that_persisted_keeps_its_bytes() -> None:
    """persisted: the error is reported though the bytes are durable."""
    disk, _, file = started(Fault("sync", sync_effect="persisted"), b"old")
    file.pwrite(b"newer", 0)
    assert errno_of(file.sync) == errno.EIO
    assert disk.crash(LOSE_ALL).files() == {"/a": b"newer"}


def test_a_failed_sync_that_only_cached_deceives_the_next_sync() -> None:
    """cached: readable, a retried sync succeeds, and yet the bytes are not on the disk."""
    disk, _, file = started(Fault("sync", sync_effect="cached"), b"old")
    file.pwrite(b"new", 0)
    assert errno_of(file.sync) == errno.EIO
    file.pwrite(b"later", 8192)
    file.sync()
    assert file.pread(3, 0) == b"new"
    after = disk.crash(KEEP_ALL).files()["/a"]
    assert after == b"old" + bytes(8189) + b"later"


def test_cached_bytes_return_when_their_page_is_written_again() -> None:
    """Write-back works in pages, so that a neighbour brings the lost bytes along."""
    disk, _, file = started(Fault("sync", sync_effect="cached"), b"old")
    file.pwrite(b"new", 0)
    assert errno_of(file.sync) == errno.EIO
    assert disk.crashed(KEEP_ALL).files()["/a"] == b"old"
    file.pwrite(b"er", 3)
    file.sync()
    assert disk.crash(LOSE_ALL).files()["/a"] == b"newer"


def test_a_lying_sync_reports_success_and_leaves_the_bytes_pending() -> None:
    """errno 0 with ignored: the caller is told yes, the disk did nothing."""
    disk, _, file = started(Fault("sync", errno=0, sync_effect="ignored"), b"old")
    file.pwrite(b"new", 0)
    file.sync()
    assert disk.crashed(LOSE_ALL).files() == {"/a": b"old"}
    assert disk.crashed(KEEP_ALL).files() == {"/a": b"new"}


@pytest.mark.parametrize(("effect", "survives"), [("dropped", False), ("persisted", True)])
def test_a_failed_directory_sync_may_or_may_not_have_worked(effect: Any, survives: bool) -> None:
    """Only persisted makes the names durable; the error is the same."""
    disk, fs, _ = started(Fault("sync_dir", sync_effect=effect))
    fs.open("/b", create=True).close()
    assert errno_of(fs.sync_dir, "/") == errno.EIO
    assert ("/b" in disk.crash(LOSE_ALL).files()) is survives


def test_reads_can_fail_or_lie() -> None:
    """EIO and ESTALE raise; bit flip, zero sector and truncation return damaged bytes."""
    content = bytes(range(1, 251)) * 6
    _, fs, file = started(content=content)
    for number in (errno.EIO, errno.ESTALE):
        fs.fault = Fault("pread", errno=number)
        assert errno_of(file.pread, 10, 0) == number
    fs.fault = Fault("pread", read_effect="bit-flip", damage_at=7)
    flipped = file.pread(1500, 0)
    assert [at for at in range(1500) if flipped[at] != content[at]] == [7]
    assert file.pread(1500, 0) == content
    fs.fault = Fault("pread", read_effect="zero-sector", damage_at=500)
    assert file.pread(1400, 100) == content[100:512] + bytes(512) + content[1024:]
    fs.fault = Fault("pread", read_effect="truncation", damage_at=9)
    assert file.pread(1500, 0) == content[:9]


def test_an_action_runs_as_the_fault_fires() -> None:
    """errno 0 and persisted: the sync works, and something happens during it."""
    ran: list[str] = []
    disk, _, file = started(
        Fault("sync", errno=0, sync_effect="persisted", action=lambda: ran.append("jump"))
    )
    file.pwrite(b"x", 0)
    file.sync()
    assert ran == ["jump"]
    assert disk.crash(LOSE_ALL).files() == {"/a": b"x"}


def test_faults_compound_by_nesting() -> None:
    """An outer fault reaches the disk through an inner FaultFs."""
    disk = FakeDisk()
    inner = FaultFs(disk, Fault("pwrite", nth=2))
    fs = FaultFs(inner, Fault("sync", sync_effect="dropped"))
    file = fs.open("/a", create=True)
    file.pwrite(b"x", 0)
    assert errno_of(file.sync) == errno.EIO
    assert file.size() == 0
    assert errno_of(file.pwrite, b"x", 0) == errno.EIO


def test_a_real_disk_cannot_be_told_to_forget(tmp_path: Path) -> None:
    """dropped and cached need a FakeDisk; elsewhere they are refused instead of faked badly."""
    fs = FaultFs(OsFs(), Fault("sync", sync_effect="cached"))
    file = fs.open(str(tmp_path / "a"), create=True)
    with pytest.raises(TypeError, match="FakeDisk"):
        file.sync()
    fs.fault = Fault("sync", sync_effect="persisted")
    assert errno_of(file.sync) == errno.EIO
    file.close()
