"""Whoever has a descriptor counts as a connection, whether or not hands were shaken over TLS."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
import socket
import ssl
import time
from typing import Any, cast

import pytest

from tests.server.protocol.app import LOOPS, Served, count_of, serving
from tests.server.protocol.wire import Wire, eventually, message, parse_one
from tests.support.certificates import Authority
from topics.server.http.handshakes import REST_S, Door
from topics.server.http.limits import HttpLimits

MOST = 5
LIMITS = HttpLimits(connections_max=MOST, head_s=2.0, scan_s=0.1)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not there")
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def tls(authority: Authority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign("server", 1))
    return context


def knock(served: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", served.port), timeout=8)


def count(served: Served) -> int:
    return int(served.call(lambda: served.server.connection_count))


def ask(served: Served, authority: Authority) -> int:
    """The status of a request over TLS."""
    with (
        knock(served) as raw,
        authority.trusting().wrap_socket(raw, server_hostname="localhost") as peer,
    ):
        peer.sendall(message("GET", "/json"))
        return parse_one(peer.recv(4096), 0)[0].status


@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_who_says_nothing_over_tls_is_counted_and_let_go(
    loop: str, tls: ssl.SSLContext, authority: Authority
) -> None:
    with serving(LIMITS, loop, tls) as served, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(knock(served)) for _ in range(MOST)]
        eventually(lambda: count(served) == MOST)
        with knock(served) as beyond:
            assert beyond.recv(100) == b"", "it is closed, and told nothing"
        assert served.server.refused_total == 1
        for peer in silent[:2]:
            peer.close()
        eventually(lambda: count(served) == MOST - 2)
        assert ask(served, authority) == 200
        eventually(lambda: count(served) == 0)
        assert ask(served, authority) == 200
        assert served.server.refused_total == 1


@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_a_handshake_that_fails_leaves_its_place(
    loop: str, tls: ssl.SSLContext, authority: Authority
) -> None:
    with serving(LIMITS, loop, tls) as served:
        for _ in range(2 * MOST):
            with knock(served) as peer:
                peer.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                while peer.recv(4096):
                    pass
            eventually(lambda: count(served) == 0)
        assert ask(served, authority) == 200


@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_a_shutdown_waits_for_no_handshake(loop: str, tls: ssl.SSLContext) -> None:
    with serving(LIMITS, loop, tls) as served, knock(served) as silent:
        eventually(lambda: count(served) == 1)
        began = time.monotonic()
        assert served.call(served.server.shutdown, 5.0)
        assert time.monotonic() - began < 1.5
        assert silent.recv(100) == b""
        with pytest.raises(ConnectionRefusedError):
            knock(served)


class Scarce(socket.socket):
    """A socket that listens in a process with too many files open, for as long as a test says."""

    is_scarce = True
    tried = 0

    def accept(self) -> tuple[socket.socket, Any]:
        self.tried += 1
        if self.is_scarce:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_a_door_rests_while_nothing_can_be_opened(
    loop: str, tls: ssl.SSLContext, authority: Authority
) -> None:
    async def run() -> None:
        listening = Scarce()
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        made = asyncio.Event()
        door = Door(
            listening, tls, LIMITS, protocol=lambda: Told(made), has_room=lambda: True,
            refused=made.set,
        )  # fmt: skip
        with socket.create_connection(listening.getsockname()):
            await asyncio.sleep(REST_S / 2)
            assert listening.tried == 1
            listening.is_scarce = False
        _, writer = await asyncio.open_connection(
            *listening.getsockname(), ssl=authority.trusting(), server_hostname="localhost"
        )
        await asyncio.wait_for(made.wait(), 8)
        writer.transport.abort()
        door.close()
        # Aborted connections are lost in the next turns.
        await asyncio.sleep(0.05)

    runner = LOOPS[loop]()
    try:
        runner.run_until_complete(run())
    finally:
        runner.close()


class Told(asyncio.Protocol):
    """Tells that hands were shaken, and ends."""

    def __init__(self, made: asyncio.Event) -> None:
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()
        self._made.set()


@pytest.mark.parametrize("count", [1, 200])
@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_who_waits_is_told_that_its_client_left(
    loop: str, count: int, tls: ssl.SSLContext, authority: Authority
) -> None:
    """Whatever was sent behind it, which is not all read."""
    with serving(LIMITS, loop, tls) as served:
        with (
            knock(served) as raw,
            authority.trusting().wrap_socket(raw, server_hostname="localhost") as peer,
        ):
            peer.sendall(message("GET", "/never") + message("GET", "/json") * count)
            time.sleep(0.05)
        eventually(lambda: served.app.abandoned == 1)
        eventually(lambda: count_of(served.server) == 0)


@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_as_many_that_come_at_once_are_admitted_as_there_is_room_for(loop: str) -> None:
    with serving(LIMITS, loop) as served, contextlib.ExitStack() as stack:
        served.loop.call_soon_threadsafe(time.sleep, 0.3)
        peers = [stack.enter_context(Wire(served.port)) for _ in range(4 * MOST)]
        eventually(lambda: count(served) + served.server.refused_total == len(peers))
        assert count(served) == MOST
        told = 0
        for peer in peers:
            peer.socket.settimeout(0.05)
            with contextlib.suppress(TimeoutError):
                answered = peer.answer()
                told += (answered.status, answered.code) == (503, "overloaded")
        assert told == len(peers) - MOST


def test_over_tls_too_an_answer_may_be_taken_slowly(
    tls: ssl.SSLContext, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop gives a close half a minute, however much is still to be sent: here less."""
    monkeypatch.setattr(asyncio.constants, "SSL_SHUTDOWN_TIMEOUT", 0.3)
    limits = HttpLimits(write_stall_s=4.0, idle_s=0.3, scan_s=0.1)
    with (
        serving(limits, loop="asyncio", tls=tls) as served,
        knock(served) as raw,
        authority.trusting().wrap_socket(raw, server_hostname="localhost") as peer,
    ):
        peer.sendall(message("GET", "/big?n=20000000"))
        got, end = bytearray(), time.monotonic() + 1.5
        while time.monotonic() < end:
            got += peer.recv(4096)
            time.sleep(0.05)
        while data := peer.recv(1 << 20):
            got += data
        assert len(parse_one(bytes(got), 0)[0].body) == 20_000_000


def test_over_tls_too_who_takes_nothing_is_cut(tls: ssl.SSLContext, authority: Authority) -> None:
    limits = HttpLimits(write_stall_s=0.5, linger_s=0.3, idle_s=0.3, scan_s=0.1)
    with (
        serving(limits, tls=tls) as served,
        knock(served) as raw,
        authority.trusting().wrap_socket(raw, server_hostname="localhost") as peer,
    ):
        peer.sendall(message("GET", "/big?n=20000000"))
        eventually(lambda: count(served) == 1)
        eventually(lambda: count(served) == 0)
