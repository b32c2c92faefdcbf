"""Ack, nack and extend: who may, what is skipped, and what a lease's token guards against."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from tests.server.queues.conftest import Queue


def test_an_ack_deletes_the_job(queue: Queue) -> None:
    seqs = queue.fill("a", "b")
    queue.claim("w", 2)
    answer = queue.ack("w", *seqs)
    assert (answer["acked"], answer["skipped"]) == (2, [])
    assert (answer["ready"], answer["in_flight"]) == (0, 0)
    assert queue.client.diff(queue.name).json["records"] == []
    explained = queue.client.get(f"{queue.path}/explain").json["ranges"]
    assert explained == [{"from": seqs[0], "to": seqs[1], "state": "deleted"}]


def test_an_ack_may_be_repeated(queue: Queue) -> None:
    seqs = queue.fill("a")
    queue.claim("w")
    assert queue.ack("w", *seqs)["acked"] == 1
    again = queue.ack("w", *seqs)
    assert (again["acked"], again["skipped"]) == (0, seqs)


@pytest.mark.parametrize("verb", ["ack", "nack", "extend"])
def test_only_the_holder_counts(queue: Queue, verb: str) -> None:
    """Not claimed, held by another, never there: skipped in silence, in the order asked."""
    free, held, mine = queue.fill("free", "held", "mine")[0], 2, 3
    queue.claim("nobody")
    queue.nack("nobody", free)
    assert queue.claim_seqs("x") == [free]
    assert queue.claim_seqs("other") == [held]
    assert queue.claim_seqs("me") == [mine]
    queue.nack("x", free)
    lease = {"lease_ms": 1000} if verb == "extend" else {}
    answer = queue.done(verb, node="me", seqs=[99, mine, held, free], **lease)
    assert answer[verb + "ed"] == 1
    assert answer["skipped"] == [99, held, free]


@pytest.mark.parametrize("verb", ["ack", "nack", "extend"])
def test_a_stale_token_is_skipped(queue: Queue, verb: str) -> None:
    """The same worker claimed again: its first token is of a lease that was superseded."""
    (seq,) = queue.fill("job")
    (old,) = queue.claim("w")
    queue.nack("w", seq)
    (new,) = queue.claim("w")
    lease = {"lease_ms": 1000} if verb == "extend" else {}
    for token, done in ((old["lease_id"], 0), ("lease_0", 0), ("x", 0), (new["lease_id"], 1)):
        answer = queue.done(verb, node="w", seqs=[seq], lease_ids=[token], **lease)
        assert (answer[verb + "ed"], answer["skipped"]) == (done, [] if done else [seq])


def test_a_token_does_not_replace_the_node(queue: Queue) -> None:
    (seq,) = queue.fill("job")
    (job,) = queue.claim("w")
    assert queue.ack("thief", seq, lease_ids=[job["lease_id"]])["skipped"] == [seq]


def test_tokens_are_matched_by_their_place(queue: Queue) -> None:
    first, second = queue.fill("a", "b")
    tokens = [job["lease_id"] for job in queue.claim("w", 2)]
    assert queue.ack("w", second, first, lease_ids=tokens)["skipped"] == [second, first]
    assert queue.ack("w", second, first, lease_ids=tokens[::-1])["acked"] == 2


def test_a_nacked_job_is_claimable_at_once(queue: Queue) -> None:
    (seq,) = queue.fill("job")
    queue.claim("w")
    answer = queue.nack("w", seq)
    assert (answer["nacked"], answer["ready"], answer["in_flight"]) == (1, 1, 0)
    assert queue.claim("w")[0]["deliveries"] == 2


def test_a_delayed_nack_is_neither_ready_nor_in_flight(queue: Queue) -> None:
    (seq,) = queue.fill("job")
    queue.claim("w")
    began_s = time.monotonic()
    answer = queue.nack("w", seq, delay_ms=200)
    assert (answer["ready"], answer["in_flight"]) == (0, 0)
    assert queue.counts == (0, 0, 0)
    assert queue.claim("w") == []
    (job,) = queue.claim("w", wait_ms=10_000)
    assert time.monotonic() - began_s >= 0.2
    assert (job["$seq"], job["deliveries"]) == (seq, 2)


def test_an_extended_lease_ends_later(
    queue: Queue, beside: Callable[..., Future[Any]], waiting: Callable[[Queue, int], None]
) -> None:
    """It sets the time left, and does not add to it."""
    (seq,) = queue.fill("job")
    (job,) = queue.claim("w", lease_ms=60_000)
    # Somebody waits for the lease to end; it then ends sooner than they could have known.
    waiter = beside(Queue.claim, queue, "next", wait_ms=10_000)
    waiting(queue, 1)
    answer = queue.extend("w", seq, lease_ms=150)
    deadline = answer["deadlines"][str(seq)]
    assert answer["extended"] == 1
    assert abs(deadline - 150 - time.time() * 1000) < 1000
    assert deadline < job["deadline"]
    (again,) = waiter.result()
    assert again["deliveries"] == 2
    assert time.time() * 1000 >= deadline


def test_extending_does_not_count_as_a_delivery(queue: Queue) -> None:
    (seq,) = queue.fill("job")
    queue.claim("w")
    queue.extend("w", seq, lease_ms=1000)
    queue.nack("w", seq)
    assert queue.claim("w")[0]["deliveries"] == 2


@pytest.mark.parametrize(("given", "lasts_ms"), [(1, 100), (10**15, 86_400_000)])
def test_an_extension_is_clamped(queue: Queue, given: int, lasts_ms: int) -> None:
    (seq,) = queue.fill("job")
    queue.claim("w")
    deadline = queue.extend("w", seq, lease_ms=given)["deadlines"][str(seq)]
    assert abs(deadline - lasts_ms - time.time() * 1000) < 2000


def test_a_lost_lease_can_not_be_extended(queue: Queue) -> None:
    (seq,) = queue.fill("job")
    queue.claim("slow", lease_ms=100)
    assert queue.claim_seqs("next", wait_ms=10_000) == [seq]
    answer = queue.extend("slow", seq, lease_ms=1000)
    assert (answer["extended"], answer["skipped"], answer["deadlines"]) == (0, [seq], {})
