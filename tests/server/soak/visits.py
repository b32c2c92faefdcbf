"""Short visits to a server of every kind that leaves something to be cleared away.

Each makes its sockets with bytes of its own, so that what it leaves behind in this process is not
taken for the server's, and returns them open: whoever asked closes them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import hpack

Sockets = list[socket.socket]
TIMEOUT_S = 20.0
# Enough that an answer of them is rendered and sent beside the loop.
LARGE_RECORDS = 700
RECEIVE_BYTES = 1 << 16

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADERS, _SETTINGS, _DATA = 1, 4, 0
_END_STREAM, _END_HEADERS = 1, 4
UPGRADE = (
    b"GET /v0/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def prepare(port: int) -> None:
    """The topics that visitors go to."""
    for topic, kind in (("visited", "log"), ("jobs", "queue")):
        _call(port, "PUT", f"/v0/topics/{topic}", {"type": kind})
    _call(port, "POST", "/v0/topics/visited", {"records": [{"data": 1}]})
    _call(port, "PUT", "/v0/topics/polled", {"cap_records": 100})
    _call(port, "POST", "/v0/topics/large", {"records": [{"data": "x" * 1000}] * LARGE_RECORDS})


def _connect(port: int, data: bytes) -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
    peer.sendall(data)
    return peer


def _request(method: str, path: str, body: Any = None, accept: str = "*/*") -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n"
    if body is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    return head.encode() + b"\r\n" + data


def _answered(peer: socket.socket) -> bytes:
    """The first of what comes: for these requests the whole answer."""
    received = peer.recv(RECEIVE_BYTES)
    assert received, "closed without a word"
    return received


def _call(port: int, method: str, path: str, body: Any = None) -> Any:
    with _connect(port, _request(method, path, body)) as peer:
        head, _, content = _answered(peer).partition(b"\r\n\r\n")
    assert head.split()[1][:1] == b"2", head
    return json.loads(content)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return (
        len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
    )


def _h2(method: str, path: str, **headers: str) -> bytes:
    pseudo = [
        (":method", method),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
    ]
    return hpack.Encoder().encode([*pseudo, *headers.items()], huffman=False)


def _connect_h2(port: int, data: bytes) -> socket.socket:
    return _connect(port, PREFACE + frame(_SETTINGS, 0, 0) + data)


# -- the visits ------------------------------------------------------------------------------


def connection(port: int, _number: int) -> Sockets:
    peer = _connect(port, _request("GET", "/v0/health"))
    _answered(peer)
    return [peer]


def request_cut_short(port: int, _number: int) -> Sockets:
    return [_connect(port, _request("POST", "/v0/topics/visited", {"records": []})[:-5])]


def nonsense(port: int, _number: int) -> Sockets:
    peer = _connect(port, b"nonsense\r\n\r\n")
    _answered(peer)
    return [peer]


def h2_connection(port: int, _number: int) -> Sockets:
    block = _h2("GET", "/v0/topics/visited")
    peer = _connect_h2(port, frame(_HEADERS, _END_HEADERS | _END_STREAM, 1, block))
    _answered(peer)
    return [peer]


def h2_request_cut_short(port: int, _number: int) -> Sockets:
    block = _h2("POST", "/v0/topics/visited", **{"content-type": "application/json"})
    sent = frame(_HEADERS, _END_HEADERS, 1, block) + frame(_DATA, 0, 1, b'{"rec')
    peer = _connect_h2(port, sent)
    _answered(peer)
    return [peer]


def h2_stream(port: int, _number: int) -> Sockets:
    path = _call(port, "POST", "/v0/watch", {"topics": {"visited": {"from_seq": 0}}})["stream_url"]
    block = _h2("GET", path, accept="text/event-stream")
    peer = _connect_h2(port, frame(_HEADERS, _END_HEADERS | _END_STREAM, 1, block))
    _answered(peer)
    return [peer]


def web_socket(port: int, _number: int) -> Sockets:
    peer = _connect(port, UPGRADE)
    assert _answered(peer).startswith(b"HTTP/1.1 101 ")
    command = json.dumps({"op": "subscribe", "topic": "visited", "from_seq": 0}).encode()
    assert len(command) < 126
    # A mask of zeros leaves it as it is.
    peer.sendall(bytes((0x81, 0x80 | len(command))) + bytes(4) + command)
    _answered(peer)
    return [peer]


def event_stream(port: int, _number: int) -> Sockets:
    path = _call(port, "POST", "/v0/watch", {"topics": {"visited": {"from_seq": 0}}})["stream_url"]
    peer = _connect(port, _request("GET", path, accept="text/event-stream"))
    _answered(peer)
    return [peer]


def work_stream(port: int, _number: int) -> Sockets:
    path = "/v0/topics/jobs/work?node=n"
    peer = _connect(port, _request("GET", path, accept="text/event-stream"))
    _answered(peer)
    return [peer]


def long_poll(port: int, _number: int) -> Sockets:
    body = {"from_seq": 1_000_000, "wait_ms": 30_000}
    return [_connect(port, _request("POST", "/v0/topics/visited/diff", body))]


def long_poll_to_its_end(port: int, _number: int) -> Sockets:
    _call(port, "POST", "/v0/topics/jobs/claim", {"node": "n", "wait_ms": 1})
    return []


def long_poll_answered(port: int, _number: int) -> Sockets:
    path, record = "/v0/topics/polled", {"records": [{"data": 1}]}
    body = {"from_seq": _call(port, "POST", path, record)["last_seq"], "wait_ms": 30_000}
    peer = _connect(port, _request("POST", f"{path}/diff", body))
    _call(port, "POST", path, record)
    _answered(peer)
    return [peer]


def large_range(port: int, _number: int, kind: str = "json") -> Sockets:
    asked = {"from_seq": 0, "format": kind}
    peer = _connect(port, _request("POST", "/v0/topics/large/range", asked))
    head, _, rest = _answered(peer).partition(b"\r\n\r\n")
    left = int(head.lower().partition(b"content-length: ")[2].split()[0]) - len(rest)
    while left:
        left -= len(_answered(peer))
    return [peer]


def large_columns(port: int, number: int) -> Sockets:
    """Without pyarrow beside the server it is a refusal."""
    return large_range(port, number, "arrow")


def waiting_claim(port: int, _number: int) -> Sockets:
    body = {"node": "n", "wait_ms": 30_000}
    return [_connect(port, _request("POST", "/v0/topics/jobs/claim", body))]


def session(port: int, _number: int) -> Sockets:
    _call(port, "POST", "/v0/watch", {"topics": {"visited": {"from_seq": 0}}})
    return []


def topic(port: int, number: int) -> Sockets:
    path = f"/v0/topics/topic-{number}"
    records = [{"data": 1, "tag": "a"}, {"data": 2}]
    _call(port, "POST", path, {"records": records, "idempotency_key": "k"})
    _call(port, "PUT", f"{path}/cursors/c", {"seq": 1})
    _call(port, "POST", f"{path}/delete", {"match": "a"})
    _call(port, "DELETE", path)
    return []


def queue(port: int, number: int) -> Sockets:
    path = f"/v0/topics/queue-{number}"
    _call(port, "PUT", path, {"type": "queue", "leases_durable": True})
    _call(port, "POST", path, {"records": [{"data": 1}]})
    _call(port, "POST", f"{path}/claim", {"node": "n"})
    _call(port, "POST", f"{path}/ack", {"node": "n", "seqs": [1]})
    _call(port, "DELETE", path)
    return []


def router(port: int, number: int) -> Sockets:
    source, dest = f"source-{number}", f"dest-{number}"
    for name in (source, dest):
        _call(port, "PUT", f"/v0/topics/{name}", {})
    _call(port, "PUT", f"/v0/routers/{source}", {"source": source, "dest": dest})
    _call(port, "POST", f"/v0/topics/{source}", {"records": [{"data": 1}]})
    for name in (source, dest):
        _call(port, "DELETE", f"/v0/topics/{name}")
    return []


Visit = Callable[[int, int], Sockets]
# Of connections and sessions there may be any number; each of the others is many calls.
PASSING: tuple[Visit, ...] = (
    connection, request_cut_short, nonsense, h2_connection, h2_request_cut_short, h2_stream,
    web_socket, event_stream, work_stream, long_poll, long_poll_to_its_end, waiting_claim, session,
)  # fmt: skip
LASTING: tuple[Visit, ...] = (
    topic, queue, router, long_poll_answered, large_range, large_columns,
)  # fmt: skip
VISITS = PASSING + LASTING
AT_ONCE = 20


def visit(port: int, kind: Visit, numbers: Iterator[int], count: int) -> None:
    """Some visits, a few at a time, all of them over when this returns."""
    for _ in range(0, count, AT_ONCE):
        with contextlib.ExitStack() as peers:
            for number in itertools.islice(numbers, AT_ONCE):
                for peer in kind(port, number):
                    peers.enter_context(peer)
