"""Log files without groups: made ahead, passed, or the first that a snapshot needs.

Such a file says nothing of the one in front of it. What is missing there is found by the numbers of
frames, by MARKS and by the snapshot, and torn is told from corrupt as if the file were not there.
"""

from __future__ import annotations

import pytest

from tests.support.engines import PATH, World, explained
from topics.engine.engine import Engine
from topics.engine.offline import backups
from topics.engine.offline.check import check
from topics.engine.offline.repair import Repaired, repair
from topics.engine.offline.restore import restore
from topics.engine.upkeep.trimming import trim
from topics.errors import CorruptData
from topics.storage import frames, marks, snapshot
from topics.storage.frames import SECTOR, Groups
from topics.storage.marks import Key, Vouch
from topics.storage.tiers import DirectoryStore
from topics.storage.wal import Shard
from topics.testing import CrashPlan, FakeDisk

DEST = "/backups"
SIZE = 3000


def shard_of(world: World) -> Shard:
    [shard] = world.engine.core.log.shards
    return shard


def until_ready(world: World) -> None:
    while shard_of(world).ready is None:
        world.fill("t", 1, data="x" * SIZE)


@pytest.fixture
def world() -> World:
    """One shard, whose next file is made, and something behind the half of the present one."""
    world = World(wal_shards=1)
    world.engine.put_topic("t", {"durability": "fsync"})
    until_ready(world)
    world.fill("t", 1)
    return world


def log_path(number: int, generation: int = 1) -> str:
    return f"{PATH}/wal/{generation:08d}-00-{number:08d}.wal"


def groups_of(disk: FakeDisk, path: str) -> Groups:
    raw = disk.files()[path]
    header = frames.decode_file_header(raw[:SECTOR])
    assert header is not None
    return frames.scan_groups(raw, header.file_id)


def vanish(disk: FakeDisk, path: str, count: int) -> int:
    """The last groups of a file are as if they had never been written; how many frames that is."""
    groups = groups_of(disk, path)
    stop = len(groups.starts) - count
    start = int(groups.starts[stop])
    file = disk.open(path)
    file.pwrite(bytes(file.size() - start), start)
    file.sync()
    file.close()
    return int((groups.frame_group >= stop).sum())


def refused(world: World) -> None:
    """Start and check agree, and nothing is changed."""
    before = world.disk.image_hash()
    assert not check(world.disk, PATH, clock=world.clock).ok
    with pytest.raises(CorruptData):
        world.open()
    assert world.disk.image_hash() == before


def repaired(world: World) -> Repaired:
    done = repair(world.disk, PATH, accept_loss=True, settings=world.settings, clock=world.clock)
    assert done.remaining == []
    world.engine = world.open()
    return done


@pytest.mark.parametrize("ending", ["clean", "kill"])
def test_groups_that_vanished_in_front_of_a_file_made_ahead_are_missed(
    world: World, ending: str
) -> None:
    world.end(ending)  # type: ignore[arg-type]
    lost = vanish(world.disk, log_path(1), 2)
    refused(world)
    assert repaired(world).frames_lost == lost


def test_groups_that_vanished_in_front_of_a_passed_file_are_missed(world: World) -> None:
    world.engine.core.log.route()
    world.fill("t", 2)
    world.end("kill")
    assert shard_of(world).current.number == 3
    assert not len(groups_of(world.disk, log_path(2)).starts)
    lost = vanish(world.disk, log_path(1), 2)
    refused(world)
    assert repaired(world).frames_lost == lost


def test_a_first_file_whose_groups_vanished_whole_is_missed(world: World) -> None:
    """Nothing in front of it is read: the snapshot says with which frame it begins."""
    world.engine.checkpoint()
    number = shard_of(world).current.number
    world.fill("t", 3)
    shard_of(world).rotate()
    world.fill("t", 2)
    world.end("kill")
    path = log_path(number)
    lost = vanish(world.disk, path, len(groups_of(world.disk, path).starts))
    refused(world)
    assert repaired(world).frames_lost == lost


def test_a_first_file_that_was_passed_without_groups_is_whole(world: World) -> None:
    world.engine.checkpoint()
    shard_of(world).rotate()
    world.fill("t", 2)
    before = world.look("t")
    assert check(world.disk.clone(), PATH, clock=world.clock).ok
    for ending in ("kill", "clean", "crash"):
        world.restart(ending)  # type: ignore[arg-type]
        assert world.look("t") == before


def test_what_a_crash_took_in_front_of_a_file_made_ahead_is_torn(world: World) -> None:
    """No sync had reached it: nothing is corrupt, and the room of the empty file is given back."""
    world.engine.put_topic("d", {"durability": "disk"})
    world.fill("d", 1)
    world.engine.sync()
    world.fill("d", 5)
    for plan in (*CrashPlan.standard(), *(CrashPlan.random(n) for n in range(30))):
        disk = world.disk.crashed(plan)
        clock, settings = world.clock, world.settings
        with Engine.open(PATH, clock=clock, fs=disk, settings=settings) as engine:
            last = explained(engine, "d")[-1]
            assert (plan.name, last[2]) in ((plan.name, "crash"), (plan.name, "live"))
            assert len(disk.files()[log_path(2)]) == SECTOR
        assert check(disk, PATH, clock=clock).ok


def test_the_start_of_a_snapshots_first_file_is_vouched_for_with_its_frame(world: World) -> None:
    """A start with the snapshot writes that down; one with the snapshot before it goes by it."""
    world.engine.checkpoint()
    until_ready(world)
    world.fill("t", 2)
    before = marks.read(world.disk, PATH)
    image = world.disk.files()[f"{PATH}/{marks.NAME}"]
    world.engine.checkpoint()
    number = shard_of(world).current.number
    lsn = shard_of(world).lsn
    looked = world.look("t")
    world.end("kill")
    # The machine has crashed before MARKS was synced again: it is older than the snapshot.
    overwrite(world.disk, f"{PATH}/{marks.NAME}", image)
    assert before.lines[1, 0].mark.number < number
    world.engine = world.open()
    vouch = marks.read(world.disk, PATH).lines[1, 0]
    assert (vouch.mark, vouch.lsn) == ((number, SECTOR), lsn)
    world.end("kill")
    newest = max(snapshot.numbers(world.disk, f"{PATH}/snap"))
    overwrite(world.disk, f"{PATH}/snap/{snapshot.file_name(newest)}", b"spoilt")
    sound = world.disk.clone()
    vanish(world.disk, log_path(number - 1), 1)
    refused(world)
    world.disk = sound
    world.engine = world.open()
    assert world.look("t") == looked


def overwrite(disk: FakeDisk, path: str, content: bytes) -> None:
    file = disk.open(path)
    file.truncate(len(content))
    file.pwrite(content, 0)
    file.sync()
    file.close()


def test_any_number_of_starts_leave_no_room_taken(world: World) -> None:
    """What was made ahead shrinks to its header, and goes with the log in front of it."""
    whole = world.settings.wal_file_bytes
    used = []
    for _ in range(4):
        until_ready(world)
        world.restart("kill")
        sizes = {path: len(raw) for path, raw in world.disk.files().items() if "/wal/" in path}
        assert [size for size in sizes.values() if size >= whole] == [whole]
        used.append(len(sizes))
    assert used[-1] > 4
    for _ in range(3):
        world.engine.checkpoint()
    assert len([path for path in world.disk.files() if "/wal/" in path]) <= 2


def test_a_file_that_was_cut_short_while_it_was_made_keeps_no_room() -> None:
    """It has its room before it has its header."""
    world = World(wal_shards=1)
    world.engine.put_topic("t", {"durability": "fsync"})
    disks: list[FakeDisk] = []

    def note(_index: int, _operation: str, path: str) -> None:
        if path == log_path(2):
            disks.append(world.disk.clone().kill())

    world.disk.on_mutation = note
    until_ready(world)
    for disk in disks:
        with Engine.open(PATH, clock=world.clock, fs=disk, settings=world.settings):
            assert len(disk.files().get(log_path(2), b"")) <= SECTOR
    assert len(disks) >= 2


def test_trimming_leaves_what_was_made_ahead(world: World) -> None:
    for _ in range(3):
        until_ready(world)
        world.engine.checkpoint()
        until_ready(world)
        ready = shard_of(world).ready
        assert ready is not None
        for _ in trim(world.engine.core):
            pass
        assert ready.path in world.disk.files()
    before = world.look("t")
    world.restart("kill")
    assert world.look("t") == before


@pytest.mark.parametrize("is_cut", [False, True], ids=["made ahead", "first of a snapshot"])
def test_a_backup_has_an_empty_file_only_if_a_snapshot_names_it(world: World, is_cut: bool) -> None:
    if is_cut:
        world.engine.checkpoint()
    world.clock.advance(1)
    world.engine.backup(DEST)
    store = DirectoryStore(world.disk, DEST)
    [manifest] = backups.manifests(store)
    assert [log.number for log in manifest.logs][-1] == (2 if is_cut else 1)
    restore(world.disk, store, "/restored", manifest, moment=None, clock=world.clock)
    assert check(world.disk, "/restored", clock=world.clock).ok
    with Engine.open(
        "/restored", clock=world.clock, fs=world.disk, settings=world.settings
    ) as engine:
        assert engine.state("t").head_seq == world.engine.state("t").head_seq


@pytest.mark.parametrize("is_cut", [False, True], ids=["made ahead", "first of a snapshot"])
def test_a_restored_log_is_vouched_for_in_front_of_an_empty_file(
    world: World, monkeypatch: pytest.MonkeyPatch, is_cut: bool
) -> None:
    """What an earlier generation had made ahead is left out; what is restored hides nothing."""
    laid, lay_out = {}, marks.lay_out

    def noted(fs: FakeDisk, root: str, *, generation: int, lines: dict[Key, Vouch]) -> None:
        laid.update(lines)
        lay_out(fs, root, generation=generation, lines=lines)

    monkeypatch.setattr(marks, "lay_out", noted)
    if is_cut:
        world.engine.checkpoint()
    world.restart("kill")
    world.fill("t", 1)
    world.clock.advance(1)
    world.engine.backup(DEST)
    store = DirectoryStore(world.disk, DEST)
    [manifest] = backups.manifests(store)
    earlier = [(1, 1), (1, 2)] if is_cut else [(1, 1)]
    assert [(log.generation, log.number) for log in manifest.logs] == [*earlier, (2, 1)]
    restore(world.disk, store, "/restored", manifest, moment=None, clock=world.clock)
    assert check(world.disk, "/restored", clock=world.clock).ok
    # With a snapshot the log begins with the file that it names.
    end = groups_of(world.disk, log_path(1)).end
    expected = (2, (2, SECTOR)) if is_cut else (1, (1, end))
    assert (laid[1, 0].last_file, laid[1, 0].mark) == expected


def test_a_full_disk_goes_on_in_the_file_that_is_ready(world: World) -> None:
    """Its room was taken before, also for the checkpoint that gives some back."""
    world.disk.capacity_bytes = world.disk.used_bytes()
    world.fill("t", 12, data="x" * SIZE)
    assert shard_of(world).current.number == 2
    assert shard_of(world).ready is None
    assert shard_of(world).poison is None
    before = world.look("t")
    world.restart("kill")
    assert world.look("t") == before
