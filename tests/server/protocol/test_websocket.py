"""WebSocket connections: handshake, messages, limits and the end, over a real socket."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator

import pytest
from websockets.sync.client import connect

from tests.server.protocol.app import LOOPS, Served, serving
from tests.server.protocol.wire import Wire, eventually, message
from topics.server.http.limits import HttpLimits

LIMITS = HttpLimits(
    message_bytes_max=100_000, linger_s=0.3, scan_s=0.1, ping_s=0.3, pong_s=0.3, idle_s=0.5
)
KEY = base64.b64encode(b"0123456789abcdef").decode()
HANDSHAKE = (
    "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"
    f"Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n"
)
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


@pytest.fixture(scope="module", params=sorted(LOOPS))
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    with serving(LIMITS, request.param) as served:
        yield served


def frame(opcode: int, data: bytes = b"", *, fin: bool = True, masked: bool = True) -> bytes:
    mask = b"\1\2\3\4"
    length = len(data)
    head = bytes([(0x80 if fin else 0) | opcode])
    bit = 0x80 if masked else 0
    if length < 126:
        head += bytes([bit | length])
    elif length < 65536:
        head += bytes([bit | 126]) + struct.pack("!H", length)
    else:
        head += bytes([bit | 127]) + struct.pack("!Q", length)
    if not masked:
        return head + data
    return head + mask + bytes(byte ^ mask[n % 4] for n, byte in enumerate(data))


def received(wire: Wire) -> tuple[int, bytes]:
    """The next frame from the server: its opcode and payload."""
    need(wire, 2)
    first, second = wire.buffer[0], wire.buffer[1]
    assert first & 0x80, "a server's message is one frame"
    assert not second & 0x80, "a server does not mask"
    at, size = 2, second
    if size == 126:
        need(wire, 4)
        at, size = 4, struct.unpack("!H", wire.buffer[2:4])[0]
    elif size == 127:
        need(wire, 10)
        at, size = 10, struct.unpack("!Q", wire.buffer[2:10])[0]
    need(wire, at + size)
    data, wire.buffer = wire.buffer[at : at + size], wire.buffer[at + size :]
    return first & 0x0F, data


def need(wire: Wire, size: int) -> None:
    while len(wire.buffer) < size:
        assert wire.more(), "the connection ended within a frame"


def closed(wire: Wire) -> int:
    """The code the server closed with."""
    opcode, data = received(wire)
    assert opcode == CLOSE
    return int(struct.unpack("!H", data[:2])[0])


@pytest.fixture
def opened(wire: Wire) -> Wire:
    wire.send(message("GET", "/ws", headers=HANDSHAKE))
    answered = wire.answer()
    assert answered.status == 101
    assert answered.headers["upgrade"] == "websocket"
    assert "sec-websocket-extensions" not in answered.headers
    return wire


def test_a_real_client_is_understood(served: Served) -> None:
    """It offers compression and gets none."""
    with connect(f"ws://127.0.0.1:{served.port}/ws") as client:
        assert client.protocol.extensions == []
        for text in ("hello", "käse 🧀", "", "x" * 90_000):
            client.send(text)
            assert client.recv(timeout=5) == text
        client.send(b"\0\1")
        assert client.recv(timeout=5) == b"\0\1"
        assert client.ping().wait(5)
    assert client.close_code == 1000


def test_messages_may_follow_the_handshake_at_once(wire: Wire) -> None:
    wire.send(message("GET", "/ws", headers=HANDSHAKE) + frame(TEXT, b"early"))
    assert wire.answer().status == 101
    assert received(wire) == (TEXT, b"early")


def test_fragments_are_put_together(opened: Wire) -> None:
    opened.send(frame(TEXT, "kä".encode()[:2], fin=False) + frame(0, "kä".encode()[2:], fin=False))
    opened.send(frame(PING, b"between") + frame(0, b"se"))
    assert received(opened) == (PONG, b"between")
    assert received(opened) == (TEXT, "käse".encode())


def test_text_that_is_not_utf8_is_1007(opened: Wire) -> None:
    opened.send(frame(TEXT, b"\xff\xfe"))
    assert closed(opened) == 1007
    assert opened.is_closed()


def test_fragmented_text_that_is_not_utf8_is_1007(opened: Wire) -> None:
    opened.send(frame(TEXT, b"a\xc3", fin=False) + frame(0, b"b"))
    assert closed(opened) == 1007


def test_a_message_that_is_too_big_is_1009(opened: Wire) -> None:
    opened.send(frame(TEXT, b"x" * 100_001)[:20])
    assert closed(opened) == 1009
    assert opened.is_closed()


def test_fragments_that_are_too_big_together_are_1009(opened: Wire) -> None:
    opened.send(frame(TEXT, b"x" * 60_000, fin=False) + frame(0, b"x" * 60_000))
    assert closed(opened) == 1009


VIOLATIONS = [
    frame(TEXT, b"x", masked=False),
    frame(0, b"x"),
    frame(3, b"x"),
    frame(PING, b"x" * 126),
    frame(PING, fin=False),
    frame(TEXT, b"x", fin=False) + frame(TEXT, b"y"),
    b"\xf1\x80\1\2\3\4",
    frame(CLOSE, b"\x03"),
    frame(CLOSE, struct.pack("!H", 1005)),
]


@pytest.mark.parametrize("bad", VIOLATIONS, ids=range(len(VIOLATIONS)))
def test_a_violation_of_the_protocol_is_1002(opened: Wire, bad: bytes) -> None:
    opened.send(bad)
    assert closed(opened) == 1002
    assert opened.is_closed()


def test_the_client_closes_and_is_echoed(served: Served, opened: Wire) -> None:
    before = served.app.closed
    opened.send(frame(CLOSE, struct.pack("!H", 4001) + b"bye"))
    assert closed(opened) == 4001
    assert opened.is_closed()
    eventually(lambda: served.app.closed == before + 1)
    assert served.app.sockets[-1].close_code == 4001


def test_the_server_closes_and_waits_for_the_echo(served: Served, opened: Wire) -> None:
    opened.send(frame(TEXT, b"close") + frame(TEXT, b"ignored"))
    assert closed(opened) == 4000
    opened.send(frame(CLOSE, struct.pack("!H", 4000)))
    assert opened.is_closed()
    assert served.app.sockets[-1].is_closed


def test_a_client_that_does_not_echo_is_cut_off(served: Served, opened: Wire) -> None:
    opened.send(frame(TEXT, b"close"))
    assert closed(opened) == 4000
    assert opened.is_closed()
    eventually(lambda: served.server.connection_count == 0)


def test_a_bug_in_a_handler_is_1011_and_tells_nothing(opened: Wire) -> None:
    opened.send(frame(TEXT, b"fail"))
    opcode, data = received(opened)
    assert (opcode, data[:2]) == (CLOSE, struct.pack("!H", 1011))
    assert b"secret" not in data


def test_a_silent_client_is_pinged_and_then_dropped(served: Served, opened: Wire) -> None:
    assert received(opened) == (PING, b"")
    opened.send(frame(PONG))
    assert received(opened) == (PING, b"")
    assert opened.is_closed()
    eventually(lambda: served.app.sockets[-1].is_closed)
    assert served.app.sockets[-1].close_code == 1006


def test_a_client_that_does_not_read_is_not_read_from(served: Served) -> None:
    """Echoes of what it sends can not fill our memory."""
    with Wire(served.port, receive_bytes=4096) as wire:
        wire.send(message("GET", "/ws", headers=HANDSHAKE)).until(b"\r\n\r\n")
        wire.socket.settimeout(0.3)
        big = frame(BINARY, b"x" * 90_000)
        with pytest.raises((TimeoutError, ConnectionError)):
            wire.send(big * 1000)
        socket = served.app.sockets[-1]
        assert served.call(lambda: socket.buffered_bytes) < 8_000_000


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", "", 426),
        ("GET", HANDSHAKE.replace("websocket", "h2c", 1), 426),
        ("GET", HANDSHAKE.replace("13", "8"), 400),
        ("GET", HANDSHAKE.replace(KEY, "short"), 400),
        ("GET", HANDSHAKE + f"Sec-WebSocket-Key: {KEY}\r\n", 400),
        ("GET", "Connection: Upgrade\r\nUpgrade: websocket\r\n", 400),
        ("GET", HANDSHAKE + "Content-Length: 0\r\n", 426),
        ("POST", HANDSHAKE, 405),
    ],
)
def test_a_bad_handshake_is_answered_in_http(
    wire: Wire, method: str, headers: str, status: int
) -> None:
    answered = wire.request(method, "/ws", headers=headers)
    assert answered.status == status
    assert answered.code
    assert wire.request("GET", "/json").status == 200


def test_an_upgrade_elsewhere_is_an_ordinary_request(wire: Wire) -> None:
    wire.send(message("GET", "/json", headers=HANDSHAKE) + message("GET", "/json"))
    assert [wire.answer().status, wire.answer().status] == [200, 200]


def test_an_upgrade_behind_a_pending_request_is_refused(wire: Wire) -> None:
    wire.send(message("GET", "/slow?20") + message("GET", "/ws", headers=HANDSHAKE))
    assert [wire.answer().status, wire.answer().status] == [200, 426]


def test_only_so_many_upgrades_are_tried(wire: Wire) -> None:
    wire.send(message("GET", "/json", headers=HANDSHAKE) * 30)
    statuses: list[int] = []
    while not statuses or statuses[-1] != 400:
        statuses.append(wire.answer().status)
    assert statuses == [200] * 17 + [400] or statuses == [200] * 16 + [400]
    assert wire.is_closed()
