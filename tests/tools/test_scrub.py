"""`topics scrub`: deleted bytes leave every file, nothing else changes, a crash does no harm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.directories import SMALL, busy, image, look, look_at, topics
from topics.engine.engine import Engine
from topics.engine.offline.check import check
from topics.engine.upkeep.scrub import Scrubbed, scrub
from topics.errors import StorageError
from topics.storage.fs import OsFs
from topics.storage.readonly import ReadOnlyFs
from topics.storage.tiers import open_store
from topics.testing import CrashPlan, FakeClock, FakeDisk, MonitorFs

SECRET = b"s3cret"


def spoil(engine: Engine) -> None:
    """Secrets that are deleted, evicted, expired or dropped, sealed and unsealed."""
    mixed = [
        {"data": f"s3cret {n}" if n % 3 else f"kept {n}", "tag": "s3cret" if n % 3 else "kept",
         "node": "s3cret" if n % 3 else "n", "meta": {"k": "s3cret" if n % 3 else "v"}}
        for n in range(90)
    ]  # fmt: skip
    engine.append("mixed", mixed, config={"durability": "fsync"})
    engine.append("capped", [{"data": "s3cret"}] * 40, config={"cap_records": 4})
    engine.append("brief", [{"data": "s3cret"}] * 5, config={"ttl_ms": 1000})
    engine.append("dropped", [{"data": "s3cret"}] * 5)
    engine.append("cleared", [{"data": "s3cret " + "x" * 500}] * 20)
    engine.checkpoint()
    engine.append("capped", [{"data": "kept"}] * 4)
    engine.append("cleared", [{"data": "kept"}])
    engine.delete("mixed", match="s3cret")
    engine.delete("cleared", before_seq=21)
    engine.checkpoint()
    engine.delete_topic("dropped")
    engine.append("mixed", [{"data": "s3cret", "tag": "late"}, {"data": "kept"}])
    engine.delete("mixed", match="late")
    engine.append("young", [{"data": "s3cret"}, {"data": "kept"}])
    engine.delete("young", before_seq=2)


def test_deleted_bytes_are_gone_from_every_file(tmp_path: Path) -> None:
    """Grep over the whole directory, before and after."""
    clock = FakeClock()
    with Engine.open(str(tmp_path), settings=SMALL, clock=clock) as engine:
        spoil(engine)
        clock.advance(5000)
        before = look(engine)
        (tmp_path / "quarantine" / "old.seg").write_bytes(SECRET)
        (tmp_path / "broken" / "old.broken").write_bytes(SECRET)
        (tmp_path / "snap" / "000000000001.snap.tmp").write_bytes(SECRET)
        done = engine.scrub()
        assert look(engine) == before
    assert [name for name, raw in image(tmp_path).items() if SECRET in raw] == []
    assert done.records_erased >= 60
    assert done.segments_rewritten > 0
    assert set(done.copies_removed) == {
        "quarantine/old.seg", "broken/old.broken", "snap/000000000001.snap.tmp",
    }  # fmt: skip
    assert check(OsFs(), str(tmp_path), clock=clock).problems == []
    with Engine.open(str(tmp_path), settings=SMALL, clock=clock) as engine:
        assert look(engine) == before
        states = {r.state for r in engine.explain("mixed")}
        assert states == {"live", "deleted"}
        assert {r.state for r in engine.explain("brief")} == {"expired"}


def test_a_second_scrub_has_nothing_to_do(tmp_path: Path) -> None:
    with Engine.open(str(tmp_path), settings=SMALL, clock=FakeClock()) as engine:
        spoil(engine)
        engine.scrub()
        names = sorted(path.name for path in tmp_path.glob("seg/*"))
        done = engine.scrub()
        assert (done.segments_rewritten, done.records_erased, done.bytes_erased) == (0, 0, 0)
        assert sorted(path.name for path in tmp_path.glob("seg/*")) == names


def test_a_scrubbed_topic_goes_on_as_before(tmp_path: Path) -> None:
    """Deletes, evictions and appends on rewritten blocks, then a restart."""
    with Engine.open(str(tmp_path), settings=SMALL, clock=FakeClock()) as engine:
        spoil(engine)
        engine.scrub()
        engine.delete("mixed", match="kept")
        engine.append("capped", [{"data": "kept"}] * 2)
        engine.append("mixed", [{"data": "more", "tag": "more"}])
        before = look(engine)
    assert look_at(tmp_path) == before
    assert check(OsFs(), str(tmp_path), clock=FakeClock()).ok
    with Engine.open(str(tmp_path), settings=SMALL, clock=FakeClock()) as engine:
        engine.scrub()
        assert look(engine) == before
    assert check(OsFs(), str(tmp_path), clock=FakeClock()).ok


def test_a_scrub_reaches_the_cold_store(tmp_path: Path) -> None:
    cold, data = tmp_path / "cold", tmp_path / "data"
    settings = msgspec.structs.replace(SMALL, cold_dir=str(cold), hot_bytes=0)
    clock = FakeClock()
    with Engine.open(str(data), settings=settings, clock=clock) as engine:
        spoil(engine)
        clock.advance(5000)
        # An object of ours that a move cut short left behind, and one that is not ours.
        (cold / "000000000000.seg").write_bytes(SECRET)
        (cold / "notes.txt").write_bytes(b"mine")
        assert any(SECRET in raw for raw in image(cold).values())
        before = {name: seen[:4] for name, seen in look(engine).items()}
        done = engine.scrub()
        assert {name: seen[:4] for name, seen in look(engine).items()} == before
    assert [name for name, raw in image(tmp_path).items() if SECRET in raw] == []
    assert done.left == ["cold:notes.txt"]
    store = open_store(str(cold), ReadOnlyFs(OsFs()))
    assert check(OsFs(), str(data), store=store, clock=clock).problems == []


@pytest.mark.slow
def test_the_file_of_a_committed_stage_goes_too(tmp_path: Path) -> None:
    """It is a part of the log, by a rewrite of one topic as by a scrub of all."""
    with Engine.open(str(tmp_path), settings=SMALL, clock=FakeClock()) as engine:
        for batch, erase in enumerate((engine.scrub, lambda: engine.rewrite("t")), 1):
            records = [{"data": "s3cret", "tag": "x"}, {"data": "kept"}]
            staged = engine.stage("t", records, producer="p", batch=batch)
            engine.commit("p", batch, query="q", stages=[staged.stage])
            engine.delete("t", match="x")
            assert any(SECRET in raw for raw in image(tmp_path).values())
            erase()
            assert [name for name, raw in image(tmp_path).items() if SECRET in raw] == []
            assert engine.state("t").count == batch


@pytest.mark.slow
def test_without_the_cold_store_nothing_is_changed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    settings = msgspec.structs.replace(SMALL, cold_dir=str(tmp_path / "cold"), hot_bytes=0)
    busy(data, settings)
    with pytest.raises(StorageError, match="cold store"):
        Engine.open(str(data), settings=SMALL, clock=FakeClock())
    done = topics("scrub", str(data))
    assert done.returncode == 1
    assert "--cold-dir" in done.stderr


def test_a_scrub_in_slices_beside_writes(tmp_path: Path) -> None:
    """Deletes and appends between the slices are kept; what was gone before is erased."""
    with Engine.open(str(tmp_path), settings=SMALL, clock=FakeClock()) as engine:
        spoil(engine)
        for step, _ in enumerate(scrub(engine.core, Scrubbed()), 1):
            engine.append("mixed", [{"data": "kept beside", "tag": f"b{step}"}])
            if step % 3 == 0:
                engine.delete("mixed", match=f"b{step - 1}")
            if step == 5:
                engine.delete("mixed", match="kept")
            if step == 9:
                engine.delete_topic("young")
        before = look(engine)
    assert [name for name, raw in image(tmp_path).items() if b"s3cret 1" in raw] == []
    assert look_at(tmp_path) == before
    assert check(OsFs(), str(tmp_path), clock=FakeClock()).problems == []


@pytest.mark.slow
def test_a_crash_at_any_point_of_a_scrub_leaves_old_or_new() -> None:
    """Every mutating call × several damages: same records, same accounts, a clean check."""
    clock = FakeClock()
    disk = FakeDisk(7)
    engine = Engine.open("/data", fs=disk, settings=SMALL, clock=clock)
    spoil(engine)
    clock.advance(5000)
    expected = look(engine)
    engine.close()
    plans = [plan for plan in CrashPlan.standard() if plan.name in (
        "lose-all", "keep-all", "prefix", "renames-lost", "unlinks-undone", "only-unlinks-kept",
        "odd-sectors", "random-writes",
    )]  # fmt: skip
    images: dict[str, FakeDisk] = {}
    work = disk.clone()
    engine = Engine.open("/data", fs=MonitorFs(work), settings=SMALL, clock=clock)

    def remember(index: int, operation: str, path: str) -> None:
        for plan in plans:
            crashed = work.crashed(plan)
            images.setdefault(crashed.image_hash(), crashed)

    work.on_mutation = remember
    engine.scrub()
    work.on_mutation = None
    engine.close()
    assert len(images) > 50
    for crashed in images.values():
        seen = recover(crashed, clock)
        assert seen == expected
    assert not any(SECRET in raw for raw in work.files().values())


def recover(disk: FakeDisk, clock: FakeClock) -> dict[str, Any]:
    engine = Engine.open("/data", fs=disk, settings=SMALL, clock=clock)
    seen = look(engine)
    engine.scrub()
    assert look(engine) == seen
    engine.close()
    assert not any(SECRET in raw for raw in disk.files().values())
    assert check(disk, "/data", clock=clock).problems == []
    return seen


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    data = busy(tmp_path / "data")
    (data / "quarantine" / "kept").write_bytes(b"?")
    before = look_at(data)
    kept = topics("scrub", str(data), "--json", "--keep-aside")
    assert kept.returncode == 0
    assert json.loads(kept.stdout)["left"] == ["quarantine/kept"]
    done = topics("scrub", str(data))
    assert (done.returncode, done.stderr) == (0, "")
    assert "removed" in done.stdout
    assert not (data / "quarantine" / "kept").exists()
    assert look_at(data) == before
    assert topics("check", str(data)).returncode == 0


def test_scrub_leaves_leases_alone(tmp_path: Path) -> None:
    """What is held stays held, by whom and for how long, also when its jobs are written anew."""
    path = busy(tmp_path / "data")
    states = []
    for scrubs in (False, True, False):
        with Engine.open(str(path), settings=SMALL, clock=FakeClock()) as engine:
            if scrubs:
                assert engine.scrub().records_erased > 0
            queue = engine.core.by_name["jobs"].queue
            assert queue is not None
            states.append((engine.queue_state("jobs"), queue.leases, queue.tries, queue.cursor))
    assert states[0] == states[1] == states[2]
