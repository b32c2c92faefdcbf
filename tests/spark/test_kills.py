"""Kill -9 of the driver and of the server in mid-stream: everything arrives, once, in order."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import Client, Served, environment

WAIT_S = 240.0


class Writer(threading.Thread):
    """Writes numbers until it is stopped; a write that was not answered is sent again."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.written = 0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.is_set():
            first = self.written
            body: dict[str, Any] = {
                "records": [{"data": n, "tag": str(n)} for n in range(first, first + 20)],
                "idempotency_key": str(first),
            }
            with contextlib.suppress(OSError), Client(self.port) as client:
                if client.post("/v0/topics/in", body).status == 200:
                    self.written += 20
            time.sleep(0.3)


class Copying:
    """The driver's process with all that it started."""

    def __init__(self, url: str, folder: Path, *master: str) -> None:
        command = [sys.executable, "-m", "tests.spark.copying", url, "in", "out", str(folder)]
        command += master
        folder.mkdir(exist_ok=True)
        with (folder / "driver.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=environment(), stdout=log, stderr=log, start_new_session=True
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextlib.contextmanager
def copying(url: str, folder: Path, *master: str) -> Iterator[list[Copying]]:
    """The driver that runs, as the last of a list; every one is ended."""
    drivers = [Copying(url, folder, *master)]
    try:
        yield drivers
    finally:
        for driver in drivers:
            driver.kill()


def out(served: Served) -> list[int]:
    """What has arrived, in order."""
    found: list[int] = []
    at = 0
    with served.client() as client:
        while True:
            reply = client.post("/v0/topics/out/range", {"from_seq": at})
            if reply.status == 404:
                return []
            assert reply.json["gaps"] == []
            found += [record["data"] for record in reply.json["records"]]
            at = reply.json["next_from_seq"]
            if reply.json["complete"]:
                return found


def wait_for(served: Served, count: int, driver: Copying, folder: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while len(out(served)) < count:
        said = (folder / "driver.log").read_text()[-3000:]
        assert driver.is_running, said
        assert time.monotonic() < deadline, said
        time.sleep(0.2)


def run(tmp_path: Path, kills: list[str], chance: random.Random) -> None:
    folder = tmp_path / "copying"
    with contextlib.ExitStack() as ended:
        served = ended.enter_context(Served(tmp_path)).wait_ready()
        port = served.port
        writer = Writer(port)
        writer.start()
        drivers = ended.enter_context(copying(f"http://127.0.0.1:{port}", folder))
        for kill in kills:
            wait_for(served, len(out(served)) + 50, drivers[-1], folder)
            time.sleep(chance.random())
            if kill == "driver":
                drivers[-1].kill()
                drivers.append(Copying(f"http://127.0.0.1:{port}", folder))
            else:
                served.kill()
                # It says the same port again: only the file's coming back tells that it is there.
                served.port_file.unlink()
                served = ended.enter_context(Served(tmp_path, TOPICS_PORT=str(port))).wait_ready()
        writer.over.set()
        writer.join()
        wait_for(served, writer.written, drivers[-1], folder)
        assert sorted(out(served)) == list(range(writer.written))


@pytest.mark.timeout(600)
def test_a_stream_outlives_kills_of_driver_and_server(tmp_path: Path) -> None:
    """Three kills; no record is missing and none is there twice."""
    run(tmp_path, ["driver", "server", "driver"], random.Random(1))


@pytest.mark.full(share=2)
@pytest.mark.timeout(3600)
def test_a_stream_outlives_many_kills(tmp_path: Path) -> None:
    chance = random.Random()
    run(tmp_path, [chance.choice(["driver", "server"]) for _ in range(20)], chance)
