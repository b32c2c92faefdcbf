"""What is wrong in one stream of HTTP/2 ends that stream, and the connection goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import h2.errors
import h2.events
import pytest

from tests.server.protocol.app import Served, serving
from tests.server.protocol.h2_client import H2Client
from topics.server.http.h2c import STREAMS_MAX
from topics.server.http.limits import HttpLimits

Fields = tuple[tuple[str, str], ...]
CODES = h2.errors.ErrorCodes
HEAD: Fields = (
    (":method", "POST"), (":scheme", "http"), (":path", "/echo"), (":authority", "localhost"),
)  # fmt: skip
CONNECT: Fields = ((":method", "CONNECT"), (":authority", "localhost"))


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as served:
        yield served


class Odd(H2Client):
    """Sends whatever it is told to."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.h2.config.validate_outbound_headers = False
        self.h2.config.normalize_outbound_headers = False
        # Its own library must not mind either.
        self.read()


def goes_on(client: H2Client) -> None:
    assert client.request("GET", "/json").status == 200
    assert not client.is_terminated


def without(name: str) -> Fields:
    return tuple(field for field in HEAD if field[0] != name)


MALFORMED: dict[str, Fields] = {
    "no method": without(":method"),
    "no path": without(":path"),
    "no scheme": without(":scheme"),
    "empty path": (*without(":path"), (":path", "")),
    "unknown pseudo field": (*HEAD, (":other", "1")),
    "pseudo field of an answer": (*HEAD, (":status", "200")),
    "pseudo field twice": (*HEAD, (":path", "/json")),
    "pseudo field behind another": (("x", "1"), *HEAD),
    "upper case": (*HEAD, ("X-Upper", "1")),
    "Connection": (*HEAD, ("connection", "close")),
    "Transfer-Encoding": (*HEAD, ("transfer-encoding", "chunked")),
    "TE": (*HEAD, ("te", "gzip")),
    "two hosts": (*HEAD, ("host", "other")),
    "line break": (*HEAD, ("x", "1\r\ny: 2")),
    "nul": (*HEAD, ("x", "\0")),
    "space in the path": (*without(":path"), (":path", "/echo HTTP/1.1")),
    "length that is none": (*HEAD, ("content-length", "x")),
    "length of another body": (*HEAD, ("content-length", "5")),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_request_ends_its_stream_alone(served: Served, name: str) -> None:
    with Odd(served.port) as client:
        healthy = client.begin("POST", "/echo")
        number = client.begin_as(MALFORMED[name], is_whole=True)
        stream = client.answer(number)
        assert (stream.reset, stream.status) == (CODES.PROTOCOL_ERROR, 0)
        client.h2.send_data(healthy, b"abc", end_stream=True)
        client.flush()
        assert client.answer(healthy).body == b"abc"
        goes_on(client)


@pytest.mark.parametrize("size", [3, 7])
def test_a_body_of_another_length_ends_its_stream_alone(served: Served, size: int) -> None:
    with Odd(served.port) as client:
        for _ in range(100):
            number = client.begin_as((*HEAD, ("content-length", "5")))
            client.h2.send_data(number, b"x" * size, end_stream=True)
            client.flush()
            assert client.answer(number).reset == CODES.PROTOCOL_ERROR
        goes_on(client)


def test_trailers_that_do_not_end_a_request_end_its_stream_alone(served: Served) -> None:
    with Odd(served.port) as client:
        number = client.begin("POST", "/echo")
        # The library would not send them: written by hand, as a literal that is not indexed.
        block = b"\x00\x01x\x011"
        head = len(block).to_bytes(3, "big") + b"\x01\x04" + number.to_bytes(4, "big")
        client.socket.sendall(head + block)
        assert client.answer(number).reset == CODES.PROTOCOL_ERROR
        goes_on(client)


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize(
    "fields",
    [CONNECT, (*CONNECT, (":protocol", "websocket"), (":scheme", "http"), (":path", "/ws"))],
    ids=["plain", "extended"],
)
def test_a_tunnel_is_refused_at_once(served: Served, fields: Fields, is_whole: bool) -> None:
    with Odd(served.port) as client:
        stream = client.answer(client.begin_as(fields, is_whole=is_whole))
        assert stream.status == 400
        assert json.loads(stream.body)["error"]["code"] == "invalid_request"
        goes_on(client)


def test_one_stream_too_many_is_refused_alone(served: Served) -> None:
    with H2Client(served.port) as client:
        client.read()
        client.h2.remote_settings.update({3: 1000})
        client.h2.remote_settings.acknowledge()
        numbers = [client.begin("GET", "/never", is_whole=True) for _ in range(STREAMS_MAX + 1)]
        assert client.answer(numbers[-1]).reset == CODES.REFUSED_STREAM
        client.h2.reset_stream(numbers[0])
        goes_on(client)


def priority(number: int, rest: bytes) -> bytes:
    return len(rest).to_bytes(3, "big") + b"\2\0" + number.to_bytes(4, "big") + rest


def test_priorities_mean_nothing_and_end_nothing(served: Served) -> None:
    """Whatever they depend on: themselves, a stream that is not there."""
    with H2Client(served.port) as client:
        number = client.open("GET", "/slow?200")
        for on in (number, 0, 99):
            for stream in (number, 77):
                client.socket.sendall(priority(stream, on.to_bytes(4, "big") + b"\x10"))
        client.socket.sendall(priority(77, (77).to_bytes(4, "big") + b"\x10"))
        assert client.answer(number).status == 200
        goes_on(client)


@pytest.mark.parametrize("size", [0, 4, 6])
def test_a_priority_of_another_length_ends_its_stream_alone(served: Served, size: int) -> None:
    with H2Client(served.port) as client:
        hit, other = client.open("GET", "/never"), client.open("GET", "/slow?200")
        # In pieces, and for a stream that there is none of.
        frames = priority(77, bytes(size)) + priority(hit, bytes(size))
        for at in range(len(frames)):
            client.socket.sendall(frames[at : at + 1])
        assert client.answer(hit).reset == CODES.FRAME_SIZE_ERROR
        assert client.answer(other).status == 200
        client.socket.sendall(priority(hit, bytes(size)) + priority(other, bytes(size)))
        goes_on(client)


@pytest.mark.parametrize("size", [4, 5])
def test_a_priority_within_a_head_ends_the_connection(served: Served, size: int) -> None:
    """What follows belongs to a head that has no end."""
    with H2Client(served.port) as client:
        client.socket.sendall(b"\0\0\1\1\1\0\0\0\1\x82" + priority(1, bytes(size)))
        while client.read():
            pass
        assert client.is_terminated


def test_a_head_that_can_not_be_unpacked_ends_the_connection(served: Served) -> None:
    """Nobody could say what later heads mean."""
    with H2Client(served.port) as client:
        client.socket.sendall(b"\0\0\1\1\5\0\0\0\1\xff")
        while client.read():
            pass
        assert client.is_terminated


def test_a_frame_that_is_too_large_is_not_waited_for(served: Served) -> None:
    with H2Client(served.port) as client:
        client.socket.sendall(b"\xff\xff\xff\0\0\0\0\0\1" + b"x" * 1000)
        while client.read():
            pass
        assert client.is_terminated


SLOW = HttpLimits(body_s=0.5, body_bytes_per_s_min=100_000, scan_s=0.1, idle_s=30.0, linger_s=0.3)


def test_a_slow_body_is_cut_as_over_http_1() -> None:
    """Also when each byte is news, and the connection with it if nothing else goes on there."""
    with serving(SLOW) as served, H2Client(served.port) as client:
        number = client.begin("POST", "/echo")
        stream = client.streams[number]
        began = time.monotonic()
        client.socket.settimeout(0.1)
        while not stream.is_ended:
            assert time.monotonic() - began < 5
            client.h2.send_data(number, b"x")
            client.flush()
            try:
                client.read()
            except TimeoutError:
                pass
        assert stream.status == 408
        assert json.loads(stream.body)["error"]["code"] == "request_timeout"
        client.socket.settimeout(5)
        while client.read():
            pass
        assert client.is_terminated


def test_other_streams_outlive_a_slow_one() -> None:
    with serving(SLOW) as served, H2Client(served.port) as client:
        waiting = client.begin("GET", "/slow?1500", is_whole=True)
        slow = client.begin("POST", "/echo")
        assert client.answer(slow).status == 408
        assert client.answer(waiting).status == 200
        goes_on(client)
