"""Feeds: every reader gets every frame once and in order, rendered once for all who look alike.

The disk and its syncs belong to the test: what is durable is known exactly.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from tests.support.engines import World
from topics.engine.reading.feeds import Feeds
from topics.engine.reading.pages import View
from topics.engine.reading.scheduler import TURN_FRAMES_MAX, Scheduler
from topics.engine.reading.watch import StreamFrame, Subscription, WatchCursor, WatchOptions
from topics.engine.state.segments import ColdMiss
from topics.errors import CorruptData


class Reader:
    """A sink that keeps what it is told; `is_writable` is up to the test."""

    def __init__(self, watching: Watching, *names: str, **look: Any) -> None:
        self.watching = watching
        self.is_writable = True
        self.frames: list[StreamFrame] = []
        self.failures: list[tuple[Exception, bool]] = []
        places = {}
        for name in names:
            state = watching.world.engine.state(name)
            places[name] = (look.pop("from_seq", 0), state.epoch)
        is_strong = look.pop("is_strong", False)
        limit = look.pop("limit", 256)
        shape = WatchOptions.of(View(**look), limit=limit, bytes_max=1 << 20, is_strong=is_strong)
        self.subscription = Subscription(shape, tells_too_old=True)
        self.subscription.add(places)
        self.attach()

    def attach(self) -> None:
        self.watching.feeds.attach(self.subscription, self)

    def detach(self) -> None:
        self.watching.feeds.detach(self.subscription)

    def resume(self) -> None:
        self.is_writable = True
        self.watching.feeds.resume(self.subscription)

    def deliver(self, cursor: WatchCursor, frames: Sequence[StreamFrame]) -> int:
        assert self.is_writable
        self.frames += frames
        return sum(len(frame.body) for frame in frames)

    def paced(self, name: str, retry_after_ms: int) -> None:
        pass

    def fail(self, cursor: WatchCursor, error: Exception, *, is_final: bool) -> None:
        self.failures.append((error, is_final))

    @property
    def events(self) -> list[str]:
        return [frame.event for frame in self.frames]

    @property
    def seqs(self) -> list[int]:
        records = [json.loads(b"{" + f.body) for f in self.frames if f.event == "record"]
        return [record["$seq"] for frame in records for record in frame["records"]]


class Watching:
    def __init__(self, world: World) -> None:
        self.world = world
        self.scheduler = Scheduler(world.clock, lambda: None)
        self.feeds = Feeds(world.engine.core, self.scheduler)
        world.engine.on_published(self.feeds.published)

    def turn(self) -> None:
        while self.scheduler.turn():
            pass


@pytest.fixture
def watching(world: World) -> Watching:
    world.engine.put_topic("t")
    return Watching(world)


@pytest.fixture
def world() -> World:
    return World()


# -- sharing ---------------------------------------------------------------------------------------


def test_readers_who_look_alike_share_what_was_rendered(watching: Watching) -> None:
    """A frame is serialised once for all readers at the same place with the same view."""
    alike = [Reader(watching, "t") for _ in range(3)]
    tagged = Reader(watching, "t", include_tags=True)
    watching.turn()
    watching.world.engine.append("t", [{"data": 1, "tag": "a"}])
    watching.turn()
    frames = {id(reader.frames[-1]) for reader in alike}
    assert len(frames) == 1
    assert id(tagged.frames[-1]) not in frames
    assert b'"$tag":"a"' in tagged.frames[-1].body


def test_a_record_that_was_deleted_is_shown_to_nobody_any_more(watching: Watching) -> None:
    """Not even from what was rendered for others a moment ago."""
    readers = [Reader(watching, "t") for _ in range(TURN_FRAMES_MAX + 10)]
    watching.turn()
    watching.world.engine.append("t", [{"data": 1}, {"data": 2, "tag": "secret"}])
    assert watching.scheduler.turn()
    watching.world.engine.delete("t", match="secret")
    watching.turn()
    assert readers[0].seqs == [1, 2]
    assert readers[-1].seqs == [1]


def test_a_turn_serves_a_bounded_number_of_readers(watching: Watching) -> None:
    """A turn ends at its budget, and what is written meanwhile joins the frames of who waits."""
    readers = [Reader(watching, "t") for _ in range(3 * TURN_FRAMES_MAX)]
    watching.turn()
    watching.world.fill("t", 1)
    watching.scheduler.turn()
    assert sum(bool(reader.seqs) for reader in readers) <= TURN_FRAMES_MAX
    # What comes meanwhile joins the frames of those who still wait.
    watching.world.fill("t", 1)
    watching.turn()
    assert all(reader.seqs == [1, 2] for reader in readers)
    assert readers[0].events.count("record") == 2
    assert readers[-1].events.count("record") == 1


def test_topics_are_served_by_their_effective_priority(world: World) -> None:
    """Manual before automatic, and one that has waited long enough before either."""
    for name, config in (("low", {"priority": -300}), ("auto", {}), ("high", {"priority": 900})):
        world.engine.put_topic(name, config)
    watching = Watching(world)
    readers = {name: Reader(watching, name) for name in ("low", "auto", "high")}
    watching.turn()
    order: list[str] = []
    for name, reader in readers.items():
        reader.deliver = partial(_note, order, name)  # type: ignore[method-assign]
    for name in readers:
        world.fill(name, 1)
    watching.turn()
    assert order == ["high", "auto", "low"]
    order.clear()
    world.fill("low", 1)
    world.clock.advance(10_000)
    watching.scheduler.tick()
    world.fill("auto", 1)
    watching.turn()
    assert order == ["low", "auto"]


def _note(order: list[str], name: str, _cursor: WatchCursor, _frames: Sequence[StreamFrame]) -> int:
    order.append(name)
    return 1


# -- coming and going ------------------------------------------------------------------------------


def test_a_reader_goes_on_where_it_was(watching: Watching) -> None:
    """A subscription that pauses keeps its cursors, and resumes without loss or repetition."""
    reader = Reader(watching, "t")
    watching.world.fill("t", 2)
    watching.turn()
    reader.detach()
    assert len(watching.feeds) == 0
    watching.world.fill("t", 2)
    watching.turn()
    assert reader.seqs == [1, 2]
    reader.attach()
    watching.turn()
    assert reader.seqs == [1, 2, 3, 4]
    assert reader.events == ["record", "caught-up", "record", "caught-up"]


def test_one_who_leaves_and_returns_within_a_turn_gets_nothing_twice(watching: Watching) -> None:
    """Leaving and returning before being served delivers everything once."""
    reader = Reader(watching, "t")
    watching.world.fill("t", 1)
    reader.detach()
    reader.attach()
    reader.detach()
    reader.attach()
    watching.turn()
    assert reader.seqs == [1]
    assert reader.events.count("caught-up") == 1


def test_a_reader_that_takes_nothing_keeps_its_place(watching: Watching) -> None:
    """A full sink holds up nobody else, and goes on from its own place when it drains."""
    reader, other = Reader(watching, "t"), Reader(watching, "t")
    watching.turn()
    reader.is_writable = False
    watching.world.fill("t", 3)
    watching.turn()
    assert other.seqs == [1, 2, 3]
    assert reader.seqs == []
    reader.resume()
    watching.turn()
    assert reader.seqs == [1, 2, 3]
    assert reader.events == ["caught-up", "record"]


def test_a_dropped_topic_is_told_to_those_who_did_not_listen_too(watching: Watching) -> None:
    """Every reader of a dropped topic is told so, and of the new instance when it comes back."""
    reader, deaf = Reader(watching, "t"), Reader(watching, "t")
    watching.world.fill("t", 2)
    watching.turn()
    deaf.is_writable = False
    watching.world.engine.delete_topic("t")
    watching.world.fill("t", 1)
    watching.turn()
    assert reader.events[-1] == "topic-deleted"
    assert deaf.events[-1] == "caught-up"
    deaf.resume()
    watching.turn()
    assert deaf.events[-1] == "topic-deleted"
    # Both hear of the new instance when they come back.
    for each in (reader, deaf):
        each.detach()
        each.attach()
    watching.turn()
    assert reader.events[-3:] == deaf.events[-3:] == ["tombstone", "record", "caught-up"]


def test_a_topic_leaves_no_trace_when_its_last_reader_does(watching: Watching) -> None:
    """Without readers a topic has no feed and nothing to be scheduled."""
    readers = [Reader(watching, "t", is_strong=True) for _ in range(3)]
    watching.world.fill("t", 1)
    readers[1].is_writable = False
    watching.turn()
    for reader in readers:
        reader.detach()
    assert len(watching.feeds) == len(watching.scheduler) == 0


# -- consistency -----------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["disk", "memory"])
def test_a_strong_reader_sees_what_is_durable(world: World, durability: str) -> None:
    """Published records reach it when the log has been synced past them, not before."""
    world.engine.put_topic("t", {"durability": durability})
    world.fill("t", 1)
    world.engine.sync()
    watching = Watching(world)
    strong, eventual = Reader(watching, "t", is_strong=True), Reader(watching, "t")
    watching.turn()
    assert strong.seqs == eventual.seqs == [1]
    world.fill("t", 2)
    watching.turn()
    assert eventual.seqs == [1, 2, 3]
    assert strong.seqs == [1]
    world.engine.sync()
    watching.turn()
    assert strong.seqs == [1, 2, 3]
    world.fill("t", 1)
    watching.turn()
    assert strong.seqs == [1, 2, 3]
    assert json.loads(b"{" + strong.frames[-1].body)["head_seq"] == 3


def test_a_strong_reader_that_connects_waits_for_what_is_on_its_way(watching: Watching) -> None:
    """A strong reader is shown nothing that is not known to be durable."""
    watching.world.fill("t", 3)
    watching.world.engine.sync()
    watching.world.fill("t", 2)
    strong = Reader(watching, "t", is_strong=True)
    watching.turn()
    assert strong.seqs == []
    watching.world.engine.sync()
    watching.turn()
    assert strong.seqs == [1, 2, 3, 4, 5]
    assert strong.events[-1] == "caught-up"


@pytest.mark.parametrize("durability", ["fsync", "ephemeral"])
def test_where_published_is_all_there_is_strong_is_eventual(world: World, durability: str) -> None:
    """Of class fsync and ephemeral a strong reader sees records once they are published."""
    world.engine.put_topic("t", {"durability": durability})
    watching = Watching(world)
    strong = Reader(watching, "t", is_strong=True)
    watching.turn()
    world.fill("t", 2)
    watching.turn()
    assert strong.seqs == [1, 2]


def test_a_gap_beyond_what_is_durable_waits_with_it(world: World) -> None:
    """A strong reader is not told of a loss beyond the durable head before that is reached."""
    world.engine.put_topic("t", {"cap_records": 2})
    world.engine.sync()
    watching = Watching(world)
    strong = Reader(watching, "t", is_strong=True)
    watching.turn()
    world.fill("t", 5)
    watching.turn()
    assert strong.events == ["caught-up"]
    world.engine.sync()
    watching.turn()
    assert strong.events == ["caught-up", "tombstone", "record"]
    assert strong.seqs == [4, 5]


# -- storage that is slow or broken ----------------------------------------------------------------


def test_a_read_from_the_cold_store_keeps_nobody_waiting(watching: Watching) -> None:
    """The reader that needs it waits; others go on; a failure is told and tried again."""
    watching.world.fill("t", 3)
    core, feeds = watching.world.engine.core, watching.feeds
    block = core.by_name["t"].blocks[0]
    fetches: list[Callable[[BaseException | None], None]] = []
    load = feeds.load_now
    is_cold = True

    def load_now(wanted: Any) -> Any:
        if is_cold:
            raise ColdMiss(block)
        return load(wanted)

    feeds.load_now = load_now
    feeds.fetch = lambda _miss, done: fetches.append(done)
    behind = [Reader(watching, "t") for _ in range(2)]
    live = Reader(watching, "t", from_seq=3)
    watching.turn()
    assert len(fetches) == 1
    assert live.events == ["caught-up"]
    fetches.pop()(OSError("the store is away"))
    assert [is_final for reader in behind for _, is_final in reader.failures] == [False, False]
    feeds.tick()
    watching.turn()
    is_cold = False
    fetches.pop()(None)
    watching.turn()
    assert [reader.seqs for reader in behind] == [[1, 2, 3]] * 2


def test_what_can_not_be_read_ends_its_reader(watching: Watching) -> None:
    """Damaged records are told as a failure and never passed over."""
    watching.world.fill("t", 1)

    def load_now(_block: Any) -> Any:
        raise CorruptData("checksum")

    watching.feeds.load_now = load_now
    reader = Reader(watching, "t")
    watching.turn()
    ((error, is_final),) = reader.failures
    assert isinstance(error, CorruptData)
    assert is_final
    assert len(watching.feeds) == 0
