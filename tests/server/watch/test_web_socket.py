"""Commands over a WebSocket: each is answered, and a publish is a write like any other."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.servers import Client, Inside
from tests.support.streams import Socket


@pytest.fixture
def socket(server: Inside) -> Any:
    with Socket(server.port) as socket:
        yield socket


def test_a_subscription_is_answered_then_served(socket: Socket, client: Client, topic: str) -> None:
    client.write(topic, 1, 2)
    epoch = client.get(f"/v0/topics/{topic}").json["epoch"]
    socket.send("subscribe", request_id="s1", topic=topic, from_seq=1)
    marks = {"head_seq": 2, "earliest_seq": 1, "epoch": epoch}
    assert socket.next() == {
        "op": "subscribed", "request_id": "s1", "topics": {topic: {"from_seq": 1, **marks}},
    }  # fmt: skip
    record = socket.next()
    assert record.pop("records")[0]["$seq"] == 2
    assert record == {
        "op": "record", "topic": topic, "from_seq": 1, "to_seq": 2, "head_seq": 2, "epoch": epoch,
    }  # fmt: skip
    assert socket.next() == {"op": "caught_up", "topic": topic, "head_seq": 2, "epoch": epoch}


def test_many_topics_in_one_command(socket: Socket, client: Client, topic: str) -> None:
    one, two = f"{topic}-1", f"{topic}-2"
    client.write(one, 1)
    client.write(two, 1)
    answer = socket.ask("subscribe", topics={one: {"from_seq": 1}, two: {"tail": True}})
    assert {name: told["from_seq"] for name, told in answer["topics"].items()} == {one: 1, two: 1}
    assert {socket.next("caught_up")["topic"] for _ in range(2)} == {one, two}
    client.write(two, 2)
    assert socket.next()["topic"] == two


def test_a_command_that_fails_subscribes_to_nothing(
    socket: Socket, client: Client, topic: str
) -> None:
    client.write(topic, 1)
    answer = socket.ask("subscribe", topics={topic: {}, "nowhere": {}})
    assert (answer["op"], answer["code"]) == ("error", "topic_not_found")
    assert socket.ask("ping") == {"op": "pong", "request_id": "r"}


def test_subscribing_again_begins_again(socket: Socket, client: Client, topic: str) -> None:
    client.write(topic, 1)
    for _ in range(2):
        socket.ask("subscribe", topic=topic)
        assert [frame["op"] for frame in socket.until("caught_up")] == ["record", "caught_up"]
    client.write(topic, 2)
    assert socket.next()["to_seq"] == 2
    assert socket.ask("ping")["op"] == "pong"


def test_after_unsubscribing_nothing_more_comes(socket: Socket, client: Client, topic: str) -> None:
    client.write(topic, 1)
    socket.ask("subscribe", topic=topic)
    socket.until("caught_up")
    answer = socket.ask("unsubscribe", topic=topic)
    assert answer == {"op": "unsubscribed", "request_id": "r", "topic": topic}
    client.write(topic, 2)
    assert socket.ask("ping") == {"op": "pong", "request_id": "r"}
    assert socket.ask("unsubscribe", topic="never")["op"] == "unsubscribed"


def test_a_deleted_topic_is_told(socket: Socket, client: Client, topic: str) -> None:
    client.write(topic, 1)
    socket.ask("subscribe", topic=topic)
    socket.until("caught_up")
    client.delete(f"/v0/topics/{topic}")
    gone = socket.next()
    assert (gone["op"], gone["head_seq"], gone["reason"]) == ("topic_deleted", 1, "deleted")


def test_a_publish_is_acknowledged_with_its_seqs(
    socket: Socket, client: Client, topic: str
) -> None:
    ack = socket.ask("publish", topic=topic, records=[{"data": 1}, {"data": 2}])
    assert ack.pop("performance")["fsync_ms"] == 0
    epoch = client.get(f"/v0/topics/{topic}").json["epoch"]
    assert ack == {
        "op": "ack", "request_id": "r", "topic": topic, "first_seq": 1, "last_seq": 2,
        "head_seq": 2, "count": 2, "seqs": [1, 2], "created": True, "deduped": False,
        "epoch": epoch,
    }  # fmt: skip
    ack = socket.ask("publish", topic=topic, records=[{"data": 3}], return_seqs=False)
    assert "seqs" not in ack
    assert (ack["first_seq"], ack["last_seq"]) == (3, 3)


def test_a_publish_takes_what_a_write_takes(socket: Socket, client: Client, topic: str) -> None:
    record = {"data": {"a": 1}, "tag": "t", "node": "n", "meta": {"k": "v"}}
    fields: dict[str, Any] = {
        "records": [record], "node": "m", "idempotency_key": "k", "create": True,
        "config": {"ttl_ms": 60000}, "disable_backpressure": True,
    }  # fmt: skip
    first = socket.ask("publish", topic=topic, **fields)
    again = socket.ask("publish", topic=topic, **fields)
    assert (first["deduped"], again["deduped"]) == (False, True)
    assert first["seqs"] == again["seqs"]
    # The same key over HTTP is the same write.
    assert client.write(topic, 1, idempotency_key="k").json["deduped"]
    assert client.get(f"/v0/topics/{topic}").json["config"]["ttl_ms"] == 60000
    (shown,) = client.diff(topic, include_tags=True).json["records"]
    assert shown["$node"] == "n"
    assert shown["meta"] == {"k": "v"}


def test_data_is_kept_as_it_was_sent(socket: Socket, client: Client, topic: str) -> None:
    data = r'{"b":1.0,"a":1e400,"b":"\ud800","c":"\\ud800"}'
    socket.connection.send(
        f'{{"op":"publish","topic":"{topic}","request_id":"r","records":[{{"data":{data}}}]}}'
    )
    assert socket.next()["op"] == "ack"
    assert data.encode() in client.diff(topic).raw


def test_own_records_do_not_come_back(socket: Socket, topic: str, client: Client) -> None:
    client.write(topic, 0)
    socket.ask("subscribe", topic=topic, tail=True, node="me")
    socket.until("caught_up")
    socket.ask("publish", topic=topic, records=[{"data": 1}], node="me")
    socket.ask("publish", topic=topic, records=[{"data": 2}], node="other")
    frame = socket.next("record")
    assert [r["$seq"] for r in frame["records"]] == [3]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("not json", "invalid_request"),
        ("[]", "invalid_request"),
        ("{}", "invalid_request"),
        ('{"op":"dance"}', "invalid_request"),
        ('{"op":"subscribe"}', "invalid_request"),
        ('{"op":"subscribe","topic":"bad name"}', "invalid_request"),
        ('{"op":"subscribe","topic":"nowhere"}', "topic_not_found"),
        ('{"op":"subscribe","topic":"t","from_seq":-1}', "invalid_request"),
        ('{"op":"subscribe","topic":"t","from_seq":"1"}', "invalid_request"),
        ('{"op":"unsubscribe"}', "invalid_request"),
        ('{"op":"publish","topic":"t"}', "invalid_request"),
        ('{"op":"publish","topic":"t","records":[]}', "invalid_request"),
        ('{"op":"publish","topic":"t","records":[{"data":NaN}]}', "invalid_request"),
        ('{"op":"publish","topic":"no","records":[{"data":1}],"create":false}', "topic_not_found"),
        ('{"op":"publish","topic":"t","records":[{"data":1,"tag":"\\ud800"}]}', "invalid_request"),
        (b'{"op":"ping"}', "invalid_request"),
        ('{"op":"subscribe","topic":"t","x":' + "[" * 5000 + "]" * 5000 + "}", "invalid_request"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_can_not_be_done_is_said_and_the_connection_lives(
    socket: Socket, message: str | bytes, code: str
) -> None:
    socket.connection.send(message)
    frame = socket.next()
    assert (frame["op"], frame["code"]) == ("error", code)
    assert frame["message"]
    assert socket.ask("ping")["op"] == "pong"


def test_the_request_id_comes_back_as_it_was(socket: Socket) -> None:
    for request_id in ("a", 7, "\u00e9"):
        socket.connection.send(json.dumps({"op": "ping", "request_id": request_id}))
        assert socket.next() == {"op": "pong", "request_id": request_id}
    socket.connection.send('{"op":"ping"}')
    assert socket.next() == {"op": "pong"}
    for nonsense in ({"op": "dance"}, {"op": 7}, {"op": None}, {}):
        socket.connection.send(json.dumps({**nonsense, "request_id": "x"}))
        frame = socket.next()
        assert (frame["op"], frame["code"], frame["request_id"]) == (
            "error", "invalid_request", "x",
        )  # fmt: skip


def test_publishes_are_acknowledged_in_order_for_a_topic(socket: Socket, topic: str) -> None:
    """Many on their way at once, to a topic that syncs each one."""
    socket.ask("publish", topic=topic, records=[{"data": 0}], config={"durable": True})
    for number in range(50):
        socket.send("publish", request_id=number, topic=topic, records=[{"data": number}])
    acks = [socket.next("ack") for _ in range(50)]
    assert [ack["request_id"] for ack in acks] == list(range(50))
    assert [ack["last_seq"] for ack in acks] == list(range(2, 52))


def test_plain_http_is_told_to_upgrade(client: Client) -> None:
    reply = client.get("/v0/ws")
    assert (reply.status, reply.code) == (426, "upgrade_required")
    assert client.metrics()["topics_sse_connections"] >= 0
