"""TLS with certificates of one's own, as a proxy in front of a server has them."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.sync.server import ServerConnection, serve

from tests.support.certificates import Authority
from tests.support.scripted import answer
from topics import Client, RetryPolicy, errors

pytestmark = pytest.mark.slow

HEALTHY = answer(200, b'{"status":"ok","version":"0","uptime_ms":1}')
BRIEF = RetryPolicy(give_up_after_s=0.2)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an authority of our own (ca.pem) and what it has signed (leaf.pem)."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    path = tmp_path_factory.mktemp("tls")
    Authority(path).sign("leaf", 1)
    return path


@pytest.fixture
def url(certificates: Path) -> Iterator[str]:
    """A server that answers one connection after the other, if its certificate is trusted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "leaf.pem", certificates / "leaf.key")
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                raw, _ = listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), context.wrap_socket(raw, server_side=True) as peer:
                peer.recv(65536)
                peer.sendall(HEALTHY)
            raw.close()

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"https://127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def test_an_authority_of_ones_own_is_trusted_when_it_is_named(url: str, certificates: Path) -> None:
    """With `ca_file`, and only then."""
    with Client(url, retries=BRIEF) as stranger, pytest.raises(errors.Unreachable) as told:
        stranger.health()
    assert "certificate" in told.value.message
    with Client(url, ca_file=str(certificates / "ca.pem"), retries=BRIEF) as client:
        assert client.health().status == "ok"


@pytest.mark.parametrize("text", [None, "", "not PEM", "-----BEGIN CERTIFICATE-----\nAA\n"])
def test_a_file_without_authorities_is_told_at_once(tmp_path: Path, text: str | None) -> None:
    """As an error of ours: else every connection would fail, or a library's error come out."""
    file = tmp_path / "ca.pem"
    if text is not None:
        file.write_text(text)
    with pytest.raises(errors.InvalidRequest, match=f"ca_file {file} can not be used"):
        Client("https://127.0.0.1:1", ca_file=str(file))


def test_a_socket_trusts_the_same(certificates: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "leaf.pem", certificates / "leaf.key")

    def answer_pings(peer: ServerConnection) -> None:
        for _ in peer:
            peer.send('{"op":"pong","request_id":1}')

    with serve(answer_pings, "127.0.0.1", 0, ssl=context) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        place = f"https://127.0.0.1:{server.socket.getsockname()[1]}"
        try:
            with pytest.raises(errors.Unreachable, match="certificate"), Client(place).socket():
                pass
            with Client(place, ca_file=str(certificates / "ca.pem")).socket() as ours:
                ours.ping()
        finally:
            server.shutdown()
            thread.join()
