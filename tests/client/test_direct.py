"""Plain connections: whatever way an answer comes, it is read whole or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.support.waiting import WAIT_S
from topics import AsyncClient, Client, RetryPolicy, errors
from topics.client.incoming import Incoming
from topics.client.options import options_of
from topics.client.retries import DEFAULT_RETRIES
from topics.client.transport import is_plain

BODY = b'{"status":"ok","version":"0","uptime_ms":1}'
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\n" + BODY[:5] + b"\r\n%x\r\n" % (len(BODY) - 5) + BODY[5:] + b"\r\n0\r\n\r\n"
)
UNTIL_THE_END = b"HTTP/1.1 200 OK\r\n\r\n" + BODY
EARLY = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + WHOLE
ERROR = b'{"error":{"code":"payload_too_large","message":"large"}}'
REFUSED = b"HTTP/1.1 413 X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (
    len(ERROR), ERROR,
)  # fmt: skip
ONCE = RetryPolicy(give_up_after_s=0.0)
Serve = Callable[[socket.socket], object]
Call = Callable[[Any], Any]


@contextlib.contextmanager
def serving(*lines: Serve) -> Iterator[str]:
    """A server whose connections are served by these, one after the other, the last again."""
    listener = socket.create_server(("127.0.0.1", 0))
    left = list(lines)

    def accept() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            serve = left.pop(0) if len(left) > 1 else left[0]
            with peer, contextlib.suppress(OSError):
                serve(peer)

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)


def pieces(*parts: bytes) -> Serve:
    """Answers one request in these pieces, and ends the connection."""

    def serve(peer: socket.socket) -> None:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.recv(65536)
        for part in parts:
            peer.sendall(part)
            time.sleep(0.0005)

    return serve


def holding(part: bytes) -> Serve:
    """Answers one request with this much, and then with nothing for as long as somebody waits."""

    def serve(peer: socket.socket) -> None:
        peer.recv(65536)
        peer.sendall(part)
        peer.recv(1)

    return serve


def health(client: Any) -> Any:
    return client.health()


def blocking(url: str, call: Call = health, timeout_s: float = 30.0) -> Any:
    with Client(url, retries=ONCE, timeout_s=timeout_s) as client:
        return call(client)


def awaited(url: str, call: Call = health, timeout_s: float = 30.0) -> Any:
    async def use() -> Any:
        async with AsyncClient(url, retries=ONCE, timeout_s=timeout_s) as client:
            return await call(client)

    return asyncio.run(use())


both = pytest.mark.parametrize("ask", [blocking, awaited])
Ask = Callable[..., Any]


@both
@pytest.mark.parametrize("text", [WHOLE, CHUNKED, UNTIL_THE_END, EARLY])
def test_an_answer_in_every_form_and_cut_anywhere(ask: Ask, text: bytes) -> None:
    """One piece, a byte at a time, and cut in two at places of every kind."""
    cuts: list[Sequence[bytes]] = [[text], [text[at : at + 1] for at in range(len(text))]]
    cuts += [[text[:at], text[at:]] for at in range(1, len(text), 7)]
    with serving(*(pieces(*parts) for parts in cuts)) as url:
        for _ in cuts:
            assert ask(url).status == "ok"


def test_a_head_that_came_before_means_the_same() -> None:
    """Answers on one connection, in any pieces, are what each would be on a connection of its own.

    Heads that are equal, nearly equal, early, without a length or with a wish are among them.
    """
    draw = random.Random(1)
    texts = [
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabcd",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nefgh",
        b"HTTP/1.1 201 OK\r\nContent-Length: 4\r\n\r\nefgh",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nefghi",
        b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n\r\n\r\nabcd",
        b"HTTP/1.1 429 OK\r\nContent-Length: 1\r\nRetry-After: 3\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        b"HTTP/1.1 204 OK\r\n\r\n",
    ]

    def fed(incoming: Incoming, parts: Sequence[bytes]) -> tuple[Any, bool]:
        for part in parts:
            incoming.feed(part)
        return incoming.reply, incoming.keeps

    for _ in range(300):
        line = Incoming()
        for text in draw.choices(texts, k=12):
            at = draw.choice((len(text), len(text), draw.randrange(1, len(text))))
            parts = [part for part in (text[:at], text[at:]) if part]
            told = fed(line, parts)
            assert told == fed(Incoming(), parts), text
            if not line.keeps:
                break
            line.forget()


@both
@pytest.mark.parametrize("text", [WHOLE, CHUNKED])
def test_half_an_answer_is_none(ask: Ask, text: bytes) -> None:
    """A connection that ends early has not answered; whether it was done is not known."""
    places = range(0, len(text) - 1, 9)
    with serving(*(pieces(text[:at]) for at in places)) as url:
        for _ in places:
            with pytest.raises(errors.Unreachable) as told:
                ask(url)
            assert told.value.detail["sent"]


@both
def test_what_is_not_an_answer_says_so(ask: Ask) -> None:
    greeting = pieces(b"220 mail.example.com ESMTP\r\n")
    with serving(greeting) as url, pytest.raises(errors.Unreachable, match="not HTTP"):
        ask(url)
    with pytest.raises(errors.Unreachable) as told:
        ask(url)
    assert not told.value.detail["sent"]


@both
def test_nobody_waits_for_ever(ask: Ask) -> None:
    """Neither for the first byte nor for the last."""
    with serving(holding(b""), holding(WHOLE[:60])) as url:
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(errors.Unreachable, match=r"time|long"):
                ask(url, timeout_s=0.2)
            assert time.monotonic() - began < 5


@both
def test_a_body_that_is_refused_before_it_was_sent(ask: Ask) -> None:
    """The answer counts, although the rest could not be sent."""

    def refuse(peer: socket.socket) -> None:
        peer.recv(65536)
        peer.sendall(REFUSED)
        # The rest is taken, as a server does that wants its answer to be read.
        while peer.recv(1 << 20):
            pass

    large = [{"data": "x" * 20_000_000}]
    with serving(refuse) as url, pytest.raises(errors.PayloadTooLarge):
        ask(url, lambda client: client.append("t", large))


def test_a_connection_that_was_closed_meanwhile_is_not_used() -> None:
    """Otherwise a call that can not be repeated would fail for nothing."""
    dropped = b'{"topic":"t","deleted":true,"routers_removed":[]}'
    text = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(dropped), dropped)
    closed = threading.Semaphore(0)

    def serve(peer: socket.socket) -> None:
        pieces(text)(peer)
        peer.close()
        closed.release()

    with serving(serve) as url, Client(url) as client:
        for _ in range(5):
            assert client.delete_topic("t").deleted
            assert closed.acquire(timeout=WAIT_S)
            time.sleep(0.02)


def test_connections_are_used_again_and_by_many() -> None:
    seen: list[int] = []

    def serve(peer: socket.socket) -> None:
        seen.append(1)
        while peer.recv(65536):
            peer.sendall(WHOLE)

    with serving(serve) as url, Client(url) as client:
        for _ in range(50):
            client.health()
    assert len(seen) == 1


def test_closing_ends_a_call_that_waits() -> None:
    """In another thread, and in another task."""
    with serving(holding(b"")) as url:
        client = Client(url, retries=ONCE)
        threading.Timer(0.1, client.close).start()
        with pytest.raises(errors.Unreachable):
            client.health()

        async def use() -> None:
            later = AsyncClient(url, retries=ONCE)
            asyncio.get_running_loop().call_later(
                0.1, lambda: tasks.append(asyncio.ensure_future(later.close()))
            )
            with pytest.raises(errors.Unreachable):
                await later.health()
            with pytest.raises(errors.Unreachable, match="closed"):
                await later.health()

        tasks: list[asyncio.Future[None]] = []
        asyncio.run(use())


def test_a_task_that_is_cancelled_leaves_no_answer_behind() -> None:
    """Its answer is not taken for that of the next call."""
    other = WHOLE.replace(b'"0"', b'"9"')
    cancelled = threading.Event()

    def late(peer: socket.socket) -> None:
        peer.recv(65536)
        cancelled.wait(WAIT_S)
        peer.sendall(other)
        while peer.recv(65536):
            peer.sendall(other)

    def prompt(peer: socket.socket) -> None:
        while peer.recv(65536):
            peer.sendall(WHOLE)

    async def use(url: str) -> None:
        async with AsyncClient(url) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await client.health()
            cancelled.set()
            assert (await client.health()).version == "0"

    with serving(late, prompt) as url:
        asyncio.run(use(url))


def test_a_task_cancelled_as_its_answer_comes_leaves_the_next_call_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connection is the next call's by then, which would wait for ever."""

    def prompt(peer: socket.socket) -> None:
        while peer.recv(65536):
            peer.sendall(WHOLE)

    async def use(url: str) -> None:
        tasks: list[asyncio.Task[Any]] = []
        forget = Incoming.forget

        def answered(incoming: Incoming) -> None:
            """Between the answer and whoever waits for it: another call, then the cancel."""
            forget(incoming)
            if len(tasks) == 1:
                tasks.append(asyncio.ensure_future(client.health()))
                asyncio.get_running_loop().call_soon(tasks[0].cancel)

        monkeypatch.setattr(Incoming, "forget", answered)
        async with AsyncClient(url) as client:
            await client.health()
            tasks.append(asyncio.ensure_future(client.health()))
            with pytest.raises(asyncio.CancelledError):
                await tasks[0]
            async with asyncio.timeout(WAIT_S):
                assert (await tasks[1]).status == "ok"

    with serving(prompt) as url:
        asyncio.run(use(url))


def test_sending_is_a_part_of_the_time() -> None:
    """A body that is taken slowly leaves less time for the answer."""

    def slow(peer: socket.socket) -> None:
        time.sleep(1.5)
        while peer.recv(1 << 20):
            pass

    large = [{"data": "x" * 20_000_000}]
    with serving(slow) as url:
        began = time.monotonic()
        with pytest.raises(errors.OutcomeUnknown, match=r"time|long"):
            blocking(url, lambda client: client.append("t", large), timeout_s=2.0)
        # With the whole time for the answer alone it would be 3.5.
        assert time.monotonic() - began < 3.2


def test_what_needs_more_than_a_connection_is_the_librarys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def plain(url: str, token: str = "") -> bool:
        return is_plain(options_of(url, token, timeout_s=1, ca_file=None, retries=DEFAULT_RETRIES))

    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert plain("http://host:1/prefix", "key")
    assert plain("http://[::1]:4000")
    assert not plain("https://host")
    assert not plain("http://me:secret@host")
    assert not plain("http://host", "schlüssel")
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    assert not plain("http://host")
