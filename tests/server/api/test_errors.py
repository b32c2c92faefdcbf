"""Every refusal has one shape, its own code, and the headers a client needs to go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.servers import Client, Served, inside


@pytest.mark.parametrize("path", ["//", "/v0/", "/v0/topics/", "/v0/topics/a/b/c", "/v1/topics"])
def test_an_unknown_path_is_not_found(client: Client, path: str) -> None:
    reply = client.get(path)
    assert (reply.status, reply.code) == (404, "not_found")
    assert set(reply.json) == {"error"}
    assert set(reply.json["error"]) <= {"code", "message", "detail"}


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("SEARCH", "/v0/topics/a", "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"),
        ("POST", "/v0/topics", "GET, HEAD, OPTIONS"),
        ("GET", "/v0/topics/a/diff", "OPTIONS, POST"),
        ("POST", "/v0/health", "GET, HEAD, OPTIONS"),
    ],
)
def test_a_wrong_method_names_the_right_ones(
    client: Client, method: str, path: str, allowed: str
) -> None:
    reply = client.call(method, path)
    assert (reply.status, reply.code) == (405, "method_not_allowed")
    assert reply.headers["allow"] == allowed


def test_a_page_from_elsewhere_is_kept_out(client: Client) -> None:
    for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
        reply = client.get("/v0/topics", **headers)
        assert (reply.status, reply.code) == (403, "forbidden")
    own = client.get("/v0/topics", Origin=f"http://127.0.0.1:{client.port}")
    assert own.status == 200


def test_allowed_origins_get_their_headers(tmp_path: Path) -> None:
    allowed = "https://a.example, https://b.example"
    with inside(tmp_path, TOPICS_CORS_ORIGINS=allowed) as served, served.client() as client:
        reply = client.get("/v0/topics", Origin="https://b.example")
        assert reply.headers["access-control-allow-origin"] == "https://b.example"
        assert client.get("/v0/topics", Origin="https://c.example").status == 403


def test_the_number_of_topics_is_capped(tmp_path: Path) -> None:
    with inside(tmp_path, TOPICS_MAX_TOPICS="2") as served, served.client() as client:
        assert client.put("/v0/topics/a").status == 201
        assert client.write("b", 1).status == 201
        for reply in (client.put("/v0/topics/c"), client.write("c", 1)):
            assert (reply.status, reply.code) == (429, "throttled")
            assert reply.detail == {"limit": "max_topics", "max": 2}
            assert int(reply.headers["retry-after"]) >= 1
        # What is there can still be changed and written.
        assert client.put("/v0/topics/a", {"cap_records": 1}).status == 200
        assert client.write("b", 2).status == 200


def test_the_bytes_of_the_instance_are_capped(tmp_path: Path) -> None:
    with inside(tmp_path, TOPICS_MAX_TOTAL_BYTES="1000") as served, served.client() as client:
        assert client.write("a", "x" * 500).status == 201
        full = client.write("b", "x" * 500)
        assert (full.status, full.code) == (429, "throttled")
        assert full.detail == {"limit": "max_total_bytes", "max": 1000}
        client.post("/v0/topics/a/delete", {"before_seq": 9})
        assert client.write("b", "x" * 500).status == 201


def test_configured_limits_hold(tmp_path: Path) -> None:
    limits = {
        "TOPICS_MAX_BATCH_RECORDS": "2", "TOPICS_MAX_RECORD_BYTES": "100", "TOPICS_MAX_LIMIT": "3",
        "TOPICS_MAX_BODY_BYTES": "1000", "TOPICS_MAX_TAG_BYTES": "4", "TOPICS_MAX_NODE_BYTES": "4",
        "TOPICS_MAX_META_BYTES": "10",
    }  # fmt: skip
    with inside(tmp_path, **limits) as served, served.client() as client:
        assert client.write("a", 1, 2, 3).code == "batch_too_large"
        assert client.write("a", "x" * 99).code == "record_too_large"
        too_large = client.write("a", "x" * 1000)
        assert (too_large.status, too_large.code) == (413, "payload_too_large")
    with inside(tmp_path, **limits) as served, served.client() as client:
        for field, value in (("tag", "xxxxx"), ("node", "xxxxx"), ("meta", {"k": "xxxxx"})):
            reply = client.post("/v0/topics/a", {"records": [{"data": 1, field: value}]})
            assert (reply.status, reply.code) == (400, "invalid_request"), field
        for _ in range(3):
            assert client.write("a", 1, 2).status in (200, 201)
        assert len(client.diff("a", limit=1000).json["records"]) == 3


def test_a_broken_request_is_answered_and_the_connection_closed(served: Served) -> None:
    with served.client() as client:
        client.connection.connect()
        client.connection.sock.sendall(b"NONSENSE\r\n\r\n")
        got = client.connection.sock.recv(65536)
    assert got.startswith(b"HTTP/1.1 400 ")
    assert b'"invalid_request"' in got


def test_head_is_get_without_its_body(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}")
    reply = client.call("HEAD", f"/v0/topics/{topic}")
    assert (reply.status, reply.raw) == (200, b"")
    assert int(reply.headers["content-length"]) > 0
