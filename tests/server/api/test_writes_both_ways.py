"""A write has one answer and leaves one record, whichever way it comes in.

Every shape, good and bad, is sent to two servers: in one read, so that its head is known, and in
pieces, so that it is parsed; or as a request, and as a message of a WebSocket.
"""

from __future__ import annotations

import json
import random
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.server.protocol.wire import Answered, Wire
from tests.support.servers import Inside, inside
from tests.support.streams import Socket
from tests.support.tiers import quick_first

SECRETS = ("writer-secret", "reader-secret", "nobody", "")
KEYS = "writer-secret:rw,reader-secret:r"
_TIMES = re.compile(rb'"performance":\{[^}]*\}|"\$ts":[0-9]+|"server_total_ms":[0-9.]+')


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Inside]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(inside(tmp_path / name, TOPICS_API_KEYS=KEYS))
            for name in ("one", "other")
        ]


def body_of(choice: random.Random) -> bytes:
    record: dict[str, Any] = {"data": choice.choice((1, "é", {"a": [None]}, "x" * 5000))}
    write: dict[str, Any] = {"records": [record]}
    for field, values in {
        "tag": ("a", "b", 7), "node": ("n1", "n2", None), "meta": ({"k": "v"}, {"k": 1}),
    }.items():  # fmt: skip
        if choice.random() < 0.3:
            record[field] = choice.choice(values)
    for field, values in {
        "node": ("n3",), "idempotency_key": ("1", "2", "3", ""), "create": (True, False),
        "config": ({"cap_records": 100}, {"cap_records": -1}), "unknown": (1,),
        "return_seqs": (True, False, 1),
    }.items():  # fmt: skip
        if choice.random() < (0.05 if field == "unknown" else 0.15):
            write[field] = choice.choice(values)
    if choice.random() < 0.1:
        write["records"].append({"data": 2})
    body = json.dumps(write).encode()
    return choice.choice((body, body, body, body, body[:-1], body.replace(b" ", b"\n")))


def request_of(choice: random.Random) -> bytes:
    body = body_of(choice)
    query = choice.choice(("", "", "?return_seqs=false", "?return_seqs=1", "?return_seqs=x"))
    lines = ["Host: localhost", f"Content-Length: {len(body)}"]
    if choice.random() < 0.95:
        lines.append("Content-Type: application/json")
    secret = choice.choice(("writer-secret",) * 8 + SECRETS)
    if secret:
        lines.append(f"Authorization: Bearer {secret}")
    if choice.random() < 0.2:
        lines.append("Idempotency-Key: " + choice.choice(("1", "2", "h", "k" * 300)))
    choice.shuffle(lines)
    head = f"POST /v0/topics/{choice.choice('ab')}{query} HTTP/1.1\r\n" + "\r\n".join(lines)
    return head.encode() + b"\r\n\r\n" + body


def comparable(answer: Answered) -> tuple[int, str, str, bytes]:
    headers = answer.headers
    ignored = headers.get("topics-ignored-fields", "")
    return answer.status, headers["content-type"], ignored, _TIMES.sub(b"", answer.body)


def records(served: Inside, topic: str) -> bytes:
    with served.client("writer-secret") as client:
        return _TIMES.sub(b"", client.diff(topic, limit=1000, include_tags=True).raw)


@pytest.mark.parametrize("seed", quick_first(range(3), 1))
def test_in_one_read_or_in_pieces(servers: list[Inside], seed: int) -> None:
    choice = random.Random(seed)
    whole, pieces = servers
    with Wire(whole.port) as one, Wire(pieces.port) as other:
        other.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(250):
            request = request_of(choice)
            one.send(request)
            other.send(request[:9])
            time.sleep(0.001)
            other.send(request[9:])
            assert comparable(one.answer()) == comparable(other.answer()), request
    for topic in "ab":
        assert records(whole, topic) == records(pieces, topic)
    assert len(whole.server.known_heads.forms) > 20
    for served in servers:
        assert all(key.inflight == 0 for key in served.config.keys)


# What both ways tell of a write that was taken.
TOLD = (
    "topic", "first_seq", "last_seq", "head_seq", "count", "created", "deduped", "seqs",
)  # fmt: skip


def told(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: answer[name] for name in TOLD if name in answer}


def asked(wire: Wire, topic: str, body: bytes, returns_seqs: bool) -> dict[str, Any]:
    query = "" if returns_seqs else "?return_seqs=false"
    head = (
        f"POST /v0/topics/{topic}{query} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
        "\r\nContent-Type: application/json\r\nAuthorization: Bearer writer-secret\r\n\r\n"
    )
    answer = wire.send(head.encode() + body).answer()
    found: dict[str, Any] = json.loads(answer.body)
    if answer.status >= 400:
        return {"code": found["error"]["code"]}
    assert answer.status == (201 if found["created"] else 200)
    ignored = answer.headers.get("topics-ignored-fields", "")
    return {**told(found), "ignored": ignored.split(", ") if ignored else []}


def published(socket: Socket, topic: str, body: bytes, returns_seqs: bool) -> dict[str, Any]:
    envelope = b'{"op":"publish","topic":"%b","return_seqs":%b,' % (
        topic.encode(), b"true" if returns_seqs else b"false",
    )  # fmt: skip
    socket.connection.send((envelope + body[1:]).decode())
    frame = socket.next("ack", "error")
    if frame["op"] == "error":
        return {"code": frame["code"]}
    return {**told(frame), "ignored": frame.get("ignored", [])}


@pytest.mark.parametrize("seed", quick_first(range(3), 1))
def test_as_a_request_or_as_a_message(servers: list[Inside], seed: int) -> None:
    choice = random.Random(seed)
    over_http, over_socket = servers
    codes, taken = set(), 0
    with (
        Wire(over_http.port) as wire,
        Socket(over_socket.port, token="writer-secret") as socket,
    ):
        for _ in range(250):
            topic, returns_seqs = choice.choice("ab"), choice.random() < 0.8
            # In a message that field is the envelope's, in a request it is nobody's.
            body = body_of(choice).replace(b"return_seqs", b"return_sequence")
            one = asked(wire, topic, body, returns_seqs)
            assert published(socket, topic, body, returns_seqs) == one, body
            codes.add(one.get("code"))
            taken += "code" not in one
    assert {"invalid_request", None} <= codes
    assert taken > 100
    for topic in "ab":
        assert records(over_http, topic) == records(over_socket, topic)
