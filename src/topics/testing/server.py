"""A real server for other people's tests: a process of its own, or a thread of this one.

A process can be killed and started again on the same directory; a thread starts in milliseconds.
Both listen on a free port of this machine, and are gone at the end of the `with`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from topics.client.client import Client

if TYPE_CHECKING:
    from topics.server.embedded import Embedded

START_S = 30.0
LOOK_S = 0.01


class _Server:
    """What both have: where they are, and clients for them."""

    port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, token: str = "") -> Client:
        """A client of this server; close it, or use it in a `with`."""
        return Client(self.url, token)


class ServerProcess(_Server):
    """`topics serve` as a process. Without a directory its data is gone with it.

    Settings are those of `topics serve`: `ServerProcess(max_topics=10, api_keys="key")`.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None, **settings: Any) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="topics-testing-")
        self._directory = Path(self._scratch.name if directory is None else directory)
        self._port_file = Path(self._scratch.name) / "port"
        self._settings = {f"TOPICS_{name.upper()}": str(value) for name, value in settings.items()}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Starts it, on the same directory and port each time; returns when it is ready."""
        self._port_file.unlink(missing_ok=True)
        kept = {key: value for key, value in os.environ.items() if not key.startswith("TOPICS_")}
        own = {
            # Clients that it had come back to it.
            "TOPICS_PORT": str(self.port), "TOPICS_DATA_DIR": str(self._directory / "data"),
            "TOPICS_PORT_FILE": str(self._port_file), "TOPICS_LOG_LEVEL": "error",
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-m", "topics", "serve"], env=kept | own | self._settings
        )
        deadline_s = time.monotonic() + START_S
        while not self._port_file.exists():
            if self._process.poll() is not None:
                raise RuntimeError(f"topics serve ended with {self._process.returncode}")
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"topics serve opened no port within {START_S} s")
            time.sleep(LOOK_S)
        self.port = int(self._port_file.read_text())
        with self.client() as client:
            client.ready()
        return self

    def stop(self) -> None:
        """Ends it in order, with everything on the disk."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(START_S)

    def kill(self) -> None:
        """Ends it as a crash would. `start` brings it back."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._scratch.cleanup()


class ServerThread(_Server):
    """The server on an event loop in a thread of this process."""

    def __init__(self, directory: str | os.PathLike[str] | None = None, **settings: Any) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="topics-testing-")
        self._directory = Path(self._scratch.name if directory is None else directory)
        self._settings = {f"TOPICS_{name.upper()}": str(value) for name, value in settings.items()}
        self._served: Embedded

    def __enter__(self) -> Self:
        # A process that only wants the fakes does not pay for a server.
        from topics.server.config import load
        from topics.server.embedded import Embedded

        config = load({"TOPICS_GC_FREEZE": "false", **self._settings}, {})
        self._served = Embedded(config, self._directory / "data")
        self._served.start()
        self._served.opened.result(START_S)
        self.port = self._served.listen("127.0.0.1", 0)
        return self

    def __exit__(self, *_: object) -> None:
        self._served.close()
        self._scratch.cleanup()
