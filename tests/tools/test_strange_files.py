"""Links, pipes, devices, endless files and odd names: refused in one line, nothing is touched.

The root of a data directory may be reached through links, as users do; below it nothing is one.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.directories import SMALL, busy, image, topics
from tests.support.tiers import quick_first
from topics.engine.engine import Engine
from topics.engine.offline.check import check
from topics.engine.offline.repair import repair
from topics.errors import TopicsError
from topics.storage.fs import Misplaced, OsFs, shown

FILES = ("LOCK", "FORMAT", "MARKS", "wal", "seg", "snap")
DIRECTORIES = ("wal", "seg", "snap", "broken", "quarantine")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return busy(tmp_path / "data")


def file_in(directory: Path, name: str) -> Path:
    path = directory / name
    return max(path.iterdir()) if path.is_dir() else path


def refuse_all(directory: Path) -> None:
    """Whoever comes to the directory ends with an error that names what is wrong."""
    path = str(directory)
    with pytest.raises(TopicsError, match="not a plain"):
        Engine.open(path, settings=SMALL)
    with pytest.raises(Misplaced):
        repair(OsFs(), path, accept_loss=True, settings=SMALL)
    with pytest.raises(Misplaced):
        _look(path)


def _look(path: str) -> None:
    """As the commands that change nothing do."""
    lock = OsFs().lock_shared(f"{path}/LOCK")
    assert lock is not None
    try:
        check(OsFs(), path)
    finally:
        lock.release()


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("check",), ("check", "--json"), ("repair",), ("repair", "--accept-loss"), ("scrub",),
        ("serve", "--port", "0", "--data-dir"),
    ],
)  # fmt: skip
def test_every_command_refuses_in_one_line(directory: Path, command: tuple[str, ...]) -> None:
    outside = directory.parent / "outside"
    (directory / "quarantine").rename(outside)
    (outside / "precious").write_text("x")
    (directory / "quarantine").symlink_to(outside)
    done = topics(*command, str(directory))
    assert done.returncode in (1, 3)
    assert "Traceback" not in done.stderr + done.stdout
    said = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert len(said) == 1
    assert "not a plain directory" in said[0]
    if "--json" in command:
        assert json.loads(done.stdout)["ok"] is False
    assert (outside / "precious").exists()


@pytest.mark.parametrize("name", quick_first(FILES, 2))
def test_a_link_in_the_place_of_a_file_is_not_followed(directory: Path, name: str) -> None:
    path = file_in(directory, name)
    outside = directory.parent / "outside"
    path.rename(outside)
    path.symlink_to(outside)
    before = outside.read_bytes(), image(directory).keys()
    refuse_all(directory)
    assert (outside.read_bytes(), image(directory).keys()) == before


@pytest.mark.parametrize("name", quick_first(DIRECTORIES, 2))
def test_a_link_in_the_place_of_a_directory_is_not_followed(directory: Path, name: str) -> None:
    """A scrub of a linked quarantine would empty whatever it points at."""
    outside = directory.parent / "outside"
    (directory / name).rename(outside)
    (directory / name).symlink_to(outside)
    (outside / "precious.tmp").write_text("x")
    before = image(outside)
    refuse_all(directory)
    assert image(outside) == before


def test_what_stands_in_the_place_of_a_temporary_file_is_left_there(directory: Path) -> None:
    link = directory / "MARKS.tmp"
    link.symlink_to("/nowhere")
    for _ in range(2):
        with pytest.raises(TopicsError, match="nothing was changed"):
            Engine.open(directory)
        assert link.is_symlink()


@pytest.mark.parametrize("name", quick_first(FILES, 2))
def test_a_pipe_hangs_nobody(directory: Path, name: str) -> None:
    path = file_in(directory, name)
    path.unlink()
    os.mkfifo(path)
    refuse_all(directory)


@pytest.mark.slow
def test_a_pipe_that_nobody_needs_is_only_mentioned(directory: Path) -> None:
    os.mkfifo(directory / "wal" / "stray")
    done = topics("check", str(directory))
    assert done.returncode == 0
    assert "wal/stray: unknown_file" in done.stdout


@pytest.mark.slow
def test_the_root_may_be_a_link(directory: Path) -> None:
    link = directory.parent / "link"
    link.symlink_to(directory)
    assert topics("check", str(link)).returncode == 0
    with Engine.open(str(link), settings=SMALL) as engine:
        assert "orders" in engine.list_topics()
    assert topics("scrub", str(link)).returncode == 0
    assert link.is_symlink()


@pytest.mark.parametrize("name", quick_first(["wal", "MARKS", "seg", "snap", "FORMAT"], 2))
def test_a_file_of_a_terabyte_is_not_read_into_memory(directory: Path, name: str) -> None:
    path = file_in(directory, name)
    with path.open("r+b") as file:
        file.truncate(1 << 40)
    check(OsFs(), str(directory))
    repair(OsFs(), str(directory), accept_loss=False, settings=SMALL)
    if name in ("wal", "MARKS"):
        with pytest.raises(TopicsError):
            Engine.open(str(directory), settings=SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["\x1b[31mred\x07", "two\nlines", "\udcff"])
def test_odd_names_are_escaped(directory: Path, name: str) -> None:
    for place in ("", "wal", "seg", "quarantine"):
        (directory / place / name).write_text("x")
    for command in ("check", "scrub", "repair"):
        plain, as_json = topics(command, str(directory)), topics(command, str(directory), "--json")
        assert all(c.isprintable() or c == "\n" for c in plain.stdout + plain.stderr)
        json.loads(as_json.stdout)
    elsewhere = topics("check", str(directory.parent / name))
    assert elsewhere.returncode == 3
    assert all(c.isprintable() or c == "\n" for c in elsewhere.stderr)
    assert elsewhere.stderr.count("\n") == 1


def test_what_is_shown_can_be_printed() -> None:
    assert shown("plain-1.wal") == "plain-1.wal"
    assert shown("ä\x1b\n\udcff") == "ä\\x1b\\n\\udcff"


def test_the_door_names_what_it_refuses(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/hostname")
    with pytest.raises(Misplaced, match=r"not a plain file.*link"):
        OsFs().open(str(tmp_path / "link"), create=True)
    with pytest.raises(Misplaced):
        OsFs().lock(str(tmp_path / "link"), "me")
    with pytest.raises(Misplaced):
        OsFs().open(str(tmp_path), writable=False)
