"""A small application on the protocol layer, served from a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import uvloop

from topics.errors import InvalidRequest, StorageError, Throttled, TopicFull
from topics.server.api.dispatch import Router
from topics.server.http.connections import HttpServer
from topics.server.http.event_stream import EventStream
from topics.server.http.limits import HttpLimits
from topics.server.http.message import PENDING, Answer, Request, Response
from topics.server.http.websocket import WebSocket

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}


class App:
    """Handlers for whatever a test wants to see, and what they noticed."""

    def __init__(self) -> None:
        self.server: HttpServer
        self.waiting: list[Request] = []
        self.groups: list[int] = []
        self.abandoned = 0
        self.streams: list[EventStream] = []
        self.sockets: list[WebSocket] = []
        self.closed = 0
        self.drained = 0
        self.writable = 0
        self.route = Router(
            [
                ("POST", "/echo", self.echo),
                ("POST", "/all", self.all),
                ("PUT", "/echo", self.echo),
                ("GET", "/json", self.json),
                ("GET", "/headers", self.headers),
                ("GET", "/big", self.big),
                ("GET", "/numbers", self.numbers),
                ("POST", "/later", self.later),
                ("GET", "/later", self.later),
                ("GET", "/slow", self.slow),
                ("GET", "/never", self.never),
                ("GET", "/empty", self.empty),
                ("GET", "/fail/:how", self.fail),
                ("GET", "/stream", self.stream),
                ("GET", "/ws", self.websocket),
            ]
        )

    def handle(self, request: Request) -> Answer:
        request.extra = (("X-Method", request.method),)
        return self.route(request)

    def echo(self, request: Request) -> Answer:
        return Response(request.body, content_type="application/octet-stream")

    def all(self, request: Request) -> Answer:
        """Everything that a handler can learn of a request; the length is the body's."""
        headers = {**request.headers, b"idempotency-key": request.idempotency_key}
        headers.pop(b"content-length", None)
        told = (request.method, request.path, request.query, sorted(headers.items()))
        return Response(repr((*told, request.body)).encode(), content_type="text/plain")

    def json(self, request: Request) -> Answer:
        return Response(b'{"ok":true}')

    def headers(self, request: Request) -> Answer:
        pairs = {k.decode("latin-1"): v.decode("latin-1") for k, v in request.headers.items()}
        return Response(msgspec.json.encode({"path": request.path, "headers": pairs}))

    def big(self, request: Request) -> Answer:
        digits = request.query.removeprefix(b"n=")
        if not digits.isdigit() or len(digits) > 8:
            raise InvalidRequest("n is a size below 100,000,000")
        size = max(2, int(digits))
        return Response(b'"' + b"x" * (size - 2) + b'"')

    def numbers(self, request: Request) -> Answer:
        """So many of them, in pieces: nothing of it is there twice."""
        count = int(request.query.removeprefix(b"n="))
        return Response(b"", content_type="text/plain", pieces=tuple(numbers(count)))

    def later(self, request: Request) -> Answer:
        self.waiting.append(request)
        self.server.turn_end.defer(self.flush)
        return PENDING

    def flush(self) -> None:
        waiting, self.waiting = self.waiting, []
        self.groups.append(len(waiting))
        for request in waiting:
            request.respond(Response(b'{"later":%d}' % len(request.body)))

    def slow(self, request: Request) -> Answer:
        """An answer after so many milliseconds, or at once, and so large."""
        after, _, size = request.query.partition(b",")
        after_ms = int(after or b"50")
        answer = Response((b'{"slow":%d}' % after_ms).ljust(int(size or b"0")))
        if not after_ms:
            return answer
        self.server.loop.call_later(after_ms / 1000, request.respond, answer)
        return PENDING

    def never(self, request: Request) -> Answer:
        request.on_abandoned = self.on_abandoned
        return PENDING

    def on_abandoned(self) -> None:
        self.abandoned += 1

    def empty(self, request: Request) -> Answer:
        return Response(b"", 204)

    def fail(self, request: Request, how: str) -> Answer:
        if how == "throttled":
            raise Throttled("slow down", retry_after_ms=2500)
        if how == "full":
            raise TopicFull("the topic is full", topic="t")
        if how == "storage":
            raise StorageError("/secret/path is unreadable")
        if how == "header":
            return Response(b"{}", headers=(("X-Split", "a\r\nSet-Cookie: b"),))
        if how == "type":
            return None  # type: ignore[return-value]
        if how == "late":
            request.respond(Response(b'"answered"'))
        if how == "stream":
            EventStream(request)
        raise RuntimeError("a secret")

    def stream(self, request: Request) -> Answer:
        stream = EventStream(request)
        stream.on_close = self.on_close
        stream.on_writable = self.on_writable
        self.streams.append(stream)
        stream.send(b"retry: 2000\n\n")
        if request.query == b"drain":
            stream.on_drain = lambda: self.on_drain(stream)
        if request.query == b"end":
            stream.send(b"data: 1\n\n")
            stream.close()
        return PENDING

    def on_close(self) -> None:
        self.closed += 1

    def on_writable(self) -> None:
        self.writable += 1

    def on_drain(self, stream: EventStream) -> None:
        self.drained += 1
        stream.send(b"event: error\ndata: shutting_down\n\n")
        stream.close()

    def websocket(self, request: Request) -> Answer:
        def on_message(message: str | bytes) -> None:
            if message == "fail":
                raise RuntimeError("a secret")
            if message == "close":
                socket.close(4000, "as you wish")
            elif isinstance(message, str):
                socket.send(message.encode())
            else:
                socket.send_binary(message)

        socket = WebSocket(request, on_message)
        socket.on_close = self.on_close
        self.sockets.append(socket)
        return PENDING


def numbers(count: int) -> Iterator[bytes]:
    """The numbers up to one, a thousand in a piece."""
    for first in range(0, count, 1000):
        yield b"".join(b"%08d," % n for n in range(first, min(first + 1000, count)))


class Served:
    """A running server: its port, its app, and a way to call into its loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, app: App, port: int) -> None:
        self.loop = loop
        self.app = app
        self.port = port
        self.errors: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: self.errors.append(context))

    @property
    def server(self) -> HttpServer:
        return self.app.server

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function, or awaits a coroutine function, on the server's loop."""

        async def run() -> Any:
            result = function(*arguments)
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(10)


def count_of(server: HttpServer) -> int:
    """All that a server looks after."""
    return server.connection_count + server.stream_count


@contextlib.contextmanager
def serving(
    limits: HttpLimits | None = None, loop: str = "uvloop", tls: ssl.SSLContext | None = None
) -> Iterator[Served]:
    """Serves an App on loopback. Afterwards nothing is left: no connection, task or error."""
    runner = LOOPS[loop]()
    app = App()

    async def start() -> int:
        app.server = HttpServer(app.handle, limits=limits)
        return await app.server.listen("127.0.0.1", 0, tls)

    port = runner.run_until_complete(start())
    served = Served(runner, app, port)
    thread = threading.Thread(target=runner.run_forever, name="http-server")
    thread.start()
    try:
        yield served
    finally:
        served.call(app.server.shutdown, 0.2)
        left = served.call(lambda: (count_of(app.server), len(asyncio.all_tasks())))
        runner.call_soon_threadsafe(runner.stop)
        thread.join(10)
        runner.run_until_complete(runner.shutdown_default_executor())
        runner.close()
    assert left == (0, 1), "connections, streams or tasks outlived the server"
    assert not served.errors, served.errors
