"""The head of a request that is not plain: what it may say, and what we make of it."""

from __future__ import annotations

from topics.errors import TopicsError
from topics.server.http.errors import BadRequest, ExpectationFailed, HeadersTooLarge
from topics.server.http.limits import HttpLimits
from topics.server.http.message import Request

Headers = dict[bytes, bytes]

# Headers that change how the request or its connection is handled.
RARE = frozenset({b"connection", b"content-encoding", b"expect", b"transfer-encoding", b"upgrade"})


def check_size(headers: Headers, repeats: int, limits: HttpLimits) -> None:
    """Raises HeadersTooLarge for too many headers, or for more bytes than a head may have."""
    if len(headers) + repeats > limits.headers_max:
        raise too_many(limits)
    if sum(map(len, headers)) + sum(map(len, headers.values())) > limits.head_bytes_max:
        raise too_large(limits)


def only_stays(headers: Headers, version: str) -> bool:
    """Whether all that is rare is a wish for what HTTP/1.1 does anyway: many clients have it."""
    is_kept = headers.get(b"connection", b"").lower() == b"keep-alive"
    return is_kept and version == "1.1" and len(RARE.intersection(headers)) == 1


def is_chunked(headers: Headers, version: str) -> bool:
    """Whether the body comes in chunks; raises BadRequest for any other transfer coding."""
    coding = headers.get(b"transfer-encoding")
    if coding is None:
        return False
    if coding.strip().lower() != b"chunked":
        raise BadRequest("the only transfer coding that is supported is chunked")
    if version != "1.1":
        raise BadRequest(f"HTTP/{version} has no transfer codings")
    return True


def is_continue_expected(headers: Headers, version: str) -> bool:
    """Whether the client waits for our word before it sends the body."""
    expected = headers.get(b"expect")
    if expected is None or version != "1.1":
        return False
    if expected.strip().lower() != b"100-continue":
        raise ExpectationFailed("the only expectation that is met is 100-continue")
    return True


def is_websocket(headers: Headers) -> bool:
    """Whether the upgrade asked for is one that could be granted; BadRequest for a tunnel."""
    if b"upgrade" not in headers:
        raise BadRequest("this server is not a proxy")
    has_body = b"content-length" in headers or b"transfer-encoding" in headers
    return headers[b"upgrade"].strip().lower() == b"websocket" and not has_body


def without_upgrade(verb: bytes, target: bytes, version: str, headers: Headers) -> bytes:
    """The head as it would be without its wish for another protocol."""
    lines = [b"%b: %b\r\n" % item for item in headers.items() if item[0] != b"upgrade"]
    return b"%b %b HTTP/%b\r\n%b\r\n" % (verb, target, version.encode(), b"".join(lines))


def check_version(version: str, headers: Headers) -> None:
    """Raises BadRequest for a version that we do not speak, or without the Host it demands."""
    if version not in ("1.1", "1.0"):
        raise BadRequest(f"HTTP/{version} is not supported")
    if b"host" not in headers and version == "1.1":
        raise BadRequest("a request of HTTP/1.1 has a Host")


def resolve_target(request: Request) -> None:
    """Reduces an absolute target to its path; raises BadRequest for what has none."""
    path = request.path
    if path.startswith("/") or (path == "*" and request.method == "OPTIONS"):
        return
    scheme, found, rest = path.partition("://")
    if not found or scheme.lower() not in ("http", "https"):
        raise BadRequest("the request target is not a path")
    authority, slash, path = rest.partition("/")
    request.head.path = slash + path or "/"
    # The target's authority counts for more than the Host header.
    request.headers[b"host"] = authority.encode()


def too_many(limits: HttpLimits) -> TopicsError:
    return HeadersTooLarge(f"the request has more than {limits.headers_max} headers")


def too_large(limits: HttpLimits) -> TopicsError:
    return HeadersTooLarge(f"the request's head is larger than {limits.head_bytes_max} bytes")
