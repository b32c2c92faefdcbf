"""Readers that nobody here wrote, while the server ends and begins again."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.servers import Client, Served

HERE = Path(__file__).parent
WAIT_S = 40.0


class Reader:
    """A program that prints the seq of each record that it gets."""

    def __init__(self, name: str, directory: Path, *command: str) -> None:
        self.name = name
        self._output = directory / f"{name}.out"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(command, cwd=HERE, stdout=output)

    @property
    def lines(self) -> list[str]:
        return self._output.read_text().split()

    def wait_for(self, last: int) -> None:
        deadline = time.monotonic() + WAIT_S
        while str(last) not in self.lines:
            assert self.process.poll() is None, f"{self.name} ended: {self.lines[-3:]}"
            assert time.monotonic() < deadline, f"{self.name} waits: {self.lines[-3:]}"
            time.sleep(0.05)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def readers_of(client: Client, directory: Path, node: str, go: str) -> list[Reader]:
    base = f"127.0.0.1:{client.port}/v0"
    stream = f"http://{base}/topics/t/stream?from_seq=0"
    sessions = [
        f"http://{base}/watch/" + client.post("/v0/watch", {"topics": {"t": {}}}).json["wid"]
        for _ in range(3)
    ]
    python, socket = sys.executable, f"ws://{base}/ws"
    return [
        Reader("eventsource-stream", directory, node, "eventsource.mjs", stream),
        Reader("eventsource-session", directory, node, "eventsource.mjs", sessions[0]),
        Reader("ws", directory, node, "websocket.mjs", socket, "t"),
        Reader("go-stream", directory, go, stream),
        Reader("go-session", directory, go, sessions[1]),
        Reader("httpx-sse-stream", directory, python, "httpx_stream.py", stream),
        Reader("httpx-sse-session", directory, python, "httpx_stream.py", sessions[2]),
        Reader("aiohttp", directory, python, "aiohttp_socket.py", socket, "t"),
    ]  # fmt: skip


@pytest.mark.slow
def test_foreign_readers_get_every_record_once(
    tmp_path: Path, node: str, built_go: Callable[[str], str]
) -> None:
    """npm's eventsource and ws, Go's net/http, httpx-sse and aiohttp; a clean end and a kill."""
    served = Served(tmp_path).wait_ready()
    port, go = str(served.port), built_go("stream.go")
    readers: list[Reader] = []
    try:
        last = 0
        for how in ("begin", "stop", "kill", "stop"):
            if how == "stop":
                assert served.stop() == 0
            elif how == "kill":
                served.kill()
                # The next one has the same port: its file could not be told from this one.
                served.port_file.unlink()
            if how != "begin":
                served = Served(tmp_path, TOPICS_PORT=port).wait_ready()
            with served.client() as client:
                for _ in range(10):
                    assert client.write("t", *range(3)).status in (200, 201)
                last += 30
                readers = readers or readers_of(client, tmp_path, node, go)
            for reader in readers:
                reader.wait_for(last)
        for reader in readers:
            assert reader.lines == [str(seq) for seq in range(1, last + 1)], reader.name
    finally:
        for reader in readers:
            reader.end()
        served.kill()
