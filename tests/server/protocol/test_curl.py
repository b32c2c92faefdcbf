"""The same things through a client that nobody here wrote."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.server.protocol.app import Served

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def curl(served: Served, path: str, *options: str) -> bytes:
    command = ["curl", "-sS", "--max-time", "8", *options, f"http://127.0.0.1:{served.port}{path}"]
    done = subprocess.run(command, capture_output=True, check=True)
    return done.stdout


def test_a_post_and_its_answer(served: Served) -> None:
    assert curl(served, "/echo", "-d", "hello") == b"hello"


def test_a_large_upload_with_expect(served: Served, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b"x" * 3_000_000)
    options = ("-H", "Expect: 100-continue", "--data-binary", f"@{tmp_path}/body")
    assert len(curl(served, "/echo", *options)) == 3_000_000


def test_a_chunked_upload(served: Served, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b"y" * 300_000)
    options = ("-H", "Transfer-Encoding: chunked", "-T", f"{tmp_path}/body")
    assert curl(served, "/echo", *options) == b"y" * 300_000


def test_a_compressed_answer(served: Served) -> None:
    assert len(curl(served, "/big?n=100000", "--compressed")) == 100_000


def test_head_and_options(served: Served) -> None:
    assert b"Content-Length: 11" in curl(served, "/json", "-I")
    assert b"Allow: GET, HEAD, OPTIONS" in curl(served, "/json", "-i", "-X", "OPTIONS")


def test_http_1_0(served: Served) -> None:
    assert curl(served, "/json", "-0") == b'{"ok":true}'


def test_an_offer_of_http_2_is_declined(served: Served) -> None:
    assert curl(served, "/json", "--http2") == b'{"ok":true}'
    assert curl(served, "/echo", "--http2", "-d", "body") == b"body"


def test_a_stream_until_its_end(served: Served) -> None:
    assert curl(served, "/stream?end", "-N") == b"retry: 2000\n\ndata: 1\n\n"
