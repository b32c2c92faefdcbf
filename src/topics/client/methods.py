"""A described call as a method of a client, with the description's signature and words."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from topics.client.request import Request

P = ParamSpec("P")
T = TypeVar("T")


class Sends(Protocol):
    def send(self, request: Request[T], /) -> T: ...


class SendsLater(Protocol):
    def send(self, request: Request[T], /) -> Coroutine[Any, Any, T]: ...


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


def _describe(method: Any, build: Callable[..., Any]) -> None:
    """`help` shows the description's own parameters, and what comes back instead of a request."""
    signature = inspect.signature(build)
    answer = str(signature.return_annotation).removeprefix("Request[").removesuffix("]")
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method.__signature__ = signature.replace(
        parameters=[own, *signature.parameters.values()],
        return_annotation=answer.removeprefix("values."),
    )
    method.__name__ = method.__qualname__ = build.__name__
    method.__doc__ = build.__doc__
    method.__module__ = build.__module__
