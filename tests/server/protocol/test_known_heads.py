"""Heads that come again are taken as read, and nothing else is."""

from __future__ import annotations

import pytest

from tests.server.protocol.app import Served, serving
from tests.server.protocol.wire import Wire, message
from topics.server.http.limits import HttpLimits


def known(served: Served) -> set[bytes]:
    return set(served.app.server.known_heads.heads)


def test_a_plain_head_is_kept_and_serves_the_next_body(served: Served, wire: Wire) -> None:
    for body in (b"first", b"other", b"third"):
        assert wire.request("POST", "/echo?kept", body).body == body
    head = message("POST", "/echo?kept", b"third").removesuffix(b"third")
    assert head in known(served)


def test_the_same_head_in_pieces_or_with_more_behind_it_means_the_same(wire: Wire) -> None:
    """Only a read of exactly one request takes the short way; any other is parsed."""
    request = message("POST", "/echo?pieces", b"abcdef")
    assert wire.request("POST", "/echo?pieces", b"abcdef").body == b"abcdef"
    for cut in (1, 20, len(request) - 6, len(request) - 3):
        wire.send(request[:cut])
        wire.send(request[cut:])
        assert wire.answer().body == b"abcdef"
    wire.send(request * 3)
    assert [wire.answer().body for _ in range(3)] == [b"abcdef"] * 3
    wire.send(request + message("GET", "/json"))
    assert wire.answer().body == b"abcdef"
    assert wire.answer().json() == {"ok": True}


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        ("/echo?secret", "Authorization: Bearer abc\r\n"),
        ("/echo?token=abc", ""),
        ("/echo?closing", "Connection: close\r\n"),
        ("/echo?waiting", "Expect: 100-continue\r\n"),
        ("/echo?long", "X-Long: " + "x" * 2000 + "\r\n"),
    ],
)
def test_a_head_with_a_secret_or_a_wish_is_not_kept(
    served: Served, target: str, headers: str
) -> None:
    before = known(served)
    for _ in range(2):
        with Wire(served.port) as wire:
            wire.send(message("POST", target, b"x", headers))
            assert wire.more()
    assert known(served) == before


def test_a_head_is_kept_by_its_bytes_and_not_by_its_meaning(wire: Wire) -> None:
    """What differs in one byte is parsed, and refused where it has to be."""
    good = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n"
    for _ in range(2):
        wire.send(good + b"a")
        assert wire.answer().body == b"a"
    wire.send(good.replace(b"Content-Length:", b"Content-Length :") + b"a")
    assert wire.answer().status == 400


def test_there_is_a_bound_on_how_many_are_kept() -> None:
    with serving() as served, Wire(served.port) as wire:
        for number in range(1100):
            assert wire.request("POST", f"/echo?{number}", b"x").body == b"x"
        assert 0 < len(known(served)) <= 1024


@pytest.mark.parametrize("size", [100_000, 700_000])
def test_a_body_of_many_reads_is_gathered(served: Served, wire: Wire, size: int) -> None:
    """Learnt the first time; afterwards the body is put together without parsing."""
    target = f"/echo?many{size}"
    for fill in (b"a", b"b", b"c"):
        assert wire.request("POST", target, fill * size).body == fill * size
    assert any(target.encode() in head for head in known(served))
    # In pieces, with another request behind it.
    request = message("POST", target, b"d" * size)
    for start in range(0, size // 2, 50_000):
        wire.send(request[start : start + 50_000])
    sent = len(range(0, size // 2, 50_000)) * 50_000
    wire.send(request[sent:] + message("GET", "/json") + request[:40])
    assert wire.answer().body == b"d" * size
    assert wire.answer().json() == {"ok": True}
    wire.send(request[40:])
    assert wire.answer().body == b"d" * size


def test_a_known_head_whose_body_stalls_is_refused_and_the_rest_of_it_not_taken() -> None:
    """What comes behind the refusal belongs to no request any more."""
    limits = HttpLimits(body_s=0.3, scan_s=0.1, linger_s=1.0)
    request = message("POST", "/echo?stalls", b"x" * 100)
    with serving(limits) as served, Wire(served.port) as wire:
        for _ in range(2):
            wire.send(request)
            assert wire.answer().status == 200
        assert any(b"stalls" in head for head in known(served))
        wire.send(request[:-40])
        assert wire.answer().status == 408
        wire.send(request[-40:] + request)
        assert not wire.more()
