"""/work: jobs are pushed up to `max`, replaced as they are finished, and given back at the end."""

from __future__ import annotations

import itertools
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.server.queues.conftest import Queue, jobs_of
from tests.support.servers import Inside, inside
from tests.support.streams import EventSource
from topics.engine.queues import claims
from topics.server.loop import delivery
from topics.server.queues import desk, work_stream

Beside = Callable[..., Future[Any]]
Waiting = Callable[[Queue, int], None]


def seqs(events: EventSource, count: int) -> list[int]:
    return [job["$seq"] for job in jobs_of(events, count)]


# -- opening ---------------------------------------------------------------------------------------


def test_a_stream_opens_with_a_retry_and_a_heartbeat(queue: Queue) -> None:
    with queue.work("w") as events:
        assert events.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert events.headers["cache-control"] == "no-store"
        assert events.headers["x-accel-buffering"] == "no"
        queue.fill("a")
        events.next("job")
        assert events.retries == [2000]
        assert len(events.comments) == 1
        assert re.fullmatch(r"hb \d{13}", events.comments[0][1])


def test_a_job_is_pushed_as_it_would_be_claimed(queue: Queue) -> None:
    record = {"data": {"n": 1}, "tag": "t", "node": "p", "meta": {"k": "v"}}
    queue.client.post(queue.path, {"records": [record]})
    with queue.work("w", "lease_ms=5000") as events:
        event = events.next("job")
    job = event.data
    assert event.id == "1"
    assert job["topic"] == queue.name
    assert (job["$seq"], job["$tag"], job["$node"], job["meta"]) == (1, "t", "p", {"k": "v"})
    assert (job["data"], job["deliveries"]) == ({"n": 1}, 1)
    assert re.fullmatch(r"lease_[0-9a-f]+", job["lease_id"])
    assert abs(job["deadline"] - 5000 - time.time() * 1000) < 2000


def test_head_opens_nothing(queue: Queue) -> None:
    queue.fill("a")
    path = f"{queue.path}/work?node=w"
    with EventSource(queue.client.port, path, method="HEAD") as head:
        assert head.status == 200
    assert queue.counts == (1, 0, 0)


# -- pushing ---------------------------------------------------------------------------------------


def test_one_job_at_a_time_unless_it_says_more(queue: Queue) -> None:
    queue.fill("a", "b")
    with queue.work("w") as events:
        assert seqs(events, 1) == [1]
        assert queue.counts == (1, 1, 0)


@pytest.mark.parametrize("leases_durable", [False, True])
@pytest.mark.parametrize("durability", ["ephemeral", "disk", "fsync"])
def test_no_more_than_max_and_refilled_by_acks(
    queue: Queue, durability: str, leases_durable: bool
) -> None:
    queue.configure(durability=durability, leases_durable=leases_durable)
    with queue.work("w", "max=3") as events:
        queue.fill(*range(10))
        assert seqs(events, 3) == [1, 2, 3]
        assert queue.counts == (7, 3, 0)
        queue.ack("w", 2)
        assert seqs(events, 1) == [4]
        queue.ack("w", 1, 3, 4)
        assert seqs(events, 3) == [5, 6, 7]
        assert queue.counts == (3, 3, 0)


def test_max_is_clamped(queue: Queue) -> None:
    queue.fill(*range(1200))
    with queue.work("w", "max=9999") as events:
        assert len(seqs(events, 1000)) == 1000
        assert queue.counts == (200, 1000, 0)


def test_a_stream_is_filled_whatever_its_jobs_weigh(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass has a budget of bytes for each stream; while there is room, there is another pass."""
    monkeypatch.setattr(claims, "BYTES_MAX", 1000)
    queue.fill(*["x" * 400] * 20)
    with queue.work("w", "max=12") as events:
        assert seqs(events, 12) == list(range(1, 13))
        assert queue.counts == (8, 12, 0)
        with queue.work("v", "max=100") as others:
            assert seqs(others, 8) == list(range(13, 21))


def test_a_nack_makes_room_too(queue: Queue) -> None:
    queue.fill("a", "b")
    with queue.work("w") as events:
        assert seqs(events, 1) == [1]
        queue.nack("w", 1, delay_ms=60_000)
        assert seqs(events, 1) == [2]


def test_an_expired_lease_makes_room_and_comes_again(queue: Queue) -> None:
    queue.fill("a")
    with queue.work("w", "lease_ms=100") as events:
        deliveries = [job["deliveries"] for job in jobs_of(events, 3)]
    assert deliveries == [1, 2, 3]


def test_an_extended_lease_keeps_its_room(queue: Queue) -> None:
    queue.fill("a", "b")
    with queue.work("w", "lease_ms=300") as events:
        (job,) = jobs_of(events, 1)
        queue.extend("w", 1, lease_ms=600)
        # The next one comes when the extended lease has ended, and not before.
        (again,) = jobs_of(events, 1)
        assert time.time() * 1000 >= job["deadline"] + 250
        assert (again["$seq"], again["deliveries"]) == (1, 2)


def test_a_lease_that_ends_while_nobody_has_room_is_looked_at_once(
    queue: Queue, server: Inside
) -> None:
    """The desk's timer then stands at the end of the next lease, and not in the past."""
    queue.fill("held", "polled")
    with queue.work("w", "lease_ms=60000") as events:
        assert seqs(events, 1) == [1]
        assert queue.claim_seqs("other", lease_ms=100) == [2]
        desk = server.app.desks.by_name[queue.name]
        server.wait_until(lambda: desk.timer_s > server.services.clock.monotonic_s() + 10)
        assert queue.counts == (1, 1, 0)


def test_a_deleted_job_makes_room(queue: Queue) -> None:
    queue.fill("a", "b")
    with queue.work("w") as events:
        assert seqs(events, 1) == [1]
        queue.client.post(f"{queue.path}/delete", {"before_seq": 2})
        assert seqs(events, 1) == [2]


def test_an_evicted_job_makes_room(queue: Queue) -> None:
    queue.configure(cap_records=2)
    queue.fill("a")
    with queue.work("w") as events:
        assert seqs(events, 1) == [1]
        queue.fill("b", "c")
        assert seqs(events, 1) == [2]


def test_several_streams_share_what_comes(queue: Queue) -> None:
    with queue.work("w1", "max=10") as one, queue.work("w2", "max=10") as other:
        queue.fill(*range(10))
        found = seqs(one, 5) + seqs(other, 5)
        assert sorted(found) == list(range(1, 11))


def test_streams_of_one_node_are_told_apart(queue: Queue) -> None:
    with queue.work("w") as one:
        queue.fill("a", "b")
        assert seqs(one, 1) == [1]
        with queue.work("w") as other:
            assert seqs(other, 1) == [2]
        assert queue.claim("x", wait_ms=10_000)[0]["$seq"] == 2


# -- the end ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("leases_durable", [False, True])
def test_a_disconnect_gives_jobs_back_at_once(queue: Queue, leases_durable: bool) -> None:
    """What was delivered on the stream, and nothing that its node claimed in another way."""
    queue.configure(lease_ms=60_000, leases_durable=leases_durable)
    queue.fill("polled", "pushed", "pushed")
    assert queue.claim_seqs("w") == [1]
    with queue.work("w", "max=2") as events:
        assert seqs(events, 2) == [2, 3]
    began_s = time.monotonic()
    jobs = queue.claim("other", 9, wait_ms=30_000)
    jobs += [] if len(jobs) == 2 else queue.claim("other", 9, wait_ms=30_000)
    assert time.monotonic() - began_s < 5
    assert [(job["$seq"], job["deliveries"]) for job in jobs] == [(2, 2), (3, 2)]
    assert queue.counts == (0, 3, 0)


def test_a_connection_that_breaks_gives_jobs_back_too(queue: Queue, server: Inside) -> None:
    queue.configure(lease_ms=60_000)
    queue.fill("a")
    with queue.work("w") as events:
        assert seqs(events, 1) == [1]
        # No word of goodbye: the kernel resets the connection.
        events.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.wait_until(lambda: queue.name not in server.app.desks.by_name)
    assert queue.counts == (1, 0, 0)


def test_what_was_finished_is_not_given_back(queue: Queue, server: Inside) -> None:
    queue.fill("a", "b")
    with queue.work("w", "max=2") as events:
        assert seqs(events, 2) == [1, 2]
        queue.ack("w", 1)
        queue.nack("w", 2, delay_ms=60_000)
    server.wait_until(lambda: queue.name not in server.app.desks.by_name)
    assert queue.counts == (0, 0, 0)


def test_a_job_that_another_has_by_now_is_not_taken_from_them(queue: Queue, server: Inside) -> None:
    queue.fill("a")
    with queue.work("slow", "lease_ms=100") as events:
        assert seqs(events, 1) == [1]
        queue.fill(*range(20))
        taken = queue.claim_seqs("other", 100, wait_ms=10_000, lease_ms=60_000)
        while 1 not in taken:
            taken += queue.claim_seqs("other", 100, wait_ms=1000, lease_ms=60_000)
    server.wait_until(lambda: queue.name not in server.app.desks.by_name)
    assert queue.ack("other", 1)["acked"] == 1


def test_a_deleted_queue_ends_its_streams(queue: Queue) -> None:
    with queue.work("w") as events:
        queue.client.delete(queue.path)
        error = events.next("error").data
        assert error["code"] == 404
        assert list(events.events()) == []


def test_a_queue_that_became_a_log_ends_its_streams(queue: Queue) -> None:
    queue.fill("a")
    with queue.work("w") as events:
        events.next("job")
        queue.client.delete(queue.path)
        queue.client.put(queue.path, {"type": "log"})
        error = events.next("error").data
        assert error["code"] == 409
        assert "not_a_queue" in error["error"]
        assert list(events.events()) == []


def test_a_queue_that_was_created_anew_ends_its_streams(queue: Queue) -> None:
    """Its jobs have the seqs of others that a worker may still be busy with."""
    queue.fill("old")
    with queue.work("w") as events:
        events.next("job")
        queue.client.delete(queue.path)
        queue.configure()
        queue.fill("new")
        assert events.next("error").data["code"] == 404
    with queue.work("w") as events:
        assert events.next("job").data["data"] == "new"


def test_a_drain_tells_streams_and_gives_their_jobs_back(tmp_path: Path) -> None:
    with inside(tmp_path) as server, server.client() as client:
        queue = Queue(client, "drained").configure(leases_durable=True)
        queue.fill("a")
        events = queue.work("w")
        assert seqs(events, 1) == [1]
    with events:
        error = events.next("error").data
        assert error["code"] == 503
        assert "shutting_down" in error["error"]
        assert list(events.events()) == []
    with inside(tmp_path) as server, server.client() as client:
        assert Queue(client, "drained").counts == (1, 0, 0)


# -- time, pressure, limits ------------------------------------------------------------------------


@pytest.fixture
def quick_beats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Inside]:
    """A server whose streams have a heartbeat every half second."""
    monkeypatch.setattr(work_stream, "HEARTBEAT_S", 0.5)
    monkeypatch.setattr(delivery, "BUCKET_S", 0.05)
    with inside(tmp_path) as server:
        yield server


def test_heartbeats_come_when_nothing_else_does(quick_beats: Inside) -> None:
    with quick_beats.client() as client:
        queue = Queue(client, "beats").configure()
        with queue.work("w", "max=9") as events:
            for _ in range(3):
                events.wait_for_comment(5)
            times = [at for at, _ in events.comments]
            assert all(0.4 < b - a < 2 for a, b in itertools.pairwise(times))


def test_a_job_stands_for_a_heartbeat(quick_beats: Inside) -> None:
    with quick_beats.client() as client:
        queue = Queue(client, "beats").configure()
        with queue.work("w") as events:
            began_s = time.monotonic()
            while time.monotonic() - began_s < 1.5:
                (seq,) = queue.fill("job")
                assert seqs(events, 1) == [seq]
                queue.ack("w", seq)
            assert len(events.comments) == 1


def test_the_cadence_is_that_of_the_contract() -> None:
    assert work_stream.HEARTBEAT_S == 15.0
    assert desk.DELETED_GRACE_S < work_stream.HEARTBEAT_S
