"""Fail the Nth call, once or from then on, with every errno: each failure is typed and recoverable.

A rejected write never appears, an unknown one appears once or never, a failed sync is not retried
(MonitorFs watches), and whatever the disk did, the next start finds every promise kept.
"""

from __future__ import annotations

import errno
import math
import random
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.crash.harness.io_errors import cases, check_after, run_with
from tests.crash.harness.log_harness import LOSE_ALL, SETTINGS, Run, check_image, deterministic
from topics.engine.engine import Engine
from topics.errors import DiskFull, OutcomeUnknown, Poisoned, TopicsError
from topics.testing import FakeClock, FakeDisk, Fault, FaultFs, MonitorFs
from topics.testing.model import Operation
from topics.testing.modelcheck import Ending

ENDINGS: tuple[Ending, ...] = ("clean", "kill", "crash")
# Room for a large group and a small one in a file.
WIDE = msgspec.structs.replace(SETTINGS, wal_file_bytes=65536)


def sweep(
    every: int, part: int, parts: int, tally: Callable[..., None], until_s: float = math.inf
) -> None:
    """One part of the cases, in any order: when time runs out, those done are a fair choice."""
    done = unknown = calls = 0
    failures: list[str] = []
    mine = list(cases(every))[part::parts]
    random.Random(part).shuffle(mine)
    for fault in mine:
        if time.monotonic() > until_s:
            break
        ending = ""
        with deterministic(1):
            try:
                run, ending = run_with(fault)
                check_after(run, ending, fault)
            except Exception as error:
                failures.append(f"{type(error).__name__}: {error}"[:600])
        done += 1
        calls += fault.fired
        unknown += ending == "unknown"
    tally(
        io_error_cases=done, io_error_cases_all=len(mine), io_error_calls=calls,
        io_errors_unknown=unknown, io_errors_broken=len(failures),
    )  # fmt: skip
    assert not failures, f"{len(failures)} of {done}:\n" + "\n".join(failures[:5])


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_a_failing_call_is_typed_and_recoverable(part: int, tally: Callable[..., None]) -> None:
    sweep(10, part, 4, tally)


@pytest.mark.full
@pytest.mark.timeout(0)
@pytest.mark.parametrize("part", range(8))
def test_every_failing_call_is_typed_and_recoverable(
    part: int, deadline: float, tally: Callable[..., None]
) -> None:
    sweep(1, part, 8, tally, deadline)


def test_a_failed_sync_poisons_and_is_not_retried() -> None:
    """After it nothing is written or synced, whatever is asked; the next start recovers."""
    with deterministic(1):
        fault = Fault("sync", path_contains="/wal/", sync_effect="dropped")
        seen: list[FaultFs] = []

        def wrap(disk: FakeDisk) -> FaultFs:
            seen.append(FaultFs(disk))
            return seen[-1]

        run = Run(wrap=wrap)
        run.put("a", durability="fsync")
        run.put("b", durability="fsync")
        run.append("a", 2)
        seen[0].fault = fault
        with pytest.raises((OutcomeUnknown, Poisoned)):
            run.append("a", 1)
        syncs, writes = seen[0].calls["sync"], seen[0].calls["pwrite"]
        calls: list[Callable[[], Any]] = [
            lambda: run.engine.append("a", [{"data": 1}]),
            lambda: run.engine.append("b", [{"data": 1}]),
            lambda: run.engine.append("new", [{"data": 1}]),
            lambda: run.engine.delete("a", before_seq=2),
            lambda: run.engine.put_topic("c", {}),
            lambda: run.engine.delete_topic("a"),
            run.engine.sync,
            run.engine.checkpoint,
        ]
        for call in calls:
            with pytest.raises((OutcomeUnknown, Poisoned)):
                call()
        assert run.engine.diff("a").count == 2, "reads go on"
        run.engine.close()
        assert seen[0].calls["sync"] == syncs
        # At most the note for the next start was written.
        assert seen[0].calls["pwrite"] <= writes + len(calls) + 1
        run.disk.on_mutation = None
        run.ending = "crash"
        seen[0].fault = None
        run.open()
        run.judge()


def test_a_full_disk_rejects_reads_go_on_and_writes_resume() -> None:
    with deterministic(1):
        run = Run()
        run.put("a", durability="fsync")
        run.append("a", 3)
        run.disk.capacity_bytes = run.disk.used_bytes()
        error = None
        for turn in range(40):
            error = run.do(Operation("append", "a", run.records(1, size=900), f"t{turn}"))
            if error is not None:
                break
        assert isinstance(error, DiskFull)
        assert error.status == 507
        run.verify()
        run.delete("a", match="x")
        run.delete("a", before=3)
        run.verify()
        run.disk.capacity_bytes = None
        run.append("a", 2)
        run.checkpoint()
        run.reopen("crash")


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_start_on_a_full_disk_reads_deletes_and_writes_again_with_room(ending: Ending) -> None:
    """What earlier generations had allocated and did not use is room enough to begin."""
    with deterministic(1):
        run = Run(settings=WIDE)
        run.put("a", durability="fsync")
        run.append("a", 3)
        run.disk.capacity_bytes = run.disk.used_bytes()
        for _ in range(5):
            run.reopen(ending)
            run.delete("a", before=2)
        assert run.disk.used_bytes() <= run.disk.capacity_bytes
        error = run.do(Operation("append", "a", run.records(1, size=60_000)))
        assert isinstance(error, DiskFull)
        run.disk.capacity_bytes = None
        run.append("a", 3, size=20_000)
        run.reopen(ending)


def test_a_disk_without_any_room_refuses_to_start_with_a_typed_error() -> None:
    with deterministic(1):
        run = Run()
        run.put("a", durability="fsync")
        run.append("a", 3)
        disk = run.disk.crash(LOSE_ALL)
        disk.capacity_bytes = 0
        with pytest.raises(DiskFull):
            Engine.open("/data", clock=FakeClock(), fs=MonitorFs(disk), settings=SETTINGS)
        disk.capacity_bytes = None
        check_image(disk, run.model, "crash", run.clock.wall_ms(), SETTINGS)


def test_starts_that_are_cut_short_add_nothing_to_the_disk() -> None:
    """A generation that never became ready makes room for the next one."""
    with deterministic(1):
        run = Run()
        run.put("a", durability="fsync")
        run.append("a", 3)
        disk, used = run.disk.kill(), set()
        for turn in range(6):
            faulty = FaultFs(disk, Fault("pwrite", path_contains=".wal", nth=3))
            with pytest.raises(TopicsError):
                Engine.open("/data", clock=FakeClock(), fs=faulty, settings=SETTINGS)
            disk = disk.kill()
            if turn:
                used.add((disk.used_bytes(), *sorted(disk.files())))
        assert len(used) == 1
        check_image(disk, run.model, "kill", run.clock.wall_ms(), SETTINGS)


def test_what_is_left_of_a_group_without_room_is_neither_a_group_nor_damage() -> None:
    """Wherever the device was full inside of it, and whatever the log goes on with."""
    for short in (0, 1, 512, 1000, 4096, 8192):
        for ending in ENDINGS:
            with deterministic(1):
                run = Run(wrap=FaultFs, settings=WIDE)
                run.put("a", durability="fsync")
                run.append("a", 1)
                faults = run.monitor.inner
                fault = Fault("pwrite", path_contains=".wal", errno=errno.ENOSPC, short_bytes=short)
                faults.fault = fault
                large = Operation("append", "a", run.records(3, size=3000))
                assert isinstance(run.do(large), DiskFull)
                faults.fault = None
                run.append("a", 1)
                run.append("a", 6, size=9000)
                run.checkpoint()
                run.append("a", 1)
                run.reopen(ending)
