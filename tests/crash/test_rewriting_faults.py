"""A rewrite that fails, at any call and in any way, leaves everything as it was.

The new file is never written over an error, an old one never goes too early, nothing is poisoned by
what nobody needs yet, and what is damaged in the old file is neither copied as good nor dropped.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from tests.crash.harness.histories.memory import Memory
from tests.crash.harness.log_harness import COLD, SETTINGS, Run, deterministic
from tests.crash.harness.workflows import COLD_SETTINGS
from topics.errors import CorruptData, Poisoned, StoreUnreachable, TopicsError
from topics.settings import Settings
from topics.storage.segment import file_name
from topics.testing import FakeDisk, Fault, FaultFs
from topics.testing.modelcheck import require

ERRNOS = (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EROFS)
# Calls on the new segment while it is made.
CALLS = (
    ("create", 1), ("truncate", 1), ("pwrite", 1), ("pwrite", 2), ("sync", 1), ("rename", 1),
)  # fmt: skip
Failing = Callable[[FaultFs, str], None]


class Prepared:
    """Segments of which most is gone, flagged and known to two snapshots, and nothing unsealed."""

    def __init__(self, settings: Settings = SETTINGS) -> None:
        seen: list[FaultFs] = []

        def wrap(disk: FakeDisk) -> FaultFs:
            seen.append(FaultFs(disk))
            return seen[-1]

        self.run = run = Run(seed=3, settings=settings, wrap=wrap)
        run.put("a", durability="fsync")
        run.append("a", 12, size=60)
        run.append("b", 6)
        run.checkpoint()
        for tag in ("x", "y:*"):
            run.delete("a", match=tag)
        run.delete("b", before=3)
        run.checkpoint()
        run.checkpoint()
        self.faults = seen[0]
        self.new = file_name(run.engine.core.numbers.next_segment)
        live = run.engine.core.segments.live
        self.old = sorted(
            n for n, held in live.items() if held.dead_bytes * 3 >= held.payload_bytes
        )
        require(self.old != [], "there is nothing to rewrite")

    def is_rewritten(self) -> bool:
        return not set(self.old) & set(self.run.engine.core.segments.live)

    def settle(self) -> None:
        """The fault is over: space comes back, and everything is what it was."""
        run = self.run
        self.faults.fault = None
        run.verify()
        require(run.engine.poison is None, "it was poisoned")
        run.tidy()
        require(self.is_rewritten(), "it was not tried again")
        run.verify()
        left = [name for name in run.disk.files() if name.endswith(".tmp")]
        require(left == [], f"left behind: {left}")
        for name in "ab":
            run.rewrite(name)
        run.reopen("kill")
        run.reopen("crash")


def at_once(kind: str, nth: int, code: int) -> Failing:
    def arm(faults: FaultFs, new: str) -> None:
        faults.fault = Fault(
            kind, nth, code, path_contains=new, sync_effect="dropped",  # type: ignore[arg-type]
            short_bytes=100 if kind == "pwrite" else None,
        )  # fmt: skip

    return arm


CASES = [pytest.param(at_once(kind, nth, code), id=f"{kind}-{nth}-{errno.errorcode[code]}")
         for kind, nth in CALLS for code in ERRNOS]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("arm", CASES)
def test_maintenance_fails_quietly_and_tries_again(arm: Failing) -> None:
    """Whatever call on the new file fails: nothing has changed, and the next try works."""
    with deterministic(3):
        prepared = Prepared()
        arm(prepared.faults, prepared.new)
        prepared.run.tidy(3)
        fault = prepared.faults.fault
        require(fault is not None and fault.fired > 0, "it never failed")
        prepared.settle()


@pytest.mark.slow
@pytest.mark.parametrize("arm", CASES)
def test_a_call_is_told_why_and_may_be_repeated(arm: Failing) -> None:
    """It fails with a typed error, and what was asked for is done by the next one."""
    with deterministic(3):
        prepared = Prepared()
        arm(prepared.faults, prepared.new)
        with pytest.raises(TopicsError) as told:
            prepared.run.engine.rewrite("a")
        assert not isinstance(told.value, Poisoned)
        prepared.settle()


def test_a_directory_that_can_not_be_synced_leaves_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new segment has its name, and perhaps loses it again: it was never used."""
    with deterministic(3):
        prepared = Prepared()
        faults, disk = prepared.faults, prepared.run.disk

        def renaming(_index: int, operation: str, path: str) -> None:
            if operation == "rename" and prepared.new in path:
                disk.on_mutation = None
                faults.fault = Fault("sync_dir", path_contains="/seg")

        monkeypatch.setattr(disk, "on_mutation", renaming)
        prepared.run.tidy(2)
        fault = faults.fault
        require(fault is not None and fault.fired == 1, "it never failed")
        require(not prepared.is_rewritten(), "it is used")
        assert not any(name.endswith(prepared.new) for name in prepared.run.disk.files())
        prepared.settle()


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE])
def test_an_old_segment_that_can_not_be_read_now_is_read_later(code: int) -> None:
    """A read that fails is no damage."""
    with deterministic(3):
        prepared = Prepared()
        old = file_name(prepared.old[0])
        prepared.faults.fault = Fault("pread", 1, code, path_contains=old, forever=True)
        prepared.run.tidy(2)
        require(not prepared.is_rewritten(), "it was rewritten without being read")
        prepared.settle()


@pytest.mark.parametrize("call", range(1, 14))
def test_memory_that_runs_out_leaves_everything_as_it_was(call: int) -> None:
    """At any call of a codec, in a rewrite or in a checkpoint beside it."""
    with deterministic(3):
        prepared = Prepared()
        memory = Memory()
        with memory.watched():
            memory.fails_at = call
            try:
                prepared.run.tidy(3)
            except MemoryError:
                pass
        prepared.settle()


@pytest.mark.parametrize("kind", ["pread", "open"])
def test_a_cold_store_that_is_away_costs_time_only(kind: str) -> None:
    """Cold segments are rewritten when it is back; a call is told."""
    with deterministic(3):
        prepared = Prepared(COLD_SETTINGS)
        away = Fault(kind, path_contains=COLD + "/", forever=True)  # type: ignore[arg-type]
        prepared.faults.fault = away
        prepared.run.tidy(2)
        require(not prepared.is_rewritten(), "it was rewritten without the store")
        with pytest.raises(StoreUnreachable):
            prepared.run.engine.rewrite("a")
        prepared.settle()


def test_what_is_damaged_is_neither_copied_nor_dropped() -> None:
    """Its segment stays, others are rewritten; a call says that it can not promise anything."""
    with deterministic(3):
        prepared = Prepared()
        run = prepared.run
        core = run.engine.core
        held = core.by_name["a"].blocks[0].segment
        assert held is not None
        row = held.info.rows[0]
        file = run.disk.open(f"/data/seg/{file_name(held.number)}")
        file.pwrite(b"?????", row.end - 9)
        file.sync()
        file.close()
        before = run.disk.files()[f"/data/seg/{file_name(held.number)}"]
        run.tidy()
        assert held.number in core.segments.live
        assert run.disk.files()[f"/data/seg/{file_name(held.number)}"] == before
        with pytest.raises(CorruptData):
            run.engine.rewrite("a")
        run.engine.append("a", [{"data": "goes on"}])
