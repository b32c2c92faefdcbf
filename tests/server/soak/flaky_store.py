"""A bucket that does not answer every call: a proxy in front of a real S3 endpoint."""

from __future__ import annotations

import http.client
import itertools
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from tests.support.s3 import S3Server

EVERY = 3
# In turn: one that a client repeats by itself, and one that it takes for an answer.
FAILURES = (503, 403)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Proxy

    def handle_any(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        failure = self.server.failure()
        if failure:
            self._answer(failure, [], b"")
            return
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        # The signature covers the host that the client knows.
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            upstream.putheader(name, value)
        upstream.endheaders(body)
        answer = upstream.getresponse()
        self._answer(answer.status, answer.getheaders(), answer.read())
        upstream.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        kept = {"content-length", "transfer-encoding", "connection"}
        for name, value in headers:
            if name.lower() not in kept:
                self.send_header(name, value)
        is_head = self.command == "HEAD"
        given = {name.lower(): value for name, value in headers}.get("content-length", "0")
        self.send_header("Content-Length", given if is_head else str(len(body)))
        self.end_headers()
        if not is_head:
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


class _Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.port = port
        self.calls = itertools.count(1)
        self.failed = 0
        self._lock = threading.Lock()

    def failure(self) -> int:
        """The status that this call fails with; 0 for one that does not."""
        with self._lock:
            if next(self.calls) % EVERY:
                return 0
            self.failed += 1
            return FAILURES[self.failed % len(FAILURES)]


class FlakyStore:
    """`env` leads a client of `s3` through the proxy, which fails every third call."""

    def __init__(self, s3: S3Server) -> None:
        self._s3 = s3
        self._proxy = _Proxy(s3.port)

    @property
    def env(self) -> dict[str, str]:
        return {**self._s3.env, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._proxy.server_port}"}

    @property
    def failed(self) -> int:
        return self._proxy.failed

    def __enter__(self) -> FlakyStore:
        self._thread = threading.Thread(target=self._proxy.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._proxy.shutdown()
        self._proxy.server_close()
        self._thread.join()
