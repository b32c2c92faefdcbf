"""`topics check`: finds every kind of damage, changes nothing, is quiet about what is sound."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.support.directories import SMALL, busy, flip, image, topics
from tests.support.tiers import quick_first
from topics.engine.engine import Engine
from topics.engine.offline import invariants
from topics.engine.offline.check import check
from topics.engine.offline.findings import Report
from topics.engine.state.account import Account
from topics.engine.state.queue import Queue
from topics.engine.state.topic import Topic
from topics.storage.fs import OsFs
from topics.storage.readonly import ReadOnlyFs
from topics.storage.segment import DEAD
from topics.storage.tiers import open_store
from topics.testing import CrashPlan, FakeClock, FakeDisk
from topics.types import EVICTED, LIVE


def checked(path: Path) -> Report:
    """A check that is held to its promise: not one byte differs afterwards."""
    before = image(path)
    report = check(OsFs(), str(path), clock=FakeClock())
    assert image(path) == before
    return report


def kinds(report: Report) -> set[str]:
    return {item["problem"] for item in report.problems}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return busy(tmp_path / "data")


def newest(directory: Path, kind: str) -> Path:
    return max(directory.glob(f"{kind}/*"))


def test_a_sound_directory_has_neither_problems_nor_warnings(directory: Path) -> None:
    report = checked(directory)
    assert (report.problems, report.warnings) == ([], [])
    looked = report.checked
    assert looked.topics == 7
    assert looked.snapshots == 2
    assert min(looked.groups, looked.frames, looked.records, looked.segments, looked.files) > 0


def test_a_lone_surrogate_in_the_data_is_no_damage(tmp_path: Path) -> None:
    with Engine.open(tmp_path / "data") as engine:
        engine.append_json("t", b'{"records":[{"data":1},{"data":"\\ud800"},{"data":"\\udfff x"}]}')
        engine.checkpoint()
        engine.append_json("t", b'{"records":[{"data":{"\\uD800":1}}]}')
    assert checked(tmp_path / "data").problems == []


def test_a_directory_without_a_snapshot_is_sound(tmp_path: Path) -> None:
    with Engine.open(str(tmp_path), settings=SMALL) as engine:
        engine.append("a", [{"data": 1}])
    assert checked(tmp_path).ok


def test_a_flipped_bit_in_a_snapshot_is_found_although_the_other_one_would_do(
    directory: Path,
) -> None:
    for snapshot in directory.glob("snap/*"):
        flip(snapshot, 600)
        assert "snapshot_damaged" in kinds(checked(directory))
        flip(snapshot, 600)
    assert checked(directory).ok


def test_damage_in_the_log_in_front_of_durable_data_is_a_problem(directory: Path) -> None:
    flip(newest(directory, "wal"), 512 + 100)
    report = checked(directory)
    assert "log_corrupt" in kinds(report)
    assert report.warnings


def test_a_lost_header_is_a_problem_even_in_the_only_file_of_a_timeline(tmp_path: Path) -> None:
    """Without this rule everything in that file would be dropped without a word."""
    with Engine.open(str(tmp_path), settings=SMALL) as engine:
        engine.append("a", [{"data": 1}], config={"durability": "fsync"})
    for path in tmp_path.glob("wal/*"):
        flip(path, 20)
    assert kinds(checked(tmp_path)) == {"log_corrupt"}
    with pytest.raises(Exception, match="in front of data known to be durable"):
        Engine.open(str(tmp_path), settings=SMALL)


def test_a_log_file_under_another_name_is_not_believed(tmp_path: Path) -> None:
    with Engine.open(str(tmp_path), settings=SMALL) as engine:
        for name in "abcd":
            engine.append(name, [{"data": 1}], config={"durability": "fsync"})
    first, second = sorted(tmp_path.glob("wal/*"))
    kept = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(kept)
    assert kinds(checked(tmp_path)) == {"log_corrupt"}


def test_a_torn_end_is_a_warning(directory: Path) -> None:
    path = newest(directory, "wal")
    raw = path.read_bytes()
    end = len(raw.rstrip(b"\0"))
    path.write_bytes(raw[: -(-end // 512) * 512].ljust(len(raw), b"\0")[:-512] + b"torn" * 128)
    at = -(-end // 512) * 512
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"torn")
    report = checked(directory)
    assert report.ok
    assert [item["problem"] for item in report.warnings] == ["torn_end"]


def test_a_missing_log_file_is_a_problem(directory: Path) -> None:
    newest(directory, "wal").unlink()
    assert "log_missing" in kinds(checked(directory))


def test_a_missing_generation_is_a_problem(tmp_path: Path) -> None:
    for _ in range(3):
        with Engine.open(str(tmp_path), settings=SMALL) as engine:
            engine.append("a", [{"data": 1}])
    for path in tmp_path.glob("wal/00000002-*"):
        path.unlink()
    assert kinds(checked(tmp_path)) == {"log_missing"}
    with pytest.raises(Exception, match="in generation 2 is missing"):
        Engine.open(str(tmp_path), settings=SMALL)


def test_damage_in_the_log_that_only_the_older_snapshot_needs_is_a_problem(
    directory: Path,
) -> None:
    flip(min(directory.glob("wal/*-01-*")), 512 + 100)
    report = checked(directory)
    assert kinds(report) == {"log_corrupt"}
    assert report.checked.topics == 7


@pytest.mark.parametrize("length", [512, 1024, None], ids=["header", "sector", "zeros"])
def test_groups_that_are_gone_from_the_end_of_such_a_file_are_missed(
    directory: Path, length: int | None
) -> None:
    """It then looks like one that was made ahead and passed: the newest snapshot knows better."""
    spent = min(directory.glob("wal/*-01-*"))
    raw = spent.read_bytes()
    spent.write_bytes(raw[:512] + bytes((length or len(raw)) - 512))
    report = checked(directory)
    assert [(item["path"], item["problem"]) for item in report.problems] == [
        (f"wal/{spent.name}", "log_corrupt")
    ]


@pytest.mark.parametrize(
    ("where", "kind"),
    [
        (lambda raw: 0, "segment_damaged"),
        (lambda raw: 40, "segment_damaged"),
        (lambda raw: 600, "block_damaged"),
        (lambda raw: struct.unpack_from("<Q", raw, 32)[0] + 3, "segment_damaged"),
        (lambda raw: len(raw) - 1, "flags_damaged"),
    ],
    ids=["magic", "header", "block", "table", "flag"],
)
def test_a_flipped_bit_anywhere_in_a_segment_is_found(
    directory: Path, where: Callable[[bytes], int], kind: str
) -> None:
    path = min(directory.glob("seg/*"))
    flip(path, where(path.read_bytes()))
    assert kind in kinds(checked(directory))


def test_a_missing_segment_is_a_problem(directory: Path) -> None:
    min(directory.glob("seg/*")).unlink()
    assert "segment_missing" in kinds(checked(directory))


def test_bytes_behind_a_segment_are_a_problem(directory: Path) -> None:
    with min(directory.glob("seg/*")).open("ab") as file:
        file.write(b"more")
    assert kinds(checked(directory)) == {"segment_damaged"}


def test_unknown_and_set_aside_files_are_warnings(directory: Path) -> None:
    for name in ("stray", "wal/notes.txt", "snap/7.tmp", "seg/odd", "broken/x", "quarantine/y"):
        (directory / name).write_bytes(b"?")
    (directory / "seg" / "000000009999.seg").write_bytes(b"unfinished")
    report = checked(directory)
    assert report.ok
    found = {item["path"]: item["problem"] for item in report.warnings}
    assert found["broken/x"] == found["quarantine/y"] == "set_aside"
    assert found["seg/odd"] == "unknown_file"
    assert {"stray", "wal/notes.txt", "snap/7.tmp", "seg/000000009999.seg"} <= found.keys()


def test_cold_tables_and_objects_are_checked(tmp_path: Path) -> None:
    cold, data = tmp_path / "cold", tmp_path / "data"
    busy(data, msgspec.structs.replace(SMALL, cold_dir=str(cold), hot_bytes=0))
    objects = sorted(cold.rglob("*.seg"))
    assert objects
    store = open_store(str(cold), ReadOnlyFs(OsFs()))
    assert check(OsFs(), str(data), store=store, clock=FakeClock()).ok
    assert "cold_unchecked" in {item["problem"] for item in checked(data).warnings}
    flip(objects[0], 600)
    assert "block_damaged" in kinds(check(OsFs(), str(data), store=store, clock=FakeClock()))
    objects[0].unlink()
    assert "cold_missing" in kinds(check(OsFs(), str(data), store=store, clock=FakeClock()))
    flip(min(data.glob("seg/*.cold")), 50)
    assert "cold_table_damaged" in kinds(checked(data))


def test_every_crash_image_is_sound_or_torn(tmp_path: Path) -> None:
    """A crash is no damage: whatever plan, check has nothing to say but warnings."""
    disk = FakeDisk(3)
    busy(Path("/data"), fs=disk)
    clock = FakeClock()
    engine = Engine.open("/data", fs=disk, settings=SMALL, clock=clock)
    for number in range(20):
        engine.append("orders", [{"data": number}])
    for plan in CrashPlan.standard():
        crashed = disk.crashed(plan)
        before = crashed.files()
        report = check(crashed, "/data", clock=clock)
        assert (plan.name, report.problems) == (plan.name, [])
        assert crashed.files() == before


# -- invariants: a state that is wrong must be seen to be wrong ---------------------------------


def _floor(topic: Topic) -> None:
    topic.floor += 1


def _head(topic: Topic) -> None:
    topic.head += 1


def _lost(topic: Topic) -> None:
    topic.lose(EVICTED, topic.head + 5)


def _account(topic: Topic) -> None:
    topic.account = Account(2)
    topic.account.extend(topic.floor - 1, LIVE)


def _count(topic: Topic) -> None:
    topic.live_count += 1


def _bytes(topic: Topic) -> None:
    topic.live_bytes += 1


def _revived(topic: Topic) -> None:
    block = next(b for b in topic.blocks if b.dead_count and not b.is_ghost)
    assert block.dead is not None
    block.dead[block.dead.rindex(DEAD)] = 0


def _overlap(topic: Topic) -> None:
    topic.blocks.insert(0, topic.blocks[0])


def _times(topic: Topic) -> None:
    topic.blocks[-1].first_ts = 0


def _payload(topic: Topic) -> None:
    columns = topic.blocks[-1].columns
    assert columns is not None
    columns.payload = bytes(columns.payload).replace(b'"$seq":', b'"$seq";', 1)


def _tags(topic: Topic) -> None:
    assert topic.tags is not None
    topic.tags.add(["ghost"], topic.head)


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (_floor, "account_wrong"),
        (_head, "seqs_unexplained"),
        (_lost, "floors_out_of_order"),
        (_account, "account_wrong"),
        (_count, "count_wrong"),
        (_bytes, "bytes_wrong"),
        (_revived, "count_wrong"),
        (_overlap, "seqs_twice"),
        (_times, "times_decrease"),
        (_payload, "record_damaged"),
        (_tags, "tags_wrong"),
    ],
)
def test_each_invariant_is_looked_at(spoil: Callable[[Topic], None], kind: str) -> None:
    busy(Path("/data"), fs=(disk := FakeDisk(1)))
    engine = Engine.open("/data", fs=disk, settings=SMALL, clock=FakeClock())
    topic = engine.core.topic("orders")
    engine.core.tags_of(topic)
    assert list(invariants.examine(engine.core, topic)) == []
    spoil(topic)
    assert kind in {found for found, _ in invariants.examine(engine.core, topic)}


def _two_places(queue: Queue) -> None:
    queue.delay([min(queue.leases)], 0)


def _nowhere(queue: Queue) -> None:
    queue.forget(min(queue.leases))


def _no_job(queue: Queue) -> None:
    queue.put(2, ("a", 1, 0))


def _miscounted(queue: Queue) -> None:
    queue.expired += 1


@pytest.mark.parametrize("spoil", [_two_places, _nowhere, _no_job, _miscounted])
def test_each_job_is_looked_for_in_one_place(spoil: Callable[[Queue], None]) -> None:
    busy(Path("/data"), fs=(disk := FakeDisk(1)))
    engine = Engine.open("/data", fs=disk, settings=SMALL, clock=FakeClock())
    topic = engine.core.topic("jobs")
    assert topic.queue is not None
    assert list(invariants.examine(engine.core, topic)) == []
    spoil(topic.queue)
    assert {found for found, _ in invariants.examine(engine.core, topic)} == {"leases_wrong"}


# -- the command ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_says_ok_in_one_line_and_exits_0(directory: Path) -> None:
    before = image(directory)
    done = topics("check", str(directory))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    assert ": ok: 7 topics" in done.stdout
    assert image(directory) == before


@pytest.mark.slow
def test_the_command_exits_1_with_problems_and_json_is_one_value(directory: Path) -> None:
    flip(min(directory.glob("seg/*")), 600)
    plain, as_json = topics("check", str(directory)), topics("check", str(directory), "--json")
    assert (plain.returncode, as_json.returncode) == (1, 1)
    assert "block_damaged" in plain.stdout
    found = json.loads(as_json.stdout)
    assert set(found) == {"ok", "problems", "warnings", "checked"}
    assert found["ok"] is False
    assert set(found["checked"]) == {
        "files", "bytes", "groups", "frames", "records", "topics", "segments", "snapshots",
    }  # fmt: skip
    assert all({"path", "problem", "detail"} <= item.keys() for item in found["problems"])


@pytest.mark.slow
@pytest.mark.parametrize("as_json", [True, False])
def test_a_directory_in_use_is_refused_with_3(directory: Path, as_json: bool) -> None:
    flags = ["--json"] if as_json else []
    with Engine.open(str(directory), settings=SMALL):
        for command in ("check", "scrub", "repair"):
            done = topics(command, str(directory), *flags)
            assert (command, done.returncode) == (command, 3)
            assert "in use by process" in done.stderr
            assert "Traceback" not in done.stderr
            if as_json:
                assert json.loads(done.stdout)["problems"][0]["problem"] == "locked"


@pytest.mark.slow
def test_two_checks_may_run_at_once_and_keep_a_server_away(directory: Path) -> None:
    lock = OsFs().lock_shared(str(directory / "LOCK"))
    assert lock is not None
    assert topics("check", str(directory)).returncode == 0
    with pytest.raises(Exception, match="in use"):
        Engine.open(str(directory), settings=SMALL)
    lock.release()


@pytest.mark.slow
@pytest.mark.parametrize("command", quick_first(["check", "scrub", "repair"], 1))
def test_what_is_not_there_exits_3_and_is_not_made(tmp_path: Path, command: str) -> None:
    done = topics(command, str(tmp_path / "nowhere"))
    assert (done.returncode, done.stdout) == (3, "")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.slow
@pytest.mark.parametrize("names", quick_first([["notes.txt", "Makefile", "src"], []], 1))
def test_a_directory_that_is_not_ours_ends_it_after_one_line(
    tmp_path: Path, names: list[str]
) -> None:
    """An empty one, or somebody else's: exit code 3, nothing listed, nothing changed."""
    for name in names:
        (tmp_path / name).write_text("theirs")
    words = "and 2 more and no FORMAT file" if names else "is empty"
    for command in ("check", "scrub", "repair"):
        done = topics(command, str(tmp_path))
        assert (done.returncode, done.stdout) == (3, "")
        assert (done.stderr.count("\n"), words in done.stderr) == (1, True), done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", quick_first([[], [".", "--no-such"], [".", "--cold"]], 1))
def test_usage_errors_exit_2(arguments: list[str]) -> None:
    assert topics("check", *arguments).returncode == 2


def test_another_format_version_is_a_problem(directory: Path) -> None:
    (directory / "FORMAT").write_text('{"format": "topics", "version": 99}\n')
    assert kinds(checked(directory)) == {"format_unreadable"}
