"""From method and path to a handler.

A pattern is a path whose segments are literal or `:name`. A literal beats a name. Names take one
whole segment, percent-decoded after the path was split, so that an encoded slash stays inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias
from urllib.parse import unquote_to_bytes

from topics.errors import NotFound
from topics.server.http.errors import BadRequest, MethodNotAllowed
from topics.server.http.message import Answer, Request, Response

# A handler takes the request and, in order, the values of its pattern's names.
RouteHandler: TypeAlias = Callable[..., Answer]
Route: TypeAlias = tuple[str, str, RouteHandler]
Found: TypeAlias = tuple[dict[str, RouteHandler], tuple[str, ...]]

# Paths that were resolved before. Forgotten all at once: hot ones are back after one request.
CACHED_PATHS_MAX = 8192
CACHED_PATH_CHARS_MAX = 300
# Names that we make up ourselves. What can not be one of them is unknown rather than malformed.
HANDED_OUT = frozenset({":wid"})


class Router:
    """A table of routes, fixed when it is built. Itself a handler.

    HEAD is answered by the GET handler where there is no other, OPTIONS with the methods allowed.
    """

    __slots__ = ("_methods", "_root", "known_paths")

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        self.known_paths: dict[str, Found] = {}
        for method, pattern, handler in routes:
            self._add(method, pattern, handler)
        self._methods = _allow(self._root.all_methods())

    def _add(self, method: str, pattern: str, handler: RouteHandler) -> None:
        if not pattern.startswith("/"):
            raise ValueError(f"a pattern begins with a slash: {pattern!r}")
        node = self._root
        for segment in pattern[1:].split("/"):
            node = node.grow(segment)
        if method in node.handlers:
            raise ValueError(f"{method} {pattern} is there already")
        node.handlers[method] = handler

    def __call__(self, request: Request) -> Answer:
        """Calls the handler of the request's path; raises as `find` does."""
        handler, values = self.find(request)
        return handler(request, *values)

    def find(self, request: Request) -> tuple[RouteHandler, tuple[str, ...]]:
        """The handler of the request's method and path, and the values of its pattern's names.

        Raises NotFound for an unknown path, MethodNotAllowed for a method it does not have, and
        BadRequest for a name that is not percent-encoded UTF-8.
        """
        found = self.known_paths.get(request.path)
        if found is None:
            if request.path == "*":
                return _options(self._methods), ()
            found = self.resolve(request.path)
        handlers, values = found
        handler = handlers.get(request.method)
        if handler is not None:
            return handler, values
        if request.method == "HEAD" and "GET" in handlers:
            return handlers["GET"], values
        allow = _allow(handlers)
        if request.method == "OPTIONS":
            return _options(allow), ()
        raise MethodNotAllowed(
            f"{request.method} is not allowed here; allowed: {', '.join(allow)}", allow=allow
        )

    def resolve(self, path: str) -> Found:
        """The handlers of a path by method, and the values of its names."""
        node, raw = self._root.find(path[1:].split("/"), 0) or (None, ())
        if node is None:
            raise NotFound(f"there is nothing at {path[:CACHED_PATH_CHARS_MAX]}")
        decoded = _decoded_or_unknown if node.is_handed_out else _decoded
        found = (node.handlers, tuple(map(decoded, raw)))
        if len(path) <= CACHED_PATH_CHARS_MAX:
            if len(self.known_paths) >= CACHED_PATHS_MAX:
                self.known_paths.clear()
            self.known_paths[path] = found
        return found


class _Node:
    """One place in the tree of patterns."""

    __slots__ = ("children", "handlers", "is_handed_out", "named")

    def __init__(self, name: str = "") -> None:
        self.is_handed_out = name in HANDED_OUT
        self.children: dict[str, _Node] = {}
        self.named: _Node | None = None
        self.handlers: dict[str, RouteHandler] = {}

    def grow(self, segment: str) -> _Node:
        if segment.startswith(":"):
            if self.named is None:
                self.named = _Node(segment)
            return self.named
        return self.children.setdefault(segment, _Node())

    def find(self, segments: list[str], index: int) -> tuple[_Node, tuple[str, ...]] | None:
        """The node of a path, with the raw values of its names; as deep as the patterns are."""
        if index == len(segments):
            return (self, ()) if self.handlers else None
        segment = segments[index]
        child = self.children.get(segment)
        if child is not None:
            found = child.find(segments, index + 1)
            if found is not None:
                return found
        if self.named is None or not segment:
            return None
        found = self.named.find(segments, index + 1)
        return None if found is None else (found[0], (segment, *found[1]))

    def all_methods(self) -> set[str]:
        methods = set(self.handlers)
        for node in (*self.children.values(), *((self.named,) if self.named else ())):
            methods |= node.all_methods()
        return methods


def _allow(methods: Iterable[str]) -> list[str]:
    allowed = {*methods, "OPTIONS"}
    if "GET" in allowed:
        allowed.add("HEAD")
    return sorted(allowed)


def _options(allow: list[str]) -> RouteHandler:
    answer = Response(b"", 204, headers=(("Allow", ", ".join(allow)),))
    return lambda _request, *_values: answer


def _decoded(segment: str) -> str:
    if "%" not in segment:
        return segment
    raw = unquote_to_bytes(segment)
    # What is left as it was is not an escape: refused rather than guessed at.
    if raw.count(b"%") != segment.upper().count("%25"):
        raise BadRequest(f"the path has a broken percent escape: {segment!r}")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise BadRequest(f"the path is not UTF-8: {segment!r}") from None


def _decoded_or_unknown(segment: str) -> str:
    """As `_decoded`; what it refuses as it was sent, which is nobody's name: it has a `%`."""
    try:
        return _decoded(segment)
    except BadRequest:
        return segment
