"""Any bytes at all: no crash, no hang, nothing left behind, and every answer well formed."""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.server.protocol.desk import Desk
from tests.server.protocol.test_http_smuggling import REFUSED
from tests.server.protocol.wire import Answered, Incomplete, message, parse_one
from topics.server.http.http1 import PREFACE
from topics.server.http.limits import HttpLimits

CHUNKED = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
UPGRADE = "Connection: Upgrade\r\nUpgrade: h2c\r\n"
LIMITS = HttpLimits(
    target_bytes_max=200, head_bytes_max=600, headers_max=12, body_bytes_max=3000, pending_max=3
)

GOOD = [
    message("GET", "/json"),
    message("GET", "/json", headers="Connection: close\r\n"),
    message("POST", "/echo", b"hello", "Content-Type: application/json\r\n"),
    message("POST", "/echo", gzip.compress(b"x" * 2000, mtime=0), "Content-Encoding: gzip\r\n"),
    message("POST", "/echo", b"hello", "Expect: 100-continue\r\n"),
    message("GET", "/later") * 5 + message("GET", "/json"),
    message("GET", "/headers", headers="Accept: a\r\nAccept: b\r\nAccept-Encoding: gzip\r\n"),
    message("GET", "/big?n=2000", headers="Accept-Encoding: gzip\r\n"),
    message("HEAD", "/json") + message("OPTIONS", "*") + message("GET", "/empty"),
    message("GET", "/nothing") + message("PATCH", "/json"),
    message("POST", "/echo", b"abc", UPGRADE) + message("GET", "/json"),
    message("GET", "http://other/json?x=1"),
    b"GET /json HTTP/1.0\r\n\r\n",
    b"GET /json HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" * 2,
    CHUNKED + b"3\r\nabc\r\n2;a=b\r\nde\r\n0\r\nX-Trailer: 1\r\n\r\n" + message("GET", "/json"),
    message("GET", "/json") + message("GET", "/stream?end"),
    message("GET", "/later") + message("GET", "/stream?end") + message("GET", "/json"),
    b"\r\n" + message("GET", "/json"),
]
BAD = [b"POST /echo HTTP/1.1\r\nHost: x\r\n" + rest for rest in REFUSED.values()]
CORPUS = GOOD + BAD


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    desk = Desk(LIMITS)
    yield desk
    desk.close()


def checked(said: bytes) -> list[Answered]:
    """Every answer in what the server said, each well formed and known to be its last if it was."""
    answers, at = [], 0
    while at < len(said):
        try:
            answered, at = parse_one(said, at)
        except Incomplete:
            raise AssertionError(f"an answer was cut short: {said[at:]!r}") from None
        answers.append(answered)
        assert answered.status != 500, "a bug of ours"
        if answered.headers.get("content-type", "").startswith("text/event-stream"):
            if "transfer-encoding" in answered.headers:
                check_chunks(said[at:])
            break
        if answered.headers.get("connection") == "close":
            assert at == len(said), "something was said after the last answer"
        if answered.status >= 400:
            assert answered.headers.get("x-method") == "HEAD" or answered.code
    return answers


def check_chunks(data: bytes) -> None:
    """A stream as far as it went: whole chunks, and nothing after the last one."""
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        assert data[length : length + 2] == b"\r\n"
        data = data[length + 2 :]
        assert length or not data


@pytest.mark.parametrize("whole", CORPUS, ids=range(len(CORPUS)))
def test_where_the_reads_split_makes_no_difference(desk: Desk, whole: bytes) -> None:
    said = desk.talk([whole])
    assert checked(said)
    for cut in range(1, len(whole)):
        assert desk.talk([whole[:cut], whole[cut:]]) == said, f"split at {cut}"
    assert desk.talk([bytes([byte]) for byte in whole]) == said


@pytest.mark.parametrize("whole", GOOD, ids=range(len(GOOD)))
def test_what_was_cut_short_gets_no_answer_of_its_own(desk: Desk, whole: bytes) -> None:
    said = desk.talk([whole])
    for cut in range(len(whole)):
        part = desk.talk([whole[:cut]])
        checked(part)
        assert said.startswith(part) or b"Upgrade" in whole


def mutated(whole: bytes, chance: random.Random) -> bytes:
    data = bytearray(whole)
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(data) + 1)
        what = chance.randrange(5)
        if what == 0:
            data[at : at + 1] = bytes([chance.randrange(256)])
        elif what == 1:
            del data[at : at + chance.randrange(1, 8)]
        elif what == 2:
            data[at:at] = chance.choice(
                (b"\r\n", b"\0", b" ", b"\n", b":", b",", b"0", b"\r\n\r\n")
            )
        elif what == 3:
            other = chance.choice(CORPUS)
            begin = chance.randrange(len(other))
            data[at:at] = other[begin : begin + chance.randrange(60)]
        else:
            data[at:at] = data[at : at + chance.randrange(1, 40)] * chance.randrange(1, 20)
    return bytes(data)


def pieces(data: bytes, chance: random.Random) -> list[bytes]:
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.choice((0, 1, 3))))
    found = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    return [piece for piece in found if piece]


@pytest.mark.parametrize("block", range(8))
def test_damaged_requests_are_survived(desk: Desk, block: int) -> None:
    for number in range(block * 500, block * 500 + 500):
        chance = random.Random(number)
        data = mutated(chance.choice(CORPUS) + chance.choice(CORPUS), chance)
        try:
            checked(desk.talk(pieces(data, chance)))
        except AssertionError as error:
            raise AssertionError(f"seed {number}: {data!r}") from error


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=200), max_size=5))
def test_noise_is_survived(reads: list[bytes]) -> None:
    # Noise behind the preface of HTTP/2 has a test of its own.
    assume(not any(read.startswith(PREFACE) for read in reads))
    checked(DESK.talk(reads))


HEADER = st.tuples(
    st.sampled_from(
        ["Host", "Content-Length", "Transfer-Encoding", "Connection", "Upgrade", "Expect",
         "Content-Encoding", "Accept-Encoding", "X"]
    ),
    st.one_of(
        st.sampled_from(
            ["0", "5", "chunked", "close", "keep-alive", "upgrade", "websocket", "h2c", "gzip",
             "100-continue", "gzip;q=0", "identity", ""]
        ),
        st.text(st.characters(codec="latin-1"), max_size=20),
    ),
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["GET", "POST", "HEAD", "OPTIONS", "CONNECT", "PATCH", "DELETE"]),
    st.sampled_from(
        ["/json", "/echo", "/later", "*", "/ws", "/stream?end", "http://a/json", "a:1"]
    ),
    st.lists(HEADER, max_size=6),
    st.binary(max_size=30),
)
def test_any_mixture_of_headers_is_survived(
    method: str, target: str, headers: list[tuple[str, str]], rest: bytes
) -> None:
    # What refuses a coding answers before the handler, so that the end of a HEAD can not be told.
    assume(method != "HEAD" or all(name.lower() != "content-encoding" for name, _ in headers))
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    head = f"{method} {target} HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode("latin-1")
    said = DESK.talk([head + rest, message("GET", "/json")])
    if not said.startswith(b"HTTP/1.1 101"):
        checked(said)


# Hypothesis wants no fixture of a narrower scope than its examples.
DESK = Desk(LIMITS)


def teardown_module() -> None:
    DESK.close()
