"""Requests and answers on one connection: order, framing, versions and methods."""

from __future__ import annotations

import contextlib
import socket
import struct
import time

import pytest

from tests.server.protocol.app import Served
from tests.server.protocol.wire import Wire, eventually, message
from topics.server.http.http1 import UPGRADES_MAX
from topics.server.http.line import KEPT_MAX


def test_a_connection_is_kept_for_many_requests(wire: Wire) -> None:
    for number in range(50):
        body = b"%d" % number
        assert wire.request("POST", "/echo", body).body == body


def test_an_answer_has_its_type_its_length_and_the_date(wire: Wire) -> None:
    answered = wire.request("GET", "/json")
    assert answered.status == 200
    assert answered.headers["content-type"] == "application/json"
    assert answered.headers["content-length"] == "11"
    assert answered.headers["date"].endswith(" GMT")
    assert "connection" not in answered.headers


def test_pipelined_requests_are_answered_in_order(wire: Wire) -> None:
    wire.send(b"".join(message("POST", "/echo", b"%d" % n) for n in range(500)))
    assert [wire.answer().body for _ in range(500)] == [b"%d" % n for n in range(500)]


def test_a_late_answer_holds_back_those_behind_it(wire: Wire) -> None:
    """Answers leave in the order of the requests, whatever the order they were made in."""
    wire.send(
        message("GET", "/slow?80")
        + message("GET", "/json")
        + message("GET", "/slow?20")
        + message("POST", "/later", b"abc")
        + message("GET", "/empty")
        + message("GET", "/big?n=200000")
    )
    answers = [wire.answer() for _ in range(6)]
    assert [a.status for a in answers] == [200, 200, 200, 200, 204, 200]
    assert answers[0].json() == {"slow": 80}
    assert answers[1].json() == {"ok": True}
    assert answers[2].json() == {"slow": 20}
    assert answers[3].json() == {"later": 3}
    assert len(answers[5].body) == 200000


def test_requests_of_one_turn_are_flushed_as_one_group(served: Served, wire: Wire) -> None:
    served.app.groups.clear()
    wire.send(b"".join(message("POST", "/later", b"x") for _ in range(20)))
    assert all(wire.answer().json() == {"later": 1} for _ in range(20))
    assert sum(served.app.groups) == 20
    assert len(served.app.groups) <= 3


def test_more_requests_than_may_wait_are_all_answered(wire: Wire) -> None:
    wire.send(b"".join(message("GET", "/later") for _ in range(2000)))
    assert all(wire.answer().status == 200 for _ in range(2000))


@pytest.mark.parametrize("size", [0, 1, 70_000, 3_000_000])
def test_bodies_of_any_size_arrive_whole(wire: Wire, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"z" * (size % 256)
    assert wire.request("PUT", "/echo", body).body == body


def test_a_chunked_body_is_put_together(wire: Wire) -> None:
    head = "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    wire.send(head.encode() + b"3\r\nabc\r\n2;note=1\r\nde\r\n0\r\nX-Trailer: 1\r\nHost: y\r\n\r\n")
    assert wire.answer().body == b"abcde"
    assert wire.request("GET", "/json").status == 200


def test_trailers_do_not_become_headers(wire: Wire) -> None:
    wire.send(
        b"GET /headers HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"0\r\nAuthorization: Bearer forged\r\nHost: y\r\n\r\n"
    )
    assert wire.answer().json()["headers"] == {"host": "x", "transfer-encoding": "chunked"}


def test_a_request_may_come_byte_by_byte(wire: Wire) -> None:
    wire.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in message("POST", "/echo", b"abc", "X-One: 1\r\nX-Two: 2\r\n"):
        wire.send(bytes([byte]))
    assert wire.answer().body == b"abc"


def test_the_client_is_told_to_continue(wire: Wire) -> None:
    wire.send(
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
    )
    assert wire.answer().status == 100
    assert wire.send(b"abc").answer().body == b"abc"


def test_a_body_that_would_be_refused_is_not_asked_for(wire: Wire) -> None:
    wire.send(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n")
    answered = wire.send(b"Expect: 100-continue\r\n\r\n").answer()
    assert (answered.status, answered.code) == (413, "payload_too_large")
    assert wire.is_closed()


def test_another_expectation_is_not_met(wire: Wire) -> None:
    assert wire.request("POST", "/echo", b"x", "Expect: miracles\r\n").status == 417


def test_head_is_get_without_the_body(wire: Wire) -> None:
    answered = wire.request("HEAD", "/big?n=5000")
    assert answered.headers["content-length"] == "5000"
    assert wire.request("GET", "/json").body == b'{"ok":true}'


def test_an_answer_without_content_has_no_length(wire: Wire) -> None:
    assert wire.request("GET", "/empty").status == 204
    assert wire.request("GET", "/json").status == 200


def test_options_names_the_methods(wire: Wire) -> None:
    answered = wire.request("OPTIONS", "/echo")
    assert (answered.status, answered.headers["allow"]) == (204, "OPTIONS, POST, PUT")
    assert wire.request("OPTIONS", "*").headers["allow"] == "GET, HEAD, OPTIONS, POST, PUT"


def test_an_unknown_path_and_a_wrong_method_differ(wire: Wire) -> None:
    assert wire.request("GET", "/nothing").code == "not_found"
    answered = wire.request("DELETE", "/json")
    assert (answered.status, answered.code) == (405, "method_not_allowed")
    assert answered.headers["allow"] == "GET, HEAD, OPTIONS"


def test_http_1_0_closes_unless_asked(served: Served) -> None:
    with Wire(served.port) as wire:
        answered = wire.send(b"GET /json HTTP/1.0\r\n\r\n").answer()
        assert answered.headers["connection"] == "close"
        assert wire.is_closed()
    with Wire(served.port) as wire:
        for _ in range(3):
            wire.send(b"GET /json HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            assert wire.answer().headers["connection"] == "keep-alive"


def test_close_is_honoured_after_everything_was_answered(wire: Wire) -> None:
    wire.send(message("GET", "/slow?30") + message("GET", "/json", headers="Connection: close\r\n"))
    assert "connection" not in wire.answer().headers
    assert wire.answer().headers["connection"] == "close"
    assert wire.is_closed()


def test_a_client_that_stops_sending_still_gets_its_answers(wire: Wire) -> None:
    wire.send(message("GET", "/slow?50") + message("GET", "/json"))
    wire.socket.shutdown(socket.SHUT_WR)
    assert wire.answer().json() == {"slow": 50}
    assert wire.answer().status == 200
    assert wire.is_closed()


def test_a_request_is_told_that_its_client_left(served: Served) -> None:
    before = served.app.abandoned
    with Wire(served.port) as wire:
        wire.send(message("GET", "/never"))
        eventually(lambda: served.server.connection_count > 0)
    eventually(lambda: served.app.abandoned == before + 1)


@pytest.mark.parametrize("count", [1, KEPT_MAX, 200])
@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_request_is_told_so_whatever_its_client_has_sent_behind_it(
    served: Served, count: int, how: str
) -> None:
    """Those wait unstarted, and of many of them not all are read."""
    before = served.app.abandoned
    with Wire(served.port) as wire:
        wire.send(message("GET", "/never") + message("GET", "/json") * count)
        time.sleep(0.05)
        if how == "reset":
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    eventually(lambda: served.app.abandoned == before + 1)


@pytest.mark.parametrize("count", [1, 200])
def test_a_request_that_began_when_its_client_had_left_is_told_so(
    served: Served, count: int
) -> None:
    before = served.app.abandoned
    with Wire(served.port) as wire:
        begun = message("GET", "/slow?300") + message("GET", "/never")
        wire.send(begun + message("GET", "/json") * count)
        time.sleep(0.05)
    eventually(lambda: served.app.abandoned == before + 1)


def test_what_waits_unstarted_is_bounded(served: Served) -> None:
    """A client that goes on sending behind a request that waits is not read for ever."""
    with Wire(served.port) as wire:
        wire.send(message("GET", "/never"))
        wire.socket.settimeout(0.5)
        part, sent, enough = message("POST", "/echo", b"x" * 4000) * 100, 0, 50_000_000
        with contextlib.suppress(TimeoutError):
            while sent < enough:
                sent += wire.socket.send(part)
        assert sent < enough


def test_the_target_may_be_absolute(wire: Wire) -> None:
    content = wire.request("GET", "http://other:81/headers?x=1").json()
    assert content["path"] == "/headers"
    assert content["headers"]["host"] == "other:81"


H2C = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAM\r\n"


@pytest.mark.parametrize("headers", ["", "Content-Length: 3\r\n", "Transfer-Encoding: chunked\r\n"])
def test_an_upgrade_we_do_not_know_is_ignored(wire: Wire, headers: str) -> None:
    """Clients that offer h2c with their first request get their answer over HTTP/1.1."""
    body = {"": b"", "C": b"abc", "T": b"3\r\nabc\r\n0\r\n\r\n"}[headers[:1]]
    head = f"POST /echo HTTP/1.1\r\nHost: x\r\n{H2C}{headers}\r\n"
    wire.send(head.encode() + body + message("GET", "/json"))
    assert wire.answer().body == (b"abc" if body else b"")
    assert wire.answer().json() == {"ok": True}


def test_an_upgrade_may_be_asked_for_with_every_request(wire: Wire) -> None:
    """As Java's HttpClient does over plain HTTP, on a connection that it keeps."""
    for _ in range(3 * UPGRADES_MAX):
        assert wire.request("POST", "/echo", b"abc", headers=H2C).body == b"abc"


def test_repeated_headers_are_joined(wire: Wire) -> None:
    content = wire.request("GET", "/headers", headers="Accept: a\r\naccept: b\r\n").json()
    assert content["headers"]["accept"] == "a, b"


def test_many_repeated_headers_over_time_are_no_attack(wire: Wire) -> None:
    for _ in range(200):
        assert wire.request("GET", "/json", headers="Accept: a\r\nAccept: b\r\n").status == 200
