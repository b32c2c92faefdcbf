"""Numbers as JSON has them, and bodies that are not there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.servers import Client, Served
from tests.support.streams import Socket
from topics.integers import respelt


@pytest.mark.parametrize(
    ("text", "spelt"),
    [
        ("5.0", "5"),
        ("1e3", "1000"),
        ("1.50e1", "15"),
        ("-0.0", "0"),
        ("1.5", "1.5"),
        ("1e-3", "1e-3"),
        ("1e20", "1" + "0" * 20),
        ("1e309", "1e309"),
        ("1e999999999", "1e999999999"),
        ("18446744073709551615.0", "18446744073709551615"),
        ("5.0" + " " * 65536, "5.0" + " " * 65536),
        ('{"a 1.0": "2.0\\" 3.0", "b": [4.0]}', '{"a 1.0": "2.0\\" 3.0", "b": [4]}'),
    ],
    ids=lambda text: text[:20],
)
def test_a_whole_number_is_spelt_as_one(text: str, spelt: str) -> None:
    assert respelt(text.encode()) == spelt.encode()


def test_a_whole_number_is_an_integer_however_it_is_spelt(client: Client, topic: str) -> None:
    """`5.0` and `1e3` are integers to JSON, and to clients with one type of number."""
    path = f"/v0/topics/{topic}"
    made = client.put(path, b'{"cap_records": 1e3, "priority": 5.0}')
    assert made.status == 201
    assert (made.json["config"]["cap_records"], made.json["config"]["priority"]) == (1000, 5)
    body = b'{"records": [{"data": 1.0}], "config": {"ttl_ms": 7e7}}'
    assert client.post(f"{path}-2", body).status == 201
    assert client.get(f"{path}-2").json["config"]["ttl_ms"] == 70_000_000
    # Data is not ours to respell.
    assert b'"data":1.0' in client.diff(f"{topic}-2").raw
    assert client.post(f"{path}-2/diff", b'{"from_seq": 1.0, "limit": 1e1}').json["caught_up"]
    assert client.post(f"{path}-2/diff", b'{"from_seq": 0.5}').code == "invalid_request"


def test_so_it_is_over_a_web_socket(served: Served, client: Client, topic: str) -> None:
    client.write(topic, 1, 2)
    with Socket(served.port) as socket:
        socket.connection.send(json.dumps({"op": "subscribe", "topic": topic, "from_seq": 1.0}))
        assert socket.next("subscribed")["topics"][topic]["from_seq"] == 1
        assert [record["$seq"] for record in socket.next("record")["records"]] == [2]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/v0/routers/r"),
        ("POST", "/v0/topics/t"),
        ("POST", "/v0/topics/t/delete"),
        ("POST", "/v0/watch"),
    ],
)
def test_a_body_that_is_needed_and_absent_is_a_bad_request(
    client: Client, method: str, path: str
) -> None:
    for body in (None, b""):
        refused = client.call(method, path, body)
        assert (refused.status, refused.code) == (400, "invalid_request")


@pytest.mark.parametrize("config", [{"dead_letter": "not a name"}, {"cap_bytes": 2**64}])
def test_a_wrong_inline_config_is_refused_whether_or_not_it_is_used(
    client: Client, topic: str, config: Any
) -> None:
    """Whether a write is one does not depend on what is there."""
    assert client.write(topic, 1, config=config).code == "invalid_request"
    client.put(f"/v0/topics/{topic}")
    assert client.write(topic, 1, config=config).code == "invalid_request"
    assert client.get(f"/v0/topics/{topic}").json["count"] == 0


def test_a_key_in_a_header_may_have_any_bytes(client: Client, topic: str) -> None:
    for key in ("é", "\N{SNOWMAN}".encode().decode("latin-1")):
        for is_again in (False, True):
            reply = client.post(
                f"/v0/topics/{topic}", {"records": [{"data": 1}]}, **{"Idempotency-Key": key}
            )
            assert reply.json["deduped"] is is_again
    again = client.write(topic, 1, idempotency_key="\N{SNOWMAN}")
    assert again.json["deduped"] is True
