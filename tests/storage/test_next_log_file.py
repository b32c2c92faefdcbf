"""The next log file is made while the present one fills; to go on in it touches no disk."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from topics.engine.commit.syncing import ThreadSyncer
from topics.engine.engine import Engine
from topics.errors import Overloaded, Poisoned
from topics.settings import KIB, Settings
from topics.storage import frames, marks, wal_files, wal_reader
from topics.storage.datadir import DataDir
from topics.storage.footing import Footings
from topics.storage.frames import SECTOR, FileHeader, Mark, decode_file_header
from topics.storage.fs import Fs
from topics.storage.wal import Shard
from topics.storage.wal_files import WalFile
from topics.storage.wal_stats import WalStats
from topics.testing import CrashPlan, FakeClock, FakeDisk, Fault, FaultFs, MonitorFs
from topics.testing.fakedisk import FakeFile
from topics.testing.faultfs import Operation

ROOT = "/data"
SETTINGS = Settings(wal_shards=1, wal_file_bytes=64 * KIB, wal_reserve_bytes=4 * KIB)


class Log:
    """One shard, on a disk that a test owns."""

    def __init__(self) -> None:
        self.disk = FakeDisk()
        self.faults = FaultFs(self.disk)
        self.fs = MonitorFs(self.faults)
        self.data = DataDir(self.fs, ROOT)
        self.data.prepare()
        begun = marks.begin(self.fs, ROOT, file_id=7, generation=1, shards=1, earlier={})
        self.shard = Shard(
            self.fs, self.data.wal, 1, 0, SETTINGS, FakeClock(), WalStats(), begun,
            Footings[Shard](),
        )  # fmt: skip
        self.shard.open(SETTINGS.wal_file_bytes)
        begun.is_ready = True
        for _ in range(2):
            begun.settle()

    def write(self, size: int = 4000) -> Mark:
        """One group of one frame."""
        payload = b"x" * size
        entry = frames.ENTRY.pack(1, frames.APPEND, 0, 1, 1, 1, 0, 0, size)
        return self.shard.write([entry], [b""], [payload], may_use_reserve=False)

    def fill(self, part: float) -> None:
        """Writes and syncs until so much of the present file is full; nothing is prepared."""
        while self.shard.offset < self.shard.current.allocated * part:
            self.write()
        self.shard.sync()

    def until_ready(self) -> None:
        self.fill(0.5)
        self.shard.prepare()
        assert self.shard.ready is not None

    def close(self) -> None:
        self.shard.close()
        self.shard.marks.close()
        assert not self.fs.handles

    def numbers(self) -> list[int]:
        return [int(name[12:20]) for name in self.disk.listdir(self.data.wal)]

    def read(self, disk: FakeDisk | None = None) -> tuple[wal_reader.Timeline, list[int]]:
        """The timeline as a start reads it, and how many frames each of its files has."""
        data = DataDir(disk or self.disk.clone(), ROOT)
        lines = wal_reader.list_timelines(data)
        [(line, first)] = wal_reader.wanted(None, lines, marks.read(data.fs, ROOT))
        read = wal_reader.read_timeline(data, line, first_number=first)
        return line, [len(groups.frames) for groups in read]


@pytest.fixture
def log() -> Log:
    return Log()


@contextlib.contextmanager
def held(
    log: Log, fault: Fault, call: Callable[[], object], then: Fault | None = None
) -> Iterator[Callable[[], None]]:
    """`call`, in a thread, is at the fault; it goes on when the block says so, or ends.

    `then` is the fault that comes next.
    """
    is_there, may_go = threading.Event(), threading.Event()

    def stall() -> None:
        log.faults.fault = then
        is_there.set()
        assert may_go.wait(20)

    fault.action = stall
    log.faults.fault = fault
    thread = threading.Thread(target=call)
    thread.start()
    assert is_there.wait(20)
    try:
        yield may_go.set
    finally:
        may_go.set()
        thread.join()


def called(log: Log, call: Callable[[], object]) -> list[str]:
    """What a call does to the disk."""
    seen: list[str] = []
    log.disk.on_mutation = lambda _index, operation, path: seen.append(f"{operation} {path}")
    try:
        call()
    finally:
        log.disk.on_mutation = None
    return seen


def test_a_file_is_made_once_the_present_one_is_half_full(log: Log) -> None:
    log.fill(0.3)
    log.shard.prepare()
    assert (log.shard.ready, log.numbers()) == (None, [1])
    log.until_ready()
    assert log.numbers() == [1, 2]
    assert marks.read(log.disk, ROOT).lines[1, 0].last_file == 2
    assert called(log, log.shard.prepare) == []


@pytest.mark.parametrize("how", ["a checkpoint", "a write"])
def test_to_go_on_in_a_file_that_is_ready_touches_no_disk(log: Log, how: str) -> None:
    log.until_ready()
    if how == "a checkpoint":
        assert called(log, log.shard.rotate) == []
    else:
        while log.shard.offset + 12 * KIB <= log.shard.current.capacity:
            log.write()
        seen = called(log, lambda: log.write(8000))
        assert [each.partition(" ")[0] for each in seen] == ["pwrite"]
    assert (log.shard.current.number, log.shard.ready) == (2, None)
    assert log.shard.stats.rotations_total == 1
    log.write()
    log.shard.sync()
    line, counts = log.read()
    assert line.damage is None
    assert sum(counts) == log.shard.lsn - 1
    log.close()


@pytest.mark.parametrize("when", ["before", "while", "after"])
def test_a_file_that_was_left_is_closed_though_nobody_writes_any_more(log: Log, when: str) -> None:
    """The room of one that is trimmed comes back when it is closed."""
    log.until_ready()
    log.write()
    if when == "before":
        log.shard.rotate()
    elif when == "while":
        log.faults.fault = Fault("sync", errno=0, sync_effect="persisted", action=log.shard.rotate)
    log.shard.sync()
    if when == "after":
        log.shard.rotate()
    assert log.shard.unsynced == []
    assert [path for path in log.disk.open_paths() if ".wal" in path] == [log.shard.current.path]
    assert log.shard.poison is None
    log.close()


def test_no_mark_names_the_start_of_a_file(log: Log) -> None:
    """Found empty, it could not say whether the end of the file in front of it is there."""
    log.until_ready()
    end = log.write()
    log.shard.rotate()
    assert log.shard.position == end
    log.shard.sync()
    assert marks.read(log.disk, ROOT).lines[1, 0].mark == log.shard.synced == end
    log.write()
    raw = log.disk.files()[log.shard.current.path]
    assert frames.scan_groups(raw, log.shard.current.file_id).mark == end


@pytest.mark.parametrize("why", ["routers", "a large group"])
def test_a_file_that_does_not_suit_is_passed_and_stays_without_groups(log: Log, why: str) -> None:
    log.until_ready()
    if why == "routers":
        log.shard.is_routed = True
        log.shard.rotate()
    else:
        log.write(SETTINGS.wal_file_bytes)
    assert log.shard.current.number == 3
    log.write()
    log.shard.sync()
    header = decode_file_header(log.disk.files()[log.shard.current.path][:SECTOR])
    assert header is not None
    assert header.is_routed is (why == "routers")
    line, counts = log.read()
    assert (line.damage, counts[1]) == (None, 0)
    assert sum(counts) == log.shard.lsn - 1
    # Its room has been given back.
    assert [len(raw) for path, raw in log.disk.files().items() if "0002.wal" in path] == [SECTOR]
    log.close()


def test_a_passed_file_gives_its_room_to_the_one_that_is_needed(log: Log) -> None:
    """Nothing is refused for a file that was made before anybody needed it."""
    log.until_ready()
    log.disk.capacity_bytes = log.disk.used_bytes() + 40 * KIB
    log.write(80 * KIB)
    assert log.shard.current.number == 3
    line, counts = log.read()
    assert (line.damage, counts[1], counts[2]) == (None, 0, 1)


def test_nothing_is_written_where_a_sync_has_failed_meanwhile(log: Log) -> None:
    """The sync thread makes the next file, and the writer waits for it to go on in it."""
    log.fill(0.5)
    while log.shard.offset + 12 * KIB <= log.shard.current.capacity:
        log.write()
    position = log.shard.position
    failing = Fault("sync", errno=errno.EIO, path_contains="0002.wal")
    with held(log, failing, log.shard.prepare) as let_go:
        threading.Timer(0.05, let_go).start()
        with pytest.raises(Poisoned):
            log.write(8000)
    assert log.shard.position == position


def test_a_passed_file_stays_ready_where_there_is_no_other(log: Log) -> None:
    """Whoever could not go on finds the log as it was."""
    log.until_ready()
    ready, position = log.shard.ready, log.shard.position
    log.faults.fault = Fault("create", errno=errno.EMFILE)
    log.shard.is_routed = True
    with pytest.raises(Overloaded):
        log.shard.rotate()
    assert (log.shard.ready, log.shard.position, log.numbers()) == (ready, position, [1, 2])
    log.shard.is_routed = False
    assert called(log, log.shard.rotate) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("operation", ["create", "allocate", "pwrite"])
def test_without_room_or_descriptors_nothing_is_ready_and_nothing_has_failed(
    log: Log, operation: Operation, code: int
) -> None:
    """Tried twice for each file, however many syncs there are; then by whoever needs it."""
    fault = log.faults.fault = Fault(operation, errno=code, path_contains="0002.wal", forever=True)
    while log.shard.offset + 12 * KIB <= log.shard.current.capacity:
        log.write(100)
        log.shard.sync()
        log.shard.prepare()
    assert (log.shard.poison, log.shard.ready, log.numbers()) == (None, None, [1])
    assert fault.fired == 2
    assert not log.shard.stats.is_full
    log.faults.fault = None
    log.write(8000)
    assert log.shard.current.number == 2
    log.until_ready()


def test_who_is_about_to_go_on_has_it_made_however_full_the_present_one_is(log: Log) -> None:
    log.write()
    log.shard.prepare(at_once=True)
    assert log.numbers() == [1, 2]
    assert called(log, lambda: log.shard.prepare(at_once=True)) == []
    assert called(log, log.shard.rotate) == []
    log.close()


def test_a_file_smaller_than_a_whole_one_has_no_successor_ahead(log: Log) -> None:
    """It is there because a whole one had no room: that is asked for when it is needed."""
    log.disk.capacity_bytes = log.disk.used_bytes() + 32 * KIB
    while log.shard.current.number == 1:
        log.write()
    assert log.shard.current.allocated < SETTINGS.wal_file_bytes
    while log.shard.offset < log.shard.current.allocated * 0.6:
        log.write(100)
    log.shard.sync()
    assert called(log, log.shard.prepare) == []


@pytest.mark.parametrize("operation", ["sync", "sync_dir", "create"])
def test_any_other_failure_poisons(log: Log, operation: Operation) -> None:
    log.fill(0.5)
    log.faults.fault = Fault(operation, path_contains="wal")
    log.shard.prepare()
    assert log.shard.poison is not None
    with pytest.raises(Poisoned):
        log.write()
    with pytest.raises(Poisoned):
        log.shard.rotate()
    assert called(log, lambda: log.shard.prepare(at_once=True)) == []
    log.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("operation", ["pwrite", "sync"])
def test_marks_that_can_not_be_written_poison(log: Log, operation: Operation, code: int) -> None:
    """MARKS may name the file by then: it stays, and nobody counts on it."""
    log.fill(0.5)
    log.faults.fault = Fault(operation, errno=code, path_contains="MARKS")
    log.shard.prepare()
    assert (log.shard.poison is not None, log.shard.ready) == (True, None)
    assert log.numbers() == [1, 2]
    log.close()
    assert log.read()[0].damage is None


def test_what_was_made_ahead_is_an_empty_last_file_to_a_start(log: Log) -> None:
    log.until_ready()
    for disk in (log.disk.clone(), *(log.disk.crashed(plan) for plan in CrashPlan.standard())):
        line, counts = log.read(disk)
        assert (line.damage, counts[-1]) == (None, 0)
        assert sum(counts) == log.shard.lsn - 1
    log.close()


@pytest.mark.parametrize("plan", CrashPlan.standard(), ids=lambda plan: plan.name)
def test_a_crash_while_it_is_made_finds_what_was_there_before(log: Log, plan: CrashPlan) -> None:
    """At every call, whichever of its bytes and names are there."""
    log.fill(0.5)
    images: list[FakeDisk] = []
    log.disk.on_mutation = lambda *_: images.append(log.disk.crashed(plan))
    log.shard.prepare()
    log.disk.on_mutation = None
    assert len(images) > 5
    for disk in images:
        line, counts = log.read(disk)
        assert (line.damage, counts[0]) == (None, log.shard.lsn - 1)


def test_who_goes_on_while_one_is_made_takes_that_one() -> None:
    """Both would make the same number."""
    log = Log()
    log.fill(0.5)
    goer = threading.Thread(target=log.shard.rotate)
    slow = Fault("sync_dir", errno=0, sync_effect="persisted")
    with held(log, slow, log.shard.prepare):
        goer.start()
        goer.join(0.05)
        assert goer.is_alive()
    goer.join()
    assert (log.shard.current.number, log.shard.ready, log.numbers()) == (2, None, [1, 2])
    log.write()
    log.shard.sync()
    assert log.read()[0].damage is None
    log.close()


def test_no_file_but_the_first_is_made_by_the_thread_of_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for writes that fill one after the other, nor for checkpoints."""
    made: list[str] = []
    create = wal_files.create

    def noted(fs: Fs, directory: str, header: FileHeader, spare: int) -> WalFile:
        made.append(threading.current_thread().name.rstrip("-_0123456789"))
        return create(fs, directory, header, spare)

    monkeypatch.setattr(wal_files, "create", noted)
    with Engine.open(str(tmp_path / "data"), settings=SETTINGS) as engine:
        assert made == [threading.current_thread().name]
        engine.put_topic("t", {"durability": "fsync"})
        for _ in range(60):
            engine.append("t", [{"data": "x" * 3000}])
        engine.checkpoint()
        engine.checkpoint()
        engine.append("t", [{"data": 0}])
    assert set(made[1:]) == {"topics-sync", "topics-background"}
    assert len(made) > 5


def test_the_sync_thread_makes_it_after_those_who_wait_were_told() -> None:
    log = Log()
    log.fill(0.5)
    told = threading.Event()
    syncer = ThreadSyncer([log.shard], 0.01, told.set)
    is_making, may_end = threading.Event(), threading.Event()

    def stall() -> None:
        is_making.set()
        assert may_end.wait(10)

    log.faults.fault = Fault("sync_dir", errno=0, sync_effect="persisted", action=stall)
    log.write(100)
    syncer.kick(log.shard)
    assert told.wait(10)
    assert is_making.wait(10)
    assert log.shard.synced == log.shard.position
    assert log.shard.ready is None
    may_end.set()
    syncer.close()
    assert log.shard.ready is not None
    log.close()


def test_a_failure_while_it_is_made_is_told_by_the_sync_thread() -> None:
    """Nothing more is written then, and somebody may wait for a sync that never comes."""
    log = Log()
    log.fill(0.5)
    is_poisoned = threading.Event()
    syncer = ThreadSyncer(
        [log.shard], 0.01, lambda: is_poisoned.set() if log.shard.poison is not None else None
    )
    log.faults.fault = Fault("sync_dir")
    log.write(100)
    syncer.touch(log.shard)
    assert is_poisoned.wait(10)
    syncer.close()
    log.close()


@pytest.mark.parametrize("seed", range(40))
def test_a_crash_never_leaves_a_file_longer_than_its_header_says(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one that leaves something spare: it was longer for a moment."""
    sync, header = FakeFile.sync, FileHeader(7, 1, 0, 1, 0, "boot", 64 * KIB, False)
    for good_syncs in range(2):
        disk, syncs = FakeDisk(), iter([sync] * good_syncs)

        def ends(file: FakeFile, left: Iterator[Callable[[FakeFile], None]] = syncs) -> None:
            following = next(left, None)
            if following is None:
                raise KeyboardInterrupt
            following(file)

        monkeypatch.setattr(FakeFile, "sync", ends)
        with pytest.raises(KeyboardInterrupt):
            wal_files.create(disk, "/", header, 16 * KIB)
        crashed = disk.crash(CrashPlan("any", "random-writes", "keep", seed=seed))
        (name,) = crashed.listdir("/")
        assert len(wal_reader.read_log(crashed, f"/{name}")) <= 80 * KIB


def test_a_sync_of_marks_that_fails_is_told_to_everybody_who_waits_for_one(log: Log) -> None:
    """The system tells of it once; whoever syncs beside the first hears of it from us."""
    told: list[OSError] = []

    def settle() -> None:
        try:
            log.shard.marks.settle()
        except OSError as error:
            told.append(error)

    other = threading.Thread(target=settle)
    with held(log, Fault("sync", errno=errno.EIO, path_contains="MARKS"), settle):
        other.start()
        other.join(0.05)
    other.join()
    assert len(told) == 2
