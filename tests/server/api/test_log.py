"""The log never has keys or payloads in it, whatever its level and whoever writes to it."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from pathlib import Path

import pytest

from tests.server.protocol.h2_client import H2Client
from tests.support.servers import Client, Served
from tests.support.streams import EventSource, Refused, Socket
from tests.support.tiers import quick_first

KEYS = ("SECRET-http1", "SECRET-http2", "SECRET-socket", "SECRET-query")
UNKNOWN = "SECRET-unknown"
PAYLOAD = "PAYLOAD"


def write(number: int) -> bytes:
    record = {"data": f"{PAYLOAD}-{number}", "tag": f"{PAYLOAD}-tag", "meta": {"k": PAYLOAD}}
    return json.dumps({"records": [record], "idempotency_key": f"{PAYLOAD}-key"}).encode()


def over_http1(served: Served) -> None:
    for key in (KEYS[0], UNKNOWN):
        with served.client(key) as client:
            client.post("/v0/topics/a", write(1))
            client.post("/v0/topics/a", b'{"records": ["' + PAYLOAD.encode())
            client.post("/v0/topics/a", b"\xff" + PAYLOAD.encode())
            client.get(f"/v0/topics/{PAYLOAD}")
            client.diff("a")
    with socket.create_connection(("127.0.0.1", served.port)) as peer:
        peer.sendall(
            f"GET / HTTP/1.1\r\nAuthorization: Bearer {KEYS[0]}\r\nBad header\r\n\r\n".encode()
        )
        peer.recv(4096)


def over_http2(served: Served) -> None:
    kind = ("content-type", "application/json")
    for key in (KEYS[1], UNKNOWN):
        with H2Client(served.port) as client:
            headers = (("authorization", f"Bearer {key}"), kind)
            for path, body in (("/v0/topics/a", write(2)), ("/v0/topics/a/diff", b"{}")):
                assert client.answer(client.open("POST", path, body, headers)).status


def over_a_socket(served: Served) -> None:
    with Socket(served.port, KEYS[2]) as peer:
        peer.ask("publish", topic="a", records=[{"data": f"{PAYLOAD}-3"}])
        peer.ask("subscribe", topic="a", from_seq=0)
        peer.next("record")
        peer.connection.send(b"\x00" + PAYLOAD.encode())
        peer.next("error")
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", served.port)) as raw:
        raw.sendall(
            b"GET /v0/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            b"Authorization: Bearer %b\r\n\r\n" % KEYS[2].encode()
        )
        raw.recv(4096)
        # As long as the longest head of a frame: it is refused, not waited for.
        raw.sendall(b"\xff\xff" + 2 * PAYLOAD.encode())
        raw.recv(4096)


def over_a_query(served: Served) -> None:
    for token in (KEYS[3], UNKNOWN):
        with contextlib.suppress(Refused, http.client.HTTPException):
            EventSource(served.port, f"/v0/watch/wid_{'x' * 22}?token={token}").close()


@pytest.mark.slow
@pytest.mark.parametrize("level", quick_first(["debug", "info", "error"], 1))
def test_neither_keys_nor_payloads_are_logged(tmp_path: Path, level: str) -> None:
    with Served(tmp_path, TOPICS_API_KEYS=",".join(KEYS), TOPICS_LOG_LEVEL=level) as served:
        served.wait_ready()
        for visit in (over_http1, over_http2, over_a_socket, over_a_query):
            visit(served)
        with Client(served.port, KEYS[0]) as client:
            heads = client.get("/v0/topics/a").json["head_seq"]
        assert served.stop() == 0
    assert heads >= 2, "what was sent did arrive"
    log = served.log()
    assert "SECRET" not in log
    assert PAYLOAD not in log
    assert ("listens on" in log) is (level != "error")
