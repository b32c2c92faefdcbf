"""gzip in both directions, within the limits of what it unpacks to."""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Iterator

import pytest

from tests.server.protocol.app import LOOPS, Served, serving
from tests.server.protocol.wire import Answered, Wire, message
from topics.server.http.errors import BadRequest
from topics.server.http.gathered_body import LOOP_BYTES_MAX, SHOWN_BYTES, Gunzip
from topics.server.http.limits import KIB, MIB, HttpLimits
from topics.server.http.message import accepts_gzip

GZIP = "Content-Encoding: gzip\r\n"
BODY_MAX = 2 * MIB


@pytest.fixture(scope="module", params=sorted(LOOPS))
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    with serving(HttpLimits(body_bytes_max=BODY_MAX), request.param) as served:
        yield served


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@pytest.mark.parametrize("size", [0, 1, 10 * KIB, 300 * KIB, MIB])
def test_a_gzip_body_arrives_unpacked(wire: Wire, size: int) -> None:
    """Small ones are unpacked on the loop, large ones beside it; nobody can tell."""
    body = b"x" * (size // 2) + noise(size - size // 2)
    assert wire.request("POST", "/echo", gzip.compress(body), GZIP).body == body
    assert wire.request("POST", "/echo", b"plain").body == b"plain"


def test_requests_behind_a_large_gzip_body_keep_their_order(wire: Wire) -> None:
    large = gzip.compress(b"x" * MIB)
    wire.send(
        message("GET", "/slow?30")
        + message("POST", "/echo", large, GZIP)
        + message("GET", "/json")
        + message("POST", "/later", large, GZIP)
        + message("POST", "/echo", b"last")
    )
    answers = [wire.answer() for _ in range(5)]
    assert [len(a.body) for a in answers] == [11, MIB, 11, 17, 4]
    assert answers[3].json() == {"later": MIB}


def test_a_gzip_stream_may_have_members(wire: Wire) -> None:
    body = gzip.compress(b"one ") + gzip.compress(b"two")
    assert wire.request("POST", "/echo", body, GZIP).body == b"one two"


def test_many_members_are_unpacked_beside_the_loop() -> None:
    """An empty one is worth no byte, and costs a look at what is behind it."""
    gunzip = Gunzip(gzip.compress(b"") * 900 + noise(MIB), BODY_MAX)
    assert gunzip.run(LOOP_BYTES_MAX) is None
    with pytest.raises(BadRequest):
        gunzip.run()


def test_no_member_copies_all_that_is_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    members, packed = 900, gzip.compress(noise(MIB))
    shown = 0

    class Decoder:
        def __init__(self, wbits: int) -> None:
            self._decoder = make(wbits)

        def decompress(self, data: bytes, bytes_max: int) -> bytes:
            nonlocal shown
            shown += len(data)
            return self._decoder.decompress(data, bytes_max)

        def __getattr__(self, name: str) -> object:
            return getattr(self._decoder, name)

    make = zlib.decompressobj
    monkeypatch.setattr(zlib, "decompressobj", Decoder)
    unpacked = Gunzip(gzip.compress(b"") * members + packed, BODY_MAX).run()
    assert unpacked is not None
    assert len(unpacked) == MIB
    assert shown <= (members + 1) * SHOWN_BYTES + 2 * len(packed)


def test_a_bomb_is_refused_at_the_limit(wire: Wire) -> None:
    bomb = gzip.compress(b"\0" * (40 * MIB))
    assert len(bomb) < 60 * KIB
    answered = wire.request("POST", "/echo", bomb, GZIP)
    assert (answered.status, answered.code) == (413, "payload_too_large")
    assert wire.request("GET", "/json").status == 200


BAD_GZIP = {
    "plain text": b"not gzip at all",
    "without its end": gzip.compress(b"x" * 1000)[:-9],
    "without its second half": gzip.compress(b"x" * 1000)[:20],
    "garbage behind it": gzip.compress(b"x") + b"garbage",
    "a wrong checksum": gzip.compress(b"x" * 100)[:-8] + b"\0" * 8,
    "zlib": zlib.compress(b"x"),
}


@pytest.mark.parametrize("body", BAD_GZIP.values(), ids=BAD_GZIP)
def test_bad_gzip_is_refused(wire: Wire, body: bytes) -> None:
    answered = wire.request("POST", "/echo", body, GZIP)
    assert (answered.status, answered.code) == (400, "invalid_request")
    assert wire.request("GET", "/json").status == 200


@pytest.mark.parametrize("coding", ["br", "deflate", "gzip, gzip", "zstd"])
def test_another_coding_is_not_supported(wire: Wire, coding: str) -> None:
    answered = wire.request("POST", "/echo", b"x", f"Content-Encoding: {coding}\r\n")
    assert (answered.status, answered.code) == (415, "unsupported_media_type")
    assert answered.headers["accept-encoding"] == "gzip"


def test_identity_is_no_coding(wire: Wire) -> None:
    assert wire.request("POST", "/echo", b"x", "Content-Encoding: identity\r\n").body == b"x"


def unpacked(answered: Answered) -> bytes:
    assert answered.headers["content-encoding"] == "gzip"
    assert answered.headers["vary"] == "Accept-Encoding"
    return gzip.decompress(answered.body)


@pytest.mark.parametrize("size", [2000, 50_000, 3_000_000])
def test_a_large_answer_is_compressed_on_request(wire: Wire, size: int) -> None:
    wire.send(message("GET", f"/big?n={size}", headers="Accept-Encoding: gzip\r\n") * 2)
    wire.send(message("GET", "/json"))
    assert len(unpacked(wire.answer())) == size
    assert len(unpacked(wire.answer())) == size
    assert wire.answer().json() == {"ok": True}


def test_small_answers_and_other_types_stay_as_they_are(wire: Wire) -> None:
    accept = "Accept-Encoding: gzip\r\n"
    assert "content-encoding" not in wire.request("GET", "/json", headers=accept).headers
    answered = wire.request("POST", "/echo", b"x" * 5000, accept)
    assert "content-encoding" not in answered.headers


def test_nothing_is_compressed_unasked(wire: Wire) -> None:
    assert "content-encoding" not in wire.request("GET", "/big?n=5000").headers


@pytest.mark.parametrize(
    ("accepted", "is_taken"),
    [
        (b"gzip", True),
        (b"deflate, GZIP;q=0.5", True),
        (b"br;q=1.0, gzip;q=0.001, *;q=0", True),
        (b"*", True),
        (b"x-gzip", True),
        (b"gzip;q=0", False),
        (b"gzip;q=0.000, *", False),
        (b"*;q=0", False),
        (b"identity", False),
        (b"", False),
        (b"notgzip", False),
    ],
)
def test_what_a_client_accepts_is_understood(accepted: bytes, is_taken: bool) -> None:
    assert accepts_gzip(accepted) is is_taken
