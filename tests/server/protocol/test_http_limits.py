"""Bounds: what one connection may send, and how long it may take."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator

import pytest

from tests.server.protocol.app import Served, serving
from tests.server.protocol.wire import Wire, eventually, message
from topics.server.http.gathered_body import Parts
from topics.server.http.limits import HttpLimits

LIMITS = HttpLimits(
    target_bytes_max=1000,
    head_bytes_max=4000,
    headers_max=20,
    body_bytes_max=10_000,
    head_s=0.3,
    body_s=0.4,
    body_bytes_per_s_min=1000,
    idle_s=0.6,
    write_stall_s=0.5,
    linger_s=0.3,
    scan_s=0.1,
)
CHUNKED = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(LIMITS) as served:
        yield served


def refused(wire: Wire, status: int, code: str) -> None:
    answered = wire.answer()
    assert (answered.status, answered.code) == (status, code)
    assert answered.headers["connection"] == "close"
    assert wire.is_closed()


def test_a_long_target_is_refused(wire: Wire) -> None:
    wire.send(message("GET", "/" + "x" * 2000))
    refused(wire, 414, "uri_too_long")


def test_too_many_headers_are_refused(wire: Wire) -> None:
    wire.send(message("GET", "/json", headers="".join(f"X-{n}: 1\r\n" for n in range(40))))
    refused(wire, 431, "headers_too_large")


def test_a_header_repeated_too_often_is_refused(wire: Wire) -> None:
    wire.send(message("GET", "/json", headers="X: 1\r\n" * 40))
    refused(wire, 431, "headers_too_large")


@pytest.mark.parametrize("step", [100, 5000, 100_000])
def test_a_large_head_is_refused_however_it_arrives(wire: Wire, step: int) -> None:
    head = message("GET", "/json", headers="X: " + "x" * 6000 + "\r\n")
    try:
        for at in range(0, len(head), step):
            wire.send(head[at : at + step])
    except BrokenPipeError:
        pass
    refused(wire, 431, "headers_too_large")


def test_an_endless_head_is_refused_before_it_ends(wire: Wire) -> None:
    wire.send(b"GET /json HTTP/1.1\r\nHost: x\r\nX: ")
    try:
        for _ in range(100):
            wire.send(b"x" * 1000)
            time.sleep(0.001)
    except (BrokenPipeError, ConnectionResetError):
        pass
    refused(wire, 431, "headers_too_large")


def test_endless_trailers_are_refused(wire: Wire) -> None:
    wire.send(CHUNKED + b"1\r\nx\r\n0\r\n")
    try:
        for _ in range(100):
            wire.send(b"X: " + b"x" * 500 + b"\r\n")
            time.sleep(0.001)
    except (BrokenPipeError, ConnectionResetError):
        pass
    refused(wire, 431, "headers_too_large")


def test_a_large_body_after_a_split_head_is_no_large_head(wire: Wire) -> None:
    whole = message("POST", "/echo", b"x" * 9000)
    wire.send(whole[:30])
    time.sleep(0.02)
    assert len(wire.send(whole[30:]).answer().body) == 9000
    assert wire.request("GET", "/json").status == 200


def test_a_body_announced_too_large_is_refused_unread(wire: Wire) -> None:
    wire.send(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10001\r\n\r\n")
    refused(wire, 413, "payload_too_large")


def test_a_chunked_body_is_refused_when_it_grows_too_large(wire: Wire) -> None:
    wire.send(CHUNKED + b"".join(b"800\r\n" + b"x" * 2048 + b"\r\n" for _ in range(6)))
    refused(wire, 413, "payload_too_large")


def test_a_client_that_goes_on_sending_can_read_why_it_was_refused(wire: Wire) -> None:
    """Closing on unread input would reset the connection and take the answer with it."""
    wire.send(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n\r\n")
    wire.send(b"x" * 2_000_000)
    refused(wire, 413, "payload_too_large")


@pytest.mark.parametrize("begun", [b"G", b"GET /json HTTP/1.1\r\nHost: x\r\nX: "], ids=[1, 2])
def test_a_head_that_stalls_is_timed_out(wire: Wire, begun: bytes) -> None:
    wire.send(begun)
    refused(wire, 408, "request_timeout")


def test_a_head_that_trickles_is_timed_out(wire: Wire) -> None:
    """Each byte is news, but the head as a whole takes too long."""
    began = time.monotonic()
    wire.send(b"GET /json HTTP/1.1\r\n")
    try:
        for _ in range(60):
            wire.send(b"X-Y: 1\r\n")
            time.sleep(0.03)
    except (BrokenPipeError, ConnectionResetError):
        pass
    assert time.monotonic() - began < 1.7


@pytest.mark.parametrize(
    "head",
    [message("POST", "/echo", b"x" * 90)[:-40], CHUNKED + b"5\r\nab"],
    ids=["length", "chunks"],
)
def test_a_body_that_stalls_is_timed_out(wire: Wire, head: bytes) -> None:
    wire.send(head)
    refused(wire, 408, "request_timeout")


def test_a_slow_body_above_the_least_rate_is_waited_for(wire: Wire) -> None:
    whole = message("POST", "/echo", b"x" * 4000)
    for at in range(0, len(whole), 400):
        wire.send(whole[at : at + 400])
        time.sleep(0.08)
    assert len(wire.answer().body) == 4000


def test_an_idle_connection_is_closed_without_a_word(wire: Wire) -> None:
    assert wire.is_closed()


def test_an_idle_connection_is_closed_after_its_last_request(wire: Wire) -> None:
    assert wire.request("GET", "/json").status == 200
    assert wire.is_closed()


def test_waiting_for_our_answer_is_not_idle(wire: Wire) -> None:
    assert wire.request("GET", "/slow?900").json() == {"slow": 900}


def test_idleness_begins_with_the_answer(wire: Wire) -> None:
    assert wire.request("GET", "/slow?700").status == 200
    began = time.monotonic()
    assert wire.is_closed()
    assert time.monotonic() - began > 0.3


def test_a_client_that_never_reads_is_cut_off(served: Served) -> None:
    with Wire(served.port, receive_bytes=4096) as wire:
        wire.send(message("GET", "/big?n=20000000") * 3)
        eventually(lambda: served.server.connection_count > 0)
        eventually(lambda: served.server.connection_count == 0)


def test_pipelined_answers_do_not_pile_up_in_memory(served: Served) -> None:
    """A client that asks for gigabytes and reads nothing makes us hold only a few answers."""
    with Wire(served.port, receive_bytes=4096) as wire:
        held = [0]
        wire.send(message("GET", "/big?n=1000000") * 1000)
        deadline = time.monotonic() + 0.3
        while time.monotonic() < deadline:
            held.append(served.call(lambda: served.server.unsent.held_bytes))
        assert 0 < max(held) < 8_000_000


@pytest.mark.slow
def test_a_body_of_tiny_parts_is_kept_as_one_of_large_ones() -> None:
    """Its bytes, not one object for each part."""
    body = Parts(b"first")
    tracemalloc.start()
    try:
        for number in range(200_000):
            body.add(b"%02d" % (number % 100))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 * 400_000
    body.add(b"x" * 10_000)
    body.add(b"last")
    whole = b"first" + b"".join(b"%02d" % n for n in range(100)) * 2000 + b"x" * 10_000 + b"last"
    assert body.joined() == whole
