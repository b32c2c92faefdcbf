"""The coalescing window: whoever comes within it shares what there is, polling or streaming."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from tests.server.queues.conftest import Queue, jobs_of
from tests.support.servers import Client, Inside, Reply

Beside = Callable[..., Future[Any]]
Waiting = Callable[[Queue, int], None]


@pytest.fixture
def windowed(client: Client, topic: str) -> Queue:
    """A queue with a window that is wide enough for a whole test to come in time."""
    return Queue(client, topic).configure(claim_jitter_ms=400)


def test_without_a_window_the_first_one_takes_it_all(queue: Queue) -> None:
    queue.fill(*range(8))
    assert len(queue.claim("first", 8)) == 8
    assert queue.claim("second", 8) == []


def in_one_turn(server: Inside, queue: Queue, count: int) -> list[Reply]:
    """Claims of three that the server sees in the same turn of its loop."""
    clients = [server.client() for _ in range(count)]
    for client in clients:
        assert client.get("/v0/health").status == 200
    body = json.dumps({"node": "w", "max": 3})
    path = f"{queue.path}/claim"
    with server.standing_still():
        for client in clients:
            client.connection.request("POST", path, body, {"Content-Type": "application/json"})
    replies = []
    for client in clients:
        answer = client.connection.getresponse()
        replies.append(Reply(answer.status, {}, answer.read()))
        client.close()
    return replies


@pytest.mark.parametrize("leases_durable", [False, True])
def test_claims_of_one_turn_get_what_each_would_alone(
    queue: Queue, server: Inside, leases_durable: bool
) -> None:
    """Shared only where there is enough for all: the first one takes what it asked for."""
    queue.configure(leases_durable=leases_durable)
    queue.fill(*range(16))
    answers = [reply.json for reply in in_one_turn(server, queue, 4)]
    assert [answer["count"] for answer in answers] == [3, 3, 3, 3]
    taken = [job["$seq"] for answer in answers for job in answer["claimed"]]
    assert sorted(taken) == list(range(1, 13))
    answers = [reply.json for reply in in_one_turn(server, queue, 3)]
    assert sorted(answer["count"] for answer in answers) == [0, 1, 3]
    assert queue.counts == (0, 16, 0)


def test_claims_of_one_turn_fail_together(server: Inside, client: Client, topic: str) -> None:
    replies = in_one_turn(server, Queue(client, topic), 3)
    assert [(reply.status, reply.code) for reply in replies] == [(404, "topic_not_found")] * 3


def test_a_cohort_shares_evenly(windowed: Queue, beside: Beside, waiting: Waiting) -> None:
    """Ten workers that ask for ten each get five each of fifty, not ten for the first five."""
    windowed.fill(*range(50))
    claims = [beside(Queue.claim, windowed, f"w{n}", 10) for n in range(10)]
    waiting(windowed, 10)
    shares = [claim.result() for claim in claims]
    assert [len(share) for share in shares] == [5] * 10
    seqs = [job["$seq"] for share in shares for job in share]
    assert sorted(seqs) == list(range(1, 51))
    for share in shares:
        assert [job["$seq"] for job in share] == sorted(job["$seq"] for job in share)


def test_shares_are_in_proportion_to_max(windowed: Queue, beside: Beside, waiting: Waiting) -> None:
    windowed.fill(*range(20))
    claims = [beside(Queue.claim, windowed, f"w{n}", most) for n, most in enumerate((30, 10))]
    waiting(windowed, 2)
    assert [len(claim.result()) for claim in claims] == [15, 5]


def test_nobody_gets_more_than_they_asked_for(
    windowed: Queue, beside: Beside, waiting: Waiting
) -> None:
    windowed.fill(*range(20))
    claims = [beside(Queue.claim, windowed, f"w{n}", most) for n, most in enumerate((1, 8))]
    waiting(windowed, 2)
    assert [len(claim.result()) for claim in claims] == [1, 8]
    assert windowed.counts == (11, 9, 0)


def test_a_claim_waits_up_to_the_window(windowed: Queue) -> None:
    began_s = time.monotonic()
    assert windowed.claim("w") == []
    assert 0.39 <= time.monotonic() - began_s < 5


def test_each_window_is_for_its_own_cohort(queue: Queue) -> None:
    queue.configure(claim_jitter_ms=20)
    queue.fill(*range(4))
    assert [queue.claim_seqs("w", 2) for _ in range(3)] == [[1, 2], [3, 4], []]


def test_a_wait_goes_on_behind_the_window(queue: Queue, beside: Beside, waiting: Waiting) -> None:
    queue.configure(claim_jitter_ms=20)
    claims = [beside(Queue.claim, queue, f"w{n}", 4, wait_ms=30_000) for n in range(2)]
    waiting(queue, 2)
    queue.fill(*range(4))
    assert [len(claim.result()) for claim in claims] == [2, 2]


def test_streams_and_claims_share_alike(windowed: Queue, beside: Beside, waiting: Waiting) -> None:
    """Three who poll and one with a stream, all for ten: each gets a quarter."""
    with windowed.work("pushed", "max=10") as events:
        claims = [beside(Queue.claim, windowed, f"w{n}", 10, wait_ms=30_000) for n in range(3)]
        waiting(windowed, 3)
        windowed.fill(*range(20))
        assert [len(claim.result()) for claim in claims] == [5, 5, 5]
        assert len(jobs_of(events, 5)) == 5
        assert windowed.counts == (0, 20, 0)


def test_the_window_can_be_changed(windowed: Queue) -> None:
    windowed.fill("a")
    windowed.configure(claim_jitter_ms=0)
    began_s = time.monotonic()
    assert len(windowed.claim("w")) == 1
    assert time.monotonic() - began_s < 0.3
