"""A real server for other people's tests: a process of its own, or a thread of this one.

A process can be killed and started again on the same directory; a thread starts in milliseconds.
Both listen on a free port of this machine, and are gone at the end of the `with`.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Self

from topics.client.client import Client

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
        """Starts it, on the same directory each time; returns when it is ready."""
        self._port_file.unlink(missing_ok=True)
        kept = {key: value for key, value in os.environ.items() if not key.startswith("TOPICS_")}
        own = {
            "TOPICS_PORT": "0", "TOPICS_DATA_DIR": str(self._directory / "data"),
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
        self._thread = threading.Thread(target=self._run, name="topics-server", daemon=True)
        self._is_up = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
            self._is_up.set()

    async def _serve(self) -> None:
        # A process that only wants the fakes does not pay for a server.
        from topics.engine.engine import Engine
        from topics.server.api.call import Call
        from topics.server.app import App
        from topics.server.config import load
        from topics.server.http.connections import HttpServer
        from topics.server.http.limits import HttpLimits

        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        config = load({"TOPICS_GC_FREEZE": "false", **self._settings}, {})
        app = App(config)
        limits = HttpLimits(body_bytes_max=config.settings.max_body_bytes)
        server = HttpServer(app.__call__, judge=app.judge, limits=limits, request_type=Call)
        self.port = await server.listen("127.0.0.1", 0)
        steps: Generator[float, None, Engine] = Engine.opening(
            str(self._directory / "data"), settings=config.settings
        )
        app.services.start(server, steps)
        self._is_up.set()
        await self._stop.wait()
        app.services.drain()
        await server.shutdown(1.0)
        app.services.close()

    def __enter__(self) -> Self:
        self._thread.start()
        self._is_up.wait(START_S)
        if self._error is not None:
            raise self._error
        with self.client() as client:
            client.ready()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_S)
        self._scratch.cleanup()
        if self._error is not None:
            raise self._error
