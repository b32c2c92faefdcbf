"""Which web pages may talk to this server.

Any page in a browser can send requests to a developer's machine. So a request that carries an
`Origin` other than our own host is refused unless that origin was allowed, and a server without
keys answers only to loopback names: a page that points its own name at 127.0.0.1 sends that name
as `Host`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from topics.errors import Forbidden
from topics.server.http.message import Request, Response

HOSTS_SEEN_MAX = 256
PREFLIGHT_S = 600
ANY = "*"

_LOOPBACK = re.compile(
    r"(localhost|[a-z0-9-]+(\.[a-z0-9-]+)*\.localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?",
    re.IGNORECASE,
)
_ORIGIN = re.compile(r"(https?)://([^/@\s]+)", re.IGNORECASE)
_HEADERS = "Authorization, Content-Type, Content-Encoding, Idempotency-Key, Last-Event-ID"
_EXPOSED = "Retry-After, Topics-Ignored-Fields"


class OriginRule:
    """The rule of one server. `has_keys` is whether requests are authenticated at all."""

    __slots__ = ("_allowed", "_hosts", "_is_any_host", "_is_any_origin")

    def __init__(self, allowed: Iterable[str] = (), *, has_keys: bool) -> None:
        self._allowed = frozenset(_normal(origin) for origin in allowed)
        self._is_any_origin = ANY in self._allowed
        self._is_any_host = has_keys
        # Hosts that passed, as they were written.
        self._hosts: set[bytes] = set()

    def check(self, request: Request) -> Response | None:
        """Raises Forbidden for a request that may not be here; answers a preflight.

        For an allowed origin, the answer to the request will carry its CORS headers.
        """
        headers = request.headers
        host = headers.get(b"host", b"")
        if not self._is_any_host and host not in self._hosts:
            self._check_host(host)
        if b"origin" not in headers:
            return None
        return self._check_origin(request, headers[b"origin"].decode("latin-1").strip())

    def _check_host(self, host: bytes) -> None:
        name = host.decode("latin-1").strip()
        if not _LOOPBACK.fullmatch(name):
            raise Forbidden(
                "without API keys this server answers only to loopback names; "
                f"the request's Host is {name[:255]!r}"
            )
        if len(self._hosts) < HOSTS_SEEN_MAX:
            self._hosts.add(host)

    def _check_origin(self, request: Request, origin: str) -> Response | None:
        is_allowed = self._is_any_origin or _normal(origin) in self._allowed
        if not is_allowed and not _is_own(origin, request.header(b"host")):
            raise Forbidden(
                f"requests from the web page at {origin[:255]!r} are not allowed; "
                "TOPICS_CORS_ORIGINS names those that are"
            )
        if not is_allowed:
            return None
        request.extra = (
            ("Access-Control-Allow-Origin", origin),
            ("Access-Control-Expose-Headers", _EXPOSED),
            ("Vary", "Origin"),
        )
        method = request.header(b"access-control-request-method")
        if request.method != "OPTIONS" or not method:
            return None
        return Response(
            b"",
            204,
            headers=(
                ("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE"),
                ("Access-Control-Allow-Headers", _HEADERS),
                ("Access-Control-Max-Age", str(PREFLIGHT_S)),
            ),
        )


def _is_own(origin: str, host: str) -> bool:
    """Whether the page was served from this host; a TLS proxy may stand in front of us."""
    match = _ORIGIN.fullmatch(origin)
    if match is None:
        return False
    default = ":443" if match[1].lower() == "https" else ":80"
    page = match[2].lower().removesuffix(default)
    return page == host.lower().removesuffix(default)


def _normal(origin: str) -> str:
    return origin.strip().rstrip("/").lower()
