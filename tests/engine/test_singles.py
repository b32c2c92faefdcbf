"""Single records that are written together: one frame, yet each with a seq and an outcome."""

from __future__ import annotations

import pytest

from tests.support.engines import World, values
from topics.engine.commit.ticket import Ticket
from topics.engine.ops.singles import SinglesFrame
from topics.engine.state.write_request import request_of
from topics.errors import DiskFull, StorageError, TopicFull
from topics.testing import FakeDisk
from topics.types import Appended

CLASSES = ("fsync", "disk", "memory", "ephemeral")


def submit(world: World, value: object, topic: str = "t") -> Ticket:
    return world.engine.submit_append(topic, request_of([{"data": value}]))


def frames(world: World) -> int:
    return world.engine.wal_stats.frames_total


@pytest.mark.parametrize("durability", CLASSES)
def test_each_of_them_has_its_own_answer(durability: str) -> None:
    """Seqs in the order of the calls, one each."""
    world = World()
    world.engine.put_topic("t", {"durability": durability})
    tickets = [submit(world, n) for n in range(5)]
    world.engine.sync()
    answers: list[Appended] = [ticket.result for ticket in tickets]
    assert [(a.first_seq, a.last_seq, a.count) for a in answers] == [(n, n, 1) for n in range(1, 6)]
    assert [answer.head_seq for answer in answers] == [1, 2, 3, 4, 5]
    assert values(world.engine.diff("t")) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("durability", ["fsync", "memory"])
def test_those_of_one_turn_share_a_frame_and_survive_as_they_were(durability: str) -> None:
    """One frame in the log, and the same bytes for readers before and after a kill."""
    world = World()
    world.engine.put_topic("t", {"durability": durability})
    world.engine.sync()
    before = frames(world)
    for n in range(20):
        submit(world, {"n": n})
    world.engine.sync()
    assert frames(world) - before == 1
    page = world.engine.diff("t").records_json
    world.restart("kill")
    assert world.engine.diff("t").records_json == page


def test_another_write_in_between_keeps_its_place() -> None:
    """What is staged between two of them ends the frame: the log has the order of the calls."""
    world = World()
    world.engine.put_topic("t", {"durability": "fsync"})
    world.engine.sync()
    before = frames(world)
    submit(world, 1)
    submit(world, 2)
    world.engine.submit_append("t", request_of([{"data": 3}, {"data": 4}]))
    submit(world, 5)
    world.engine.sync()
    assert frames(world) - before == 3
    for _ in range(2):
        assert values(world.engine.diff("t")) == [1, 2, 3, 4, 5]
        world.restart("kill")


def test_a_later_millisecond_has_a_frame_of_its_own() -> None:
    """A frame has one time; a record is not told to be older than it is."""
    world = World()
    world.engine.put_topic("t", {"durability": "memory"})
    first = submit(world, 1)
    world.clock.advance(5)
    second = submit(world, 2)
    world.engine.sync()
    assert second.result.ts - first.result.ts == 5


def test_a_cap_that_rejects_counts_those_on_their_way() -> None:
    """The one that does not fit is refused before it has a seq; the others are not touched."""
    world = World()
    world.engine.put_topic("t", {"cap_records": 3, "discard": "reject"})
    for n in range(3):
        submit(world, n)
    with pytest.raises(TopicFull):
        submit(world, 3)
    world.engine.sync()
    assert values(world.engine.diff("t")) == [0, 1, 2]


def test_a_full_disk_rejects_all_of_them_and_gives_their_seqs_back() -> None:
    """Nothing happened: the next write has the seq that the first of them would have had."""
    world = World(disk=FakeDisk())
    world.engine.put_topic("t", {"durability": "memory"})
    world.fill("t", 1)
    world.disk.capacity_bytes = world.disk.used_bytes()
    tickets = [submit(world, "x" * 30_000) for _ in range(3)]
    world.engine.flush()
    assert all(isinstance(ticket.error, DiskFull) for ticket in tickets)
    assert world.engine.core.pending_bytes == 0
    world.disk.capacity_bytes = None
    assert world.engine.append("t", [{"data": 1}]).first_seq == 2


def test_none_joins_a_frame_that_could_not_be_put_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without memory for it all of them are refused, and the next write begins anew."""
    world = World()
    for topic in ("a", "t"):
        world.engine.put_topic(topic, {"durability": "memory"})
    core = world.engine.core

    def fail(_frame: SinglesFrame) -> bytes:
        raise MemoryError

    monkeypatch.setattr(SinglesFrame, "entry", fail)
    refused = [submit(world, 1, "a"), submit(world, 1), submit(world, 2)]
    world.engine.flush()
    monkeypatch.undo()
    assert all(isinstance(ticket.error, StorageError) for ticket in refused)
    assert core.pending_bytes == 0
    written = submit(world, 3)
    world.engine.flush()
    assert written.result.first_seq == 1
    assert values(world.engine.diff("t")) == [3]
