"""A proxy in front of a real S3 endpoint: one that does not answer every call, or that corrects it.

`rclone serve s3` answers a range with status 200. Our own store bears that; delta-rs does not.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

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
        status = answer.status
        if self.server.is_correcting and answer.getheader("Content-Range"):
            status = HTTPStatus.PARTIAL_CONTENT
        self._answer(status, answer.getheaders(), answer.read())
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

    def __init__(self, port: int, fails_every: int, *, is_correcting: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.port = port
        self.is_correcting = is_correcting
        self._fails_every = fails_every
        self.calls = itertools.count(1)
        self.failed = 0
        self._lock = threading.Lock()

    def failure(self) -> int:
        """The status that this call fails with; 0 for one that does not."""
        with self._lock:
            if not self._fails_every or next(self.calls) % self._fails_every:
                return 0
            self.failed += 1
            return FAILURES[self.failed % len(FAILURES)]


class FlakyStore:
    """`env` leads a client of `s3` through the proxy, which fails every third call."""

    def __init__(self, s3: S3Server) -> None:
        self._s3 = s3
        self._proxy = _Proxy(s3.port, EVERY, is_correcting=False)

    @property
    def env(self) -> dict[str, str]:
        return _env(self._s3, self._proxy.server_port)

    @property
    def failed(self) -> int:
        return self._proxy.failed

    def __enter__(self) -> FlakyStore:
        self._thread = threading.Thread(target=self._proxy.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._proxy.shutdown()
        self._proxy.server_close()
        self._thread.join()


@contextlib.contextmanager
def corrected(s3: S3Server) -> Iterator[dict[str, str]]:
    """What leads a client through a proxy that answers ranges as S3 does.

    In a process of its own: a client that keeps the interpreter while it waits would wait for ever.
    """
    command = [sys.executable, "-m", __name__, str(s3.port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield _env(s3, int(process.stdout.readline()))
        finally:
            process.kill()


def _env(s3: S3Server, port: int) -> dict[str, str]:
    return {**s3.env, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}


if __name__ == "__main__":
    PROXY = _Proxy(int(sys.argv[1]), 0, is_correcting=True)
    print(PROXY.server_port, flush=True)
    PROXY.serve_forever()
