"""The data directory: one owner, one format, private, and never opened by a blind interpreter."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.engines import PATH, World, tagged
from topics.engine.engine import Engine
from topics.errors import (
    CorruptData,
    DirectoryLocked,
    FormatMismatch,
    StorageError,
    TopicsError,
)
from topics.settings import KIB, Settings
from topics.storage.fs import join, opened, write_atomically
from topics.testing import FakeDisk, Fault, FaultFs, MonitorFs

QUIET = Settings(wal_shards=2, wal_file_bytes=64 * KIB, wal_reserve_bytes=4 * KIB, threads=False)


def test_a_second_owner_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    """The error names the process; the owner goes on undisturbed."""
    path = str(tmp_path / "data")
    with Engine.open(path, settings=QUIET) as engine:
        engine.append("t", [{"data": 1}])
        with pytest.raises(DirectoryLocked) as refused:
            Engine.open(path, settings=QUIET)
        assert f"process {os.getpid()}" in str(refused.value)
        assert f"process {os.getpid()}" in refused.value.detail["owner"]
        assert engine.append("t", [{"data": 2}]).first_seq == 2
    with Engine.open(path, settings=QUIET) as engine:
        assert engine.state("t").head_seq == 2


@pytest.mark.slow
def test_a_second_process_is_refused(tmp_path: Path) -> None:
    """The lock holds between processes."""
    path = str(tmp_path / "data")
    code = (
        "import sys\nfrom topics import Engine, DirectoryLocked\n"
        "try:\n    Engine.open(sys.argv[1])\n"
        "except DirectoryLocked as error:\n    print(error)\n"
    )
    with Engine.open(path, settings=QUIET):
        told = subprocess.run(
            [sys.executable, "-c", code, path], capture_output=True, text=True, check=True
        ).stdout
    assert f"process {os.getpid()}" in told


def test_a_failed_open_lets_go_of_the_directory() -> None:
    """Whoever could not open does not keep others from trying."""
    disk = FakeDisk()
    disk.mkdir(PATH)
    write_atomically(disk, PATH, "FORMAT", b'{"format":"topics","version":99}')
    for _ in range(2):
        with pytest.raises(FormatMismatch):
            Engine.open(PATH, fs=disk, settings=QUIET)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"format":"topics","version":99}', "newer topics"),
        (b'{"format":"topics","version":0}', "version that wrote it"),
        (b'{"format":"topics"}', "backup"),
        (b"", "backup"),
        (b"garbage", "backup"),
        (b"[1]", "backup"),
    ],
)
def test_another_format_is_refused_in_words(content: bytes, words: str) -> None:
    """The error says what the directory is, what we read, and what to do; nothing is changed."""
    world = World()
    world.fill("t", 1)
    world.engine.close()
    write_atomically(world.disk, PATH, "FORMAT", content)
    before = {name: data for name, data in world.disk.files().items() if "LOCK" not in name}
    with pytest.raises(FormatMismatch) as refused:
        world.open()
    assert words in str(refused.value)
    after = {name: data for name, data in world.disk.files().items() if "LOCK" not in name}
    assert after == before


@pytest.mark.parametrize("name", ["notes.txt", ".git", "postgresql.conf", "wal2"])
def test_what_somebody_else_keeps_is_not_touched(name: str) -> None:
    """A directory with files and without FORMAT is refused before anything is made in it."""
    disk = FakeDisk()
    disk.mkdir(PATH)
    with opened(disk, join(PATH, name), create=True) as file:
        file.pwrite(b"theirs", 0)
    with pytest.raises(FormatMismatch, match=f"holds '{re.escape(name)}' and no FORMAT file"):
        Engine.open(PATH, fs=disk, settings=QUIET)
    assert disk.listdir(PATH) == [name]


def test_a_new_volume_and_a_start_that_was_killed_are_ours() -> None:
    """What a filesystem brings along, and what a start makes before FORMAT, stop nobody."""
    disk = FakeDisk()
    for name in ("", "lost+found", "wal", "seg"):
        disk.mkdir(join(PATH, name) if name else PATH)
    for name in ("LOCK", "MARKS.tmp", "FORMAT.tmp"):
        disk.open(join(PATH, name), create=True).close()
    with Engine.open(PATH, fs=disk, settings=QUIET) as engine:
        assert engine.append("t", [{"data": 1}]).first_seq == 1


def test_the_directory_says_its_format() -> None:
    """FORMAT is JSON with a version."""
    world = World()
    assert json.loads(world.disk.files()[join(PATH, "FORMAT")])["version"] >= 1


@pytest.mark.parametrize("inside", ["", "wal", "seg", "snap", "broken", "quarantine"])
def test_the_directory_is_private(tmp_path: Path, inside: str) -> None:
    """Mode 0700, files 0600, whatever the umask."""
    before = os.umask(0)
    try:
        Engine.open(str(tmp_path / "data"), settings=QUIET).close()
    finally:
        os.umask(before)
    folder = tmp_path / "data" / inside
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in folder.iterdir():
        if path.is_file():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.slow
def test_python_without_assertions_is_refused(tmp_path: Path) -> None:
    """The engine checks itself; `python -O` would switch that off."""
    code = (
        "import sys\nfrom topics import Engine, TopicsError\n"
        "try:\n    Engine.open(sys.argv[1])\nexcept TopicsError as error:\n    print(error)\n"
    )
    path = tmp_path / "data"
    told = subprocess.run(
        [sys.executable, "-O", "-c", code, str(path)], capture_output=True, text=True, check=True
    ).stdout
    assert "-O" in told
    assert not path.exists()


def test_names_of_topics_never_reach_the_filesystem() -> None:
    """No file is named after what a client chose."""
    world = World()
    world.engine.append("very-special-name", tagged("very-special-tag"))
    world.engine.checkpoint()
    assert not [name for name in world.disk.files() if "special" in name]


def test_unknown_files_are_left_alone() -> None:
    """What we did not write we do not delete."""
    world = World()
    world.fill("t", 1)
    world.engine.close()
    for name in ("notes.txt", "wal/notes.txt", "seg/notes.txt", "snap/notes.txt"):
        directory, _, leaf = join(PATH, name).rpartition("/")
        write_atomically(world.disk, directory, leaf, b"mine")
    world.engine = world.open()
    world.engine.checkpoint()
    world.restart("kill")
    kept = [data for name, data in world.disk.files().items() if name.endswith("notes.txt")]
    assert kept == [b"mine"] * 4
    assert world.look("t").seqs == (1,)


@pytest.mark.parametrize("folder", ["seg", "snap", "wal"])
def test_a_missing_file_is_named_and_not_read_around(folder: str) -> None:
    """An engine does not start as if nothing were missing, and says what is."""
    world = World()
    world.engine.put_topic("t", {"durability": "fsync"})
    world.fill("t", 5)
    world.engine.checkpoint()
    world.engine.checkpoint()
    world.fill("t", 5)
    world.engine.close()
    for name in world.disk.files():
        if f"/{folder}/" in name:
            world.disk.unlink(name)
    if folder == "snap":
        # Without any snapshot the log has no beginning.
        with pytest.raises(StorageError):
            world.open()
    else:
        with pytest.raises(CorruptData):
            world.open()


def test_a_directory_can_be_opened_again_and_again() -> None:
    """Opening and closing without a change leaves a topic as it was."""
    world = World()
    world.engine.append("t", tagged("x", None))
    before = world.look("t")
    for _ in range(5):
        world.restart("clean")
    assert world.look("t") == before


@pytest.mark.parametrize("nth", range(1, 12))
def test_a_start_that_fails_leaves_no_thread_and_no_file_open(nth: int) -> None:
    """Wherever it fails: whoever tries again is not short of descriptors some day."""
    disk = FakeDisk()
    Engine.open(PATH, fs=disk, settings=QUIET).close()
    threads = set(threading.enumerate())
    faults = FaultFs(disk, Fault("sync", nth=nth))
    monitor = MonitorFs(faults)
    settings = Settings(wal_shards=2, wal_file_bytes=64 * KIB, wal_reserve_bytes=4 * KIB)
    try:
        Engine.open(PATH, fs=monitor, settings=settings).close()
    except TopicsError:
        assert faults.fault is not None
        assert faults.fault.fired
    monitor.assert_no_leaks()
    assert set(threading.enumerate()) == threads
