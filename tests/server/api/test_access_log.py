"""What the log says of requests and of those who send them, and what it never says."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import Served, environment, inside
from topics.cli.log_lines import TextLines
from topics.server.api.call import Call
from topics.server.loop.access_log import LINES_PER_S, LoggedCall, Rate

SECRET = "SECRET-of-the-key"


def said(served: Served, words: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in served.log().splitlines()]
    return [line for line in lines if line["message"].startswith(words)]


@pytest.mark.slow
def test_each_request_is_told_with_peer_key_and_time_and_without_its_query(tmp_path: Path) -> None:
    settings = {"TOPICS_ACCESS_LOG": "true", "TOPICS_API_KEYS": f"other,{SECRET}"}
    with Served(tmp_path, **settings) as served:
        with served.wait_ready().client(SECRET) as client:
            client.write("a", 1)
            client.write("a", 1)
            client.diff("a")
            client.get("/v0/topics/missing")
            client.with_token("").get(f"/v0/topics/a/stream?token={SECRET}x")
        assert served.stop() == 0
    lines = [
        (line["method"], line["path"], line["status"], line["key"])
        for line in said(served, "request")
        if not line["path"].endswith(("ready", "readyz"))
    ]
    assert lines == [
        ("POST", "/v0/topics/a", 201, 2), ("POST", "/v0/topics/a", 200, 2),
        ("POST", "/v0/topics/a/diff", 200, 2), ("GET", "/v0/topics/missing", 404, 2),
        ("GET", "/v0/topics/a/stream", 401, None),
    ]  # fmt: skip
    for line in said(served, "request"):
        assert line["peer"].startswith("127.0.0.1:")
        assert line["took_ms"] >= 0
    assert SECRET not in served.log()


@pytest.mark.slow
def test_only_slow_requests_are_told_where_only_those_are_asked_for(tmp_path: Path) -> None:
    with Served(tmp_path, TOPICS_SLOW_REQUEST_MS="150") as served:
        with served.wait_ready().client() as client:
            client.put("/v0/topics/a")
            client.diff("a", from_seq=0, wait_ms=200)
        assert served.stop() == 0
    slow = [line for line in said(served, "slow request") if line["path"].endswith("/diff")]
    assert [(line["status"], line["level"]) for line in slow] == [(200, "warning")]
    assert slow[0]["took_ms"] >= 150
    assert said(served, "request") == []


def test_a_log_that_is_off_costs_nothing(tmp_path: Path) -> None:
    """Calls are of the type that knows nothing of it."""
    with inside(tmp_path / "off") as served:
        assert served.server.request_type is Call
    with inside(tmp_path / "on", TOPICS_ACCESS_LOG="yes") as served:
        assert served.server.request_type is LoggedCall


@pytest.mark.slow
def test_a_denied_key_is_told_with_its_peer_and_never_by_its_text(tmp_path: Path) -> None:
    with Served(tmp_path, TOPICS_API_KEYS=f"root,{SECRET}:read") as served:
        with served.wait_ready().client(f"{SECRET}-unknown") as client:
            assert client.get("/v0/topics/a").status == 401
            assert client.with_token(SECRET).write("a", 1).status == 403
            assert client.with_token("").diff("a").status == 401
        assert served.stop() == 0
    told = [
        (line["message"], line["route"], line["status"], line["key"])
        for line in said(served, "denied")
    ]
    assert told == [
        ("denied: this API key is not known", "/v0/topics/:topic", 401, None),
        ("denied: this API key lacks the scope write", "/v0/topics/:topic", 403, 2),
        ("denied: this needs an API key: send Authorization: Bearer <key>",
         "/v0/topics/:topic/diff", 401, None),
    ]  # fmt: skip
    assert all(line["peer"].startswith("127.0.0.1:") for line in said(served, "denied"))
    assert SECRET not in served.log()


def test_a_flood_of_denials_does_not_flood_the_log() -> None:
    rate = Rate()
    assert sum(rate.may() for _ in range(1000)) <= 2 * LINES_PER_S
    assert rate.take_besides() >= 1000 - 2 * LINES_PER_S
    assert rate.take_besides() == 0


@pytest.mark.slow
def test_debug_says_more_than_info(tmp_path: Path) -> None:
    found = {}
    for level in ("info", "debug"):
        (tmp_path / level).mkdir()
        with Served(tmp_path / level, TOPICS_LOG_LEVEL=level) as served:
            with served.wait_ready().client() as client:
                client.get("/v0/topics/missing")
            assert served.stop() == 0
        found[level] = said(served, "refused")
    assert found["info"] == []
    told = [(line["route"], line["code"]) for line in found["debug"]]
    assert ("/v0/topics/:topic", "topic_not_found") in told


@pytest.mark.slow
def test_a_terminal_gets_plain_text_with_iso_times(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "topics", "serve", "--port", "0", "--data-dir", str(tmp_path / "d")],
        stderr=theirs, env=environment(),
    )  # fmt: skip
    os.close(theirs)
    try:
        with os.fdopen(ours) as lines:
            line = lines.readline()
    finally:
        process.terminate()
        process.wait(30)
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z warning topics listens on ", line)


def test_text_is_safe_for_a_terminal() -> None:
    record = logging.makeLogRecord(
        {"msg": "request", "levelname": "INFO", "path": "/\x1b[31m", "key": None, "status": 200}
    )
    text = TextLines().format(record)
    assert "\x1b" not in text
    assert text.endswith(" status=200")
    assert "key=" not in text
