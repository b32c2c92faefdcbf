"""Jobs that failed too often: where they go, and what goes with them."""

from __future__ import annotations

import pytest

from tests.server.queues.conftest import Queue


def exhaust(queue: Queue, deliveries: int) -> None:
    """Claims the next job and gives it back, as often as it may be delivered."""
    for delivery in range(1, deliveries + 1):
        (job,) = queue.claim("w")
        assert job["deliveries"] == delivery
        queue.nack("w", job["$seq"])


@pytest.mark.parametrize("leases_durable", [False, True])
@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_job_that_failed_too_often_moves(
    queue: Queue, durability: str, leases_durable: bool
) -> None:
    letters = queue.name + ".dead"
    queue.configure(
        max_deliveries=2, dead_letter=letters, durability=durability, leases_durable=leases_durable
    )
    record = {"data": {"n": 1.0}, "tag": "t", "node": "p", "meta": {"k": "v"}}
    queue.client.post(queue.path, {"records": [record]})
    exhaust(queue, 2)
    assert queue.counts == (1, 0, 0)
    # The third delivery would be one too many.
    answer = queue.done("claim", node="w")
    assert (answer["claimed"], answer["ready"]) == ([], 0)
    assert queue.counts == (0, 0, 1)
    assert queue.client.get(queue.path).json["count"] == 0
    (letter,) = queue.client.diff(letters, include_tags=True).json["records"]
    assert (letter["data"], letter["$tag"]) == ({"n": 1.0}, "t")
    assert letter["meta"] == {
        "k": "v", "$dead_letter_from": queue.name, "$dead_letter_deliveries": "2",
        "$dead_letter_src_seq": "1",
    }  # fmt: skip


def test_the_jobs_behind_a_dead_letter_are_handed_out(queue: Queue) -> None:
    queue.configure(max_deliveries=1, dead_letter=queue.name + ".dead")
    queue.fill("bad", "good")
    exhaust(queue, 1)
    assert [job["data"] for job in queue.claim("w", 5)] == ["good"]
    assert queue.counts == (0, 1, 1)


def test_without_a_topic_for_them_jobs_come_back_for_ever(queue: Queue) -> None:
    queue.configure(max_deliveries=2)
    queue.fill("a")
    exhaust(queue, 5)
    assert queue.counts == (1, 0, 0)


def test_without_a_bound_no_job_is_dead(queue: Queue) -> None:
    queue.configure(dead_letter=queue.name + ".dead")
    queue.fill("a")
    exhaust(queue, 5)
    assert queue.client.get(f"{queue.path}.dead").status == 404


def test_dead_letters_may_be_jobs_of_another_queue(queue: Queue) -> None:
    other = Queue(queue.client, queue.name + ".retry").configure()
    queue.configure(max_deliveries=1, dead_letter=other.name)
    queue.fill("a")
    exhaust(queue, 1)
    with other.work("late") as events:
        assert queue.claim("w") == []
        job = events.next("job").data
    assert (job["data"], job["deliveries"]) == ("a", 1)
    assert job["meta"]["$dead_letter_from"] == queue.name


def test_a_stream_moves_dead_letters_too(queue: Queue) -> None:
    queue.configure(max_deliveries=1, dead_letter=queue.name + ".dead")
    with queue.work("w") as events:
        queue.fill("bad", "good")
        assert events.next("job").data["data"] == "bad"
        queue.nack("w", 1)
        assert events.next("job").data["data"] == "good"
        assert queue.counts == (0, 1, 1)
