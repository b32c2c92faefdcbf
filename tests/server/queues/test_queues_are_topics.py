"""A queue is a topic: read, watched, routed, capped and deleted as any other."""

from __future__ import annotations

from tests.server.queues.conftest import Queue
from tests.server.watch.conftest import stream
from tests.support.servers import Client


def test_watching_does_not_touch_leases(queue: Queue) -> None:
    queue.fill("a", "b")
    queue.claim("w")
    with stream(queue.client, {queue.name: {}}) as events:
        records = events.next("record").data["records"]
        assert [record["data"] for record in records] == ["a", "b"]
        assert queue.counts == (1, 1, 0)
        # The delete of an ack is silent.
        queue.ack("w", 1)
        queue.fill("c")
        events.until("caught-up")
        assert [r["$seq"] for r in events.next("record").data["records"]] == [3]


def test_a_router_into_a_queue_is_a_producer(queue: Queue, topic: str) -> None:
    client = queue.client
    router = {"source": topic + "-source", "dest": queue.name}
    assert client.put(f"/v0/routers/{topic}-in", router).status == 201
    client.post(f"/v0/topics/{topic}-source", {"records": [{"data": "job", "tag": "t"}]})
    (job,) = queue.claim("w", wait_ms=10_000)
    assert (job["data"], job["$tag"]) == ("job", "t")
    assert queue.ack("w", job["$seq"])["acked"] == 1


def test_a_router_out_of_a_queue_forwards_jobs(queue: Queue, topic: str) -> None:
    client = queue.client
    router = {"source": queue.name, "dest": topic + "-audit"}
    assert client.put(f"/v0/routers/{topic}-out", router).status == 201
    queue.fill("a")
    page = client.diff(topic + "-audit", wait_ms=10_000).json
    queue.claim("w")
    queue.ack("w", 1)
    assert [record["data"] for record in page["records"]] == ["a"]
    assert client.get(f"/v0/topics/{topic}-audit").json["count"] == 1


def test_a_full_queue_refuses_jobs_until_some_are_done(queue: Queue) -> None:
    queue.configure(cap_records=2, discard="reject")
    queue.fill("a", "b")
    reply = queue.client.write(queue.name, "c")
    assert (reply.status, reply.code) == (422, "topic_full")
    queue.claim("w")
    assert queue.client.write(queue.name, "c").status == 422
    queue.ack("w", 1)
    assert queue.client.write(queue.name, "c").status == 200


def test_a_queue_made_by_its_first_write(client: Client, topic: str) -> None:
    config = {"type": "queue", "max_deliveries": 3}
    assert client.write(topic, "a", config=config).status == 201
    assert Queue(client, topic).claim("w")[0]["data"] == "a"


def test_writing_the_same_job_again_is_noticed(queue: Queue) -> None:
    queue.fill("a", idempotency_key="k")
    queue.claim("w")
    queue.ack("w", 1)
    reply = queue.client.write(queue.name, "a", idempotency_key="k")
    assert reply.json["deduped"] is True
    assert queue.counts == (0, 0, 0)


def test_a_recreated_queue_has_no_leases(queue: Queue) -> None:
    queue.fill("a", "b")
    queue.claim("w", 2)
    queue.client.delete(queue.path)
    queue.configure()
    assert queue.counts == (0, 0, 0)
    queue.fill("c")
    assert queue.ack("w", 1)["skipped"] == [1]
    assert queue.claim("w")[0]["deliveries"] == 1
