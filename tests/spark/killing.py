"""Who writes while others are killed, and drivers that are."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.support.servers import Client, Served, environment


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


class Driver:
    """A process of Spark with all that it started. What it says is in `driver.log`."""

    def __init__(self, command: list[str], folder: Path, **variables: str) -> None:
        folder.mkdir(exist_ok=True)
        self._log = folder / "driver.log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command], env=environment(**variables),
                stdout=subprocess.PIPE, stderr=log, process_group=0,
            )  # fmt: skip

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def said(self) -> str:
        return self._log.read_text()[-3000:]

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def restarted(served: Served, folder: Path) -> Served:
    """A server of the same directory and port after one that has ended."""
    # It says the same port again: only the file's coming back tells that it is there.
    served.port_file.unlink(missing_ok=True)
    return Served(folder, TOPICS_PORT=str(served.port))
