"""A WebSocket for asyncio: commands and their answers, and the events of subscribed topics.

The framing, TLS and proxies are those of the `websockets` package. One task reads: answers go to
whoever waits for them, events to the iteration. Events that nobody takes are not read on, so the
server holds them back, but for as long as an answer is waited for, which may be behind them.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from itertools import count
from typing import Any, Self, TypeVar

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidStatus,
    WebSocketException,
)
from websockets.protocol import State

from topics.client import socket_commands
from topics.client.event_stream import EVENT_BYTES_MAX, Event
from topics.client.methods import commanding_later
from topics.client.options import Options
from topics.client.request import Reply, body, error_named, error_of
from topics.client.socket_commands import Command
from topics.client.stream_values import ADVISORY_CODES, Paced, StreamEvent, topic_told
from topics.errors import InvalidRequest, OutcomeUnknown, Refused, TopicsError, Unreachable
from topics.signatures import readable

T = TypeVar("T")
# Events that wait to be taken before no more are read; more while an answer may be behind them.
WAITING_MAX, WAITING_AND_ASKED_MAX = 64, 4096


class _Head(msgspec.Struct):
    op: str = ""
    request_id: int | None = None
    code: str = ""
    message: str = ""
    topic: str = ""
    # The subscription to the topic is over.
    ended: bool = False
    detail: dict[str, Any] = {}


_HEAD = msgspec.json.Decoder(_Head)


class _Connect(connect):
    def process_redirect(self, exc: Exception) -> Exception | str:
        """A redirect could carry the key elsewhere."""
        return exc


@readable
class AsyncSocket:
    """Subscribe, publish, and iterate over what comes, in an `async with`. For one event loop.

    It raises Unreachable where it breaks, and does not come back by itself: `follow` and `append`
    do.
    """

    def __init__(self, options: Options) -> None:
        if options.within is not None:
            raise InvalidRequest("a log in this process has no WebSocket: use append and follow")
        self._options = options
        self._connection: ClientConnection
        self._reading: asyncio.Task[None] | None = None
        self._numbers = count(1)
        self._answers: dict[int, asyncio.Future[bytes]] = {}
        self._waiting: deque[StreamEvent] = deque()
        # Set when there may be something to take, and when there may be room.
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()
        # Why nothing comes: not yet, or no more.
        self._ended: TopicsError | None = Unreachable("this socket is not open", sent=False)

    subscribe = commanding_later(socket_commands.subscribe)
    unsubscribe = commanding_later(socket_commands.unsubscribe)
    publish = commanding_later(socket_commands.publish)
    ping = commanding_later(socket_commands.ping)

    async def open(self) -> None:
        """Connects. Raises Unreachable, or what the server refuses with."""
        options = self._options
        try:
            self._connection = await _Connect(
                "ws" + options.url.removeprefix("http") + "/v0/ws",
                additional_headers=_authorization(options), user_agent_header="topics-python",
                ssl=_trust(options), compression=None, max_size=EVENT_BYTES_MAX,
                open_timeout=options.connect_timeout_s, close_timeout=1.0,
            )  # fmt: skip
        except InvalidStatus as refused:
            answer = refused.response
            after = answer.headers.get("Retry-After")
            raise error_of(Reply(answer.status_code, bytes(answer.body or b""), after)) from None
        except (OSError, TimeoutError, InvalidHandshake, WebSocketException) as error:
            raise Unreachable(
                f"no WebSocket to {options.url}: {str(error) or 'no answer in time'}",
                url=options.url, sent=False,
            ) from None  # fmt: skip
        self._ended = None
        self._reading = asyncio.create_task(self._read())

    async def command(self, wanted: Command[T]) -> T:
        """Sends what a command describes and returns its answer. Raises what it is refused with."""
        number = next(self._numbers)
        text = body(request_id=number, **wanted.fields)
        if self._ended is not None:
            raise self._ended
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self._taken.set()
        try:
            async with asyncio.timeout(self._options.timeout_s):
                await self._connection.send(text, text=True)
                return wanted.read(await answer)
        except (ConnectionClosed, TimeoutError, Unreachable) as error:
            lost = error if isinstance(error, Unreachable) else self._lost(error)
            if not wanted.is_write:
                raise lost from None
            raise OutcomeUnknown(
                f"it may or may not have been done: {lost.message}", **lost.detail
            ) from lost
        finally:
            self._answers.pop(number, None)
            if answer.done() and not answer.cancelled():
                # Or asyncio would complain of one that sending did not come to wait for.
                answer.exception()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamEvent:
        while not self._waiting:
            if self._ended is not None:
                raise self._ended
            self._arrived.clear()
            await self._arrived.wait()
        self._taken.set()
        return self._waiting.popleft()

    async def close(self) -> None:
        """Ends the connection; whoever waits for it is told Unreachable."""
        if self._reading is not None:
            self._end(closed_socket())
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
            # One that is closed already may not be again: asyncio's transports do not all bear it.
            if self._connection.state is not State.CLOSED:
                await self._connection.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    # -- what comes ----------------------------------------------------------------------------

    @property
    def _waiting_max(self) -> int:
        return WAITING_AND_ASKED_MAX if self._answers else WAITING_MAX

    async def _read(self) -> None:
        try:
            while True:
                while len(self._waiting) >= self._waiting_max:
                    self._taken.clear()
                    await self._taken.wait()
                self._take(await self._connection.recv(decode=False))
        except ConnectionClosed as error:
            self._end(self._lost(error))
        except TopicsError as error:
            self._end(error)
        except msgspec.DecodeError as error:
            self._end(Unreachable(f"a message that is not one of ours: {error}"))

    def _take(self, text: bytes) -> None:
        try:
            head = _HEAD.decode(text)
        except msgspec.DecodeError:
            # Only records can have what text can not: a lone surrogate.
            head = _Head("record")
        if head.request_id is not None:
            answer = self._answers.get(head.request_id)
            if answer is not None and not answer.done():
                if head.op == "error":
                    answer.set_exception(_refusal(head))
                else:
                    answer.set_result(text)
            return
        if head.op == "error":
            told: StreamEvent | None = _paced(head)
        else:
            told = topic_told(Event(head.op.replace("_", "-"), text))
        if told is not None:
            self._waiting.append(told)
            self._arrived.set()

    def _lost(self, error: Exception) -> Unreachable:
        if self._ended is not None and isinstance(self._ended, Unreachable):
            return self._ended
        why = str(error) or "no answer in time"
        return Unreachable(f"the WebSocket to {self._options.url} broke: {why}")

    def _end(self, why: TopicsError) -> None:
        if self._ended is None:
            self._ended = why
        self._arrived.set()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(self._lost(why))


def closed_socket() -> Unreachable:
    """A socket that was closed sends nothing, and trying again is no help."""
    return Unreachable("this socket is closed", sent=False, closed=True)


def _refusal(head: _Head) -> TopicsError:
    known = error_named(head.code, head.message, **head.detail)
    return known or Refused(head.message, head.code or "unknown", 400, **head.detail)


def _paced(head: _Head) -> Paced:
    """Trouble that passes. Raises what does not."""
    error = _refusal(head)
    topics = head.detail.get("topics") or ([head.topic] if head.topic else [])
    if head.ended or not topics or error.status not in ADVISORY_CODES:
        raise error
    after_ms = head.detail.get("retry_after_ms", 0)
    return Paced(code=error.status, message=head.message, topics=topics, retry_after_ms=after_ms)


def _authorization(options: Options) -> dict[str, str]:
    return {"Authorization": f"Bearer {options.token}"} if options.token else {}


def _trust(options: Options) -> ssl.SSLContext | None:
    if not options.url.startswith("https"):
        return None
    context = ssl.create_default_context()
    if options.ca_file is not None:
        context.load_verify_locations(options.ca_file)
    return context
