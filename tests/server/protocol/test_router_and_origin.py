"""Routes by path and method, and the web pages that may use them."""

from __future__ import annotations

from typing import Any, cast

import pytest

from topics.errors import Forbidden, NotFound
from topics.server.api.dispatch import CACHED_PATHS_MAX, Router
from topics.server.api.origin import OriginRule
from topics.server.http.errors import BadRequest, MethodNotAllowed
from topics.server.http.http1 import HttpProtocol
from topics.server.http.message import Answer, Head, Request, Response

NO_CONNECTION = cast(HttpProtocol, None)


def request_of(method: str, target: str, **headers: str) -> Request:
    pairs = {k.replace("_", "-").encode(): v.encode() for k, v in headers.items()}
    return Request(NO_CONNECTION, Head(method, target.encode(), pairs), b"")


def named(name: str) -> Any:
    def handler(request: Request, *values: str) -> Answer:
        return Response("|".join((name, *values)).encode())

    return handler


ROUTER = Router(
    [
        ("GET", "/v0/topics", named("list")),
        ("GET", "/v0/topics/:topic", named("state")),
        ("PUT", "/v0/topics/:topic", named("put")),
        ("POST", "/v0/topics/:topic/diff", named("diff")),
        ("PUT", "/v0/topics/:topic/cursors/:name", named("cursor")),
        ("GET", "/v0/topics/special/diff", named("special")),
        ("GET", "/", named("root")),
    ]
)


def routed(method: str, target: str) -> str:
    answer = ROUTER(request_of(method, target))
    assert isinstance(answer, Response)
    return answer.body.decode()


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        ("GET", "/v0/topics", "list"),
        ("GET", "/v0/topics?cursor=/a/b", "list"),
        ("HEAD", "/v0/topics/a", "state|a"),
        ("PUT", "/v0/topics/tenant:a.b-c", "put|tenant:a.b-c"),
        ("POST", "/v0/topics/a/diff?x=1", "diff|a"),
        ("PUT", "/v0/topics/a/cursors/b", "cursor|a|b"),
        ("GET", "/v0/topics/orders-%3Eaudit", "state|orders->audit"),
        ("GET", "/v0/topics/a%2Fb", "state|a/b"),
        ("GET", "/v0/topics/k%C3%A4se", "state|käse"),
        ("GET", "/v0/topics/100%25", "state|100%"),
        ("GET", "/v0/topics/special/diff", "special"),
        ("GET", "/v0/topics/special", "state|special"),
        ("GET", "/", "root"),
    ],
)
def test_a_path_finds_its_handler_again_and_again(method: str, target: str, expected: str) -> None:
    assert [routed(method, target) for _ in range(3)] == [expected] * 3


@pytest.mark.parametrize(
    "target",
    ["/v0", "/v0/topics/", "/v0/topics//diff", "//v0/topics", "/v0/topics/a/b", "/V0/topics",
     "/v0/topics/a/diff/", "/v0%2Ftopics"],
)  # fmt: skip
def test_what_is_not_there_is_not_found(target: str) -> None:
    with pytest.raises(NotFound):
        routed("GET", target)


@pytest.mark.parametrize("target", ["/v0/topics/%", "/v0/topics/%zz", "/v0/topics/%ff"])
def test_a_broken_escape_is_a_bad_request(target: str) -> None:
    with pytest.raises(BadRequest):
        routed("GET", target)


def test_a_wrong_method_is_told_the_right_ones() -> None:
    with pytest.raises(MethodNotAllowed) as caught:
        routed("PATCH", "/v0/topics/a")
    assert caught.value.detail == {"allow": ["GET", "HEAD", "OPTIONS", "PUT"]}
    with pytest.raises(MethodNotAllowed):
        routed("HEAD", "/v0/topics/a/diff")
    # A literal beats a name, so that a path has one set of methods.
    with pytest.raises(MethodNotAllowed):
        routed("POST", "/v0/topics/special/diff")


def test_the_memory_of_paths_is_bounded() -> None:
    router = Router([("GET", "/:name", named("x"))])
    for number in range(CACHED_PATHS_MAX * 2 + 10):
        router(request_of("GET", f"/{number}"))
    router(request_of("GET", "/" + "x" * 10_000))
    assert len(router.known_paths) <= CACHED_PATHS_MAX


def test_a_route_is_declared_once() -> None:
    with pytest.raises(ValueError, match="there already"):
        Router([("GET", "/:a", named("x")), ("GET", "/:b", named("y"))])
    with pytest.raises(ValueError, match="slash"):
        Router([("GET", "a", named("x"))])


# -- origins ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:4000", "LOCALHOST", "127.0.0.1:4000", "127.8.9.1", "[::1]:4000",
     "a.localhost"],
)  # fmt: skip
def test_loopback_names_are_answered_without_keys(host: str) -> None:
    assert OriginRule(has_keys=False).check(request_of("GET", "/", host=host)) is None


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:4000", "localhost.evil.example", "127.0.0.1.evil.example", "",
     "10.0.0.1", "0.0.0.0", "[::2]", "localhost:4000 x", "user@localhost", "xlocalhost"],
)  # fmt: skip
def test_a_name_pointed_at_us_is_refused_without_keys(host: str) -> None:
    """DNS rebinding: the page's own name resolves to 127.0.0.1, and its origin is its host."""
    rule = OriginRule(has_keys=False)
    with pytest.raises(Forbidden):
        rule.check(request_of("GET", "/", host=host, origin=f"http://{host}"))
    with pytest.raises(Forbidden):
        rule.check(request_of("GET", "/", host=host))


def test_with_keys_any_host_is_answered() -> None:
    rule = OriginRule(has_keys=True)
    assert rule.check(request_of("GET", "/", host="topics.example")) is None


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:4000", "http://localhost:4000"),
        ("LocalHost:4000", "http://localHOST:4000"),
        ("localhost", "http://localhost:80"),
        ("localhost:80", "http://localhost"),
        ("localhost", "https://localhost"),
        ("[::1]:4000", "http://[::1]:4000"),
    ],
)
def test_our_own_pages_are_answered(host: str, origin: str) -> None:
    request = request_of("GET", "/", host=host, origin=origin)
    assert OriginRule(has_keys=False).check(request) is None
    assert request.extra == ()


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "http://localhost:4001", "http://localhost", "null", "",
     "localhost:4000", "http://localhost:4000@evil.example", "http://localhost:4000/",
     "file://localhost:4000", "http://localhost:4000, http://evil.example"],
)  # fmt: skip
def test_other_pages_are_refused(origin: str) -> None:
    request = request_of("POST", "/", host="localhost:4000", origin=origin)
    with pytest.raises(Forbidden):
        OriginRule(has_keys=False).check(request)


def test_an_allowed_page_gets_its_headers() -> None:
    rule = OriginRule(["https://console.example/"], has_keys=True)
    request = request_of("GET", "/", host="topics.example", origin="https://console.example")
    assert rule.check(request) is None
    assert ("Access-Control-Allow-Origin", "https://console.example") in request.extra
    assert ("Vary", "Origin") in request.extra


def test_a_preflight_of_an_allowed_page_is_answered() -> None:
    rule = OriginRule(["*"], has_keys=True)
    request = request_of(
        "OPTIONS", "/", host="t", origin="https://a.example", access_control_request_method="PUT"
    )
    answer = rule.check(request)
    assert isinstance(answer, Response)
    assert answer.status == 204
    assert "PUT" in dict(answer.headers)["Access-Control-Allow-Methods"]
    assert "Authorization" in dict(answer.headers)["Access-Control-Allow-Headers"]


def test_a_plain_options_of_an_allowed_page_is_left_to_the_router() -> None:
    rule = OriginRule(["*"], has_keys=True)
    assert rule.check(request_of("OPTIONS", "/", host="t", origin="https://a.example")) is None
