"""Requests that two servers could read differently are refused, and the connection with them."""

from __future__ import annotations

import pytest

from tests.server.protocol.app import Served
from tests.server.protocol.wire import Wire, parse_all

HOST = b"Host: x\r\n"
CHUNKS = b"3\r\nabc\r\n0\r\n\r\n"
SMUGGLED = b"GET /json HTTP/1.1\r\nHost: x\r\n\r\n"

REFUSED = {
    "length and chunks": b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    "chunks and length": b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n" + CHUNKS,
    "two equal lengths": b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "two lengths": b"Content-Length: 3\r\nContent-Length: 0\r\n\r\nabc",
    "a list of lengths": b"Content-Length: 3, 3\r\n\r\nabc",
    "a signed length": b"Content-Length: +3\r\n\r\nabc",
    "a negative length": b"Content-Length: -3\r\n\r\nabc",
    "a hexadecimal length": b"Content-Length: 0x3\r\n\r\nabc",
    "a length with an underscore": b"Content-Length: 0_3\r\n\r\nabc",
    "an empty length": b"Content-Length:\r\n\r\nabc",
    "an endless length": b"Content-Length: 99999999999999999999999\r\n\r\nabc",
    "a folded header": b"X: a\r\n b\r\n\r\n",
    "a folded length": b"Content-Length:\r\n 3\r\n\r\nabc",
    "a space before the colon": b"Content-Length : 3\r\n\r\nabc",
    "a space before the name": b" Content-Length: 3\r\n\r\nabc",
    "chunks that are not last": b"Transfer-Encoding: chunked, gzip\r\n\r\n" + CHUNKS,
    "chunks twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    "another coding": b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKS,
    "an unknown coding": b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKS,
    "a coding behind a control": b"Transfer-Encoding:\x0bchunked\r\n\r\n" + CHUNKS,
    "a bare line feed": b"X: 1\nY: 2\r\n\r\n",
    "a bare carriage return": b"X: 1\rY: 2\r\n\r\n",
    "a null": b"X: a\0b\r\n\r\n",
    "a header without a name": b": x\r\n\r\n",
    "a header without a colon": b"Nonsense\r\n\r\n",
    "a second host": b"Host: y\r\n\r\n",
    "a chunk size with a sign": b"Transfer-Encoding: chunked\r\n\r\n+3\r\nabc\r\n0\r\n\r\n",
    "a chunk size with a space": b"Transfer-Encoding: chunked\r\n\r\n3 \r\nabc\r\n0\r\n\r\n",
    "a chunk that is too long": b"Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n",
    "a chunk line without return": b"Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("rest", REFUSED.values(), ids=REFUSED)
def test_an_ambiguous_request_is_refused(wire: Wire, rest: bytes) -> None:
    wire.send(b"POST /echo HTTP/1.1\r\n" + HOST + rest + SMUGGLED)
    answers = list(parse_all(wire.rest()))
    assert [(a.status, a.code) for a in answers] == [(400, "invalid_request")]
    assert answers[0].headers["connection"] == "close"


NOT_HTTP_1 = [
    b"GET /json HTTP/1.1\r\n\r\n",
    b"GET /json HTTP/2.0\r\nHost: x\r\n\r\n",
    b"GET /json HTTP/0.9\r\n\r\n",
    b"GET /json\r\n\r\n",
    b"GET /json HTTP/1.10\r\nHost: x\r\n\r\n",
    b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET json HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET ftp://x/json HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET * HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nMS\r\n\r\n",
    b"BREW /json HTTP/1.1\r\nHost: x\r\n\r\n",
    b"get /json HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"SSH-2.0-OpenSSH_9.2\r\n",
]


@pytest.mark.parametrize("start", NOT_HTTP_1, ids=range(len(NOT_HTTP_1)))
def test_what_is_not_http_1_is_refused(wire: Wire, start: bytes) -> None:
    wire.send(start)
    answers = list(parse_all(wire.rest()))
    assert [(a.status, a.code) for a in answers] == [(400, "invalid_request")]


def test_what_follows_a_close_is_not_read(wire: Wire) -> None:
    wire.send(b"GET /json HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" + SMUGGLED)
    assert [a.status for a in parse_all(wire.rest())] == [200]


def test_a_refusal_comes_after_the_answers_before_it(served: Served) -> None:
    with Wire(served.port) as wire:
        wire.send(b"GET /slow?50 HTTP/1.1\r\nHost: x\r\n\r\n" + SMUGGLED + b"nonsense\r\n\r\n")
        assert [a.status for a in parse_all(wire.rest())] == [200, 200, 400]
