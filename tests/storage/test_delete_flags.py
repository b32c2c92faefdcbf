"""Delete flags stand outside a segment's checksums: rot in them is refused, told and repaired."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.engines import PATH, World, explained, tagged
from topics.engine.offline.check import check
from topics.engine.offline.repair import repair
from topics.errors import CorruptData
from topics.storage import columns, segment
from topics.storage.fs import File
from topics.storage.segment import DEAD, FileBytes, SegmentInfo, SegmentWriter
from topics.testing.fakedisk import FakeDisk

Damage = Callable[[bytearray], None]


def clear(flags: bytearray) -> None:
    flags[flags.index(DEAD)] = 0


def clear_all(flags: bytearray) -> None:
    flags[:] = bytes(len(flags))


def swap(flags: bytearray) -> None:
    at = flags.index(DEAD)
    flags[at], flags[at + 1] = flags[at + 1], flags[at]


def misread(flags: bytearray) -> None:
    flags[0] ^= 0x10


DAMAGES = [clear, clear_all, swap]


@pytest.fixture
def flagged() -> World:
    """Sealed records, some of them deleted so long ago that no frame says so any more."""
    world = World()
    world.engine.put_topic("t", {"durability": "fsync"})
    world.engine.append("t", tagged("a", "x", "a", "a", "x", "a"))
    world.engine.checkpoint()
    world.engine.delete("t", match="x")
    for _ in range(3):
        world.fill("other", 1)
        world.engine.checkpoint()
    world.engine.close()
    return world


def damage(world: World, change: Damage) -> None:
    path = min(path for path in world.disk.files() if path.endswith(".seg"))
    file = world.disk.open(path)
    info = segment.read_info(FileBytes(file), int(path[-16:-4]))
    flags = bytearray(file.pread(info.flag_count, info.flags_at))
    change(flags)
    file.pwrite(bytes(flags), info.flags_at)
    file.sync()
    file.close()


@pytest.mark.parametrize("change", [*DAMAGES, misread])
def test_damaged_flags_are_refused(flagged: World, change: Damage) -> None:
    """Flags that were lost, moved or half changed neither revive a record nor take one."""
    damage(flagged, change)
    with pytest.raises(CorruptData):
        flagged.open()
    report = check(flagged.disk, PATH, clock=flagged.clock)
    assert "flags_damaged" in {problem["problem"] for problem in report.problems}


@pytest.mark.parametrize("change", DAMAGES)
def test_a_block_whose_flags_are_lost_is_told_as_corruption(flagged: World, change: Damage) -> None:
    """Repair does not guess what was deleted: nothing of it comes back, and its loss is told."""
    damage(flagged, change)
    repair(flagged.disk, PATH, accept_loss=True, settings=flagged.settings, clock=flagged.clock)
    flagged.engine = flagged.open()
    assert {state for _, _, state in explained(flagged.engine, "t")} <= {"corruption", "deleted"}
    assert flagged.engine.diff("t").tombstone is not None
    assert flagged.engine.diff("other").count == 3


def test_a_flag_with_one_wrong_bit_is_restored(flagged: World) -> None:
    """Set and clear differ in five bits: repair loses nothing to a flipped one."""
    damage(flagged, misread)
    repair(flagged.disk, PATH, accept_loss=True, settings=flagged.settings, clock=flagged.clock)
    flagged.engine = flagged.open()
    assert flagged.look("t").seqs == (1, 3, 4, 6)


def test_flags_that_a_crash_left_in_front_of_their_snapshot_are_good(flagged: World) -> None:
    """A checkpoint that was cut short may have set more flags than any snapshot knows of."""
    flagged.engine = flagged.open()
    flagged.engine.delete("t", before_seq=2)
    damage(flagged, lambda flags: flags.__setitem__(0, DEAD))
    flagged.restart("kill")
    assert flagged.look("t").seqs == (3, 4, 6)


def test_what_was_evicted_is_not_taken_by_a_later_delete() -> None:
    """Wherever a checkpoint is cut short, its flags neither revive nor rename what a cap took."""
    world = World()
    world.engine.put_topic("t", {"durability": "fsync"})
    world.engine.append("t", tagged("a", "x", "a", "a", "x", "a"))
    world.engine.checkpoint()
    world.engine.put_topic("t", {"durability": "fsync", "cap_records": 5})
    world.engine.delete("t", match="x")
    world.engine.delete("t", before_seq=4)
    before = world.look("t")
    assert before.ranges[:2] == ((1, 1, "evicted"), (2, 3, "deleted"))
    slices = 0
    is_cut = True
    while is_cut:
        slices += 1
        world.engine.begin_checkpoint()
        for _ in range(slices):
            is_cut = world.engine.maintain(0)
        world.restart("kill")
        assert world.look("t") == before


def sealed(count: int) -> tuple[FakeDisk, SegmentInfo]:
    """A segment of so many records, all of them live."""
    disk = FakeDisk()
    disk.mkdir("/seg")
    writer = SegmentWriter(disk, "/seg", 1)
    run = columns.empty()
    for number in range(count):
        run.extend(columns.single_time(b"%d," % number, 1))
    writer.add(run, topic_id=1, epoch=1, first=1, dead=None)
    return disk, writer.finish()


@pytest.mark.parametrize("seed", range(20))
def test_flags_are_set_where_they_are_asked_for_and_nowhere_else(seed: int) -> None:
    """However they are scattered, and whatever was set before; in far fewer calls than flags."""
    chance = random.Random(seed)
    count = chance.choice([1, 50, 3000])
    disk, info = sealed(count)
    expected = bytearray(count)
    for _ in range(3):
        places = chance.sample(range(count), chance.randint(1, count))
        for place in places:
            expected[place] = DEAD
        calls = disk.mutations
        assert segment.write_flags(disk, "/seg", info, array("I", places)) == expected
        assert disk.mutations - calls <= 2 + count // segment.FLAGS_APART_MAX


def test_flags_that_were_read_wrongly_once_are_not_written_back() -> None:
    """What stands between is written only if two reads agree on it."""
    disk, info = sealed(100)
    segment.write_flags(disk, "/seg", info, array("I", range(0, 100, 2)))

    class Misread:
        """Flips one bit of the first read."""

        def __init__(self, file: File) -> None:
            self._file, self._reads = file, 0

        def pread(self, length: int, offset: int) -> bytes:
            self._reads += 1
            raw = bytearray(self._file.pread(length, offset))
            raw[50] ^= (self._reads == 1) << 4
            return bytes(raw)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

    opened = disk.open
    disk.open = lambda *a, **k: Misread(opened(*a, **k))  # type: ignore[assignment, method-assign]
    written = segment.write_flags(disk, "/seg", info, array("I", [1, 51, 99]))
    assert {place for place, flag in enumerate(written) if flag} == {*range(0, 100, 2), 1, 51, 99}
    assert set(written) == {0, DEAD}


def test_rot_is_not_vouched_for_by_the_next_snapshot(flagged: World) -> None:
    """Flags that are set later do not make damaged ones beside them good."""
    flagged.engine = flagged.open()
    damage(flagged, clear)
    flagged.engine.delete("t", before_seq=2)
    flagged.engine.checkpoint()
    flagged.engine.close()
    with pytest.raises(CorruptData):
        flagged.open()
