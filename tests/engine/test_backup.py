"""Backups of a running engine, and what is restored from them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.engines import World, explained, gap, values
from tests.support.tiers import quick_first
from topics.engine.engine import Engine
from topics.engine.offline import backups
from topics.engine.offline.restore import Restored, first_epoch, restore
from topics.engine.upkeep.checkpoint import checkpoint
from topics.errors import Conflicting, CorruptData, InvalidRequest, NotFound, StorageError
from topics.kv.embedded import open_bucket
from topics.settings import KIB
from topics.storage.tiers import DirectoryStore
from topics.storage.vault import Manifest
from topics.testing import CrashPlan

DEST = "/backups"


class Vault:
    """A world with a place for its backups."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._made = 0

    @property
    def store(self) -> DirectoryStore:
        return DirectoryStore(self.world.disk, DEST)

    @property
    def manifests(self) -> list[Manifest]:
        return list(backups.manifests(self.store))

    def back_up(self) -> Manifest:
        self.world.clock.advance(1)
        self.world.engine.backup(DEST)
        return self.manifests[0]

    def moment(self) -> int:
        """Now; what is done next is later."""
        now: int = self.world.clock.wall_ms()
        self.world.clock.advance(5)
        return now

    def restore(self, **which: Any) -> tuple[Engine, Restored]:
        """The directory of a moment, open."""
        keep_epochs = which.pop("keep_epochs", False)
        self.world.clock.advance(1)
        manifest, moment = backups.choose(self.store, **which)
        self._made += 1
        path, clock = f"/restored/{self._made}", self.world.clock
        done = restore(
            self.world.disk, self.store, path, manifest, moment=moment, clock=clock,
            keep_epochs=keep_epochs,
        )  # fmt: skip
        settings = self.world.settings
        return Engine.open(path, fs=self.world.disk, clock=clock, settings=settings), done


@pytest.fixture
def vault(world: World) -> Vault:
    return Vault(world)


def data_of(engine: Engine, topic: str) -> list[Any]:
    return values(engine.diff(topic, from_seq=0, limit=1000))


def test_everything_acknowledged_before_its_end_is_in_it(world: World, vault: Vault) -> None:
    """In segments, in the log or on its way there: a restore has it."""
    world.engine.put_topic("disk", {"durability": "disk"})
    for topic in ("disk", "fsync"):
        world.fill(topic, 5)
    world.engine.checkpoint()
    world.fill("disk", 5)
    world.engine.begin_backup(DEST)
    world.engine.maintenance.step()
    heads = []
    while world.engine.maintenance.backups.is_running:
        world.engine.core.committer.flush()
        world.fill("disk", 1)
        heads.append(world.engine.state("disk").head_seq)
        world.engine.maintenance.step()
    engine, done = vault.restore()
    assert done.topics == 2
    # Its last step stores what was durable in the one before.
    assert heads[-1] - 2 <= engine.state("disk").head_seq <= heads[-1]
    assert engine.state("fsync").head_seq == 5


def test_a_second_backup_stores_only_what_is_new(world: World, vault: Vault) -> None:
    """Segments, snapshots and the log up to where the first one ended are taken as they are."""
    for _ in range(40):
        world.engine.append("t", [{"data": "x" * 500}])
    world.engine.checkpoint()
    first = vault.back_up()
    again = vault.back_up()
    assert first.bytes_copied > 20_000
    # Where the log ends has moved by what the first one wrote, and flags are stored each time.
    assert again.bytes_copied < 100
    world.engine.append("t", [{"data": "y" * 500}])
    third = vault.back_up()
    assert 500 < third.bytes_copied < 1500
    engine, _ = vault.restore(backup_id=third.id)
    assert engine.state("t").head_seq == 41
    assert vault.restore(backup_id=first.id)[0].state("t").head_seq == 40


def test_nothing_that_it_copies_leaves_the_directory(world: World, vault: Vault) -> None:
    """Checkpoints go on while a backup runs; what they no longer need goes afterwards."""
    for _ in range(3):
        world.fill("t", 3)
        world.engine.checkpoint()
    world.engine.begin_backup(DEST)
    world.engine.maintenance.step()
    log = set(world.disk.listdir("/data/wal"))
    for _ in range(3):
        # Without the backup's own steps: its call takes long.
        for _ in checkpoint(world.engine.core):
            pass
        assert log <= set(world.disk.listdir("/data/wal"))
    while world.engine.maintenance.backups.is_running:
        assert log <= set(world.disk.listdir("/data/wal"))
        world.engine.maintenance.step()
    status = world.engine.backup_status
    assert status is not None
    assert status.state == "done"
    world.engine.checkpoint()
    assert not log <= set(world.disk.listdir("/data/wal"))
    assert vault.restore()[0].state("t").head_seq >= 9


def test_one_at_a_time_and_not_into_itself(world: World) -> None:
    """A second one is refused while the first runs, and so is a place inside the directory."""
    world.engine.begin_backup(DEST)
    with pytest.raises(Conflicting):
        world.engine.begin_backup("/elsewhere")
    while world.engine.maintenance.backups.is_running:
        world.engine.maintenance.step()
    with pytest.raises(InvalidRequest):
        world.engine.begin_backup("/data/backups")


def test_what_can_not_be_read_is_not_vouched_for(world: World, vault: Vault) -> None:
    """A damaged segment ends the backup: there is none, and the words say why."""
    world.fill("t", 50)
    world.engine.checkpoint()
    (name,) = world.disk.listdir("/data/seg")
    file = world.disk.open(f"/data/seg/{name}")
    file.pwrite(b"\xff" * 8, 700)
    with pytest.raises(StorageError, match="not read as it is"):
        world.engine.backup(DEST)
    assert vault.manifests == []
    with pytest.raises(NotFound):
        vault.restore()


def test_every_byte_of_it_is_checked(world: World, vault: Vault) -> None:
    """Damage in any object is found by verify, and a restore makes no directory from it."""
    world.fill("t", 10)
    world.engine.checkpoint()
    world.fill("t", 10)
    manifest = vault.back_up()
    assert backups.verify(vault.store).ok
    for each in manifest.objects():
        file = world.disk.open(f"{DEST}/{each.name}")
        whole = file.pread(each.size, 0)
        at = each.size // 2
        file.pwrite(bytes([whole[at] ^ 1]), at)
        found = backups.verify(vault.store)
        assert [problem["path"] for problem in found.problems] == [each.name]
        try:
            engine, _ = vault.restore()
        except CorruptData:
            assert not any(name.isdigit() for name in world.disk.listdir("/restored"))
        else:
            # A log file that only a moment in front of the snapshot needs.
            assert "wal/" in each.name
            assert data_of(engine, "t") == [0] * 20
            break
        file.pwrite(whole, 0)
    file.pwrite(whole, 0)
    assert backups.verify(vault.store).ok
    name = f"{DEST}/backups/{manifest.id}.json"
    world.disk.open(name).pwrite(b"z", 100)
    assert not backups.verify(vault.store).ok
    with pytest.raises(CorruptData):
        vault.restore()


def test_a_directory_with_something_in_it_is_left_alone(world: World, vault: Vault) -> None:
    """A restore makes a new directory, or takes an empty one."""
    world.fill("t", 1)
    manifest = vault.back_up()
    with pytest.raises(Conflicting):
        restore(world.disk, vault.store, "/data", manifest, clock=world.clock)
    world.disk.mkdir("/empty")
    restore(world.disk, vault.store, "/empty", manifest, clock=world.clock)
    assert "MARKS" in world.disk.listdir("/empty")


def test_every_topic_opens_with_an_epoch_that_nobody_has_given(world: World, vault: Vault) -> None:
    """The original may have gone on, and so may another directory that was restored before."""
    world.fill("t", 3)
    before = world.engine.state("t").epoch
    vault.back_up()
    first, _ = vault.restore()
    world.clock.advance(1)
    second, _ = vault.restore()
    epochs = [int(engine.state("t").epoch) for engine in (first, second)]
    assert epochs[0] >= first_epoch(world.clock.wall_ms() - 2)
    assert len({int(before), *epochs}) == 3
    told = first.diff("t", from_seq=2, epoch=before).tombstone
    assert told is not None
    assert told.reason == "recreated"
    for engine in (first, second):
        engine.put_topic("new")
    assert first.state("new").epoch != second.state("new").epoch
    kept, done = vault.restore(keep_epochs=True)
    assert kept.state("t").epoch == before
    assert done.epochs_renewed == 0
    kept.put_topic("new")
    assert int(kept.state("new").epoch) > max(epochs)


def test_a_moment_is_everything_as_it_was_then(world: World, vault: Vault) -> None:
    """Heads, configs and topics; what came later is not there."""
    world.fill("t", 3)
    world.engine.checkpoint()
    world.fill("t", 2)
    at = vault.moment()
    world.engine.put_topic("t", {"cap_records": 100})
    world.fill("t", 4)
    world.fill("later", 1)
    vault.back_up()
    engine, done = vault.restore(at_ms=at)
    assert (engine.state("t").head_seq, engine.list_topics()) == (5, ["t"])
    assert engine.state("t").config.cap_records == 0
    assert done.at_ms == at
    engine.append("t", [{"data": "new"}])
    assert data_of(engine, "t") == [0, 0, 0, 0, 0, "new"]


def test_a_moment_outside_of_every_span_is_refused(world: World, vault: Vault) -> None:
    """With the spans that there are."""
    world.fill("t", 3)
    manifest = vault.back_up()
    for at in (manifest.from_ms - 1, manifest.to_ms + 1):
        with pytest.raises(InvalidRequest, match="span"):
            vault.restore(at_ms=at)


@pytest.mark.parametrize("is_sealed", [False, True])
def test_deletes_of_later_stand(world: World, vault: Vault, is_sealed: bool) -> None:
    """By seq, by tag, a whole topic: a restore to the time before does not bring them back."""
    for tag in ("a", "b", "a", "b"):
        world.engine.append("t", [{"data": tag, "tag": tag}])
    world.fill("gone", 3)
    world.engine.checkpoint()
    at = vault.moment()
    world.engine.delete("t", match=["tag", "Eq", "a"])
    world.engine.delete("t", before_seq=3)
    world.engine.delete_topic("gone")
    world.fill("gone", 1)
    if is_sealed:
        world.engine.checkpoint()
    vault.back_up()
    engine, done = vault.restore(at_ms=at)
    assert engine.list_topics() == ["t"]
    assert explained(engine, "t") == ((1, 3, "deleted"), (4, 4, "live"))
    assert done.topics_dropped_later == 1
    assert is_sealed or done.deleted_later == 3


@pytest.mark.parametrize("seq", [1, 2, 3, 4, 6, 8, 9])
def test_a_topic_can_be_had_at_any_head(world: World, vault: Vault, seq: int) -> None:
    """Also inside of a write; others are as of that moment, and the write's key is forgotten."""
    world.fill("t", 3)
    world.clock.advance(5)
    world.engine.append("t", [{"data": n} for n in range(5)], idempotency_key="k")
    world.clock.advance(5)
    world.fill("other", 1)
    world.clock.advance(5)
    world.fill("t", 1)
    vault.back_up()
    engine, _ = vault.restore(topic="t", seq=seq)
    assert engine.state("t").head_seq == seq
    assert ("other" in engine.list_topics()) == (seq == 9)
    again = engine.append("t", [{"data": n} for n in range(5)], idempotency_key="k")
    assert again.deduped == (seq >= 8)
    assert data_of(engine, "t")[:seq] == [0, 0, 0, 0, 1, 2, 3, 4, 0][:seq]


def test_a_head_that_never_was_is_refused(world: World, vault: Vault) -> None:
    """A seq that was not given, a topic that is not there, a seq from before the span."""
    for _ in range(3):
        world.fill("t", 3)
        world.engine.checkpoint()
    vault.back_up()
    with pytest.raises(InvalidRequest):
        vault.restore(topic="t", seq=10)
    with pytest.raises(NotFound):
        vault.restore(topic="u", seq=1)
    with pytest.raises(InvalidRequest, match="span"):
        vault.restore(topic="t", seq=2)


def test_jobs_that_were_done_later_are_done(world: World, vault: Vault) -> None:
    """An acknowledged job stays so. One that became a dead letter later is a job again."""
    engine = world.engine
    engine.put_topic(
        "jobs", {"type": "queue", "lease_ms": 1000, "max_deliveries": 1, "dead_letter": "dead"}
    )
    for n in range(3):
        engine.append("jobs", [{"data": n}])
    engine.checkpoint()
    at = vault.moment()
    claimed = engine.claim("jobs", "w", max=2)
    engine.ack("jobs", "w", [claimed.seqs[0]])
    world.clock.advance(2000)
    for _ in range(5):
        engine.claim("jobs", "w", max=3)
        world.clock.advance(2000)
        engine.maintain(0.1)
    assert engine.state("dead").head_seq >= 1
    engine.checkpoint()
    vault.back_up()
    restored, _ = vault.restore(at_ms=at)
    assert explained(restored, "jobs") == ((1, 1, "deleted"), (2, 3, "live"))
    assert "dead" not in restored.list_topics()
    whole, _ = vault.restore()
    live = sum(last - first + 1 for first, last, state in explained(whole, "jobs")
               if state == "live")  # fmt: skip
    assert live + whole.state("dead").count == 2


def test_a_bucket_is_as_it_was(world: World, vault: Vault) -> None:
    """What compaction has removed since was current then, and is there again."""
    bucket = open_bucket(world.engine, "b")
    bucket.put("k", "old")
    bucket.put("gone", 1)
    world.engine.checkpoint()
    at = vault.moment()
    bucket.put("k", "new")
    bucket.delete("gone")
    world.clock.advance(10)
    bucket.compact()
    world.engine.checkpoint()
    vault.back_up()
    restored, _ = vault.restore(at_ms=at)
    then = open_bucket(restored, "b")
    assert (then.get("k"), then.get("gone")) == ("old", 1)
    now = open_bucket(vault.restore()[0], "b")
    assert now.get("k") == "new"


def test_batches_are_in_it_and_are_not_written_twice(world: World, vault: Vault) -> None:
    """A commit in the log needs the files of its stages; a restored topic knows its producers."""
    engine = world.engine
    at = vault.moment()
    made = engine.stage("t", [{"data": 1}, {"data": 2}], producer="p", batch=1)
    waiting = engine.stage("t", [{"data": 3}], producer="p", batch=2)
    engine.commit("p", 1, query="q", stages=[made.stage])
    vault.back_up()
    restored, _ = vault.restore()
    assert data_of(restored, "t") == [1, 2]
    assert restored.commit("p", 1, query="q", stages=[made.stage]).repeated
    with pytest.raises(Exception, match="stage"):
        restored.commit("p", 2, query="q", stages=[waiting.stage])
    assert restored.stage("t", [{"data": 4}], producer="p", batch=2).stage != waiting.stage
    before, _ = vault.restore(at_ms=at)
    assert before.list_topics() == []


def test_routers_go_on_from_where_they_were(world: World, vault: Vault) -> None:
    """Copies are there as of the moment, and what comes next is copied once."""
    engine = world.engine
    engine.put_router("r", {"source": "a", "dest": "b", "create_dest": True})
    world.fill("a", 3)
    engine.forward()
    engine.sync()
    at = vault.moment()
    world.fill("a", 3)
    engine.forward()
    engine.sync()
    vault.back_up()
    for which, count in (({"at_ms": at}, 3), ({}, 6)):
        restored, _ = vault.restore(**which)
        assert restored.state("b").count == count
        restored.append("a", [{"data": "next"}])
        while restored.forward():
            pass
        restored.sync()
        while restored.forward():
            pass
        assert data_of(restored, "b") == [0] * count + ["next"]


def test_what_it_can_not_hold_is_a_gap(world: World, vault: Vault) -> None:
    """Records of an ephemeral topic are nowhere on the disk: whoever comes is told."""
    world.engine.put_topic("e", {"durability": "ephemeral"})
    world.fill("e", 3)
    world.engine.checkpoint()
    vault.back_up()
    restored, _ = vault.restore()
    assert restored.state("e").count == 0
    told = gap(restored.diff("e", from_seq=0).tombstone)
    assert told is not None
    assert told[2] == "restart"


def test_cursors_are_where_they_were(world: World, vault: Vault) -> None:
    """With the seq that they had at the moment."""
    world.fill("t", 5)
    world.engine.put_cursor("t", "c", seq=2)
    at = vault.moment()
    world.engine.put_cursor("t", "c", seq=5)
    vault.back_up()
    assert vault.restore(at_ms=at)[0].cursor("t", "c").seq == 2
    assert vault.restore()[0].cursor("t", "c").seq == 5


def test_what_is_in_the_cold_store_is_in_it_too() -> None:
    """Fetched once; a restored directory needs no cold store."""
    world = World(cold_dir="/cold", hot_bytes=0, seal_records=1)
    vault = Vault(world)
    for _ in range(3):
        world.fill("t", 5)
        world.engine.checkpoint()
    assert any(name.endswith(".cold") for name in world.disk.listdir("/data/seg"))
    vault.back_up()
    again = vault.back_up()
    assert again.bytes_copied < 2000
    world.set(cold_dir="", hot_bytes=1 << 30)
    restored, _ = vault.restore()
    assert restored.state("t").count == 15
    assert len(data_of(restored, "t")) == 15


def test_an_erasure_waits_for_its_end(world: World, vault: Vault) -> None:
    """The directory is rid of the bytes when it answers, not while they are kept."""
    world.fill("t", 5)
    world.engine.checkpoint()
    world.engine.begin_backup(DEST)
    world.engine.maintenance.step()
    world.engine.delete("t", before_seq=3)
    ticket = world.engine.submit_rewrite("t")
    assert not ticket.done
    while world.engine.maintenance.backups.is_running:
        world.engine.maintenance.step()
    while not ticket.done:
        world.clock.advance(60)
        world.engine.maintain(0.1)
    assert ticket.error is None
    assert vault.restore()[0].state("t").head_seq == 5


@pytest.mark.parametrize("seed", quick_first(range(30), 8))
def test_what_a_crash_has_torn_over_several_log_files_does_not_spoil_it(seed: int) -> None:
    """Groups behind the torn end stay in their files; nobody counts on them, nor does a backup."""
    world = World(wal_shards=1, sync_interval_ms=10_000)
    world.engine.append("d", [{"data": 0}], config={"durability": "disk"})
    world.engine.sync()
    for n in range(5):
        world.engine.append("d", [{"data": [n, "x" * (40 * KIB)]}])
    world.end("crash", CrashPlan.random(seed))
    vault = Vault(world)
    engine = world.engine = world.open()
    for n in range(2):
        vault.back_up()
        restored, _ = vault.restore()
        assert data_of(restored, "d") == data_of(engine, "d")
        assert explained(restored, "d") == explained(engine, "d")
        restored.close()
        engine.append("d", [{"data": f"later {n}"}])
        engine.sync()
    engine.close()


@pytest.mark.parametrize("seed", quick_first(range(30), 8))
def test_a_head_that_a_crash_has_taken_is_not_in_it(seed: int) -> None:
    """Also where the first log file that counts lost everything, and those behind it did not."""
    world = World(wal_shards=1, sync_interval_ms=10_000)
    world.engine.append("d", [{"data": 0}], config={"durability": "disk"})
    world.engine.sync()
    for _ in range(2):
        world.engine.checkpoint()
    world.clock.advance(1)
    for n in range(5):
        world.engine.append("d", [{"data": [n, "x" * (40 * KIB)]}])
    world.end("crash", CrashPlan.random(seed))
    vault = Vault(world)
    engine = world.engine = world.open()
    vault.back_up()
    restored, _ = vault.restore()
    assert explained(restored, "d") == explained(engine, "d")
    there = data_of(engine, "d")
    for seq in range(2, 7):
        if seq <= len(there):
            assert data_of(vault.restore(topic="d", seq=seq)[0], "d") == there[:seq]
        else:
            with pytest.raises(InvalidRequest):
                vault.restore(topic="d", seq=seq)


def test_a_map_whose_source_a_crash_has_taken_does_not_spoil_it() -> None:
    """What was not vouched for in the original is not after a restore: it is told as lost there."""
    world = World(wal_shards=2, sync_interval_ms=10_000)
    engine = world.engine
    for name in ("a", "b"):
        engine.put_topic(name, {"durability": "disk"})
    engine.put_router("r", {"source": "a", "dest": "b"})
    engine.append("a", [{"data": 0}])
    engine.forward()
    engine.sync()
    engine.append("a", [{"data": 1}])
    engine.forward()
    shard = engine.core.log.shard_of(engine.core.by_name["b"])
    assert shard is not engine.core.log.shard_of(engine.core.by_name["a"])
    # The map is on the disk, and what it speaks of is not yet.
    shard.sync()
    assert shard.synced < shard.flushed[0]
    engine = world.restart("crash")
    assert explained(engine, "b")[1][2] == "crash"
    vault = Vault(world)
    for _ in range(2):
        manifest = vault.back_up()
        assert backups.verify(vault.store).ok
        assert {(each.generation, each.shard) for each in manifest.marks} == {(1, 0), (1, 1)}
        restored, _ = vault.restore()
        for name in ("a", "b"):
            assert explained(restored, name) == explained(engine, name)
            assert data_of(restored, name) == data_of(engine, name)
        restored.close()
        engine.append("a", [{"data": "later"}])
        engine.forward()
        engine.sync()
    engine.close()
