"""Large answers leave in portions, whole and in order, and others have their turn in between."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from typing import Any

import pytest

from tests.server.protocol.app import Served
from tests.server.protocol.wire import Wire, eventually, message, parse_all
from topics.server.http.connections import HttpServer
from topics.server.http.http1 import HttpProtocol

SIZES = (200_000, 700_000, 5_000_000, 3, 2_500_000, 20)


class Recorder(asyncio.Transport):
    """Takes what is written, until it is told that nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        # How many of them came with the request.
        self.at_once = 0
        self.is_closing_now = False

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def writelines(self, parts: Any) -> None:
        self.writes.append(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        self.is_closing_now = True

    def abort(self) -> None:
        self.is_closing_now = True


def connect(
    server: HttpServer, data: bytes, *, is_paused: bool = False
) -> tuple[HttpProtocol, Recorder]:
    protocol, recorder = HttpProtocol(server), Recorder()
    protocol.connection_made(recorder)
    protocol.data_received(data)
    recorder.at_once = len(recorder.writes)
    if is_paused:
        protocol.pause_writing()
    return protocol, recorder


def test_no_write_is_much_larger_than_a_portion(served: Served) -> None:
    """And each comes in a turn of its own."""
    asked = b"".join(message("GET", f"/big?n={size}") for size in SIZES)
    protocol, recorder = served.call(connect, served.server, asked)
    portion = served.server.limits.out_bytes_max
    eventually(lambda: b"".join(recorder.writes).endswith(b'"' + b"x" * (SIZES[-1] - 2) + b'"'))
    assert max(map(len, recorder.writes)) <= 2 * portion + 1000
    assert recorder.at_once <= 2 < len(recorder.writes)
    answers = parse_all(b"".join(recorder.writes))
    assert [len(answer.body) for answer in answers] == list(SIZES)
    served.call(protocol.connection_lost, None)


def test_nothing_is_written_while_nobody_reads(served: Served) -> None:
    asked = message("GET", "/big?n=4000000")
    protocol, recorder = served.call(lambda: connect(served.server, asked, is_paused=True))
    held = served.call(lambda: len(recorder.writes))
    time.sleep(0.05)
    assert served.call(lambda: len(recorder.writes)) == held
    assert served.call(lambda: served.server.unsent.held_bytes) > 3_000_000
    served.call(protocol.resume_writing)
    eventually(lambda: sum(map(len, recorder.writes)) > 4_000_000)
    assert served.call(lambda: served.server.unsent.held_bytes) == 0
    served.call(protocol.connection_lost, None)


def test_a_connection_ends_behind_its_last_portion(served: Served) -> None:
    asked = message("GET", "/big?n=3000000", headers="Connection: close\r\n")
    protocol, recorder = served.call(connect, served.server, asked)
    eventually(lambda: recorder.is_closing_now)
    (answer,) = parse_all(b"".join(recorder.writes))
    assert len(answer.body) == 3_000_000
    served.call(protocol.connection_lost, None)


@pytest.mark.parametrize("ending", ["", "Connection: close\r\n"])
def test_all_of_it_arrives_in_order(wire: Wire, ending: str) -> None:
    requests = [message("GET", f"/big?n={size}") for size in SIZES[:-1]]
    wire.send(b"".join([*requests, message("GET", f"/big?n={SIZES[-1]}", headers=ending)]))
    assert [len(wire.answer().body) for _ in SIZES] == list(SIZES)
    assert not ending or wire.is_closed()


def test_a_client_that_sends_no_more_gets_all_of_it(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as client:
        client.sendall(message("GET", "/big?n=6000000"))
        client.shutdown(socket.SHUT_WR)
        got = bytearray()
        while chunk := client.recv(1 << 20):
            got += chunk
    (answer,) = parse_all(bytes(got))
    assert len(answer.body) == 6_000_000


def test_others_are_answered_meanwhile(served: Served) -> None:
    """One who reads nothing of a large answer, or reads it slowly, keeps nobody from theirs."""
    stop = threading.Event()

    def read() -> None:
        with Wire(served.port) as large:
            while not stop.is_set():
                assert len(large.request("GET", "/big?n=9000000").body) == 9_000_000

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with Wire(served.port) as small:
            for _ in range(200):
                assert small.request("GET", "/json").status == 200
    finally:
        stop.set()
        reader.join()
