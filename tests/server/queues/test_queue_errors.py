"""What the queue calls refuse, and with which code."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.queues.conftest import Queue
from tests.support.servers import Client
from tests.support.streams import EventSource, Refused

GOOD: dict[str, dict[str, Any]] = {
    "claim": {"node": "w"},
    "ack": {"node": "w", "seqs": [1]},
    "nack": {"node": "w", "seqs": [1]},
    "extend": {"node": "w", "seqs": [1], "lease_ms": 1000},
}
TOO_BIG = 2**64
NODES: list[Any] = [None, 1, "", "x" * 129, "é" * 65]
SEQS: list[Any] = [None, [], 1, "1", ["1"], [True], [1.5], [-1], [None], [TOO_BIG]]
BAD: list[tuple[str, str, Any]] = [
    *((verb, "node", node) for verb in GOOD for node in NODES),
    *((verb, "seqs", seqs) for verb in ("ack", "nack", "extend") for seqs in SEQS),
    *(("claim", "max", value) for value in (True, "1", -1, 1.5, None, TOO_BIG)),
    *(("claim", "lease_ms", value) for value in (True, "1", -1, 1.5, TOO_BIG)),
    *(("claim", "wait_ms", value) for value in (True, "1", -1, 1.5, None, TOO_BIG)),
    *(("nack", "delay_ms", value) for value in (True, "1", -1, 1.5, None, TOO_BIG)),
    *(("extend", "lease_ms", value) for value in (True, "1", -1, 1.5, None, TOO_BIG)),
    *((verb, "lease_ids", value) for verb in ("ack", "nack", "extend")
      for value in ("x", [1], [], ["a", "b"], [None])),
]  # fmt: skip


@pytest.mark.parametrize(("verb", "field", "value"), BAD)
def test_a_bad_field_is_refused(queue: Queue, verb: str, field: str, value: Any) -> None:
    queue.fill("job")
    reply = queue.call(verb, **{**GOOD[verb], field: value})
    assert (reply.status, reply.code) == (400, "invalid_request"), reply.raw
    # Nothing happened.
    assert queue.counts == (1, 0, 0)


@pytest.mark.parametrize(
    ("verb", "field"),
    [(verb, field) for verb, body in GOOD.items() for field in body],
)
def test_a_missing_field_is_refused(queue: Queue, verb: str, field: str) -> None:
    body = {key: value for key, value in GOOD[verb].items() if key != field}
    reply = queue.call(verb, **body)
    assert (reply.status, reply.code) == (400, "invalid_request")


@pytest.mark.parametrize("verb", GOOD)
def test_a_body_is_needed(queue: Queue, verb: str) -> None:
    reply = queue.client.post(f"{queue.path}/{verb}")
    assert (reply.status, reply.code) == (400, "invalid_request")
    reply = queue.client.post(f"{queue.path}/{verb}", b"{}", **{"Content-Type": "text/plain"})
    assert (reply.status, reply.code) == (415, "unsupported_media_type")


@pytest.mark.parametrize("verb", ["ack", "nack", "extend"])
def test_too_many_seqs_are_refused(queue: Queue, verb: str) -> None:
    body = {**GOOD[verb], "seqs": list(range(1, 1002))}
    reply = queue.call(verb, **body)
    assert (reply.status, reply.code) == (400, "batch_too_large")
    assert queue.call(verb, **{**body, "seqs": list(range(1, 1001))}).status == 200


@pytest.mark.parametrize("verb", GOOD)
def test_a_log_is_no_queue(client: Client, topic: str, verb: str) -> None:
    client.write(topic, 1)
    reply = client.post(f"/v0/topics/{topic}/{verb}", GOOD[verb])
    assert (reply.status, reply.code) == (409, "not_a_queue")
    assert client.get(f"/v0/topics/{topic}").json["count"] == 1


@pytest.mark.parametrize("verb", GOOD)
def test_a_queue_is_not_created_by_its_calls(client: Client, topic: str, verb: str) -> None:
    reply = client.post(f"/v0/topics/{topic}/{verb}", GOOD[verb])
    assert (reply.status, reply.code) == (404, "topic_not_found")
    assert client.get(f"/v0/topics/{topic}").status == 404


@pytest.mark.parametrize("body", [None, b"", b"{", b"[]", b"{}", {"node": ""}, {"seqs": []}])
@pytest.mark.parametrize("verb", GOOD)
def test_the_topic_is_judged_before_the_body(
    client: Client, topic: str, verb: str, body: Any
) -> None:
    """Whatever is asked of it, what is not there or no queue says so first."""
    path = f"/v0/topics/{topic}/{verb}"
    assert (client.post(path, body).status, client.post(path, body).code) == (
        404, "topic_not_found",
    )  # fmt: skip
    client.write(topic, 1)
    assert (client.post(path, body).status, client.post(path, body).code) == (409, "not_a_queue")


@pytest.mark.parametrize("query", ["", "?node=", "?node=w&max=x", "?node=w&lease_ms=x"])
def test_a_work_stream_judges_its_topic_first_too(client: Client, topic: str, query: str) -> None:
    for code in ("topic_not_found", "not_a_queue"):
        assert client.get(f"/v0/topics/{topic}/work{query}").code == code
        client.write(topic, 1)


@pytest.mark.parametrize("verb", GOOD)
def test_other_methods_are_refused(queue: Queue, verb: str) -> None:
    reply = queue.client.get(f"{queue.path}/{verb}")
    assert (reply.status, reply.code, reply.headers["allow"]) == (
        405, "method_not_allowed", "OPTIONS, POST",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("", 400, "invalid_request"),
        ("?node=", 400, "invalid_request"),
        ("?node=" + "x" * 129, 400, "invalid_request"),
        ("?node=%ff", 400, "invalid_request"),
        ("?node=w&max=x", 400, "invalid_request"),
        ("?node=w&max=-1", 400, "invalid_request"),
        ("?node=w&max=1.5", 400, "invalid_request"),
        ("?node=w&lease_ms=x", 400, "invalid_request"),
        (f"?node=w&lease_ms={TOO_BIG}", 400, "invalid_request"),
    ],
)
def test_a_stream_says_what_is_wrong_before_it_opens(
    queue: Queue, query: str, status: int, code: str
) -> None:
    with pytest.raises(Refused) as refused:
        EventSource(queue.client.port, f"{queue.path}/work{query}")
    assert (refused.value.status, refused.value.code) == (status, code)


def test_a_stream_needs_a_queue_and_a_reader_of_events(client: Client, topic: str) -> None:
    path = f"/v0/topics/{topic}/work?node=w"
    with pytest.raises(Refused) as refused:
        EventSource(client.port, path)
    assert (refused.value.status, refused.value.code) == (404, "topic_not_found")
    client.write(topic, 1)
    with pytest.raises(Refused) as refused:
        EventSource(client.port, path)
    assert (refused.value.status, refused.value.code) == (409, "not_a_queue")
    Queue(client, topic + "-q").configure()
    with pytest.raises(Refused) as refused:
        EventSource(client.port, f"/v0/topics/{topic}-q/work?node=w", Accept="application/json")
    assert (refused.value.status, refused.value.code) == (406, "not_acceptable")
