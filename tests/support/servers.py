"""Real servers for tests: a `topics serve` process, or the application on a loop in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from topics.engine.engine import Engine
from topics.server.app import App
from topics.server.config import load
from topics.server.http.limits import HttpLimits
from topics.server.loop.services import Services

T = TypeVar("T")
Steps = Callable[[Services], Generator[float, None, Engine]]
START_S = 30.0
JSON = "application/json"


@dataclasses.dataclass(frozen=True)
class Reply:
    """An answer as a client sees it."""

    status: int
    headers: Mapping[str, str]
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def code(self) -> str:
        """The code of an error; empty for a success."""
        return str(self.json.get("error", {}).get("code", ""))

    @property
    def detail(self) -> dict[str, Any]:
        return dict(self.json["error"].get("detail", {}))


class Client:
    """One kept-alive connection. `body` may be a Python value, or bytes to send as they are."""

    def __init__(
        self, port: int, token: str = "", connection: http.client.HTTPConnection | None = None
    ) -> None:
        self.port = port
        self.token = token
        self.connection = connection or http.client.HTTPConnection("127.0.0.1", port, timeout=40)

    def call(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        sent = dict(headers or {})
        if self.token:
            sent.setdefault("Authorization", f"Bearer {self.token}")
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        if data is not None and "Content-Type" not in sent:
            sent["Content-Type"] = JSON
        self.connection.request(method, path, data, {k: v for k, v in sent.items() if v})
        response = self.connection.getresponse()
        lower = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, lower, response.read())

    def get(self, path: str, **headers: str) -> Reply:
        return self.call("GET", path, headers=headers)

    def put(self, path: str, body: Any = None) -> Reply:
        return self.call("PUT", path, body)

    def post(self, path: str, body: Any = None, **headers: str) -> Reply:
        return self.call("POST", path, body, headers)

    def delete(self, path: str) -> Reply:
        return self.call("DELETE", path)

    def write(self, topic: str, *data: Any, **fields: Any) -> Reply:
        """One write with a record for each value."""
        records = [{"data": value} for value in data]
        return self.post(f"/v0/topics/{topic}", {"records": records, **fields})

    def diff(self, topic: str, **body: Any) -> Reply:
        return self.post(f"/v0/topics/{topic}/diff", body)

    def metrics(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get("/v0/metrics", Accept=JSON).json
        return found

    def with_token(self, token: str) -> Client:
        """The same connection, another key."""
        return Client(self.port, token, self.connection)

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def environment(**variables: str) -> dict[str, str]:
    """This process's environment without its own settings of topics, plus these."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("TOPICS_")}
    return kept | variables


class Served:
    """A `topics serve` process on a port of its own."""

    def __init__(self, directory: Path, *flags: str, script: str = "", **variables: str) -> None:
        self.data_dir = directory / "data"
        self.port_file = Path(variables.get("TOPICS_PORT_FILE", directory / "port"))
        self.log_file = directory / "log"
        # What a killed server left there is not the new one's, though the port may be the same.
        self._stale_ns = self.port_file.stat().st_mtime_ns if self.port_file.exists() else 0
        own = {
            "TOPICS_PORT": "0",
            "TOPICS_DATA_DIR": str(self.data_dir),
            "TOPICS_PORT_FILE": str(self.port_file),
        }
        command = ["-c", script] if script else ["-m", "topics", "serve", *flags]
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command], env=environment(**{**own, **variables}), stderr=log
            )
        self.port = self._wait_for_port()

    def _wait_for_port(self) -> int:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError):
                if self.port_file.stat().st_mtime_ns != self._stale_ns:
                    return int(self.port_file.read_text())
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended: {self.log()}")
            time.sleep(0.01)
        self.process.kill()
        self.process.wait()
        raise TimeoutError(f"no port after {START_S} s: {self.log()}")

    def client(self, token: str = "") -> Client:
        return Client(self.port, token)

    def wait_ready(self, token: str = "") -> Served:
        deadline = time.monotonic() + START_S
        with self.client(token) as client:
            while client.get("/v0/ready").status != 200:
                assert time.monotonic() < deadline, self.log()
                time.sleep(0.01)
        return self

    def log(self) -> str:
        return self.log_file.read_text()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = 20.0) -> int:
        return self.process.wait(seconds)

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()


class Inside:
    """The application on a uvloop in a thread of this process, so that a test can reach into it."""

    def __init__(self, steps: Steps, **variables: str):
        self.config = load(variables, {})
        self._steps = steps
        self._started = threading.Event()
        self._stop: asyncio.Event
        self._thread = threading.Thread(target=self._run)
        self.error: BaseException | None = None
        self.app: App
        self.port = 0
        self._thread.start()
        assert self._started.wait(START_S)
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._main())
        except BaseException as error:
            self.error = error
            self._started.set()

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        self.app = App(self.config)
        limits = HttpLimits(body_bytes_max=self.config.settings.max_body_bytes)
        self.server = self.app.http_server(limits)
        self.port = await self.server.listen("127.0.0.1", 0)
        self.services.start(self.server, self._steps(self.services))
        self._started.set()
        await self._stop.wait()
        self.services.drain()
        await self.server.shutdown(1.0)
        self.services.close()

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """What is sent meanwhile the server sees in one turn of its loop."""
        held, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            held.set()
            go_on.wait(5)

        self.services.loop.call_soon_threadsafe(hold)
        # Until it stands it may see some of what is sent in one turn, and the rest in another.
        assert held.wait(START_S)
        yield
        go_on.set()

    @property
    def services(self) -> Services:
        return self.app.services

    def run(self, call: Callable[[], T]) -> T:
        """Runs a call on the loop and returns its result."""

        async def wrapped() -> T:
            return call()

        return asyncio.run_coroutine_threadsafe(wrapped(), self.services.loop).result(START_S)

    def client(self, token: str = "") -> Client:
        return Client(self.port, token)

    def wait_until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_S
        while not self.run(true):
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def close(self) -> None:
        self.services.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_S)
        if self.error is not None:
            raise self.error


@contextlib.contextmanager
def inside(
    directory: Path,
    steps: Steps | None = None,
    **variables: str,
) -> Iterator[Inside]:
    """An application in this process, ready unless `steps` recovers it in another way."""

    def opening(services: Services) -> Generator[float, None, Engine]:
        return Engine.opening(str(directory), settings=services.settings)

    served = Inside(steps or opening, TOPICS_GC_FREEZE="false", **variables)
    try:
        if steps is None:
            served.wait_until(lambda: served.services.driver.is_ready)
        yield served
    finally:
        served.close()
