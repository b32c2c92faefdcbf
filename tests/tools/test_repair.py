"""`topics repair`: what can be read is kept, what can not is told, nothing is thrown away."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.directories import SMALL, busy, fill, flip, image, look, look_at, topics
from tests.support.engines import PATH, World
from tests.support.tiers import quick_first
from topics.engine.engine import Engine
from topics.engine.offline.check import check
from topics.engine.offline.repair import Repaired, repair
from topics.errors import TopicsError
from topics.storage.fs import OsFs
from topics.testing import CrashPlan, FakeClock, FakeDisk, MonitorFs

GONE = ("deleted", "evicted", "expired", "crash", "restart")
Damage = Callable[[Path], None]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A sound directory and what readers saw of it. Copied, never changed."""
    path = busy(tmp_path_factory.mktemp("sound") / "data")
    copied = path.parent / "looked"
    shutil.copytree(path, copied)
    return path, look_at(copied)


@pytest.fixture
def directory(sound: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    shutil.copytree(sound[0], tmp_path / "data")
    return tmp_path / "data"


def accept(path: Path) -> Repaired:
    return repair(OsFs(), str(path), accept_loss=True, settings=SMALL, clock=FakeClock())


def plan(path: Path) -> Repaired:
    """A report without consent: not one byte differs afterwards."""
    before = image(path)
    planned = repair(OsFs(), str(path), accept_loss=False, settings=SMALL, clock=FakeClock())
    assert image(path) == before
    assert not planned.applied
    return planned


def hold_against(
    before: dict[str, Any], after: dict[str, Any], done: Repaired, names: dict[str, str]
) -> int:
    """Nothing but what was there, and every seq that is missing is told; returns how many are."""
    missing = 0
    if "fresh" not in after:
        # Its creation is among the frames that are lost, and so may be all of it.
        assert done.frames_lost != 0
        names = {"fresh": "recovered-6"} | names
        before = {name: seen for name, seen in before.items() if names.get(name, name) in after}
    for name, (records, _, ranges, head, _, _) in before.items():
        if name == "resident":
            continue
        found, tombstones, explained, head_after, _, _ = after[names.get(name, name)]
        renewed = names.get(name, name) in done.epochs_renewed
        assert head_after >= head or renewed, name
        by_seq = {record["$seq"]: record for record in records}
        states = {s: state for first, last, state in explained for s in range(first, last + 1)}
        was = {s: state for first, last, state in ranges for s in range(first, last + 1)}
        seen = {record["$seq"] for record in found}
        for record in found:
            # A delete that is among the lost frames can not be known.
            undeleted = done.frames_lost != 0 and was[record["$seq"]] == "deleted"
            assert undeleted or by_seq.get(record["$seq"]) == record, (name, record)
        told = {seq for first, last in tombstones for seq in range(first, last + 1)}
        for seq, state in was.items():
            if seq > head_after:
                # Cursors of the old epoch are told `recreated`.
                assert renewed
            elif state == "live" and seq not in seen:
                assert states[seq] in ("corruption", "evicted"), (name, seq, states[seq])
                assert seq in told, (name, seq)
                missing += 1
            elif state != "live" and seq not in seen:
                assert states[seq] in (*GONE, "corruption"), (name, seq, states[seq])
    return missing


def newest(path: Path, pattern: str) -> Path:
    return max(path.glob(pattern))


def middle_of_the_log(path: Path) -> None:
    for log in path.glob("wal/*-00000003.wal"):
        flip(log, 512 * 3 + 90)


def header_of_the_log(path: Path) -> None:
    for log in path.glob("wal/*-00000003.wal"):
        flip(log, 30)


def zeroed_sectors(path: Path) -> None:
    for log in path.glob("wal/*-00000003.wal"):
        raw = bytearray(log.read_bytes())
        raw[512:2048] = bytes(1536)
        log.write_bytes(raw)


def newest_log_missing(path: Path) -> None:
    for log in path.glob("wal/*-00000003.wal"):
        log.unlink()


def segment_missing(path: Path) -> None:
    min(path.glob("seg/*")).unlink()


def every_segment_missing(path: Path) -> None:
    for segment in path.glob("seg/*"):
        segment.unlink()


def table_of_a_segment(path: Path) -> None:
    flip(min(path.glob("seg/*")), 40)


def block_of_a_segment(path: Path) -> None:
    flip(min(path.glob("seg/*")), 700)


def flag_of_a_segment(path: Path) -> None:
    segment = min(path.glob("seg/*"))
    raw = bytearray(segment.read_bytes())
    raw[-1] ^= 0x10
    segment.write_bytes(raw)


def newest_snapshot(path: Path) -> None:
    flip(newest(path, "snap/*"), 600)


def older_snapshot(path: Path) -> None:
    flip(min(path.glob("snap/*")), 600)


def format_file(path: Path) -> None:
    (path / "FORMAT").write_bytes(b"\0\0\0\0")


def segment_and_log(path: Path) -> None:
    segment_missing(path)
    middle_of_the_log(path)


DAMAGES = [
    middle_of_the_log, header_of_the_log, zeroed_sectors, newest_log_missing, segment_missing,
    every_segment_missing, table_of_a_segment, block_of_a_segment, flag_of_a_segment,
    newest_snapshot, older_snapshot, format_file, segment_and_log,
]  # fmt: skip
REFUSED = [
    middle_of_the_log, newest_log_missing, segment_missing, table_of_a_segment, segment_and_log,
]  # fmt: skip


@pytest.mark.parametrize("damage", quick_first(DAMAGES, 4), ids=lambda damage: damage.__name__)
def test_a_repaired_directory_opens_is_sound_and_tells_every_loss(
    sound: tuple[Path, dict[str, Any]], directory: Path, damage: Damage
) -> None:
    damage(directory)
    damaged = image(directory)
    if damage in REFUSED:
        with pytest.raises(TopicsError):
            Engine.open(str(directory), settings=SMALL, clock=FakeClock())
        shutil.rmtree(directory)
        shutil.copytree(sound[0], directory)
        damage(directory)
    planned = plan(directory)
    assert planned.problems
    done = accept(directory)
    assert done.applied
    assert done.remaining == []
    assert (done.lost, done.epochs_renewed) == (planned.lost, planned.epochs_renewed)
    assert check(OsFs(), str(directory), clock=FakeClock()).problems == []
    missing = hold_against(sound[1], look_at(directory), done, {})
    told = sum(lost.last - lost.first + 1 for lost in done.lost)
    assert missing <= told
    for name in done.set_aside:
        original = name.rpartition("-")[2] if "wal" not in name else name.split("-", 2)[2]
        kept = (directory / name).read_bytes()
        assert kept in damaged.values(), original


def test_lost_seqs_are_explained_and_read_as_corruption(directory: Path) -> None:
    block_of_a_segment(directory)
    done = accept(directory)
    assert done.lost
    lost = done.lost[0]
    with Engine.open(str(directory), settings=SMALL, clock=FakeClock()) as engine:
        assert "corruption" in {r.state for r in engine.explain(lost.topic, lost.first, lost.last)}
        tombstone = engine.diff(lost.topic, from_seq=lost.first - 1).tombstone
        assert tombstone is not None
        assert tombstone.reason in ("corruption", "mixed")
        head = engine.state("orders").head_seq
        assert engine.append("orders", [{"data": "next"}]).first_seq == head + 1


def test_a_sound_directory_is_left_alone(directory: Path) -> None:
    assert not plan(directory).problems
    before = {name: raw for name, raw in image(directory).items() if name != "LOCK"}
    assert not accept(directory).applied
    assert {n: raw for n, raw in image(directory).items() if n != "LOCK"} == before


def test_a_segment_that_the_log_still_covers_costs_nothing(
    sound: tuple[Path, dict[str, Any]], directory: Path
) -> None:
    """The older snapshot and its log are kept for this."""
    newest(directory, "seg/*").unlink()
    done = accept(directory)
    assert (done.lost, done.epochs_renewed, done.frames_lost) == ([], [], 0)
    assert hold_against(sound[1], look_at(directory), done, {}) == 0


def test_one_snapshot_that_can_not_be_read_costs_nothing_while_the_log_is_whole(
    tmp_path: Path,
) -> None:
    with Engine.open(str(tmp_path), settings=SMALL, clock=FakeClock()) as engine:
        engine.append("a", [{"data": n} for n in range(20)], config={"durability": "fsync"})
        engine.checkpoint()
        engine.append("a", [{"data": "more"}])
        before = look(engine)
    flip(next(tmp_path.glob("snap/*")), 600)
    with pytest.raises(TopicsError, match="no snapshot can be read"):
        Engine.open(str(tmp_path), settings=SMALL, clock=FakeClock())
    done = accept(tmp_path)
    assert (done.lost, done.renamed, done.epochs_renewed) == ([], [], [])
    assert look_at(tmp_path) == before


def test_without_any_snapshot_records_are_saved_under_a_new_epoch(
    sound: tuple[Path, dict[str, Any]], directory: Path
) -> None:
    """Nobody remembers the floors: a cursor of the old epoch must be told."""
    for snapshot in directory.glob("snap/*"):
        snapshot.write_bytes(b"\0" * 600)
    done = accept(directory)
    assert done.remaining == []
    assert set(done.renamed) == {f"recovered-{i}" for i in (1, 2, 3, 4, 6, 7)}
    after = look_at(directory)
    names = {"orders": "recovered-1", "capped": "recovered-2", "loose": "recovered-4"}
    before = {n: seen for n, seen in sound[1].items() if n in names and n != "capped"}
    hold_against(before, after, done, names)
    with Engine.open(str(directory), settings=SMALL, clock=FakeClock()) as engine:
        assert engine.state("recovered-1").epoch > 1 << 20
        told = engine.diff("recovered-1", from_seq=3, epoch=1).tombstone
        assert told is not None
        assert told.reason == "recreated"


def test_names_survive_when_two_damaged_snapshots_agree_on_them(directory: Path) -> None:
    for snapshot in directory.glob("snap/*"):
        flip(snapshot, len(snapshot.read_bytes()) - 3)
    done = accept(directory)
    assert (done.renamed, done.remaining) == ([], [])
    with Engine.open(str(directory), settings=SMALL, clock=FakeClock()) as engine:
        assert {"orders", "capped", "fresh", "loose"} <= set(engine.list_topics())
        assert engine.core.topic("capped").config.cap_records == 10


def test_a_lost_frame_of_one_topic_renews_no_other_epoch(tmp_path: Path) -> None:
    """One frame is missing and one skip is seen: nobody else can have lost anything."""
    settings = SMALL
    with Engine.open(str(tmp_path), settings=settings, clock=FakeClock()) as engine:
        for name in ("a", "b", "c", "d"):
            engine.append(name, [{"data": 0}], config={"durability": "fsync"})
        for number in range(5):
            engine.append("a", [{"data": number}])
        log = next(p for p in tmp_path.glob("wal/*-01-*"))
        raw = log.read_bytes()
        groups = [at for at in range(512, 64 * 1024, 512) if raw[at : at + 6] == b"TOPGRP"]
    flip(log, groups[-4] + 120)
    done = accept(tmp_path)
    assert [(x.topic, x.last - x.first) for x in done.lost] == [("a", 0)]
    assert (done.frames_lost, done.epochs_renewed) == (1, [])


def test_a_topic_whose_newest_frames_are_gone_never_reuses_a_seq(tmp_path: Path) -> None:
    """Nothing of `b` follows the damage: its head can not be proved, so its epoch is new."""
    with Engine.open(str(tmp_path), settings=SMALL, clock=FakeClock()) as engine:
        for name in ("x", "b", "y", "a"):
            engine.append(name, [{"data": 0}], config={"durability": "fsync"})
        for name in ("b", "b", "a"):
            engine.append(name, [{"data": name}])
        epoch = engine.state("b").epoch
        log = next(p for p in tmp_path.glob("wal/*-00-*"))
        raw = log.read_bytes()
        groups = [at for at in range(512, 64 * 1024, 512) if raw[at : at + 6] == b"TOPGRP"]
    flip(log, groups[-2] + 120)
    flip(log, groups[-3] + 120)
    done = accept(tmp_path)
    assert done.remaining == []
    assert done.frames_lost == 2
    assert "b" in done.epochs_renewed
    with Engine.open(str(tmp_path), settings=SMALL, clock=FakeClock()) as engine:
        assert engine.state("b").epoch > epoch


def test_the_ceiling_of_a_disk_topic_is_evidence(tmp_path: Path) -> None:
    """Seqs that may have been acknowledged are a hole, not free for the next writer."""
    clock = FakeClock()
    disk = FakeDisk(2)
    settings = SMALL
    engine = Engine.open("/data", fs=disk, settings=settings, clock=clock)
    engine.append("d", [{"data": 0}])
    for _ in range(8):
        engine.append("d", [{"data": 1}])
    head = engine.state("d").head_seq
    engine.sync()
    # A mark behind everything: what is damaged in front of it is corruption.
    clock.advance(3000)
    engine.maintain()
    disk = disk.kill()
    path = max(name for name, raw in disk.files().items() if "/wal/" in name and b'"data":1' in raw)
    raw = disk.files()[path]
    groups = [at for at in range(512, len(raw), 512) if raw[at : at + 6] == b"TOPGRP"]
    with_data = [at for at in groups if b'"data":1' in raw[at : at + 512]]
    file = disk.open(path)
    for at in with_data:
        file.pwrite(b"\xff", at + 110)
    file.close()
    done = repair(disk, "/data", accept_loss=True, settings=settings, clock=clock)
    assert done.remaining == []
    engine = Engine.open("/data", fs=disk, settings=settings, clock=clock)
    assert engine.state("d").head_seq >= head
    assert "corruption" in {r.state for r in engine.explain("d")}
    engine.close()


@pytest.mark.slow
def test_a_flipped_byte_anywhere_can_be_repaired(
    sound: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Sampled over every file; the seed is fixed, so a failure can be run again."""
    source = random.Random(20)
    files = [p for p in sorted(sound[0].rglob("*")) if p.is_file() and p.name != "LOCK"]
    for step in range(60):
        target = source.choice(files)
        raw = target.read_bytes()
        used = max(len(raw.rstrip(b"\0")), 1)
        at = source.randrange(used)
        where = (step, target.name, at)
        copy = tmp_path / str(step)
        shutil.copytree(sound[0], copy)
        flip(copy / target.relative_to(sound[0]), at)
        planned = plan(copy)
        done = accept(copy) if planned.problems else planned
        assert (where, done.remaining) == (where, [])
        assert hold_against(sound[1], look_at(copy), done, {}) <= sum(
            lost.last - lost.first + 1 for lost in done.lost
        ), where
        shutil.rmtree(copy)


@pytest.mark.slow
def test_a_crash_at_any_point_of_a_repair_can_be_repaired_again() -> None:
    """Before the new snapshot stands the damage is as it was; afterwards recovery opens."""
    clock = FakeClock()
    disk = FakeDisk(5)
    with Engine.open("/data", fs=disk, settings=SMALL, clock=clock) as engine:
        fill(engine)
        expected = look(engine)
    target = min(name for name in disk.files() if "/seg/" in name)
    file = disk.open(target)
    file.pwrite(b"\xff\xff\xff", 700)
    file.sync()
    file.close()
    images: dict[str, FakeDisk] = {}
    work = disk.clone()

    def remember(index: int, operation: str, path: str) -> None:
        for name in ("lose-all", "keep-all", "prefix", "renames-lost", "random-writes"):
            crashed = work.crashed(next(p for p in CrashPlan.standard() if p.name == name))
            images.setdefault(crashed.image_hash(), crashed)

    work.on_mutation = remember
    done = repair(MonitorFs(work), "/data", accept_loss=True, settings=SMALL, clock=clock)
    work.on_mutation = None
    assert done.remaining == []
    assert len(images) > 30
    for crashed in images.values():
        again = repair(crashed, "/data", accept_loss=True, settings=SMALL, clock=clock)
        assert again.remaining == []
        engine = Engine.open("/data", fs=crashed, settings=SMALL, clock=clock)
        hold_against(expected, look(engine), again, {})
        engine.close()


# -- the command ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_reports_then_repairs(directory: Path) -> None:
    block_of_a_segment(directory)
    before = image(directory)
    report = topics("repair", str(directory))
    assert report.returncode == 1
    assert "lost: " in report.stdout
    assert "--accept-loss" in report.stdout
    assert image(directory) == before
    planned = topics("repair", str(directory), "--json")
    assert planned.returncode == 1
    assert json.loads(planned.stdout)["applied"] is False
    done = topics("repair", str(directory), "--accept-loss", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["lost"] == json.loads(planned.stdout)["lost"]
    assert topics("check", str(directory)).returncode == 0
    again = topics("repair", str(directory), "--accept-loss")
    assert (again.returncode, again.stdout) == (0, f"{directory}: nothing to repair\n")


@pytest.mark.slow
def test_the_command_exits_0_when_nothing_would_be_lost(directory: Path) -> None:
    older_snapshot(directory)
    done = topics("repair", str(directory))
    assert done.returncode == 0
    assert "0 seqs would be lost" in done.stdout


def test_repair_forgets_leases_and_keeps_what_was_moved(directory: Path) -> None:
    """Lease events may be among what is lost: every job that stands can be claimed again."""
    with Engine.open(str(directory), settings=SMALL, clock=FakeClock()) as engine:
        before = engine.queue_state("jobs")
        dead = engine.state("dead").count
    assert before.in_flight > 0
    assert before.dead_lettered == dead > 0
    flip(max(directory.glob("snap/*")), 600)
    flip(min(directory.glob("wal/*-01-*")), 512 + 100)
    assert accept(directory).applied
    with Engine.open(str(directory), settings=SMALL, clock=FakeClock()) as engine:
        after = engine.queue_state("jobs")
        assert (after.in_flight, after.dead_lettered) == (0, dead)
        assert after.ready == engine.state("jobs").count
        assert len(engine.claim("jobs", "c", 100).seqs) == after.ready


@pytest.mark.parametrize("durability", ["fsync", "disk"])
@pytest.mark.parametrize("is_synced", [True, False])
def test_without_any_snapshot_a_log_that_begins_with_an_empty_file_is_kept(
    durability: str, is_synced: bool
) -> None:
    """Checkpoints of an idle log leave such a file as the first; nobody knows where it began."""
    world = World(wal_shards=1)
    engine = world.engine
    engine.append("t", [{"data": n} for n in range(3)], config={"durability": durability})
    for _ in range(3):
        engine.checkpoint()
    engine.append("t", [{"data": n} for n in range(3, 7)])
    if is_synced:
        engine.sync()
    world.end("kill")
    for path in [path for path in world.disk.files() if "/snap/" in path]:
        world.disk.unlink(path)
    settings, clock = world.settings, world.clock
    done = repair(world.disk, PATH, accept_loss=True, settings=settings, clock=clock)
    assert (done.lost, len(done.renamed)) == ([], 1)
    recovered = world.open().diff(done.renamed[0])
    assert [record.value for record in recovered.records] == list(range(7))
