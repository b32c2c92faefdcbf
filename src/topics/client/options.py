"""The settings of a client: where the server is, who is asking, how long to wait."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from topics.client.retries import DEFAULT_RETRIES, RetryPolicy
from topics.errors import InvalidRequest

if TYPE_CHECKING:
    from topics.server.embedded import Embedded

URL_DEFAULT = "http://127.0.0.1:4000"


@dataclass(frozen=True, slots=True)
class Options:
    """`timeout_s` is for one try, beyond what a call waits for by itself."""

    url: str
    token: str = field(repr=False)
    timeout_s: float = 30.0
    connect_timeout_s: float = 5.0
    # A file of PEM certificates to trust besides those of the machine.
    ca_file: str | None = None
    retries: RetryPolicy = DEFAULT_RETRIES
    # The log in this process that calls go to, instead of a server.
    within: Embedded | None = field(default=None, repr=False)


def options_of(
    url: str | None,
    token: str | None,
    *,
    timeout_s: float,
    ca_file: str | None,
    retries: RetryPolicy,
) -> Options:
    """What is not given comes from TOPICS_URL and TOPICS_TOKEN. Raises InvalidRequest."""
    place = (url or os.environ.get("TOPICS_URL") or URL_DEFAULT).rstrip("/")
    if not _is_of_server(place):
        raise InvalidRequest(
            f"{place!r} is not the URL of a server, such as {URL_DEFAULT}", url=place
        )
    known = os.environ.get("TOPICS_TOKEN", "") if token is None else token
    if not known.isprintable():
        # Not shown: it may be a key with the end of its line.
        raise InvalidRequest("the API key has a line break or another control character in it")
    if ca_file is not None:
        _check_authorities(ca_file)
    return Options(place, known, timeout_s=timeout_s, ca_file=ca_file, retries=retries)


def _is_of_server(url: str) -> bool:
    try:
        url.encode()
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname)
        # Looking at the port is what raises where it is no number, or one that no port has.
        return is_one and parts.port != 0
    except ValueError:
        return False


def _check_authorities(ca_file: str) -> None:
    """Raises InvalidRequest; libraries raise errors of their own, or take a file without any."""
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(ca_file)
    except OSError as error:
        # Errors of TLS are such, too.
        why = getattr(error, "reason", None) or error.strerror or str(error)
        raise InvalidRequest(
            f"ca_file {ca_file} can not be used: {why}; it needs PEM certificates of authorities",
            ca_file=ca_file,
        ) from None
