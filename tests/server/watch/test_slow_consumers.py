"""A reader that does not keep up costs nobody else anything, and is told what it missed.

While it takes nothing, nothing is buffered for it beyond a bound. What it could not be sent joins
the next frames; what its topic has lost meanwhile it is told; if it takes nothing for too long its
stream ends, and its session goes on without a loss of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.server.watch.conftest import stream, watch
from tests.support.servers import Client, Inside, inside
from tests.support.streams import Event, EventSource, Socket

GRACE_MS, TIMEOUT_MS = 300, 1500
PAD = "x" * 60_000
# Enough to fill the sockets' buffers on both sides.
COUNT = 250


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    with inside(
        tmp_path_factory.mktemp("strict"),
        TOPICS_BUFFER_GRACE_MS=str(GRACE_MS),
        TOPICS_SLOW_CONSUMER_TIMEOUT_MS=str(TIMEOUT_MS),
    ) as served:
        yield served


@pytest.fixture
def writer(strict: Inside) -> Iterator[Client]:
    with strict.client() as client:
        yield client


def fill(client: Client, topic: str, count: int = COUNT) -> None:
    for _ in range(count // 10):
        client.write(topic, *[PAD] * 10)


def seqs(events: list[Event]) -> list[int]:
    return [r["$seq"] for e in events if e.name == "record" for r in e.data["records"]]


def wait_until_slow(strict: Inside, count: int = 1) -> None:
    strict.wait_until(lambda: len(strict.services.delivery.slow) >= count)


@pytest.mark.slow
def test_a_reader_that_stops_loses_its_stream_and_nothing_else(
    strict: Inside, writer: Client, topic: str
) -> None:
    writer.write(topic, 0)
    session = watch(writer, {topic: {}})
    with EventSource(writer.port, session["stream_url"], receive_bytes=4096) as events:
        read = events.until("caught-up")
        fill(writer, topic)
        wait_until_slow(strict)
        strict.wait_until(lambda: strict.services.delivery.connections == 0)
        # What was on its way still arrives, then the reason, then the end.
        read += list(events.events())
        assert events.is_ended
    told = read.pop()
    assert (told.name, told.data["code"]) == ("error", 408)
    assert told.data["topics"] == [topic]
    with EventSource(writer.port, session["stream_url"], last_id=told.id) as events:
        read += events.until("caught-up")
    assert seqs(read) == list(range(1, COUNT + 2))


@pytest.mark.slow
def test_a_web_socket_that_is_not_read_ends_too(strict: Inside, writer: Client, topic: str) -> None:
    writer.write(topic, 0)
    with Socket(writer.port, max_queue=1) as socket:
        socket.ask("subscribe", topic=topic)
        socket.until("caught_up")
        # The client library stops reading when nobody takes its messages.
        fill(writer, topic)
        wait_until_slow(strict)
        strict.wait_until(lambda: strict.services.delivery.connections == 0)
        assert socket.next("error")["code"] == "throttled"


def test_the_others_are_served_meanwhile(strict: Inside, writer: Client, topic: str) -> None:
    writer.write(topic, 0)
    url = watch(writer, {topic: {}})["stream_url"]
    with EventSource(writer.port, url, receive_bytes=4096), stream(writer, {topic: {}}) as fast:
        fast.until("caught-up")
        began, seen = time.monotonic(), 1
        for _ in range(COUNT // 10):
            head = writer.write(topic, *[PAD] * 10).json["last_seq"]
            while seen < head:
                seen = fast.next("record").data["to_seq"]
        wait_until_slow(strict)
        assert time.monotonic() - began < 5
        # Bounded: a full buffer and one frame, not all that it has missed.
        assert 0 < strict.run(lambda: strict.server.unsent.held_bytes) < 2_000_000


def test_what_is_missed_is_told_as_to_one_that_connects(
    strict: Inside, writer: Client, topic: str
) -> None:
    """Of a capped topic, past the grace: every seq is delivered or within a gap, in order."""
    writer.put(f"/v0/topics/{topic}", {"cap_records": 20})
    url = watch(writer, {topic: {}})["stream_url"]
    with EventSource(writer.port, url, receive_bytes=4096) as events:
        events.until("caught-up")
        fill(writer, topic)
        wait_until_slow(strict)
        time.sleep(GRACE_MS / 1000 + 0.2)
        fill(writer, topic, 40)
        cursor, reasons, sizes = 0, [], []
        while cursor < COUNT + 40:
            event = events.next("record", "tombstone")
            if event.name == "tombstone":
                assert event.data["gap_from"] == cursor + 1
                cursor = event.data["gap_to"]
                reasons.append(event.data["reason"])
            else:
                assert seqs([event])[0] == cursor + 1
                cursor = event.data["to_seq"]
                sizes.append(len(event.data["records"]))
    assert reasons[-1] == "from_seq_too_old"
    assert set(reasons) <= {"cap", "from_seq_too_old"}


@pytest.mark.slow
def test_a_reader_that_pauses_gets_more_at_once(strict: Inside, writer: Client, topic: str) -> None:
    """Within the grace nothing is lost; what was written meanwhile comes in fewer frames."""
    writer.write(topic, 0)
    url = watch(writer, {topic: {}}, max_batch_bytes=1_000_000)["stream_url"]
    with EventSource(writer.port, url, receive_bytes=4096) as events:
        events.until("caught-up")
        for _ in range(COUNT):
            writer.write(topic, PAD)
        wait_until_slow(strict)
        read = []
        while not read or read[-1].data["to_seq"] < COUNT + 1:
            read.append(events.next("record"))
    assert seqs(read) == list(range(2, COUNT + 2))
    assert max(len(event.data["records"]) for event in read) > 5
