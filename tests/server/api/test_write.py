"""Writing over HTTP: what is acknowledged, what is refused, and with which code."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from tests.support.servers import Client, Served

RECORD = b'{"records":[{"data":1}]}'


def test_a_write_answers_with_its_seqs(client: Client, topic: str) -> None:
    made = client.write(topic, "a", {"b": 1})
    assert made.status == 201
    body = made.json
    assert set(body.pop("performance")) == {"server_total_ms", "wal_append_ms", "fsync_ms"}
    assert body == {
        "topic": topic, "first_seq": 1, "last_seq": 2, "seqs": [1, 2], "head_seq": 2, "count": 2,
        "created": True, "deduped": False,
    }  # fmt: skip
    more = client.write(topic, None)
    assert (more.status, more.json["created"], more.json["seqs"]) == (200, False, [3])


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory", "ephemeral"])
def test_a_write_of_one_record_is_answered_as_any_other(
    client: Client, topic: str, durability: str
) -> None:
    """By the short way as by the general one: the same fields in the same order."""
    client.put(f"/v0/topics/{topic}", {"durability": durability})
    one, many = client.write(topic, 1), client.write(topic, 2, 3)
    assert list(one.json) == list(many.json)
    assert list(one.json["performance"]) == list(many.json["performance"])
    assert one.json["seqs"] == [one.json["first_seq"]] == [one.json["last_seq"]] == [1]
    assert (one.json["head_seq"], one.json["count"]) == (1, 1)
    assert one.headers.keys() == many.headers.keys()


def test_seqs_can_be_left_out(client: Client, topic: str) -> None:
    body = {"records": [{"data": n} for n in range(5)]}
    bare = client.post(f"/v0/topics/{topic}?return_seqs=false", body).json
    assert "seqs" not in bare
    assert (bare["first_seq"], bare["last_seq"], bare["count"]) == (1, 5, 5)
    assert client.post(f"/v0/topics/{topic}?return_seqs=no", body).code == "invalid_request"


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_only_an_fsync_topic_waits_for_the_disk(
    client: Client, topic: str, durability: str
) -> None:
    client.put(f"/v0/topics/{topic}", {"durability": durability})
    for value in (1, 2):
        spent = client.write(topic, value).json["performance"]
        assert (spent["fsync_ms"] > 0) == (durability == "fsync")
        assert (spent["wal_append_ms"] > 0) == (durability != "ephemeral")
    assert [r["data"] for r in client.diff(topic).json["records"]] == [1, 2]


def test_data_comes_back_as_it_was_written(client: Client, topic: str) -> None:
    data = b'{"b": 1.0, "a":[1e400,-0.0,"\\ud83d\\ude00"] ,"b":null}'
    client.post(f"/v0/topics/{topic}", b'{"records":[{"data":' + data + b"}]}")
    assert data in client.diff(topic).raw


def test_a_repeated_key_is_answered_with_the_first_seqs(client: Client, topic: str) -> None:
    first = client.write(topic, 1, 2, idempotency_key="k")
    again = client.write(topic, 9, idempotency_key="k")
    assert (again.status, again.json["deduped"], again.json["seqs"]) == (200, True, [1, 2])
    assert (first.json["deduped"], again.json["head_seq"]) == (False, 2)


def test_the_key_may_be_a_header_and_the_body_wins(client: Client, topic: str) -> None:
    path, header = f"/v0/topics/{topic}", {"Idempotency-Key": "h"}
    client.post(path, {"records": [{"data": 1}]}, **header)
    assert client.post(path, {"records": [{"data": 2}]}, **header).json["deduped"] is True
    body = {"records": [{"data": 3}], "idempotency_key": "b"}
    assert client.post(path, body, **header).json["deduped"] is False
    assert client.post(path, {"records": [{"data": 4}]}, **{"Idempotency-Key": "b"}).json["deduped"]


def test_whether_a_write_may_create(client: Client, topic: str) -> None:
    refused = client.write(topic, 1, create=False)
    assert (refused.status, refused.code, refused.detail) == (
        404, "topic_not_found", {"topic": topic},
    )  # fmt: skip
    assert client.write(topic, 1, config={"auto_create": False}).status == 404
    made = client.write(topic, 1, create=True, config={"auto_create": False, "cap_records": 3})
    assert made.status == 201
    assert client.get(f"/v0/topics/{topic}").json["config"]["cap_records"] == 3
    # A config on a topic that exists is ignored.
    assert client.write(topic, 1, config={"cap_records": 9}).status == 200
    assert client.get(f"/v0/topics/{topic}").json["config"]["cap_records"] == 3


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"records": []},
        {"records": [{}]},
        {"records": [{"data": 1, "tag": 5}]},
        {"records": [{"data": 1, "tag": "x" * 257}]},
        {"records": [{"data": 1, "node": "x" * 129}]},
        {"records": [{"data": 1, "meta": {"k": 1}}]},
        {"records": [{"data": 1, "meta": {str(n): "" for n in range(65)}}]},
        {"records": [{"data": 1, "meta": {"k": "x" * 17_000}}]},
        {"records": [{"data": 1}], "idempotency_key": "k" * 257},
        {"records": [{"data": 1}], "idempotency_key": ""},
        {"records": [{"data": 1}], "create": "yes"},
        {"records": [{"data": 1}], "config": {"cap": 1}},
        b'{"records":[{"data":NaN}]}',
        b'{"records":[{"data":1}]',
        b'{"records":[{"data":"\xff"}]}',
        b'{"records":[{"data":' + b"[" * 3000 + b"]" * 3000 + b"}]}",
        b"",
    ],
)
def test_a_write_that_is_not_one_is_refused_whole(client: Client, topic: str, body: Any) -> None:
    refused = client.post(f"/v0/topics/{topic}", body)
    assert (refused.status, refused.code) == (400, "invalid_request"), refused.raw
    assert client.get(f"/v0/topics/{topic}").status == 404


def test_limits_have_their_codes(client: Client, topic: str) -> None:
    many = client.write(topic, *range(10_001))
    assert (many.status, many.code) == (400, "batch_too_large")
    large = client.write(topic, "x" * 1_048_577)
    assert (large.status, large.code) == (400, "record_too_large")
    assert client.get(f"/v0/topics/{topic}").status == 404


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("", 415),
        ("text/plain", 415),
        ("application/json-seq", 415),
        ("application/json; charset=latin-1", 415),
        ("application/json", 201),
        ("Application/JSON; Charset=UTF-8", 201),
        ('application/json;charset="utf-8"', 201),
    ],
)
def test_the_content_type_has_to_say_json(
    client: Client, topic: str, kind: str, status: int
) -> None:
    reply = client.call("POST", f"/v0/topics/{topic}", RECORD, {"Content-Type": kind})
    assert reply.status == status
    if status == 415:
        assert reply.code == "unsupported_media_type"


def test_a_compressed_body_is_decoded(client: Client, topic: str) -> None:
    reply = client.post(
        f"/v0/topics/{topic}", gzip.compress(RECORD), **{"Content-Encoding": "gzip"}
    )
    assert reply.status == 201
    bomb = gzip.compress(b" " * 70_000_000)
    reply = client.post(f"/v0/topics/{topic}", bomb, **{"Content-Encoding": "gzip"})
    assert (reply.status, reply.code) == (413, "payload_too_large")


def test_a_full_topic_refuses_or_evicts(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"cap_records": 2, "discard": "reject"})
    client.write(topic, 1, 2)
    full = client.write(topic, 3)
    assert (full.status, full.code) == (422, "topic_full")
    never = client.write(topic, 1, 2, 3)
    assert (never.status, never.code) == (400, "record_too_large")
    client.put(f"/v0/topics/{topic}", {"cap_records": 2})
    assert client.write(topic, 3).status == 200


def test_backpressure_can_be_declined(client: Client, topic: str) -> None:
    assert client.write(topic, 1, disable_backpressure=True).status == 201


def test_writes_of_one_connection_keep_their_order(served: Served, topic: str) -> None:
    """Pipelined requests are answered in order with rising seqs."""
    with served.client() as client:
        client.put(f"/v0/topics/{topic}", {"durability": "fsync"})
        head = (
            f"POST /v0/topics/{topic} HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(RECORD)}\r\n\r\n"
        ).encode()
        sock = client.connection.sock
        sock.sendall((head + RECORD) * 50)
        got = b""
        while got.count(b'"first_seq"') < 50:
            got += sock.recv(65536)
    seqs = [
        json.loads(b"[" + part.split(b",")[0] + b"]")[0] for part in got.split(b'"first_seq":')[1:]
    ]
    assert seqs == list(range(1, 51))


@pytest.mark.parametrize(("before", "count"), [(0, 1), (0, 1001), (997, 5), (1998, 2003)])
def test_seqs_are_written_out_one_by_one(
    client: Client, topic: str, before: int, count: int
) -> None:
    """Also where they go from one thousand to the next."""
    if before:
        client.post(f"/v0/topics/{topic}", {"records": [{"data": 0}] * before})
    reply = client.post(f"/v0/topics/{topic}", {"records": [{"data": 0}] * count})
    assert reply.json["seqs"] == list(range(before + 1, before + count + 1))
