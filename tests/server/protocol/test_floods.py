"""One connection sends all it can of what costs it little: others are served all the same."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.server.protocol.app import LOOPS, Served, serving
from tests.server.protocol.h2_client import H2Client
from tests.server.protocol.test_websocket import HANDSHAKE, frame
from tests.server.protocol.wire import Wire, message
from tests.support.tiers import quick_first

FLOOD_S = 1.0
# Without shares it is seconds. Generous, because the flood and the bystander share the machine
# with the server; what a turn may take is 1 ms.
WAIT_S_MAX = 0.4


@pytest.fixture(scope="module", params=sorted(LOOPS))
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    with serving(loop=request.param) as served:
        yield served


def h2_frame(kind: int, number: int = 0, data: bytes = b"", flags: int = 0) -> bytes:
    return (
        struct.pack(">I", len(data))[1:] + bytes([kind, flags]) + struct.pack(">I", number) + data
    )


def h2_socket(port: int) -> socket.socket:
    return H2Client(port).socket


def websocket(port: int) -> socket.socket:
    wire = Wire(port)
    assert wire.send(message("GET", "/ws", headers=HANDSHAKE)).answer().status == 101
    wire.send(frame(1, b"a", fin=False))
    return wire.socket


def plain(port: int) -> socket.socket:
    return Wire(port).socket


Open = Callable[[int], socket.socket]
# Whether the flood ends the connection, as one without work in it does.
FLOODS: dict[str, tuple[Open, bytes, bool]] = {
    "empty continuations": (websocket, frame(0, b"", fin=False), True),
    "pings": (websocket, frame(9), True),
    "pongs": (websocket, frame(10), True),
    "h2 PING": (h2_socket, h2_frame(6, 0, b"12345678"), True),
    "h2 SETTINGS": (h2_socket, h2_frame(4), True),
    "h2 PRIORITY": (h2_socket, h2_frame(2, 3, struct.pack(">IB", 1, 5)), True),
    "h2 WINDOW_UPDATE": (h2_socket, h2_frame(8, 0, b"\0\0\0\1"), True),
    "h2 unknown": (h2_socket, h2_frame(0x40), True),
    "h2 DATA of no stream": (h2_socket, h2_frame(0, 1, b"", 0), True),
    "pipelined requests": (plain, message("GET", "/json"), False),
    "refused requests": (plain, message("POST", "/nothing", b"x"), False),
    "tiny chunks": (plain, b"1\r\nx\r\n", False),
}


def flood(port: int, name: str, stop: threading.Event) -> bool:
    """Sends until it is stopped; whether the server has ended the connection by then."""
    opening, unit, _ = FLOODS[name]
    data = unit * 4000
    with opening(port) as peer:
        peer.settimeout(0.1)
        if name == "tiny chunks":
            peer.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        at = 0
        while not stop.is_set():
            try:
                at = (at + peer.send(data[at:])) % len(data)
            except TimeoutError:
                pass
            except OSError:
                return True
    return False


@pytest.mark.parametrize("name", quick_first(FLOODS, 4))
def test_a_flood_keeps_nobody_waiting(served: Served, name: str) -> None:
    stop, ended, longest = threading.Event(), [False], 0.0

    def run() -> None:
        ended[0] = flood(served.port, name, stop)

    thread = threading.Thread(target=run)
    with Wire(served.port) as wire:
        assert wire.request("GET", "/json").status == 200
        thread.start()
        try:
            until = time.monotonic() + FLOOD_S
            while time.monotonic() < until and thread.is_alive():
                began = time.monotonic()
                assert wire.request("GET", "/json").status == 200
                longest = max(longest, time.monotonic() - began)
                time.sleep(0.005)
        finally:
            stop.set()
            thread.join()
    assert longest < WAIT_S_MAX
    assert ended[0] == FLOODS[name][2]


def test_a_client_is_told_that_it_sends_too_much(served: Served) -> None:
    with H2Client(served.port) as client:
        client.socket.sendall(h2_frame(6, 0, b"12345678") * 2000)
        while client.read():
            pass
        assert client.is_terminated
    with Wire(served.port) as wire:
        assert wire.send(message("GET", "/ws", headers=HANDSHAKE)).answer().status == 101
        wire.send(frame(10) * 2000)
        assert wire.until(b"nothing in them").startswith(b"\x88")


@pytest.mark.slow
def test_frames_that_go_with_work_are_no_flood(served: Served) -> None:
    """A client may acknowledge all it gets, and ask now and then whether we are there."""
    with H2Client(served.port) as client:
        for _ in range(500):
            client.h2.increment_flow_control_window(1)
            client.h2.ping(b"12345678")
            assert client.request("GET", "/json").status == 200
        number = client.open("GET", "/big?n=6000000")
        assert len(client.answer(number).body) == 6_000_000
    with Wire(served.port) as wire:
        assert wire.send(message("GET", "/ws", headers=HANDSHAKE)).answer().status == 101
        for _ in range(600):
            wire.send((frame(9) * 2) + frame(1, b"hello"))
            wire.until(b"hello")


def test_pipelined_requests_are_all_answered_in_order(served: Served) -> None:
    """Whatever the size of the reads, and with bodies in between that span them."""
    bodies = [bytes([65 + n % 26]) * (n * 37 % 9000) or b"-" for n in range(300)]
    sent = b"".join(message("POST", "/echo", body) + message("GET", "/json") for body in bodies)
    with Wire(served.port) as wire:
        sender = threading.Thread(target=wire.send, args=(sent,))
        sender.start()
        for body in bodies:
            assert wire.answer().body == body
            assert wire.answer().json() == {"ok": True}
        sender.join()


def test_whatever_comes_behind_an_upgrade_is_for_the_websocket(served: Served) -> None:
    frames = b"".join(frame(1, b"%d" % n) for n in range(3000))
    with Wire(served.port) as wire:
        wire.send(message("GET", "/ws", headers=HANDSHAKE) + frames)
        assert wire.answer().status == 101
        assert wire.until(b"2999").count(b"\x81") == 3000
