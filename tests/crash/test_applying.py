"""A committed group is applied whole: what can fail has failed before, for its own call only.

Faults in the middle: a read that fails while operations of several topics are applied, a frame that
can not be put together, no memory in a codec, an operation or an answer with a bug.
"""

from __future__ import annotations

import contextlib
import errno
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.engines import World
from topics.engine.commit.frame import Op
from topics.engine.commit.ticket import Ticket
from topics.engine.ops.cursors import Given
from topics.engine.state.write_request import request_of
from topics.errors import (
    CorruptData,
    DiskFull,
    OutcomeUnknown,
    Poisoned,
    StorageError,
    TopicsError,
    Unreadable,
)
from topics.storage import columns, frames
from topics.testing import FakeDisk, Fault, FaultFs

COLD_MEMORY: dict[str, Any] = {
    "wal_shards": 1, "resident_bytes": 0, "block_cache_bytes": 0, "block_bytes": 600,
}  # fmt: skip


def disk_of(world: World) -> FaultFs:
    assert isinstance(world.disk, FaultFs)
    return world.disk


def sealed_world() -> World:
    """Topics whose every kind of operation needs sealed blocks, beside one that needs none."""
    world = World(disk=FaultFs(FakeDisk()), **COLD_MEMORY)  # type: ignore[arg-type]
    engine = world.engine
    engine.put_topic("capped", {"durability": "disk", "cap_bytes": 2000})
    engine.put_topic("aged", {"durability": "disk", "ttl_ms": 1000})
    engine.put_topic("tagged", {"durability": "disk"})
    engine.put_topic("other", {"durability": "disk"})
    for number in range(10):
        for name in ("capped", "aged", "tagged"):
            engine.append(name, [{"data": "x" * 100, "tag": f"k{number}"}])
        world.clock.advance(100)
    engine.append("other", [{"data": 0}])
    engine.checkpoint()
    return world


def group(world: World) -> list[Ticket]:
    """One group with an operation of every topic; those that are refused have no ticket."""
    engine, tickets = world.engine, []
    submits: list[Callable[[], Any]] = [
        lambda: engine.submit_append("other", request_of([{"data": 1}])),
        lambda: engine.submit_append("capped", request_of([{"data": "z" * 900}])),
        lambda: engine.submit_delete("tagged", before_seq=None, match="k5"),
        lambda: engine.submit_delete("tagged", before_seq=3, match=None),
        lambda: engine.submit_append("aged", request_of([{"data": 1}])),
        lambda: engine.submit_put("capped", {"durability": "disk", "cap_bytes": 1500}).ticket,
        lambda: engine.submit_append("other", request_of([{"data": 2}, {"data": 3}])),
    ]
    for submit in submits:
        with contextlib.suppress(StorageError):
            tickets.append(submit())
    engine.flush()
    engine.sync()
    return tickets


def preads() -> int:
    world = sealed_world()
    before = disk_of(world).calls["pread"]
    group(world)
    return disk_of(world).calls["pread"] - before


@pytest.mark.parametrize("effect", ["error", "bit-flip"])
@pytest.mark.parametrize("forever", [False, True])
def test_a_read_that_fails_costs_its_own_call_and_nobody_else(effect: Any, forever: bool) -> None:
    """Whichever read it is: all tickets end, the others' writes are there, nothing is poisoned."""
    count = preads()
    assert count >= 4, "the group reads nothing: this tests nothing"
    for nth in range(1, count + 1):
        world = sealed_world()
        faults = disk_of(world)
        faults.fault = fault = Fault(
            "pread", nth, forever=forever, read_effect=effect, damage_at=40, path_contains=".seg"
        )
        tickets = group(world)
        assert fault.fired or forever
        assert all(ticket.done for ticket in tickets)
        faults.fault = None
        engine = world.engine
        assert [record.value for record in engine.diff("other").records] == [0, 1, 2, 3]
        assert engine.append("other", [{"data": 4}]).first_seq == 5
        deleted = {1, 2, 6} - {record.seq for record in engine.diff("tagged").records}
        floor = engine.state("capped").evict_floor
        world.disk = faults.inner.kill()  # type: ignore[attr-defined]
        engine = world.engine = world.open()
        assert [record.value for record in engine.diff("other").records] == [0, 1, 2, 3, 4]
        assert deleted.isdisjoint(record.seq for record in engine.diff("tagged").records)
        assert engine.state("capped").evict_floor == floor, "what was evicted came back, or more is"
        engine.close()


def rot(world: World) -> str:
    """One wrong bit in the block that the cap evicts from next; the segment's name."""
    block = world.engine.core.by_name["capped"].blocks[0]
    assert block.segment is not None
    assert block.row is not None
    number, at = block.segment.number, block.row.offset + 30
    inner: Any = disk_of(world).inner
    path: str = next(p for p in inner.files() if p.endswith(f"{number:08d}.seg"))
    file = inner.open(path)
    file.pwrite(bytes([file.pread(1, at)[0] ^ 1]), at)
    file.sync()
    file.close()
    return path


def test_a_rotten_block_costs_its_topic_and_not_the_start() -> None:
    world = sealed_world()
    rot(world)
    world.engine.append("capped", [{"data": "z" * 900}])
    floor = world.engine.state("capped").evict_floor
    assert floor > 1, "the cap has to evict from the rotten block"
    world.disk = disk_of(world).inner  # type: ignore[assignment]
    for _ in range(3):
        engine = world.restart("kill")
        assert engine.state("capped").evict_floor == floor
        assert engine.diff("other").count == 1
        assert engine.diff("tagged").count == 10
        with pytest.raises(CorruptData) as refused:
            engine.diff("capped")
        assert refused.value.code == "corrupt_data"
        with pytest.raises(CorruptData):
            engine.delete("capped", match="k9")
    engine.append("capped", [{"data": "w" * 1900}])
    assert engine.diff("capped").count == 1, "it is evicted like any other"
    assert engine.delete("capped", match="k9").deleted == 0
    engine.close()


def test_a_failed_read_has_a_code_of_its_own() -> None:
    world = sealed_world()
    disk_of(world).fault = Fault("pread", path_contains=".seg")
    with pytest.raises(Unreadable) as failed:
        world.engine.diff("tagged")
    assert (failed.value.code, failed.value.status) == ("unreadable", 503)
    assert world.engine.diff("tagged").count == 10


# -- putting a group together --------------------------------------------------------------------


class Failing:
    """Raises at the nth call, and passes the others on."""

    def __init__(self, real: Any, nth: int, error: BaseException) -> None:
        self._real, self._left, self._error = real, nth, error
        self.fired = False

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self._left -= 1
        if self._left == 0:
            self.fired = True
            raise self._error
        return self._real(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class FailingEntry:
    """The layout of a table entry, which the nth one does not fit."""

    def __init__(self, real: struct.Struct, nth: int, error: BaseException) -> None:
        self.size = real.size
        self.pack = Failing(real.pack, nth, error)


@contextlib.contextmanager
def failing(what: str, nth: int, error: BaseException) -> Iterator[Failing]:
    module, name = {
        "columns": (columns, "encode"),
        "group": (frames, "encode_group"),
        "entry": (frames, "ENTRY"),
    }[what]
    real = getattr(module, name)
    fake = FailingEntry(real, nth, error) if what == "entry" else Failing(real, nth, error)
    setattr(module, name, fake)
    try:
        yield fake.pack if isinstance(fake, FailingEntry) else fake
    finally:
        setattr(module, name, real)


def mixed(world: World, tickets: list[Ticket]) -> None:
    """Batches with keys and tags, singles that share a frame, a new topic, a delete, a cursor."""
    engine = world.engine
    calls: list[Callable[[], Any]] = [
        lambda: engine.submit_append("a", request_of([{"data": 1}], idempotency_key="k")),
        lambda: engine.submit_append("a", request_of([{"data": n, "tag": "t"} for n in (2, 3)])),
        lambda: engine.submit_append("b", request_of([{"data": 1}])),
        lambda: engine.submit_append("b", request_of([{"data": 2}])),
        lambda: engine.submit_append("e", request_of([{"data": 1, "node": "n"}])),
        lambda: engine.submit_append("new", request_of([{"data": 1, "tag": "t"}])),
        lambda: engine.submit_delete("a", before_seq=None, match="old"),
        lambda: engine.submit_put("b", {"durability": "disk", "cap_records": 5}).ticket,
    ]
    for call in calls:
        with contextlib.suppress(MemoryError, struct.error, TopicsError):
            tickets.append(call())
    engine.flush()
    engine.sync()


@pytest.mark.parametrize("what", ["columns", "group", "entry"])
@pytest.mark.parametrize("error", [MemoryError(), struct.error("too large")])
@pytest.mark.parametrize("durability", ["fsync", "disk", "memory"])
def test_what_can_not_be_put_together_leaves_nothing_behind(
    what: str, error: BaseException, durability: str
) -> None:
    """At whichever frame: no seq stays assigned, no key is remembered, the directory opens."""
    for nth in range(1, 30):
        world = World(wal_shards=1)
        engine = world.engine
        for name in ("a", "b"):
            engine.put_topic(name, {"durability": durability})
            engine.append(name, [{"data": 0, "tag": "old"}])
        engine.put_topic("e", {"durability": "ephemeral"})
        tickets: list[Ticket] = []
        with failing(what, nth, error) as fault:
            mixed(world, tickets)
        assert all(ticket.done for ticket in tickets)
        if not fault.fired:
            break
        core = engine.core
        assert core.pending_bytes == 0
        for topic in core.by_id.values():
            assert topic.next_seq == topic.head + 1, "seqs were left behind"
            assert not topic.gated
        again = engine.append("a", [{"data": 1}], idempotency_key="k")
        assert engine.diff("a", from_seq=again.first_seq - 1).records[0].value == 1
        for name in ("a", "b", "e", "new"):
            engine.append(name, [{"data": 9}])
        seen = {name: [(r.seq, r.value) for r in engine.diff(name).records] for name in "ab"}
        engine = world.restart("kill")
        assert seen == {
            name: [(r.seq, r.value) for r in engine.diff(name).records] for name in "ab"
        }
        engine.close()
    else:
        raise AssertionError("more calls than expected: the last ones were not failed")


def _twice(call: Callable[[], Any]) -> Any:
    call()
    return call()


BEHIND_CREATION: dict[str, Callable[[World], Any]] = {
    "another class": lambda w: w.engine.submit_put("new", {"durability": "fsync"}).ticket,
    "leases": lambda w: (
        w.engine.submit_put("new", {"type": "queue", "leases_durable": True}).ticket
    ),
    "a cursor moved": lambda w: _twice(
        lambda: w.engine.submit_put_cursor("new", "r", Given(seq=0, reset=True, hold=None))
    ),
    "a key repeated": lambda w: _twice(
        lambda: w.engine.submit_append("new", request_of([{"data": 1}], idempotency_key="k"))
    ),
    "keys repeated": lambda w: _twice(
        lambda: w.engine.submit_append("new", request_of([{"data": 1}] * 2, idempotency_key="k"))
    ),
    "promotion": lambda w: w.engine.submit_put("gone", {"durability": "fsync"}).ticket,
    "resident": lambda w: w.engine.submit_append("gone", request_of([{"data": 1}])),
}


@pytest.mark.parametrize("what", BEHIND_CREATION)
def test_nothing_is_written_for_a_topic_whose_creation_was_refused(what: str) -> None:
    """Whoever finds that out half way is refused too; the log has no frame without a topic."""
    world = World(disk=FaultFs(FakeDisk()), wal_shards=1)  # type: ignore[arg-type]
    engine = world.engine
    engine.submit_put("new", {"type": "queue"} if what == "leases" else {"durability": "disk"})
    engine.submit_put("gone", {"durability": "ephemeral"})
    full = disk_of(world).fault = Fault("pwrite", errno=errno.ENOSPC, path_contains=".wal")
    ticket = BEHIND_CREATION[what](world)
    engine.sync()
    assert full.fired == 1
    assert isinstance(ticket.error, DiskFull)
    assert engine.core.pending_bytes == 0
    assert not engine.list_topics()
    assert not world.restart("clean").list_topics()


# -- bugs ----------------------------------------------------------------------------------------


def test_an_operation_that_can_not_be_applied_ends_the_process() -> None:
    """Everybody in its group and behind it is answered, and the next process has all of it."""
    world = World(wal_shards=2)
    engine = world.engine
    for name in ("a", "b"):
        engine.put_topic(name, {"durability": "disk"})
    before = engine.submit_append("a", request_of([{"data": 0}]))
    topic = engine.core.by_name["a"]

    def broken() -> None:
        raise KeyError("a bug")

    op = Op(topic, frames.FLOOR, broken, gated=False, ticket=Ticket())
    engine.core.committer.stage(op)
    behind, elsewhere = (
        engine.submit_append(name, request_of([{"data": 1}])) for name in ("a", "b")
    )
    with pytest.raises(Poisoned, match="a bug"):
        engine.sync()
    assert before.done
    assert op.ticket is not None
    assert isinstance(op.ticket.error, OutcomeUnknown)
    assert isinstance(behind.error, OutcomeUnknown)
    assert elsewhere.done
    with pytest.raises(Poisoned):
        engine.append("b", [{"data": 2}])
    engine.close()
    engine = world.restart("kill")
    assert engine.diff("a").count == 2


def test_an_answer_that_fails_keeps_nobody_else_from_theirs() -> None:
    world = World(wal_shards=1)
    engine = world.engine
    for name in ("a", "b"):
        engine.put_topic(name, {"durability": "disk"})
    first, second = (engine.submit_append(name, request_of([{"data": 0}] * 2)) for name in "ab")

    def stumble(_ticket: Ticket) -> None:
        raise ValueError("nobody listens")

    first.callback = stumble
    with pytest.raises(ValueError, match="nobody listens"):
        engine.flush()
    engine.sync()
    assert second.result.last_seq == 2
    assert engine.append("a", [{"data": 1}]).first_seq == 3
