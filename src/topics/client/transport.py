"""How bytes travel: pyreqwest, once blocking and once for asyncio. docs/client.md has the reason.

Where a plain connection will do, `direct` and `async_direct` are the same two with less to pay. To
a log in this process bytes do not travel at all: `embedded` has the same two for that.

TLS, proxies of the environment, pooling and timeouts are the library's. Whatever goes wrong is
Unreachable, and its `sent` says whether the request may have arrived.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from functools import lru_cache
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from pyreqwest.client import Client as AsyncHttp
from pyreqwest.client import ClientBuilder, SyncClientBuilder
from pyreqwest.client import SyncClient as SyncHttp
from pyreqwest.exceptions import ConnectTimeoutError, PyreqwestError
from pyreqwest.request import RequestBuilder, SyncRequestBuilder
from pyreqwest.response import Response

from topics.client.options import Options
from topics.client.request import JSON, Reply, Request, error_of
from topics.errors import Unreachable

T = TypeVar("T")
B = TypeVar("B", ClientBuilder, SyncClientBuilder)
P = TypeVar("P", RequestBuilder, SyncRequestBuilder)
# What the library says when no connection came about; all else may have reached the server.
_NEVER_SENT = "client error (Connect)"

# Whether one of them is for this server is the library's to say.
_PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")


class Transport:
    """Blocking. May be used by many threads at once; a process that forks makes its own."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._http: SyncHttp = _configured(SyncClientBuilder(), options).build()
        self._is_closed = False

    def exchange(self, request: Request[Any]) -> Reply:
        """Sends once. Raises Unreachable when no answer came."""
        if self._is_closed:
            raise closed()
        if request.wait_s and threading.current_thread() is threading.main_thread():
            # The library does not look at signals: a wait in the main thread would ignore Ctrl-C.
            return _in_thread(lambda: self._exchange(request))
        return self._exchange(request)

    def _exchange(self, request: Request[Any]) -> Reply:
        sent = self._http.request(request.method, self._options.url + request.path)
        try:
            answer = _filled(sent, request, self._options).build().send()
            return Reply(answer.status, answer.bytes().to_bytes(), answer.get_header("retry-after"))
        except PyreqwestError as error:
            raise lost(error, self._options) from None

    def close(self) -> None:
        self._is_closed = True
        self._http.close()


class AsyncTransport:
    """For one event loop."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._http: AsyncHttp = _configured(ClientBuilder(), options).build()
        self._is_closed = False

    async def exchange(self, request: Request[Any]) -> Reply:
        """Sends once. Raises Unreachable when no answer came."""
        if self._is_closed:
            raise closed()
        sent = self._http.request(request.method, self._options.url + request.path)
        cancels = _cancels()
        try:
            answer = await _filled(sent, request, self._options).build().send()
            body = await answer.bytes()
        except PyreqwestError as error:
            _heed(cancels)
            raise lost(error, self._options) from None
        _heed(cancels)
        return Reply(answer.status, body.to_bytes(), answer.get_header("retry-after"))

    @asynccontextmanager
    async def stream(self, request: Request[Any]) -> AsyncIterator[AsyncIterator[bytes]]:
        """The bytes of an answer as they come. Raises what the server refuses with."""
        sent = self._http.request(request.method, self._options.url + request.path)
        if request.headers is not None:
            sent = sent.headers(request.headers)
        try:
            # The library would gather this much before it hands over the first byte.
            async with sent.streamed_read_buffer_limit(0).build_streamed() as answer:
                if answer.status >= 400:
                    body = (await answer.bytes()).to_bytes()
                    raise error_of(Reply(answer.status, body, answer.get_header("retry-after")))
                yield self._chunks(answer)
        except PyreqwestError as error:
            raise lost(error, self._options) from None

    async def _chunks(self, answer: Response) -> AsyncIterator[bytes]:
        reader = answer.body_reader
        try:
            while True:
                cancels = _cancels()
                chunk = await reader.read_chunk()
                _heed(cancels)
                if chunk is None:
                    return
                yield chunk.to_bytes()
        except PyreqwestError as error:
            raise lost(error, self._options) from None

    async def close(self) -> None:
        self._is_closed = True
        await self._http.close()


class BlockingTransport(Protocol):
    """What `Client` sends with. May be used by many threads at once."""

    def exchange(self, request: Request[Any], /) -> Reply:
        """Sends once. Raises Unreachable when no answer came."""
        ...

    def close(self) -> None: ...


class AwaitedTransport(Protocol):
    """What `AsyncClient` sends with."""

    async def exchange(self, request: Request[Any], /) -> Reply: ...

    def stream(self, request: Request[Any], /) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The bytes of an answer as they come. Raises what is refused."""
        ...

    async def close(self) -> None: ...


def transport_of(options: Options) -> BlockingTransport:
    """The way to a server, or to the log in this process."""
    if options.within is None:
        if not is_plain(options):
            return Transport(options)
        from topics.client.direct import Direct

        return Direct(options)
    from topics.client.embedded import EmbeddedTransport

    return EmbeddedTransport(options.within)


def async_transport_of(options: Options) -> AwaitedTransport:
    """The same for asyncio."""
    if options.within is None:
        if not is_plain(options):
            return AsyncTransport(options)
        from topics.client.async_direct import AsyncDirect

        return AsyncDirect(options)
    from topics.client.embedded import AsyncEmbeddedTransport

    return AsyncEmbeddedTransport(options.within)


def is_plain(options: Options) -> bool:
    """Whether nothing is needed that only the library has: TLS, a proxy, a name in the URL."""
    parts = urlsplit(options.url)
    return (
        parts.scheme == "http"
        and parts.username is None
        and f"{options.url}{options.token}".isascii()
        and f"{options.url}{options.token}".isprintable()
        and not any(os.environ.get(name) for name in _PROXIES)
    )


def closed() -> Unreachable:
    """A client that was closed sends nothing, and trying again is no help."""
    return Unreachable("this client is closed", sent=False, closed=True)


def _cancels() -> int:
    """How often this task was asked to end."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def _heed(cancels: int) -> None:
    """Ends a task that was asked to since: the library swallows that when an answer comes in."""
    if _cancels() > cancels:
        raise asyncio.CancelledError


def _configured(builder: B, options: Options) -> B:
    headers = {"Accept": "*/*"}
    if options.token:
        headers["Authorization"] = f"Bearer {options.token}"
    builder = (
        builder.default_headers(headers)
        .user_agent("topics-python")
        .connect_timeout(timedelta(seconds=options.connect_timeout_s))
        # A redirect would turn a write into a read, and could carry the key elsewhere.
        .follow_redirects(False)
        .gzip(False).brotli(False).zstd(False).deflate(False)
    )  # fmt: skip
    if options.ca_file is not None:
        with open(options.ca_file, "rb") as source:
            builder = builder.add_root_certificate_pem(source.read())
    return builder


def _filled(sent: P, request: Request[Any], options: Options) -> P:
    if request.body is not None:
        sent = sent.header("Content-Type", JSON).body_bytes(request.body)
    if request.headers is not None:
        sent = sent.headers(request.headers)
    return sent.timeout(_timedelta(options.timeout_s + request.wait_s))


@lru_cache(maxsize=64)
def _timedelta(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def lost(error: PyreqwestError, options: Options) -> Unreachable:
    """No answer came; `sent` in the detail says whether the request may have arrived."""
    causes = [cause["message"] for cause in getattr(error, "details", {}).get("causes") or []]
    sent = not (isinstance(error, ConnectTimeoutError) or _NEVER_SENT in causes)
    return no_answer(options, causes[-1] if causes else error.message, sent=sent)


def no_answer(options: Options, reason: OSError | str, *, sent: bool) -> Unreachable:
    """`sent` says whether the request may have arrived."""
    if isinstance(reason, OSError):
        reason = reason.strerror or str(reason) or "it took too long"
    return Unreachable(f"no answer from {options.url}: {reason}", url=options.url, sent=sent)


def _in_thread(call: Callable[[], T]) -> T:
    """The result of a call in a thread of its own, while this one still hears signals."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="topics-waiting", daemon=True).start()
    return outcome.result()
