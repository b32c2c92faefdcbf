"""Kill -9 of the driver and of the server in mid-stream: everything arrives, once, in order."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.killing import Driver, Writer, restarted
from tests.support.servers import Served

WAIT_S = 240.0


class Copying(Driver):
    """The driver's process with all that it started."""

    def __init__(self, url: str, folder: Path, *master: str) -> None:
        command = ["-m", "tests.spark.copying", url, "in", "out", str(folder), *master]
        super().__init__(command, folder)


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
                served = ended.enter_context(restarted(served, tmp_path)).wait_ready()
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
