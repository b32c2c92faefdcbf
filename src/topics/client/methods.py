"""A described call as a method of a client, with the description's signature and words."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from topics.client.request import Request

if TYPE_CHECKING:
    from topics.client.socket_commands import Command
    from topics.client.streaming import AsyncStream, StreamRequest
    from topics.client.sync_stream import Stream

P = ParamSpec("P")
T = TypeVar("T")


class Sends(Protocol):
    def send(self, request: Request[T], /) -> T: ...


class SendsLater(Protocol):
    def send(self, request: Request[T], /) -> Coroutine[Any, Any, T]: ...


class Receives(Protocol):
    def receive(self, wanted: StreamRequest[T], /) -> Stream[T]: ...


class ReceivesLater(Protocol):
    def receive(self, wanted: StreamRequest[T], /) -> AsyncStream[T]: ...


class Commands(Protocol):
    def command(self, wanted: Command[T], /) -> T: ...


class CommandsLater(Protocol):
    def command(self, wanted: Command[T], /) -> Coroutine[Any, Any, T]: ...


def blocking(build: Callable[P, Request[T]]) -> Callable[Concatenate[Sends, P], T]:
    """A method that sends what `build` describes and returns its answer."""

    def method(self: Sends, /, *arguments: P.args, **named: P.kwargs) -> T:
        return self.send(build(*arguments, **named))

    _describe(method, build)
    return method


def awaited(build: Callable[P, Request[T]]) -> Callable[Concatenate[SendsLater, P], Awaitable[T]]:
    """The same for asyncio."""

    async def method(self: SendsLater, /, *arguments: P.args, **named: P.kwargs) -> T:
        return await self.send(build(*arguments, **named))

    _describe(method, build)
    return method


def streaming(
    build: Callable[P, StreamRequest[T]],
) -> Callable[Concatenate[Receives, P], Stream[T]]:
    """A method that opens the stream that `build` describes."""

    def method(self: Receives, /, *arguments: P.args, **named: P.kwargs) -> Stream[T]:
        return self.receive(build(*arguments, **named))

    _describe(method, build, "Stream[{}]")
    return method


def streaming_later(
    build: Callable[P, StreamRequest[T]],
) -> Callable[Concatenate[ReceivesLater, P], AsyncStream[T]]:
    """The same for asyncio."""

    def method(self: ReceivesLater, /, *arguments: P.args, **named: P.kwargs) -> AsyncStream[T]:
        return self.receive(build(*arguments, **named))

    _describe(method, build, "AsyncStream[{}]")
    return method


def commanding(build: Callable[P, Command[T]]) -> Callable[Concatenate[Commands, P], T]:
    """A method that sends the command that `build` describes and returns its answer."""

    def method(self: Commands, /, *arguments: P.args, **named: P.kwargs) -> T:
        return self.command(build(*arguments, **named))

    _describe(method, build)
    return method


def commanding_later(
    build: Callable[P, Command[T]],
) -> Callable[Concatenate[CommandsLater, P], Awaitable[T]]:
    """The same for asyncio."""

    async def method(self: CommandsLater, /, *arguments: P.args, **named: P.kwargs) -> T:
        return await self.command(build(*arguments, **named))

    _describe(method, build)
    return method


def _describe(method: Any, build: Callable[..., Any], answers: str = "{}") -> None:
    """`help` shows the description's own parameters, and what comes back instead of a request."""
    signature = inspect.signature(build)
    _, _, answer = str(signature.return_annotation).partition("[")
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__signature__ = signature.replace(
        parameters=[own, *signature.parameters.values()],
        return_annotation=answers.format(answer.removesuffix("]")),
    )
    method.__name__ = method.__qualname__ = build.__name__
    method.__doc__ = build.__doc__
    method.__module__ = build.__module__
