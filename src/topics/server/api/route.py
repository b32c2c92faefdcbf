"""What a route is: one row from which the router, the authorization and OpenAPI derive."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from topics.server.http.message import Answer
from topics.types import BUCKET_TOPIC

# What a body may have that is not made of records: more is no more than work to look at.
SMALL_BODY_BYTES_MAX = 1024 * 1024
# As much as any body may have.
ANY_BYTES = 2**63
# A handler takes the call and, in order, the values of its pattern's names.
CallHandler = Callable[..., Answer]
# Path names that are names of topics or routers, and so subject to a key's prefixes.
# A bucket's topic has a name of its own.
PREFIXED = {"topic": "", "router": "", "bucket": BUCKET_TOPIC}

# What every route may answer is in COMMON. This may come of a call that needs stored records.
STORED = ("corrupt_data", "unreadable", "store_unreachable")
COMMON = (
    "invalid_request", "forbidden", "request_timeout", "payload_too_large", "uri_too_long",
    "expectation_failed", "headers_too_large", "shutting_down", "overloaded",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter or a header, for the document."""

    name: str
    schema: dict[str, Any]
    about: str
    where: str = "query"
    is_required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One method on one path.

    `scopes` are the bits a key needs. A `probe` is answered before recovery has ended, and without
    a key unless TOPICS_PROBE_AUTH says otherwise; `waits_for_recovery` is False for what else can
    be answered early. A stream that is asked for during recovery opens after it, because those who
    read it do not come back after a 503. `body` is the type of the request, which may have
    `body_bytes_max`; `answers` is the type of each success.
    """

    method: str
    path: str
    handler: CallHandler
    summary: str
    scopes: int = 0
    is_probe: bool = False
    waits_for_recovery: bool = True
    is_stream: bool = False
    takes_query_token: bool = False
    body: Any = None
    needs_body: bool = False
    body_bytes_max: int = SMALL_BODY_BYTES_MAX
    parameters: tuple[Parameter, ...] = ()
    answers: Mapping[int, Any] = field(default_factory=dict)
    # Successes that are not JSON: their content type, if any, and what they are.
    others: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    # What the events of a stream are called.
    events: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    # Whether the document has it.
    is_shown: bool = True

    @property
    def names(self) -> list[str]:
        """The names in the path, in order."""
        return [part[1:] for part in self.path.split("/") if part.startswith(":")]

    @property
    def prefixed(self) -> tuple[tuple[int, str], ...]:
        """Which of the path's names a key's prefixes are checked against, and what goes before."""
        names = enumerate(self.names)
        return tuple((index, PREFIXED[name]) for index, name in names if name in PREFIXED)

    @property
    def codes(self) -> list[str]:
        """Every error code this route may answer with."""
        codes = [*COMMON, *self.errors]
        if not self.is_probe:
            codes += ["unauthorized", "throttled"]
            if self.waits_for_recovery:
                codes.append("not_ready")
        if self.body is not None:
            codes.append("unsupported_media_type")
        return list(dict.fromkeys(codes))
