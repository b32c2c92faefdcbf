"""Files that are emptied, cut, zeroed, swapped or gone as a whole, after orderly stops and kills.

A file that shrank may look as if it had never been written. Start, check and repair must agree that
it was: nothing acknowledged is missing without a word, and no seq is given twice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import pytest

from tests.crash.harness.log_harness import SETTINGS, Run, deterministic
from tests.crash.harness.rot import kind_of, outcome, overwrite
from topics.engine.engine import Engine
from topics.engine.offline.check import check
from topics.engine.offline.repair import Repaired, repair
from topics.errors import CorruptData, TopicsError
from topics.storage import marks
from topics.storage.frames import SECTOR
from topics.testing import CrashPlan, FakeClock, FakeDisk, Fault, FaultFs, OrderViolation
from topics.testing.model import Model
from topics.testing.modelcheck import Ending

WALL_MS = 1_700_000_000_000
Built = tuple[FakeDisk, Model, int]


def first_files(run: Run) -> None:
    """One generation, no snapshot: nothing but the log knows of anything."""
    for name in "abcd":
        run.put(name, durability="fsync")
        run.append(name, 3)


def second_generation(run: Run) -> None:
    first_files(run)
    run.reopen("kill")
    for name in "abcd":
        run.append(name, 2)


def second_files(run: Run) -> None:
    """The log has gone on in other files."""
    first_files(run)
    for _ in range(6):
        run.append("a", 1, size=3000)
        run.append("b", 1, size=3000)


def behind_snapshots(run: Run) -> None:
    second_generation(run)
    run.checkpoint()
    run.delete("a", before=3)
    run.append("b", 2)
    run.checkpoint()
    for name in "abcd":
        run.append(name, 2)


def until_ready(run: Run) -> None:
    """Writes until each shard has its next file, and then once more."""
    while any(shard.ready is None for shard in run.engine.core.log.shards):
        for name in "ab":
            run.append(name, 1, size=1500)
    for name in "ab":
        run.append(name, 1)


def ready_files(run: Run) -> None:
    """The last file is one that was made ahead, and nothing was written to it."""
    first_files(run)
    until_ready(run)


def ready_behind_snapshots(run: Run) -> None:
    """The newest snapshot begins with a file that was made ahead, as does the next generation."""
    ready_files(run)
    run.checkpoint()
    for name in "abcd":
        run.append(name, 2)
    until_ready(run)
    run.checkpoint()
    run.checkpoint()
    until_ready(run)
    run.reopen("kill")
    run.append("a", 1)


def passed_files(run: Run) -> None:
    """A file that was made ahead does not suit, and stays in the row without groups."""
    ready_files(run)
    run.engine.core.log.route()
    for name in "abcd":
        run.append(name, 2)


HISTORIES = (
    first_files, second_generation, second_files, behind_snapshots, ready_files,
    ready_behind_snapshots, passed_files,
)  # fmt: skip


@functools.cache
def built(history: Callable[[Run], None], ending: Ending) -> Built:
    with deterministic(1):
        run = Run()
        history(run)
        run.verify()
        model, wall_ms = run.model.copy(), run.clock.wall_ms()
        if ending == "clean":
            run.engine.close()
            model.made_durable()
        return run.disk.kill(), model, wall_ms


def wholes(path: str, files: dict[str, bytes]) -> Iterator[tuple[str, bytes | None]]:
    content = files[path]
    used = len(content.rstrip(b"\0"))
    yield "gone", None
    for at in (0, 9, SECTOR, 2 * SECTOR, used // 2, used // 2 // SECTOR * SECTOR):
        if at < used:
            yield f"cut to {at} bytes", content[:at]
    yield "zeroed after its header", content[:SECTOR] + bytes(max(len(content) - SECTOR, 0))
    yield "zeroed", bytes(len(content))
    for other, theirs in files.items():
        if kind_of(other) == kind_of(path) and other != path:
            yield f"replaced by {other}", theirs


def damaged(disk: FakeDisk, path: str, content: bytes | None) -> FakeDisk:
    image = disk.clone()
    if content is None:
        image.unlink(path)
    else:
        overwrite(image, path, content)
    return image


def hold_against(model: Model, engine: Engine, done: Repaired, where: str) -> None:
    """What was acknowledged is there, or it is said that it is not; no seq can be given again."""
    there = set(engine.list_topics())
    for name, topic in model.topics.items():
        if name not in there:
            assert done.frames_lost != 0, (where, name)
            continue
        state = engine.state(name)
        if name in done.epochs_renewed:
            assert state.epoch > 1 << 20
            told = engine.diff(name, epoch=1).tombstone
            assert told is not None
            continue
        assert state.head_seq >= topic.head, (where, name)
        states = {s: r.state for r in engine.explain(name) for s in range(r.first, r.last + 1)}
        for seq in topic.live():
            assert states[seq] in ("live", "corruption"), (where, name, seq, states[seq])


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["clean", "kill"])
@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_a_file_that_shrank_is_never_taken_for_one_that_was_not_written(
    history: Callable[[Run], None], ending: Ending, tally: Callable[..., None]
) -> None:
    with deterministic(2):
        disk, model, wall_ms = built(history, ending)
        files = {p: c for p, c in disk.files().items() if not p.endswith("/LOCK")}
        count = refused = 0
        for path in sorted(files):
            for what, content in wholes(path, files):
                if content == files[path]:
                    continue
                where = f"{path} {what}"
                image = damaged(disk, path, content)
                is_sound = check(image.clone(), "/data", clock=FakeClock(wall_ms)).ok
                found = outcome(image.clone(), model.copy(), wall_ms, SETTINGS)
                assert found in ("refused", "exact"), f"{where}: {found}"
                assert found == "exact" or not is_sound, f"{where}: check does not see it"
                count += 1
                if found == "refused":
                    refused += 1
                    repair_and_open(image, model, wall_ms, where)
        tally(wholes=count, wholes_refused=refused)
        assert refused > count // 4


def repair_and_open(image: FakeDisk, model: Model, wall_ms: int, where: str) -> None:
    clock = FakeClock(wall_ms)
    done = repair(image, "/data", accept_loss=True, settings=SETTINGS, clock=clock)
    assert (where, done.remaining) == (where, [])
    engine = Engine.open("/data", clock=clock, fs=image, settings=SETTINGS)
    hold_against(model, engine, done, where)
    engine.close()
    assert check(image, "/data", clock=clock).ok, where


def test_what_a_log_lost_at_its_end_is_counted_and_told() -> None:
    """MARKS knows how many frames there were; topics that nobody remembers are counted too."""
    with deterministic(1):
        disk, model, wall_ms = built(first_files, "clean")
        path = next(p for p in disk.files() if p.endswith("-01-00000001.wal"))
        image = damaged(disk, path, None)
        planned = repair(image, "/data", accept_loss=False, clock=FakeClock(wall_ms))
        # Topics a and c, created and written once each, and the mark of the orderly stop.
        assert (planned.frames_lost, planned.topics_vanished, planned.applied) == (5, 2, False)
        assert planned.loses
        repair_and_open(image, model, wall_ms, path)
        engine = Engine.open("/data", clock=FakeClock(wall_ms), fs=image, settings=SETTINGS)
        engine.put_topic("a", {})
        assert engine.state("a").epoch > 1 << 20


@pytest.mark.parametrize("at", range(0, 4 * SECTOR, 97))
def test_a_flipped_bit_in_marks_is_refused_or_costs_nothing(at: int) -> None:
    """And repair, with the log whole and orderly closed, loses nothing over it."""
    with deterministic(1):
        disk, model, wall_ms = built(second_generation, "clean")
        path = f"/data/{marks.NAME}"
        content = bytearray(disk.files()[path])
        content[at % len(content)] ^= 4
        image = damaged(disk, path, bytes(content))
        assert outcome(image.clone(), model.copy(), wall_ms, SETTINGS) in ("refused", "exact")
        planned = repair(image, "/data", accept_loss=False, clock=FakeClock(wall_ms))
        assert not planned.loses or planned.epochs_renewed
        repair(image, "/data", accept_loss=True, settings=SETTINGS, clock=FakeClock(wall_ms))
        engine = Engine.open("/data", clock=FakeClock(wall_ms), fs=image, settings=SETTINGS)
        assert {n: engine.state(n).head_seq for n in "abcd"} == dict.fromkeys("abcd", 5)


def test_after_a_crash_of_the_machine_marks_may_be_behind_but_never_ahead() -> None:
    """Whatever part of it survives, the log that survives is taken for whole."""
    with deterministic(1):
        run = Run()
        first_files(run)
        for plan in (*CrashPlan.standard(), *(CrashPlan.random(n) for n in range(60))):
            image = run.disk.crashed(plan)
            found = outcome(image, run.model.copy(), run.clock.wall_ms(), SETTINGS)
            assert (plan.name, found) == (plan.name, "exact")


def test_an_idle_log_is_vouched_for_durably() -> None:
    """A machine that crashes after a tick without writes takes nothing of the vouch with it."""
    with deterministic(1):
        run = Run()
        first_files(run)
        for _ in range(3):
            run.advance(100)
        image = run.disk.crashed(CrashPlan("lose-all", "lose", "lose"))
        before = marks.read(run.disk, "/data")
        assert marks.read(image, "/data").lines == before.lines
        for path in sorted(p for p in image.files() if kind_of(p) == "wal"):
            header = image.files()[path][:SECTOR]
            twin = damaged(image, path, header.ljust(SETTINGS.wal_file_bytes, b"\0"))
            with pytest.raises(CorruptData):
                Engine.open("/data", clock=FakeClock(WALL_MS), fs=twin, settings=SETTINGS)


def test_marks_without_a_log_and_a_log_without_marks_are_both_refused() -> None:
    with deterministic(1):
        disk, _, _ = built(first_files, "clean")
        for path in [p for p in disk.files() if kind_of(p) == "wal"]:
            disk = damaged(disk, path, None)
        with pytest.raises(CorruptData, match="is missing"):
            Engine.open("/data", fs=disk, settings=SETTINGS)
        disk, _, _ = built(first_files, "clean")
        for name in ("FORMAT", marks.NAME):
            disk = damaged(disk, f"/data/{name}", None)
            if name == marks.NAME:
                with pytest.raises(CorruptData, match="MARKS"):
                    Engine.open("/data", fs=disk, settings=SETTINGS)


def test_marks_of_an_older_start_are_refused() -> None:
    with deterministic(1):
        disk, _, wall_ms = built(first_files, "clean")
        old = disk.files()[f"/data/{marks.NAME}"]
        image = disk.clone()
        Engine.open("/data", clock=FakeClock(wall_ms), fs=image, settings=SETTINGS).close()
        image = damaged(image, f"/data/{marks.NAME}", old)
        with pytest.raises(CorruptData, match="older than the rest"):
            Engine.open("/data", clock=FakeClock(wall_ms), fs=image, settings=SETTINGS)


@pytest.mark.parametrize("effect", ["bit-flip", "truncation", "zero-sector"])
@pytest.mark.parametrize("name", [marks.NAME, ".wal"])
def test_damage_on_one_read_of_the_log_leaves_no_trace(name: str, effect: str) -> None:
    """A start that reads something wrong once is refused or right, and the next one is right."""
    with deterministic(1):
        disk, model, wall_ms = built(second_generation, "kill")
        for nth in range(1, 9):
            image = disk.clone()
            fault = Fault(
                "pread", path_contains=name, nth=nth, read_effect=effect, damage_at=700 * nth
            )  # type: ignore[arg-type]
            faulty = FaultFs(image, fault)
            try:
                engine = Engine.open(
                    "/data", clock=FakeClock(wall_ms), fs=faulty, settings=SETTINGS
                )
                engine.close()
            except TopicsError:
                pass
            found = outcome(image, model.copy(), wall_ms, SETTINGS)
            assert (nth, found) == (nth, "exact")


def test_the_monitor_stops_a_vouch_that_is_ahead_of_the_log() -> None:
    with deterministic(1):
        run = Run()
        core = run.engine.core
        core.log.write_marks(is_clean=False)
        shard = core.log.shards[0]
        with pytest.raises(OrderViolation, match="vouches for"):
            core.log.marks.enter(0, shard.position, shard.lsn)
        shard.sync()
        core.log.marks.enter(0, shard.position, shard.lsn)
