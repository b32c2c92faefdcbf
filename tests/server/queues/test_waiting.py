"""`wait_ms`: a claim that finds nothing waits for jobs, and for nothing else."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.server.queues.conftest import Queue
from tests.support.servers import Client, Inside, inside
from topics.engine.commit.ticket import Ticket

Beside = Callable[..., Future[Any]]
Waiting = Callable[[Queue, int], None]
LONG_MS = 30_000


@pytest.mark.parametrize("durability", ["ephemeral", "disk", "fsync"])
@pytest.mark.parametrize("leases_durable", [False, True])
def test_a_waiting_claim_gets_what_is_written(
    queue: Queue, beside: Beside, waiting: Waiting, durability: str, leases_durable: bool
) -> None:
    queue.configure(durability=durability, leases_durable=leases_durable)
    claim = beside(Queue.claim, queue, "w", 5, wait_ms=LONG_MS)
    waiting(queue, 1)
    seqs = queue.fill("a", "b")
    assert [job["$seq"] for job in claim.result()] == seqs
    assert queue.counts == (0, 2, 0)


def test_there_is_no_waiting_when_there_are_jobs(queue: Queue) -> None:
    queue.fill("a")
    assert len(queue.claim("w", 8, wait_ms=LONG_MS)) == 1


def test_the_time_ends_with_an_empty_answer(queue: Queue) -> None:
    began_s = time.monotonic()
    answer = queue.done("claim", node="w", wait_ms=150)
    # The timers of the loop are a few milliseconds coarse.
    assert time.monotonic() - began_s >= 0.14
    assert (answer["claimed"], answer["count"], answer["ready"]) == ([], 0, 0)
    assert answer["performance"]["server_total_ms"] >= 140


def test_the_wait_is_clamped(queue: Queue, beside: Beside, waiting: Waiting) -> None:
    claim = beside(Queue.claim, queue, "w", wait_ms=2**63)
    waiting(queue, 1)
    queue.fill("a")
    assert len(claim.result()) == 1


def test_a_nack_wakes_whoever_waits(queue: Queue, beside: Beside, waiting: Waiting) -> None:
    (seq,) = queue.fill("a")
    queue.claim("first")
    claim = beside(Queue.claim, queue, "second", wait_ms=LONG_MS)
    waiting(queue, 1)
    queue.nack("first", seq)
    assert claim.result()[0]["deliveries"] == 2


def test_the_end_of_a_lease_wakes_whoever_waits(
    queue: Queue, beside: Beside, waiting: Waiting
) -> None:
    """Also of a lease that was taken after the wait began."""
    queue.fill("a", "b")
    queue.claim("holder", 2, lease_ms=60_000)
    claim = beside(Queue.claim, queue, "waiter", 9, wait_ms=LONG_MS)
    waiting(queue, 1)
    queue.extend("holder", 1, lease_ms=100)
    (job,) = claim.result()
    assert (job["$seq"], job["deliveries"]) == (1, 2)


def test_few_jobs_go_round_to_those_who_have_waited(
    queue: Queue, beside: Beside, waiting: Waiting
) -> None:
    claims = [beside(Queue.claim, queue, f"w{n}", 9, wait_ms=LONG_MS) for n in range(4)]
    waiting(queue, 4)
    queue.fill("a", "b")
    waiting(queue, 2)
    queue.fill("c", "d")
    assert [len(claim.result()) for claim in claims] == [1, 1, 1, 1]


def test_many_jobs_are_shared_by_what_each_asked_for(
    queue: Queue, beside: Beside, waiting: Waiting
) -> None:
    small = beside(Queue.claim, queue, "small", 2, wait_ms=LONG_MS)
    large = beside(Queue.claim, queue, "large", 6, wait_ms=LONG_MS)
    waiting(queue, 2)
    queue.fill(*range(4))
    assert (len(small.result()), len(large.result())) == (1, 3)


def test_a_deleted_queue_ends_the_wait(queue: Queue, beside: Beside, waiting: Waiting) -> None:
    reply = beside(Queue.call, queue, "claim", node="w", wait_ms=LONG_MS)
    waiting(queue, 1)
    queue.client.delete(queue.path)
    assert (reply.result().status, reply.result().code) == (404, "topic_not_found")


def test_another_queue_of_the_name_begins_anew(
    queue: Queue, beside: Beside, waiting: Waiting
) -> None:
    reply = beside(Queue.call, queue, "claim", node="w", wait_ms=LONG_MS)
    waiting(queue, 1)
    queue.client.delete(queue.path)
    queue.configure()
    claim = beside(Queue.claim, queue, "w", wait_ms=LONG_MS)
    waiting(queue, 1)
    queue.fill("new")
    assert claim.result()[0]["data"] == "new"
    assert reply.result().status == 404


def test_a_client_that_went_away_gets_nothing(
    queue: Queue, server: Inside, waiting: Waiting
) -> None:
    gone = http.client.HTTPConnection("127.0.0.1", server.port)
    body = json.dumps({"node": "gone", "wait_ms": LONG_MS})
    gone.request("POST", f"{queue.path}/claim", body, {"Content-Type": "application/json"})
    waiting(queue, 1)
    gone.close()
    server.wait_until(lambda: queue.name not in server.app.desks.by_name)
    queue.fill("a")
    assert queue.counts == (1, 0, 0)


def test_jobs_of_a_client_that_went_away_before_the_answer_come_back(
    queue: Queue, server: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that is on its way to the disk has nobody to be handed to."""
    engine, held = server.services.engine, []
    submit = engine.submit_claims

    def slowly(name: str, claimants: Any) -> Ticket:
        held.append((Ticket(), submit(name, claimants)))
        return held[-1][0]

    queue.fill("a", "b")
    monkeypatch.setattr(engine, "submit_claims", slowly)
    gone = http.client.HTTPConnection("127.0.0.1", server.port)
    body = json.dumps({"node": "gone", "max": 2})
    gone.request("POST", f"{queue.path}/claim", body, {"Content-Type": "application/json"})
    server.wait_until(lambda: bool(held) and held[0][0].callback is not None)
    connections = server.run(lambda: server.server.connection_count)
    gone.close()
    server.wait_until(lambda: server.server.connection_count == connections - 1)
    monkeypatch.undo()
    assert queue.counts == (0, 2, 0)
    ((outer, inner),) = held
    server.run(lambda: outer.resolve(inner.result))
    assert queue.counts == (2, 0, 0)


def test_waiting_claims_are_counted(
    queue: Queue, client: Client, beside: Beside, waiting: Waiting
) -> None:
    before = client.metrics()["topics_long_polls"]
    claims = [beside(Queue.claim, queue, f"w{n}", wait_ms=LONG_MS) for n in range(3)]
    waiting(queue, 3)
    assert client.metrics()["topics_long_polls"] == before + 3
    queue.fill(1, 2, 3)
    assert [len(claim.result()) for claim in claims] == [1, 1, 1]
    assert client.metrics()["topics_long_polls"] == before


def test_a_drain_answers_whoever_waits(tmp_path: Path, beside: Beside, waiting: Waiting) -> None:
    with inside(tmp_path) as server, server.client() as client:
        queue = Queue(client, "drained").configure()
        window = Queue(client, "windowed").configure(claim_jitter_ms=5000)
        window.fill("a")

        def ask(_: Queue, name: str) -> Any:
            with server.client() as other:
                body = {"node": "w", "wait_ms": LONG_MS}
                return other.post(f"/v0/topics/{name}/claim", body)

        replies = [beside(ask, queue, name) for name in (queue.name, window.name)]
        server.wait_until(lambda: len(server.app.desks.by_name) == 2)
        server.run(server.services.drain)
        assert [reply.result().json["count"] for reply in replies] == [0, 1]
        # From now on nobody waits.
        assert queue.claim("w", wait_ms=LONG_MS) == []
