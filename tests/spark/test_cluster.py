"""A real standalone cluster on one machine: a master, two workers, one of them killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from tests.spark.test_kills import Writer, copying, out, wait_for
from tests.support.servers import Served, environment

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
DEPLOY = "org.apache.spark.deploy"


@contextlib.contextmanager
def started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon of Spark's, with all that it starts in a group of its own."""
    variables = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    # Executors get the package from the driver.
    kept = {key: value for key, value in environment(**variables).items() if key != "PYTHONPATH"}
    with (folder / "cluster.log").open("ab") as log:
        process = subprocess.Popen(
            [str(SPARK_CLASS), *arguments], env=kept, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.full(share=1)
@pytest.mark.timeout(900)
def test_a_stream_outlives_a_worker_killed_in_mid_batch(tmp_path: Path) -> None:
    """Nothing is missing and nothing is there twice, with half of the cluster gone."""
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    where = ["--host", "127.0.0.1", "--webui-port", "0"]
    with contextlib.ExitStack() as ended:
        served = ended.enter_context(Served(tmp_path)).wait_ready()
        writer = Writer(served.port)
        writer.start()
        ended.enter_context(
            started(tmp_path, f"{DEPLOY}.master.Master", "--port", str(port), *where)
        )
        workers = [
            ended.enter_context(
                started(
                    tmp_path, f"{DEPLOY}.worker.Worker", *where, "--cores", "1", "--memory",
                    "600m", "--work-dir", str(tmp_path / f"work{n}"), master,
                )
            )
            for n in range(2)
        ]  # fmt: skip
        folder = tmp_path / "copying"
        url = f"http://127.0.0.1:{served.port}"
        (driver,) = ended.enter_context(copying(url, folder, master))
        wait_for(served, 200, driver, folder)
        kill(workers[0])
        wait_for(served, len(out(served)) + 200, driver, folder)
        writer.over.set()
        writer.join()
        wait_for(served, writer.written, driver, folder)
        assert sorted(out(served)) == list(range(writer.written))
