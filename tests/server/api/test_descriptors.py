"""What a process may open belongs to storage first; connections share the rest of it."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers import Client, Served
from topics.server import descriptors

FILES_MAX = 300
# The command as ever, in a process that may not have more files open.
LIMITED = """
import os, resource, sys
files_max = int(os.environ.pop("FILES_MAX"))
resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
sys.argv = ["topics", "serve"]
from topics.cli.main import main
main()
"""
FILE_BYTES = 1 << 20


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Served]:
    with Served(
        tmp_path, script=LIMITED, FILES_MAX=str(FILES_MAX), TOPICS_WAL_FILE_BYTES=str(FILE_BYTES),
        TOPICS_API_KEYS="k", TOPICS_SEAL_BYTES=str(8 * FILE_BYTES),
    ) as served:  # fmt: skip
        yield served.wait_ready()


def refused(port: int) -> bool:
    """One new connection; whether it was told that there is no room."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as peer:
        peer.settimeout(0.2)
        try:
            answer = peer.recv(4096)
        except TimeoutError:
            return False
        assert answer.startswith(b"HTTP/1.1 503 "), answer
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"\r\nConnection: close\r\n" in head
        assert json.loads(body)["error"]["code"] == "overloaded"
        return True


def metric(client: Client, name: str) -> int:
    return int(client.metrics()[name])


@pytest.mark.slow
def test_connections_take_nothing_that_storage_needs(limited: Served) -> None:
    """Far more peers than descriptors, none with a key, while log files and segments are made."""
    with contextlib.ExitStack() as peers, limited.client("k") as client:
        client.put("/v0/topics/a", {"durability": "fsync"})
        for _ in range(2 * FILES_MAX):
            with contextlib.suppress(OSError):
                peer = socket.create_connection(("127.0.0.1", limited.port), timeout=5)
                peers.enter_context(peer)
        for _ in range(24):
            assert client.write("a", *["x" * 200_000] * 5).status == 200
        assert metric(client, "topics_wal_rotations_total") > 10
        assert metric(client, "topics_connections_refused_total") > FILES_MAX
        assert metric(client, "topics_connections") < FILES_MAX
        assert refused(limited.port)
    assert limited.log().count("new ones are refused") == 1
    deadline = time.monotonic() + 10
    while refused(limited.port):
        assert time.monotonic() < deadline, "those that are gone have left no room"
    assert limited.stop() == 0


@pytest.mark.slow
def test_too_few_descriptors_are_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="may open 128 files, and topics needs"):
        Served(tmp_path, script=LIMITED, FILES_MAX="128")


def test_the_soft_limit_is_raised_before_it_is_shared() -> None:
    """What the process may have is what counts, not what it was started with."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
        found = descriptors.connections_max(2)
        raised, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert 0 < found < raised
    assert found + 512 > min(hard, descriptors.FILES_MAX)


OUT_OF_FILES = """
import asyncio, errno, os
from topics.server.config import load
from topics.server.process import serve
from topics.storage.fs import OsFs

# Every file of the log but the first of each shard, for as long as the note is there.
class Scarce(OsFs):
    def open(self, path, *, create=False, writable=True):
        if create and path.endswith("2.wal") and os.path.exists(os.environ["NOTE"]):
            raise OSError(errno.EMFILE, "Too many open files", path)
        return super().open(path, create=create, writable=writable)

asyncio.run(serve(load(os.environ, {}), fs=Scarce()))
"""


@pytest.mark.slow
def test_a_log_that_can_not_open_its_next_file_refuses_and_goes_on(tmp_path: Path) -> None:
    note = tmp_path / "note"
    note.touch()
    with Served(
        tmp_path, script=OUT_OF_FILES, NOTE=str(note), TOPICS_WAL_FILE_BYTES=str(FILE_BYTES)
    ) as served:
        served.wait_ready()
        with served.client() as client:
            client.put("/v0/topics/a", {"durability": "fsync"})
            acknowledged = []
            reply = client.write("a", "x" * 200_000)
            while reply.status == 200:
                acknowledged += reply.json["seqs"]
                reply = client.write("a", "x" * 200_000)
            assert (reply.status, reply.code) == (503, "overloaded")
            assert "Retry-After".lower() in reply.headers
            assert client.post("/v0/topics/a/delete", {"before_seq": 2}).json["deleted"] == 1
            note.unlink()
            reply = client.write("a", "x" * 200_000)
            assert reply.json["seqs"] == [acknowledged[-1] + 1], "nothing was written before"
        assert served.stop() == 0
