"""Calls of the server: one kept connection, tried again while the server is away or busy.

Everything called here can be repeated: reads, cursors, commits, and writes under a key of their
own. What is refused for good is raised at once. No text that leaves this module has the token.
"""

from __future__ import annotations

import http.client
import json
import time
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from pyspark_topics.errors import Refused, Unreachable
from pyspark_topics.options import RETRY_INTERVAL_MS_MAX, Access

JSON = "application/json"
# The server says them when it starts, ends or has too much to do.
_LATER = frozenset((429, 502, 503, 504))
_RETRY_AFTER_S_MAX = 5.0


def topic_path(topic: str, *rest: str) -> str:
    return "/v0/topics/" + "/".join(quote(part, safe="") for part in (topic, *rest))


class Server:
    """A server as one thread talks to it. Not to be pickled: `Access` is."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._parts = urlsplit(access.url)
        self._connection: http.client.HTTPConnection | None = None

    def get(self, path: str, **query: object) -> Any:
        words = {name: _word(value) for name, value in query.items()}
        return json.loads(self.call("GET", f"{path}?{urlencode(words)}" if words else path))

    def post(self, path: str, body: object) -> Any:
        return json.loads(self.call("POST", path, body))

    def put(self, path: str, body: object) -> Any:
        return json.loads(self.call("PUT", path, body))

    def call(self, method: str, path: str, body: object = None) -> bytes:
        """The body of an answer. Raises Refused, Unreachable."""
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
        left, pause_s = self._access.retries, self._access.retry_interval_ms / 1000
        while True:
            is_kept, wait_s = self._connection is not None, pause_s
            try:
                status, content, after_s = self._once(method, path, data)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if is_kept and not isinstance(error, TimeoutError):
                    # The server closes connections that are idle: that is no failure yet.
                    continue
                if left == 0 or isinstance(error, TimeoutError):
                    words = self._redacted(f"{type(error).__name__}: {error}")
                    raise Unreachable(f"{self._access.url} does not answer: {words}") from None
            else:
                if status < 400:
                    return content
                if status not in _LATER or left == 0:
                    raise self._refusal(status, content)
                wait_s = max(wait_s, min(after_s, _RETRY_AFTER_S_MAX))
            time.sleep(wait_s)
            left -= 1
            pause_s = min(pause_s * 2, max(pause_s, RETRY_INTERVAL_MS_MAX / 1000))

    def _once(self, method: str, path: str, data: bytes | None) -> tuple[int, bytes, float]:
        if self._connection is None:
            kind: type[http.client.HTTPConnection] = http.client.HTTPConnection
            if self._parts.scheme == "https":
                kind = http.client.HTTPSConnection
            self._connection = kind(
                self._parts.hostname or "", self._parts.port, timeout=self._access.timeout_ms / 1000
            )
        headers = {} if data is None else {"Content-Type": JSON}
        if self._access.token:
            headers["Authorization"] = f"Bearer {self._access.token}"
        self._connection.request(method, self._parts.path + path, data, headers)
        answer = self._connection.getresponse()
        content = answer.read()
        after = answer.getheader("Retry-After") or ""
        return answer.status, content, float(after) if after.isdigit() else 0.0

    def _refusal(self, status: int, content: bytes) -> Refused:
        try:
            error = json.loads(content)["error"]
            reason, message = str(error["code"]), str(error["message"])
        except (ValueError, KeyError, TypeError):
            reason, message = "", content[:200].decode("utf-8", "replace")
        return Refused(status, reason, self._redacted(message))

    def _redacted(self, text: str) -> str:
        return text.replace(self._access.token, "***") if self._access.token else text

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
