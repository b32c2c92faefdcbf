"""Any frames at all: no crash, no hang, nothing left behind, and only well-formed frames back."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.protocol.desk import Desk
from tests.server.protocol.test_websocket import BINARY, CLOSE, HANDSHAKE, PING, PONG, TEXT, frame
from tests.server.protocol.wire import message
from topics.server.http.limits import HttpLimits

LIMITS = HttpLimits(message_bytes_max=2000)
OPENING = message("GET", "/ws", headers=HANDSHAKE)

GOOD = [
    frame(TEXT, b"hello"),
    frame(TEXT, "käse".encode()),
    frame(BINARY, bytes(200)),
    frame(TEXT, b"a", fin=False) + frame(PING, b"p") + frame(0, b"b", fin=False) + frame(0, b"c"),
    frame(TEXT) + frame(BINARY) + frame(PONG, b"unasked"),
    frame(CLOSE, struct.pack("!H", 1000) + b"bye"),
    frame(CLOSE),
    frame(TEXT, b"close") + frame(TEXT, b"x"),
    frame(TEXT, b"fail") + frame(TEXT, b"x"),
    frame(TEXT, b"\xff"),
    frame(TEXT, bytes(2001)),
    frame(BINARY, bytes(1500), fin=False) + frame(0, bytes(1500)),
    frame(TEXT, b"x", masked=False),
    frame(5, b"reserved"),
    frame(TEXT, b"x", fin=False) + frame(CLOSE, struct.pack("!H", 1000)),
]


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    desk = Desk(LIMITS)
    yield desk
    desk.close()


def checked(said: bytes) -> list[tuple[int, bytes]]:
    """The frames after the handshake; behind a close frame there is at most a pong."""
    head, _, data = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
    frames, at = [], 0
    while at < len(data):
        first, size = data[at], data[at + 1]
        at += 2
        assert first & 0xF0 == 0x80, "one unfragmented frame without reserved bits"
        assert size < 128, "a server does not mask"
        if size == 126:
            size, at = struct.unpack_from("!H", data, at)[0], at + 2
        elif size == 127:
            size, at = struct.unpack_from("!Q", data, at)[0], at + 8
        payload, at = data[at : at + size], at + size
        assert len(payload) == size, "a frame was cut short"
        frames.append((first & 0x0F, payload))
    for place, (opcode, payload) in enumerate(frames):
        assert opcode in (TEXT, BINARY, CLOSE, PONG)
        if opcode == TEXT:
            payload.decode()
        if opcode == CLOSE:
            assert all(later == PONG for later, _ in frames[place + 1 :])
            assert len(payload) != 1
            payload[2:].decode()
    return frames


@pytest.mark.parametrize("frames", GOOD, ids=range(len(GOOD)))
def test_where_the_reads_split_makes_no_difference(desk: Desk, frames: bytes) -> None:
    whole = OPENING + frames
    said = desk.talk([whole]).partition(b"\r\n\r\n")[2]
    checked(desk.talk([whole]))
    for cut in range(len(OPENING) - 4, min(len(whole), len(OPENING) + 60)):
        assert desk.talk([whole[:cut], whole[cut:]]).partition(b"\r\n\r\n")[2] == said
    single = [bytes([byte]) for byte in whole]
    assert desk.talk(single).partition(b"\r\n\r\n")[2] == said


def mutated(frames: bytes, chance: random.Random) -> bytes:
    data = bytearray(frames)
    for _ in range(chance.choice((1, 1, 3))):
        at = chance.randrange(len(data) + 1)
        what = chance.randrange(4)
        if what == 0:
            data[at : at + 1] = bytes([chance.randrange(256)])
        elif what == 1:
            del data[at : at + chance.randrange(1, 6)]
        elif what == 2:
            data[at:at] = chance.choice(GOOD)
        else:
            data[at:at] = chance.randbytes(chance.randrange(12))
    return bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_damaged_frames_are_survived(desk: Desk, block: int) -> None:
    for number in range(block * 500, block * 500 + 500):
        chance = random.Random(number)
        data = mutated(chance.choice(GOOD) + chance.choice(GOOD), chance)
        cut = chance.randrange(len(data) + 1)
        try:
            checked(desk.talk([OPENING + data[:cut], data[cut:]]))
        except AssertionError as error:
            raise AssertionError(f"seed {number}: {data!r}") from error


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=150), max_size=4))
def test_noise_is_survived(reads: list[bytes]) -> None:
    checked(DESK.talk([OPENING, *reads]))


# Hypothesis wants no fixture of a narrower scope than its examples.
DESK = Desk(LIMITS)


def teardown_module() -> None:
    DESK.close()
