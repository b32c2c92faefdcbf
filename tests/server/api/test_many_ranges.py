"""Ranges as Arrow that many ask for at once, some of whom do not wait for the answer."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from tests.support.servers import inside

pa = pytest.importorskip("pyarrow", reason="pyarrow is an extra")

RECORDS, READERS = 20_000, 9


def ask(port: int, kind: str = "arrow") -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", port), timeout=30)
    body = json.dumps({"format": kind}).encode()
    peer.sendall(
        b"POST /v0/topics/t/range HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )
    return peer


def test_whoever_sends_no_more_is_answered_all_the_same(tmp_path: Path) -> None:
    """Half of a connection is enough for an answer, also one in slices, and beside others."""
    with inside(tmp_path) as served, served.client() as client:
        client.post("/v0/topics/t", {"records": [{"data": 1}] * 3})
        for _ in range(5):
            assert client.write("t", 1).status == 200
            for kind in ("arrow", "json"):
                peer = ask(served.port, kind)
                peer.shutdown(socket.SHUT_WR)
                assert rows(peer, kind) >= 4


def rows(peer: socket.socket, kind: str = "arrow") -> int:
    with peer, peer.makefile("rb") as answer:
        head, _, content = answer.read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    if kind == "json":
        return len(json.loads(content)["records"])
    return int(pa.ipc.open_stream(content).read_all().num_rows)


@pytest.mark.parametrize("is_first", [True, False])
def test_whoever_waits_gets_all_of_it(tmp_path: Path, *, is_first: bool) -> None:
    """Also when those in front of them have gone, and when nobody had asked for columns before."""
    with inside(tmp_path) as served, served.client() as client:
        for _ in range(10):
            client.post("/v0/topics/t", {"records": [{"data": "x" * 100}] * (RECORDS // 10)})
        if not is_first:
            assert rows(ask(served.port)) == RECORDS
        peers = [ask(served.port) for _ in range(READERS)]
        for gone in peers[::3]:
            gone.close()
        for n in range(20):
            assert client.write("t", n).status == 200
        found = [rows(peer) for peer in peers if peer not in peers[::3]]
        assert all(RECORDS <= count <= RECORDS + 20 for count in found)
        served.wait_until(lambda: served.server.connection_count == 1)
