"""Behind a BufferedFs, killing the process loses exactly what losing the power would."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiers import quick_first
from topics.storage.fs import OsFs, opened, read_all, write_atomically
from topics.testing import BufferedFs, CrashPlan, FakeClock, FakeDisk

LOSE_ALL = CrashPlan.standard()[0]


def test_unsynced_bytes_are_readable_here_and_nowhere_else(tmp_path: Path) -> None:
    """pread sees the buffer; the inner Fs sees the bytes only after sync."""
    path = str(tmp_path / "a")
    (tmp_path / "a").write_bytes(b"old")
    fs = BufferedFs(OsFs())
    with opened(fs, path) as file:
        file.pwrite(b"newer", 0)
        assert file.pread(10, 0) == b"newer"
        assert (tmp_path / "a").read_bytes() == b"old"
        file.sync()
        assert (tmp_path / "a").read_bytes() == b"newer"
        file.truncate(1)
    assert read_all(fs, path) == b"n"
    assert (tmp_path / "a").read_bytes() == b"newer"


def test_names_change_on_the_inner_fs_only_at_sync_dir(tmp_path: Path) -> None:
    """Creations, renames and unlinks wait; a synced file without a durable name is not there."""
    fs = BufferedFs(OsFs())
    for name in ("gone", "moved"):
        (tmp_path / name).write_bytes(name.encode())
    with opened(fs, str(tmp_path / "made"), create=True) as file:
        file.pwrite(b"synced", 0)
        file.sync()
        file.pwrite(b"unsynced", 0)
    fs.unlink(str(tmp_path / "gone"))
    fs.rename(str(tmp_path / "moved"), str(tmp_path / "there"))
    assert fs.listdir(str(tmp_path)) == ["made", "there"]
    assert sorted(os.listdir(tmp_path)) == ["gone", "moved"]
    fs.sync_dir(str(tmp_path))
    assert fs.listdir(str(tmp_path)) == ["made", "there"]
    assert sorted(os.listdir(tmp_path)) == ["made", "there"]
    assert (tmp_path / "made").read_bytes() == b"synced"
    assert read_all(fs, str(tmp_path / "made")) == b"unsynced"


def test_directories_are_neither_renamed_nor_replaced(tmp_path: Path) -> None:
    """Both fail as a system call does, with the names as they were."""
    fs = BufferedFs(OsFs())
    fs.mkdir(str(tmp_path / "d"))
    (tmp_path / "f").write_bytes(b"")
    for source, target, code in (("d", "e", errno.ENOTSUP), ("f", "d", errno.EISDIR)):
        with pytest.raises(OSError) as caught:  # noqa: PT011
            fs.rename(str(tmp_path / source), str(tmp_path / target))
        assert caught.value.errno == code
    assert fs.listdir(str(tmp_path)) == ["d", "f"]


def test_a_rename_between_directories_brings_along_what_it_needs() -> None:
    """Syncing either directory carries out the whole rename, with the creation before it."""
    for synced in ("/x", "/y"):
        disk = FakeDisk()
        fs = BufferedFs(disk)
        fs.mkdir("/x")
        fs.mkdir("/y")
        with opened(fs, "/x/a", create=True) as file:
            file.pwrite(b"content", 0)
            file.sync()
        fs.rename("/x/a", "/y/b")
        assert disk.files() == {}
        fs.sync_dir(synced)
        assert disk.files() == {"/y/b": b"content"}


def test_each_instance_is_a_new_boot() -> None:
    """Every process start must be treated as a machine start."""
    assert BufferedFs(FakeDisk()).boot_id() != BufferedFs(FakeDisk()).boot_id()


def test_closed_files_leave_no_handle_behind() -> None:
    """Handles on the inner Fs are closed with the last handle on this one."""
    disk = FakeDisk()
    fs = BufferedFs(disk)
    write_atomically(fs, "/", "a", b"x")
    with opened(fs, "/a"), opened(fs, "/a"), opened(fs, "/b", create=True) as other:
        other.pwrite(b"x", 0)
        fs.sync_dir("/")
    fs.rename("/b", "/c")
    fs.sync_dir("/")
    assert not disk.open_paths()
    assert read_all(fs, "/c") == b"x"


@pytest.mark.parametrize("seed", quick_first(range(30), 10))
def test_what_a_kill_leaves_is_what_a_crash_would_leave(seed: int) -> None:
    """The same calls on a FakeDisk that then loses everything unsynced give the same files."""
    plain, inner = FakeDisk(), FakeDisk()
    buffered = BufferedFs(inner)
    for fs in (plain, inner):
        fs.mkdir("/d")
        fs.sync_dir("/")
    for turn in range(120):
        outcomes = []
        for fs in (plain, buffered):
            outcomes.append(_one_call(random.Random(f"{seed}/{turn}"), fs))
        assert outcomes[0] == outcomes[1]
        assert inner.files() == plain.crashed(LOSE_ALL).files()
    assert {path: read_all(buffered, path) for path in plain.files()} == plain.files()


def _one_call(rng: random.Random, fs: Any) -> str:
    name, other = rng.choices(["/d/a", "/d/b", "/d/c"], k=2)
    try:
        kind = rng.choice(["write", "write", "truncate", "sync", "rename", "unlink", "sync_dir"])
        if kind == "rename":
            fs.rename(name, other)
        elif kind == "unlink":
            fs.unlink(name)
        elif kind == "sync_dir":
            fs.sync_dir("/d")
        else:
            with opened(fs, name, create=kind == "write") as file:
                if kind == "write":
                    file.pwrite(rng.randbytes(rng.randrange(1, 6000)), rng.randrange(9000))
                elif kind == "truncate":
                    file.truncate(rng.randrange(9000))
                else:
                    file.sync()
    except FileNotFoundError:
        return "missing"
    return "done"


WORKLOAD = """
import os, signal, sys
from topics.storage.fs import OsFs, write_atomically
from topics.testing import BufferedFs

top = sys.argv[1]
fs = BufferedFs(OsFs())
write_atomically(fs, top, "kept", b"durable")
log = fs.open(top + "/log", create=True)
log.allocate(8192)
log.pwrite(b"synced", 0)
log.sync()
fs.sync_dir(top)
log.pwrite(b"unsynced", 6)
fs.open(top + "/nameless", create=True).sync()
fs.unlink(top + "/kept")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_real_kill_behaves_like_power_loss(tmp_path: Path) -> None:
    """SIGKILL of a real process: synced bytes and names stay, all else is gone."""
    ended = subprocess.run([sys.executable, "-c", WORKLOAD, str(tmp_path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert sorted(os.listdir(tmp_path)) == ["kept", "log"]
    assert (tmp_path / "kept").read_bytes() == b"durable"
    assert (tmp_path / "log").read_bytes() == b"synced".ljust(8192, b"\0")


def test_the_fake_clock_keeps_wall_and_monotonic_apart() -> None:
    """advance moves both, a jump only the wall, and a frozen wall stays while time goes on."""
    clock = FakeClock(wall_ms=5_000)
    began = clock.monotonic_s()
    clock.advance(1_500)
    assert (clock.wall_ms(), clock.monotonic_s() - began) == (6_500, 1.5)
    clock.jump_wall(-3_600_000)
    assert (clock.wall_ms(), clock.monotonic_s() - began) == (-3_593_500, 1.5)
    clock.freeze()
    clock.advance(1_000)
    clock.jump_wall(500)
    clock.unfreeze()
    clock.advance(500)
    assert (clock.wall_ms(), clock.monotonic_s() - began) == (-3_592_500, 3.0)
    with pytest.raises(ValueError, match="jump_wall"):
        clock.advance(-1)
