"""Heads that come again are taken as read, and nothing else is."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.server.protocol.app import Served, serving
from tests.server.protocol.desk import Desk
from tests.server.protocol.wire import Wire, message
from topics.server.http.known_heads import HEAD_BYTES_MAX, HEADS_MAX, SAMPLES_MAX
from topics.server.http.limits import HttpLimits

# What clients send in front of a body of the length that comes last, each in its own spelling.
CLIENTS = {
    "curl": "Host: a:4000\r\nUser-Agent: curl/8.14.1\r\nAccept: */*\r\n"
    "Content-Type: application/json\r\nContent-Length: ",
    "httpx": "Host: a:4000\r\nAccept: */*\r\nAccept-Encoding: gzip, deflate\r\nConnection: "
    "keep-alive\r\nUser-Agent: python-httpx/0.28.1\r\nContent-Type: application/json\r\n"
    "Content-Length: ",
    "http.client": "Host: a:4000\r\nAccept-Encoding: identity\r\nContent-Type: application/json"
    "\r\nContent-Length: ",
    "Go": "Host: a:4000\r\nUser-Agent: Go-http-client/1.1\r\nContent-Type: application/json\r\n"
    "Accept-Encoding: gzip\r\nContent-Length: ",
    "Node": "host: a:4000\r\nconnection: keep-alive\r\ncontent-type: application/json\r\naccept: "
    "*/*\r\naccept-language: *\r\nsec-fetch-mode: cors\r\nuser-agent: node\r\naccept-encoding: gz"
    "ip, deflate\r\ncontent-length: ",
    "Firefox": "Host: a:4000\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/201001"
    "01 Firefox/140.0\r\nAccept: */*\r\nAccept-Language: en-US,en;q=0.5\r\nAccept-Encoding: gzip, "
    "deflate, br, zstd\r\nContent-Type: application/json\r\nOrigin: http://a:4000\r\nConnection: "
    "keep-alive\r\nContent-Length: ",
}


def known(served: Served) -> set[bytes | str]:
    heads = served.app.server.known_heads
    return {*heads.exact, *heads.sealed, *heads.forms}


def sent(client: str, body: bytes, more: str = "") -> bytes:
    head = f"POST /all?x=1 HTTP/1.1\r\n{CLIENTS[client]}{len(body)}\r\n{more}\r\n"
    return head.encode("latin-1") + body


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()


def parsed(desk: Desk, request: bytes) -> bytes:
    """The answer to a request that came in two reads: no head of it is looked for."""
    return desk.talk([request[:1], request[1:]])


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_is_known_whatever_the_length_of_its_body_and_its_key(
    desk: Desk, client: str
) -> None:
    """One request teaches the head; bodies of other lengths and other keys need no parser."""
    heads = desk.app.server.known_heads
    desk.talk([sent(client, b"first")])
    desk.talk([sent(client, b"first", "Idempotency-Key: first\r\n")])
    assert len(heads.forms) == 2
    for number in range(20):
        body, key = b"x" * number, f"Idempotency-Key: key-{number}\r\n"
        for request in (sent(client, body), sent(client, body, key)):
            found = heads.find(request[: len(request) - len(body)])
            assert found is not None
            assert desk.talk([request]) == parsed(desk, request)
    assert len(heads.forms) == 2


def test_no_byte_of_a_known_head_can_be_another_one(desk: Desk) -> None:
    """Whatever one byte becomes, the answer is the one the parser gives."""
    good = sent("curl", b"body", "Idempotency-Key: abc\r\n")
    for request in (good, sent("curl", b"body")):
        for _ in range(3):
            assert desk.talk([request]) == parsed(desk, request)
    choice = random.Random(1)
    for at in range(len(good) - 4):
        for byte in (0, 10, 13, 32, 48, 49, 58, 0x80, choice.randrange(256)):
            bad = good[:at] + bytes([byte]) + good[at + 1 :]
            assert desk.talk([bad]) == parsed(desk, bad), bad


@pytest.mark.parametrize(
    "lines",
    [
        "Content-Length: 4\r\nContent-Length: 4\r\n",
        "Content-Length: 4\r\nContent-Length: 5\r\n",
        "Content-Length: \0\r\n",
        "Content-Length: 99999999999999999\r\n",
        "Content-Length: 0004\r\n",
        "Content-Length: 4\r\nIdempotency-Key: a\r\nIdempotency-Key: b\r\n",
        "Content-Length: 4\r\nIdempotency-Key: \0\r\n",
        "Content-Length: 4\r\nIdempotency-Key: \r\n",
        "Content-Length: 4\r\nIdempotency-Key: a b\r\n",
        "Content-Length: 4\r\nIDEMPOTENCY-KEY: a\r\n",
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 4\r\nIdempotency-Key: a\r\n b\r\n",
    ],
)
def test_what_is_left_out_of_a_head_is_not_filled_in_wrongly(desk: Desk, lines: str) -> None:
    for more in ("", "Idempotency-Key: a\r\n", "IDEMPOTENCY-KEY: b\r\n"):
        good = f"POST /all HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n{more}\r\nbody".encode()
        for _ in range(2):
            assert desk.talk([good]) == parsed(desk, good)
    request = f"POST /all HTTP/1.1\r\nHost: a\r\n{lines}\r\nbody".encode()
    for _ in range(3):
        assert desk.talk([request]) == parsed(desk, request)


def test_what_only_looks_like_a_key_is_none(desk: Desk) -> None:
    """Another header, in front of the key or behind it, may end like its name."""
    names = ("X-dempotency-Key", "Idempotency-Key")
    for first, second in (names, names[::-1]):
        for one, other in (("a", "a"), ("a", "b"), ("b", "a"), ("b-c", "a"), ("a", "b-c")):
            lines = f"Content-Length: 4\r\n{first}: {one}\r\n{second}: {other}\r\n"
            request = f"POST /all HTTP/1.1\r\nHost: a\r\n{lines}\r\nbody".encode()
            for _ in range(3):
                assert desk.talk([request]) == parsed(desk, request)


def test_a_plain_head_is_kept_and_serves_the_next_body(served: Served, wire: Wire) -> None:
    for body in (b"first", b"other", b"third"):
        assert wire.request("POST", "/echo?kept", body).body == body
    head = message("POST", "/echo?kept", b"third").removesuffix(b"third")
    assert head in known(served)
    assert head.replace(b"Length: 5", b"Length: \0") in known(served)


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
        heads = served.app.server.known_heads
        for number in range(HEADS_MAX + 100):
            assert wire.request("POST", f"/echo?{number}", b"x").body == b"x"
        assert 0 < len(heads.forms) <= HEADS_MAX
        for size in range(1, HEADS_MAX + 100):
            assert len(wire.request("POST", "/echo", b"x" * size).body) == size
        assert 0 < len(heads.exact) <= HEADS_MAX
        assert all(len(head) <= HEAD_BYTES_MAX for head in known(served))


@pytest.mark.parametrize("size", [100_000, 700_000])
def test_a_body_of_many_reads_is_gathered(served: Served, wire: Wire, size: int) -> None:
    """Learnt the first time; afterwards the body is put together without parsing."""
    target = f"/echo?many{size}"
    for fill in (b"a", b"b", b"c"):
        assert wire.request("POST", target, fill * size).body == fill * size
    assert any(target.encode() in head for head in known(served) if isinstance(head, bytes))
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
        assert any(b"stalls" in head for head in known(served) if isinstance(head, bytes))
        wire.send(request[:-40])
        assert wire.answer().status == 408
        wire.send(request[-40:] + request)
        assert not wire.more()


def elsewhere(path: str, body: bytes = b"body", more: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\n{CLIENTS['curl']}{len(body)}\r\n{more}\r\n"
    return head.encode("latin-1") + body


def test_a_client_is_known_wherever_it_goes(desk: Desk) -> None:
    """A path that comes for the first time needs no parser; one that could be read in two ways
    does, and so does whatever differs in anything else."""
    heads = desk.app.server.known_heads
    desk.talk([elsewhere("/all")])
    for path in ("/all/", "/all/a-b_c.d~e", "//all", "/", "/all/../x", "/ALL/0"):
        request = elsewhere(path, b"x" * 7)
        assert desk.talk([request]) == parsed(desk, request)
        found = heads.find(elsewhere(path + "/more").removesuffix(b"body"))
        assert found is not None
        assert (found[0].path, found[0].query, found[1]) == (path + "/more", b"", 4)
    for path in ("/all?x=1", "/all/%41", "/all;x", "*", "http://a/all", "/all#x", "/\xe4", "/a b"):
        request = elsewhere(path)
        assert heads.find(request.removesuffix(b"body")) is None
        assert desk.talk([request]) == parsed(desk, request)
    for other in (b"PUT ", b"GET ", b"Post ", b"CONNECT "):
        assert heads.find(elsewhere("/b").removesuffix(b"body").replace(b"POST ", other)) is None
    long = "/" + "x" * HEAD_BYTES_MAX
    assert heads.find(elsewhere(long).removesuffix(b"body")) is None
    assert desk.talk([elsewhere(long)]) == parsed(desk, elsewhere(long))


def test_no_byte_of_another_path_is_taken_for_one(desk: Desk) -> None:
    for _ in range(2):
        desk.talk([elsewhere("/all/known")])
    start = len("POST ")
    for at in range(start, start + len("/all/known HTTP/1.1")):
        for byte in range(256):
            request = elsewhere("/all/known")
            request = request[:at] + bytes([byte]) + request[at + 1 :]
            assert desk.talk([request]) == parsed(desk, request), request


def test_there_is_a_bound_on_how_many_clients_are_known(desk: Desk) -> None:
    heads = desk.app.server.known_heads
    for number in range(SAMPLES_MAX + 20):
        desk.talk([elsewhere("/all", more=f"X-Trace: {number}\r\n")])
        assert len(heads.samples) <= SAMPLES_MAX
    assert len(heads.samples) > 0
