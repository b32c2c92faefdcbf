"""Server-sent events: headers of the contract, framing, back-pressure and the end."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable

import pytest

from tests.server.protocol.app import Served
from tests.server.protocol.wire import Wire, eventually, message
from topics.server.http.http1 import HttpProtocol


def dechunked(data: bytes) -> bytes:
    """What a chunked body says; fails where it is malformed."""
    found = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        assert data[length : length + 2] == b"\r\n"
        found, data = found + data[:length], data[length + 2 :]
        if length == 0:
            assert data == b""
            return found
    raise AssertionError("the stream has no end")


def opened(served: Served, wire: Wire, headers: str = "") -> None:
    served.app.streams.clear()
    wire.send(message("GET", "/stream", headers=headers))
    wire.until(b"retry: 2000\n\n\r\n")


def test_the_head_is_the_contracts(wire: Wire) -> None:
    wire.send(message("GET", "/stream?end"))
    answered = wire.answer()
    assert answered.status == 200
    assert {name: answered.headers[name] for name in answered.headers if name != "x-method"} == {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-store",
        "connection": "keep-alive",
        "x-accel-buffering": "no",
        "transfer-encoding": "chunked",
    }
    assert dechunked(wire.rest()) == b"retry: 2000\n\ndata: 1\n\n"


def test_an_old_client_gets_a_stream_without_chunks(wire: Wire) -> None:
    wire.send(b"GET /stream?end HTTP/1.0\r\n\r\n")
    answered = wire.answer()
    assert "transfer-encoding" not in answered.headers
    assert answered.headers["connection"] == "close"
    assert wire.rest() == b"retry: 2000\n\ndata: 1\n\n"


def test_head_of_a_stream_ends_at_once(wire: Wire) -> None:
    wire.send(message("HEAD", "/stream"))
    assert wire.answer().headers["content-type"].startswith("text/event-stream")
    assert wire.is_closed()


def test_events_arrive_one_by_one_and_uncompressed(served: Served, wire: Wire) -> None:
    opened(served, wire, "Accept-Encoding: gzip\r\n")
    for number in range(5):
        event = b"data: %d\n\n" % number
        served.call(served.app.streams[0].send, event)
        assert wire.until(event + b"\r\n").endswith(b"\r\n" + event + b"\r\n")


def test_a_large_event_is_one_chunk(served: Served, wire: Wire) -> None:
    opened(served, wire)
    event = b"data: " + b"x" * 500_000 + b"\n\n"
    served.call(served.app.streams[0].send, event)
    served.call(served.app.streams[0].close)
    assert dechunked(wire.rest()) == event


def test_a_stream_waits_for_the_answers_before_it(served: Served, wire: Wire) -> None:
    served.app.streams.clear()
    wire.send(message("GET", "/slow?60") + message("GET", "/stream") + message("GET", "/json"))
    time.sleep(0.02)
    assert not served.app.streams
    assert wire.answer().json() == {"slow": 60}
    assert wire.answer().headers["content-type"].startswith("text/event-stream")
    served.call(served.app.streams[0].send, b"data: now\n\n")
    wire.until(b"data: now\n\n\r\n")
    served.call(served.app.streams[0].close)
    assert wire.rest() == b"0\r\n\r\n"


def test_the_owner_is_told_when_the_client_leaves(served: Served) -> None:
    before = served.app.closed
    with Wire(served.port) as wire:
        opened(served, wire)
    eventually(lambda: served.app.closed == before + 1)
    stream = served.app.streams[0]
    assert stream.is_closed
    assert not stream.is_writable
    served.call(stream.send, b"data: to nobody\n\n")
    served.call(stream.close)


def test_the_owner_is_told_when_the_client_leaves_before_the_streams_turn(served: Served) -> None:
    """It begins when what was sent before it is answered, and nobody is there any more."""
    served.app.streams.clear()
    before = served.app.closed
    with Wire(served.port) as wire:
        wire.send(message("GET", "/slow?60") + message("GET", "/stream"))
    eventually(lambda: served.app.closed == before + 1)
    assert len(served.app.streams) == 1


def test_a_slow_reader_is_noticed_and_an_eager_one_forgiven(served: Served) -> None:
    with Wire(served.port, receive_bytes=4096) as wire:
        opened(served, wire)
        stream, before = served.app.streams[0], served.app.writable
        sent = 0
        while served.call(lambda: stream.is_writable):
            served.call(stream.send, b"x" * 60_000)
            sent += 60_000
            assert sent < 50_000_000
        assert served.call(lambda: stream.buffered_bytes) > 0
        assert served.app.writable == before
        drain(wire, lambda: served.app.writable > before)
        assert served.call(lambda: stream.is_writable)


def drain(wire: Wire, until: Callable[[], bool]) -> None:
    wire.socket.settimeout(0.05)
    while not until():
        try:
            assert wire.socket.recv(1 << 16)
        except TimeoutError:
            pass


def test_what_the_client_sends_is_ignored(served: Served, wire: Wire) -> None:
    opened(served, wire)
    wire.send(message("GET", "/json") * 100)
    served.call(served.app.streams[0].send, b"data: x\n\n")
    wire.until(b"data: x\n\n\r\n")
    assert wire.buffer == b""


def test_events_are_not_delayed_by_the_kernel(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    transports: list[asyncio.Transport] = []
    made = HttpProtocol.connection_made

    def noted(protocol: HttpProtocol, transport: asyncio.Transport) -> None:
        transports.append(transport)
        made(protocol, transport)

    monkeypatch.setattr(HttpProtocol, "connection_made", noted)
    with Wire(served.port) as wire:
        opened(served, wire)
        inner = transports[0].get_extra_info("socket")
        assert inner.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert inner.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_a_broken_callback_harms_nobody(served: Served) -> None:
    with Wire(served.port) as wire:
        opened(served, wire)
        served.app.streams[0].on_close = lambda: 1 / 0  # type: ignore[assignment]
    eventually(lambda: served.server.connection_count == 0)
