"""What has no records in it has a small body: more is refused before anybody looks at it."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.protocol.wire import Wire
from tests.support.servers import Client, Inside, inside
from tests.support.streams import Socket
from topics.engine.state.stage_request import STAGES_MAX
from topics.server.api.route import ANY_BYTES, SMALL_BODY_BYTES_MAX

DETAIL = {"limit": "max_body_bytes", "max": SMALL_BODY_BYTES_MAX}
LARGE = {
    ("POST", "/v0/topics/:topic"),
    ("POST", "/v0/stages"),
    ("PUT", "/v0/kv/:bucket/keys/:key"),
    ("PUT", "/v0/kv/:bucket/keys/"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    with inside(tmp_path_factory.mktemp("small")) as served:
        with served.client() as client:
            client.write("t", 1)
        yield served


@pytest.fixture
def client(server: Inside) -> Iterator[Client]:
    with server.client() as client:
        yield client


def head(*more: str) -> bytes:
    lines = ["POST /v0/topics/t/diff HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    return "\r\n".join([*lines, *more, "", ""]).encode()


def padded(size: int) -> bytes:
    return b"{" + b" " * (size - 2) + b"}"


def test_only_records_and_values_may_be_large(server: Inside) -> None:
    routes = [route for route in server.app.routes if route.body is not None]
    large = {(r.method, r.path) for r in routes if r.body_bytes_max == ANY_BYTES}
    assert large == LARGE
    more = {r.path: r.body_bytes_max for r in routes if r.body_bytes_max > SMALL_BODY_BYTES_MAX}
    assert more.keys() - {path for _, path in LARGE} == {"/v0/stages/commit"}


def test_where_an_operator_wants_to_name_more_there_is_room_for_it(tmp_path: Path) -> None:
    variables = {"TOPICS_MAX_CLAIM": "100000", "TOPICS_MAX_WATCH_TOPICS": "20000"}
    with inside(tmp_path, **variables) as served:
        found = {route.path.rpartition("/")[2]: route.body_bytes_max for route in served.app.routes}
    assert found["ack"] == found["nack"] == found["extend"] == 6_400_000
    assert found["watch"] == 10_240_000


def test_a_small_body_may_have_a_mebibyte(client: Client) -> None:
    assert client.post("/v0/topics/t/diff", padded(SMALL_BODY_BYTES_MAX)).status == 200
    reply = client.post("/v0/topics/t/diff", padded(SMALL_BODY_BYTES_MAX + 1))
    assert (reply.status, reply.code, reply.detail) == (413, "payload_too_large", DETAIL)


def test_a_write_may_have_more(client: Client) -> None:
    body = b'{"records":[{"data":1}]}' + b" " * SMALL_BODY_BYTES_MAX
    assert client.post("/v0/topics/t", body).status == 200


def test_the_answer_is_the_same_however_the_body_comes(server: Inside) -> None:
    """Whole, in parts, unpacked, in chunks, and behind a head that came before."""
    body = padded(SMALL_BODY_BYTES_MAX + 1)
    packed = gzip.compress(body)
    ways = [
        head(f"Content-Length: {len(body)}") + body,
        head(f"Content-Length: {len(packed)}", "Content-Encoding: gzip") + packed,
        head("Transfer-Encoding: chunked") + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body),
    ]
    for way in ways:
        with Wire(server.port) as wire:
            answered = wire.send(way).answer()
            assert (answered.status, answered.code) == (413, "payload_too_large")
    with Wire(server.port) as wire:
        small = head("Content-Length: 2") + b"{}"
        assert wire.send(small).answer().status == wire.send(small).answer().status == 200
        assert wire.send(ways[0]).answer().status == 413


def test_a_commit_names_only_so_many_stages(client: Client) -> None:
    commit = {"producer": "p", "batch": 1, "query": "q"}
    reply = client.post("/v0/stages/commit", commit | {"stages": ["a"] * (STAGES_MAX + 1)})
    assert (reply.status, reply.code) == (400, "batch_too_large")
    assert reply.detail == {"limit": "max_commit_stages", "max": STAGES_MAX}
    named = [f"{number:08d}-00000001" for number in range(STAGES_MAX)]
    assert client.post("/v0/stages/commit", commit | {"stages": named}).code == "stage_expired"


def test_commands_of_a_socket_are_small_and_publishes_are_not(server: Inside) -> None:
    room = " " * SMALL_BODY_BYTES_MAX
    with Socket(server.port) as socket:
        for op in ("subscribe", "unsubscribe", "ping"):
            refused = socket.ask(op, topics=[room])
            assert (refused["op"], refused["code"]) == ("error", "payload_too_large")
        refused = socket.ask("publish", topic="t", records=[{"data": 1, "tag": room}])
        assert refused["code"] == "invalid_request"
        assert socket.ask("publish", topic="t", records=[{"data": 1}], x=room)["op"] == "ack"
