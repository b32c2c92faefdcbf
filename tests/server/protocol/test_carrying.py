"""A large answer that a thread sends: each byte once and in order, whoever interferes."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server.protocol.app import Served, numbers
from tests.server.protocol.wire import Wire, eventually, message
from topics.server.http import carrying
from topics.server.http.carrying import Carry, behind, front
from topics.types import Payload


@pytest.fixture
def line() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as door:
        far = socket.create_connection(door.getsockname())
        near, _ = door.accept()
        near.setblocking(False)
        far.settimeout(20)
        with far, near:
            yield near, far


def pieces_of(seed: int, size: int) -> list[Payload]:
    """Bytes that are nowhere the same, in pieces of any length, none included."""
    rng = random.Random(seed)
    whole = rng.randbytes(size)
    pieces: list[Payload] = []
    at = 0
    while at < size:
        length = rng.choice((0, 1, 100, 5_000, 70_000, 400_000))
        piece = whole[at : at + length]
        pieces.append(rng.choice((bytes, bytearray, memoryview))(piece))
        at += length
    return pieces


def read_all(far: socket.socket, got: bytearray) -> None:
    while chunk := far.recv(1 << 20):
        got += chunk


@given(st.lists(st.binary(max_size=9)), st.integers(0, 60))
def test_front_and_behind_are_all_of_it(pieces: list[bytes], size: int) -> None:
    whole = b"".join(pieces)
    assert b"".join(front(pieces, size)) == whole[:size]
    if size <= len(whole):
        assert b"".join(behind(list(pieces), size)) == whole[size:]


@pytest.mark.parametrize("seed", range(6))
def test_everything_arrives_at_a_client_that_reads(
    line: tuple[socket.socket, socket.socket], seed: int
) -> None:
    near, far = line
    pieces = pieces_of(seed, 6_000_000)
    whole = b"".join(pieces)
    carry = Carry(near.fileno(), pieces)
    got = bytearray()
    reader = threading.Thread(target=read_all, args=(far, got))
    reader.start()
    carry.run()
    near.shutdown(socket.SHUT_WR)
    reader.join()
    # It ends early where the reader does not get to reading in time.
    assert got == whole[: carry.sent_bytes]
    assert carry.sent_bytes


def test_a_client_that_reads_nothing_is_given_back_to_the_loop(
    line: tuple[socket.socket, socket.socket],
) -> None:
    near, far = line
    pieces = pieces_of(1, 40_000_000)
    carry = Carry(near.fileno(), pieces)
    carry.run()
    sent = carry.recall()
    assert 0 < sent < 40_000_000
    near.close()
    got = bytearray()
    read_all(far, got)
    assert got == b"".join(pieces)[:sent]


def test_one_that_is_called_back_sends_no_more(line: tuple[socket.socket, socket.socket]) -> None:
    near, far = line
    pieces = pieces_of(2, 60_000_000)
    carry = Carry(near.fileno(), pieces)
    sender = threading.Thread(target=carry.run)
    sender.start()
    got = bytearray(far.recv(1 << 20))
    sent = carry.recall()
    near.setblocking(True)
    near.sendall(b"behind it")
    near.shutdown(socket.SHUT_WR)
    read_all(far, got)
    sender.join()
    assert got == b"".join(pieces)[:sent] + b"behind it"


def test_a_client_that_left_is_left_to_the_loop(line: tuple[socket.socket, socket.socket]) -> None:
    near, far = line
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    far.close()
    Carry(near.fileno(), pieces_of(3, 9_000_000)).run()


def test_one_that_is_dropped_sends_nothing_and_lets_go(
    line: tuple[socket.socket, socket.socket],
) -> None:
    """Whether it never ran, or runs although nobody expects it any more."""
    near, far = line
    carry = Carry(near.fileno(), pieces_of(4, 100_000))
    carry.drop()
    carry.run()
    carry.drop()
    assert carry.recall() == 0
    near.close()
    assert far.recv(1) == b""


# -- in a server -----------------------------------------------------------------------------


def carried(served: Served, monkeypatch: pytest.MonkeyPatch) -> list[Carry]:
    """The carries of a server from now on."""
    carries: list[Carry] = []

    class Noted(Carry):
        def __init__(self, fd: int, pieces: list[Payload]) -> None:
            super().__init__(fd, pieces)
            carries.append(self)

    monkeypatch.setattr(carrying, "Carry", Noted)
    return carries


def test_answers_behind_a_large_one_wait_for_it(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small ones, large ones, of a client that reads in fits."""
    carries = carried(served, monkeypatch)
    rng = random.Random(7)
    counts = [rng.choice((1, 4_000, 60_000, 300_000)) for _ in range(40)]
    with Wire(served.port) as wire:
        wire.send(b"".join(message("GET", f"/numbers?n={count}") for count in counts))
        for count in counts:
            if rng.random() < 0.2:
                time.sleep(0.02)
            assert wire.answer().body == b"".join(numbers(count))
    assert carries
    eventually(lambda: not served.call(lambda: served.server.carrier.count))


def test_one_that_leaves_in_the_middle_costs_nothing(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    carries = carried(served, monkeypatch)
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", served.port), timeout=20) as client:
            client.sendall(message("GET", "/big?n=20000000"))
            client.recv(100_000)
    eventually(lambda: not served.call(lambda: served.server.connection_count))
    eventually(lambda: not served.call(lambda: served.server.carrier.count))
    assert len(carries) >= 20
    with Wire(served.port) as wire:
        assert wire.request("GET", "/json").status == 200
