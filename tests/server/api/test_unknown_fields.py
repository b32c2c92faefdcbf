"""Fields that the server does not know: ignored and named in bodies, refused in configs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.servers import Client, Served
from tests.support.streams import Socket

HEADER = "topics-ignored-fields"


def test_a_write_ignores_what_it_does_not_know_and_says_so(client: Client, topic: str) -> None:
    """Of the body and of each record, by the short way of one record as by the general one."""
    for records in ([{"data": 1, "tagg": "x"}], [{"data": 2, "tagg": "x"}, {"data": 3, "foo": {}}]):
        reply = client.post(f"/v0/topics/{topic}", {"records": records, "acks": "all"})
        assert reply.status in (200, 201), reply.raw
        names = ["acks", "tagg", "foo"][: len(records) + 1]
        assert reply.headers[HEADER] == ", ".join(names)
    known = client.write(topic, 4)
    assert HEADER not in known.headers
    assert [r["data"] for r in client.diff(topic).json["records"]] == [1, 2, 3, 4]


def test_what_is_known_counts_beside_what_is_not(client: Client, topic: str) -> None:
    """Tag, node, meta, text that is not text, a line break; an integer of another spelling."""
    body = (
        b'{"foo": 1, "records": [{"data": "\\ud800", "tag": "t", "bar": [1],\n "node": "n",'
        b' "meta": {"k": "v"}}]}'
    )
    reply = client.post(f"/v0/topics/{topic}", body)
    assert (reply.status, reply.headers[HEADER]) == (201, "foo, bar"), reply.raw
    raw = client.diff(topic, include_tags=True).raw
    for part in (b'"data":"\\ud800"', b'"$tag":"t"', b'"$node":"n"', b'"meta":{"k":"v"}'):
        assert part in raw
    reply = client.write(f"{topic}-2", 1, config={"cap_records": 5.0}, foo=1)
    assert (reply.status, reply.headers[HEADER]) == (201, "foo"), reply.raw
    assert client.get(f"/v0/topics/{topic}-2").json["config"]["cap_records"] == 5


def test_a_large_write_names_the_one_field_of_its_last_record(client: Client, topic: str) -> None:
    records: list[dict[str, Any]] = [{"data": n} for n in range(10_000)]
    records[-1]["late"] = 1
    reply = client.post(f"/v0/topics/{topic}", {"records": records})
    assert (reply.status, reply.headers[HEADER]) == (201, "late")


def test_names_are_told_in_one_line_within_bounds(client: Client, topic: str) -> None:
    """Whatever they are made of; no more than 32, none longer than 64 characters."""
    fields = {"a b": 1, "é": 1, "x,y": 1, "line\r\nbreak": 1, "": 1, "n" * 100: 1}
    reply = client.write(topic, 1, **fields)
    assert reply.headers[HEADER] == "a%20b, %C3%A9, x%2Cy, line%0D%0Abreak, , " + "n" * 64
    many = client.write(topic, 1, **{f"f{n}": n for n in range(1000)})
    assert len(many.headers[HEADER].split(", ")) == 32


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/diff", {}),
        ("POST", "/range", {}),
        ("POST", "/delete", {"before_seq": 0}),
        ("POST", "/rewrite", {}),
        ("PUT", "/cursors/c", {"seq": 0}),
        ("POST", "/claim", {"node": "w"}),
        ("POST", "/ack", {"node": "w", "seqs": [1]}),
        ("POST", "/nack", {"node": "w", "seqs": [1]}),
        ("POST", "/extend", {"node": "w", "seqs": [1], "lease_ms": 1000}),
    ],
)
def test_every_body_ignores_and_names(
    client: Client, topic: str, method: str, path: str, body: dict[str, Any]
) -> None:
    client.put(f"/v0/topics/{topic}", {"type": "queue"})
    client.write(topic, 1)
    reply = client.call(method, f"/v0/topics/{topic}{path}", body | {"no_such_field": 1})
    assert (reply.status, reply.headers[HEADER]) == (200, "no_such_field"), reply.raw


def test_a_watch_ignores_and_names_inside_its_topics_too(client: Client, topic: str) -> None:
    client.write(topic, 1)
    reply = client.post("/v0/watch", {"topics": {topic: {"fro": 1}}, "x": 1})
    assert (reply.status, reply.headers[HEADER]) == (200, "x, fro")


def test_a_refusal_names_them_too(client: Client) -> None:
    reply = client.post("/v0/topics/nowhere/diff", {"form_seq": 1})
    assert (reply.code, reply.headers[HEADER]) == ("topic_not_found", "form_seq")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/v0/topics/{}", {"cap_record": 5}),
        ("POST", "/v0/topics/{}", {"records": [{"data": 1}], "config": {"cap_record": 5}}),
        ("PUT", "/v0/routers/{}", {"source": "a", "dest": "b", "filters": None}),
        ("PUT", "/v0/topics/{}/cursors/c", {"seq": 0, "hold": {"max_byte": 1}}),
    ],
)
def test_a_config_refuses_what_it_does_not_know(
    client: Client, topic: str, method: str, path: str, body: Any
) -> None:
    """A limit that was misspelt is a limit that does not hold."""
    client.put(f"/v0/topics/{topic}")
    reply = client.call(method, path.format(topic), body)
    assert (reply.status, reply.code) == (400, "invalid_request"), reply.raw
    assert client.get(f"/v0/topics/{topic}").json["head_seq"] == 0


@pytest.mark.parametrize("records", [1, 3])
@pytest.mark.parametrize("body", [None, True, False])
@pytest.mark.parametrize("query", [None, True, False])
def test_return_seqs_in_the_body_unless_the_query_says_otherwise(
    client: Client, topic: str, query: bool | None, body: bool | None, records: int
) -> None:
    client.put(f"/v0/topics/{topic}")
    asked = "" if query is None else f"?return_seqs={json.dumps(query)}"
    fields: dict[str, Any] = {} if body is None else {"return_seqs": body}
    sent = {"records": [{"data": n} for n in range(records)], **fields}
    wanted = query if query is not None else body is not False
    for _ in range(3):
        # The head is a known one from the second time on.
        reply = client.post(f"/v0/topics/{topic}{asked}", sent)
        assert (reply.status, "seqs" in reply.json) == (200, wanted)
        assert HEADER not in reply.headers


def test_each_write_of_one_turn_gets_what_it_asked_for(client: Client, topic: str) -> None:
    """They share a frame of the log and a head, not the answer."""
    client.put(f"/v0/topics/{topic}")
    bodies = [b'{"records":[{"data":1}],"return_seqs":%b}' % b for b in (b"true ", b"false")] * 20
    head = (
        f"POST /v0/topics/{topic} HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(bodies[0])}\r\n\r\n"
    ).encode()
    client.get("/v0/health")
    sock = client.connection.sock
    sock.sendall(b"".join(head + body for body in bodies))
    received = b""
    while received.count(b'"performance"') < len(bodies):
        received += sock.recv(65536)
    client.close()
    answers = [part for part in received.split(b"HTTP/1.1 200 OK") if part]
    assert [b'"seqs"' in answer for answer in answers] == [True, False] * 20


def test_over_the_web_socket_the_answer_names_them(
    served: Served, client: Client, topic: str
) -> None:
    client.put(f"/v0/topics/{topic}")
    with Socket(served.port) as socket:
        record = {"data": 1, "tagg": 1}
        ack = socket.ask("publish", topic=topic, records=[record], acks="all")
        assert (ack["op"], ack["ignored"]) == ("ack", ["acks", "tagg"])
        assert "ignored" not in socket.ask("publish", topic=topic, records=[{"data": 1}])
        assert socket.ask("ping", now=1) == {"op": "pong", "request_id": "r", "ignored": ["now"]}
        done = socket.ask("subscribe", topics={topic: {"tail": True, "x": 1}}, y=1)
        assert (done["op"], done["ignored"]) == ("subscribed", ["y", "x"])
        assert socket.ask("unsubscribe", topic=topic, z=1)["ignored"] == ["z"]
        refused = socket.ask("publish", topic=topic, records=[record], config={"tt": 1})
        assert (refused["op"], refused["code"]) == ("error", "invalid_request")
