"""Workers when the server can not keep up, and when they can not."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.server.queues.conftest import Queue, jobs_of
from tests.server.watch.test_pressure_and_consistency import press
from tests.support.servers import Inside, inside
from tests.support.streams import EventSource, Refused
from topics.errors import DiskFull
from topics.server.loop import event_outlet

PAD = "x" * 60_000


@pytest.fixture
def pressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Inside]:
    """A server whose pressure is what the test says: nothing measures it any more."""
    # The clock of deliveries stands still with the measuring.
    monkeypatch.setattr(event_outlet, "ADVICE_S", 0.0)
    with inside(tmp_path) as served:
        with served.client() as client:
            Queue(client, "jobs").configure()
            Queue(client, "important").configure(priority=100)
        served.run(lambda: served.services.delivery.close())
        yield served


def test_claims_are_refused_and_what_ends_leases_is_not(pressed: Inside) -> None:
    with pressed.client() as client:
        queue, important = Queue(client, "jobs"), Queue(client, "important")
        queue.fill(1, 2, 3)
        important.fill(1)
        queue.claim("w", 3)
        press(pressed, 1.2)
        reply = queue.call("claim", node="w")
        assert (reply.status, reply.code) == (429, "throttled")
        assert reply.detail["retry_after_ms"] >= 250
        assert int(reply.headers["retry-after"]) >= 1
        with pytest.raises(Refused) as refused:
            queue.work("w")
        assert refused.value.status == 429
        assert queue.ack("w", 1)["acked"] == 1
        assert queue.nack("w", 2)["nacked"] == 1
        assert queue.extend("w", 3, lease_ms=1000)["extended"] == 1
        assert len(important.claim("w")) == 1


def test_a_claim_takes_its_turn_under_a_little_pressure(pressed: Inside) -> None:
    with pressed.client() as client:
        queue = Queue(client, "jobs")
        queue.fill(1, 2)
        assert queue.done("claim", node="w")["performance"]["throttle_wait_ms"] == 0
        press(pressed, 0.3)
        answer = queue.done("claim", node="w")
        assert answer["count"] == 1
        assert answer["performance"]["throttle_wait_ms"] > 0


def test_streams_are_paced_and_told(pressed: Inside) -> None:
    with pressed.client() as client:
        queue = Queue(client, "jobs")
        with queue.work("w") as events:
            press(pressed, 1.2)
            assert client.write("jobs", 1, disable_backpressure=True).status == 200
            advice = events.next().data
            assert (advice["code"], advice["topics"]) == (429, ["jobs"])
            assert advice["retry_after_ms"] >= 250
            assert queue.counts == (1, 0, 0)
            press(pressed, 0.0)
            assert len(jobs_of(events, 1)) == 1


def test_a_stream_that_is_held_back_keeps_nobody_else_waiting(pressed: Inside) -> None:
    """It came first, and the only job goes to the claim behind it."""
    with pressed.client() as client, pressed.client() as other:
        queue = Queue(client, "jobs")
        with queue.work("first"), ThreadPoolExecutor(1) as pool:
            claim = pool.submit(Queue(other, "jobs").claim, "second", wait_ms=30_000)
            pressed.wait_until(lambda: len(pressed.services.waiters) == 1)
            press(pressed, 1.2)
            assert client.write("jobs", 1, disable_backpressure=True).status == 200
            assert len(claim.result()) == 1


def test_a_bug_of_ours_is_answered(pressed: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waited is told, and a stream goes on when it can."""
    with pressed.client() as client:
        queue = Queue(client, "jobs").configure(claim_jitter_ms=1)

        def fail(*_: object) -> None:
            raise ZeroDivisionError

        with queue.work("w") as events:
            monkeypatch.setattr(pressed.services.engine, "submit_claims", fail)
            queue.fill("a")
            assert events.next("error").data["code"] == 503
            for window_ms in (1, 0):
                queue.configure(claim_jitter_ms=window_ms)
                reply = queue.call("claim", node="other")
                assert (reply.status, reply.code) == (500, "internal")
            monkeypatch.undo()
            assert len(jobs_of(events, 1)) == 1


def test_a_pass_that_fails_is_tried_again(pressed: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim is told why; a stream is told too and stays open."""
    with pressed.client() as client:
        queue = Queue(client, "jobs")
        engine = pressed.services.engine

        def refuse(*_: object) -> None:
            raise DiskFull("the disk is full; nothing was leased")

        with queue.work("w") as events:
            monkeypatch.setattr(engine, "submit_claims", refuse)
            queue.fill("a")
            error = events.next("error").data
            assert error["code"] == 507
            assert "disk_full" in error["error"]
            reply = queue.call("claim", node="other")
            assert (reply.status, reply.code) == (507, "disk_full")
            monkeypatch.undo()
            assert len(jobs_of(events, 1)) == 1


def test_a_worker_that_does_not_read_loses_its_stream(tmp_path: Path) -> None:
    """Its jobs go to others; they were never more than a stream's room and its socket."""
    settings = {"TOPICS_SLOW_CONSUMER_TIMEOUT_MS": "300", "TOPICS_BUFFER_GRACE_MS": "100"}
    with inside(tmp_path, None, **settings) as served, served.client() as client:
        queue = Queue(client, "jobs").configure(lease_ms=600_000)
        path = "/v0/topics/jobs/work?node=slow&max=1000"
        with EventSource(served.port, path, receive_bytes=4096) as events:
            for _ in range(25):
                queue.fill(*[PAD] * 10)
            served.wait_until(lambda: served.services.delivery.connections == 0)
            assert queue.counts == (250, 0, 0)
            read = list(events.events())
        assert (read[-1].name, read[-1].data["code"]) == ("error", 408)
        assert {event.name for event in read[:-1]} == {"job"}
        assert len(read) < 251


@pytest.mark.slow
def test_a_worker_that_was_slow_goes_on(tmp_path: Path) -> None:
    with inside(tmp_path) as served, served.client() as client:
        queue = Queue(client, "jobs").configure()
        path = "/v0/topics/jobs/work?node=slow&max=1000"
        with EventSource(served.port, path, receive_bytes=4096) as events:
            for _ in range(25):
                queue.fill(*[PAD] * 10)
            served.wait_until(lambda: bool(served.services.delivery.slow))
            events.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            seqs = [job["$seq"] for job in jobs_of(events, 250)]
            assert seqs == list(range(1, 251))
