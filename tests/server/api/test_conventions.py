"""What holds for every route alike: scopes, answers, limits, pages, data and time."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.server.bad_input.table import TARGETS, Target
from tests.support.servers import Client, Served, inside

SCOPES = {
    "GET /v0/topics": "read", "GET /v0/topics/{topic}": "read",
    "POST /v0/topics/{topic}/diff": "read", "POST /v0/topics/{topic}/range": "read",
    "GET /v0/topics/{topic}/seq-at": "read", "GET /v0/topics/{topic}/explain": "read",
    "GET /v0/topics/{topic}/cursors": "read", "GET /v0/topics/{topic}/cursors/{cursor}": "read",
    "PUT /v0/topics/{topic}/cursors/{cursor}": "read", "GET /v0/routers": "read",
    "GET /v0/routers/{router}": "read", "POST /v0/watch": "read", "GET /v0/metrics": "read",
    "POST /v0/topics/{topic}": "write", "POST /v0/topics/{topic}/ack": "write",
    "POST /v0/topics/{topic}/nack": "write", "POST /v0/topics/{topic}/extend": "write",
    "POST /v0/topics/{topic}/claim": "read+write", "DELETE /v0/topics/{topic}": "delete",
    "DELETE /v0/routers/{router}": "delete", "POST /v0/topics/{topic}/delete": "delete",
    "DELETE /v0/topics/{topic}/cursors/{cursor}": "admin", "PUT /v0/topics/{topic}": "admin",
    "PUT /v0/routers/{router}": "admin", "PATCH /v0/topics/{topic}": "admin",
    "GET /v0/connections": "admin", "GET /v0/topics/{topic}/leases": "read",
    "GET /metrics": "read",
}  # fmt: skip
SCOPED = [target for target in TARGETS if target.route in SCOPES]
ALL = ("read", "write", "delete", "admin")
# A key for every set of scopes, named after it.
SETS = ["+".join(words) for n in range(1, 5) for words in itertools.combinations(ALL, n)]


def furnish(client: Client) -> None:
    client.write("kept", *range(5))
    client.put("/v0/topics/kept/cursors/kept", {"seq": 1})
    client.put("/v0/topics/kept-queue", {"type": "queue"})
    client.put("/v0/routers/kept", {"source": "kept", "dest": "kept-copy"})


def ask(client: Client, target: Target) -> Any:
    query = f"?{target.fixed_query}" if target.fixed_query else ""
    return client.call(target.method, target.at() + query, target.body)


@pytest.fixture(scope="module")
def scoped(tmp_path_factory: pytest.TempPathFactory) -> Any:
    keys = ",".join(f"{words.replace('+', '-')}:{words}" for words in SETS)
    with Served(tmp_path_factory.mktemp("scopes"), TOPICS_API_KEYS=f"root,{keys}") as served:
        with served.wait_ready().client("root") as client:
            furnish(client)
        yield served


def test_every_route_is_in_the_table_of_scopes() -> None:
    open_to_all = (
        "/v0/health", "/v0/ready", "/healthz", "/readyz", "/v0/openapi.json", "/", "/v0",
        "/v0/docs",
    )  # fmt: skip
    left = {target.route for target in TARGETS if target.path not in open_to_all}
    assert left - SCOPES.keys() == {"GET /v0/watch/{wid}", "GET /v0/topics/{topic}/stream"}


@pytest.mark.parametrize("target", SCOPED, ids=lambda target: target.route)
def test_a_route_opens_to_exactly_its_scopes(scoped: Served, target: Target) -> None:
    needed = set(SCOPES[target.route].split("+"))
    with scoped.client() as client:
        for words in SETS:
            reply = ask(client.with_token(words.replace("+", "-")), target)
            if needed <= set(words.split("+")):
                assert reply.status in (200, 201), (words, reply.raw)
            else:
                missing = sorted(needed - set(words.split("+")), key=ALL.index)
                assert (reply.status, reply.code) == (403, "forbidden"), words
                assert reply.detail == {"scopes": missing}


PAGES = ("/v0/openapi.json", "/v0/docs")
STREAMS = ("{wid}", "/stream")
ANSWERING = [t for t in TARGETS if not t.path.endswith(STREAMS) and t.path not in PAGES]


@pytest.mark.parametrize("target", ANSWERING, ids=lambda target: target.route)
def test_every_answer_is_json_and_says_where_its_time_went(client: Client, target: Target) -> None:
    furnish(client)
    reply = client.call(
        target.method, target.at() + (f"?{target.fixed_query}" if target.fixed_query else ""),
        target.body, {"Accept": "application/json"},
    )  # fmt: skip
    assert reply.headers["content-type"] == "application/json"
    spent = reply.json["performance"]
    assert set(spent) <= {
        "server_total_ms", "wal_append_ms", "fsync_ms", "records_scanned", "throttle_wait_ms",
    }  # fmt: skip
    assert spent["server_total_ms"] >= 0
    assert "error" not in reply.json


def test_without_keys_the_header_is_ignored(client: Client) -> None:
    for header in ("Bearer anything", "Basic eA==", "nonsense"):
        assert client.get("/v0/topics", Authorization=header).status == 200


VALUES = [
    '{"a":{"b":[]}}', "[1,[2]]", '"text \\u00e9 \\n"', '""', "0", "-1.50", "1E+2", "true", "false",
    "null", "{}", "[]", "123456789012345678901234567890", '{"a":1,"a":2}',
]  # fmt: skip


@pytest.mark.parametrize("text", VALUES)
def test_any_json_is_data_and_comes_back_verbatim(client: Client, topic: str, text: str) -> None:
    body = f'{{"records":[{{"data":{text}}}]}}'.encode()
    assert client.post(f"/v0/topics/{topic}", body).status == 201
    assert f'"data":{text}}}'.encode() in client.diff(topic).raw


@pytest.mark.slow
def test_pages_have_100_entries_and_at_most_1000(tmp_path: Path) -> None:
    with inside(tmp_path) as served, served.client() as client:
        for number in range(1005):
            client.write(f"t{number:04}", 1, config={"durability": "ephemeral"})
        for query, size in (("", 100), ("?page_size=7", 7), ("?page_size=1000", 1000),
                            ("?page_size=1001", 1000), ("?page_size=0", 100)):  # fmt: skip
            page = client.get("/v0/topics" + query).json
            assert (len(page["topics"]), "next_cursor" in page) == (size, True), query
        last = client.get(f"/v0/topics?page_size=1000&cursor={page['next_cursor']}").json
        assert (len(last["topics"]), "next_cursor" in last) == (905, False)


def test_limits_include_their_bound(client: Client, topic: str) -> None:
    record = {
        "data": 1, "tag": "é" * 128, "node": "é" * 64, "meta": {str(n): "" for n in range(64)},
    }  # fmt: skip
    body = {"records": [record], "idempotency_key": "é" * 256}
    assert client.post(f"/v0/topics/{topic}", body).status == 201
    size = 1_048_576 - len('"",{"k":"v"}') + 1
    record = {"data": "x" * size, "meta": {"k": "v"}}
    assert client.post(f"/v0/topics/{topic}", {"records": [record]}).status == 200
    record = {"data": "x" * (size + 1), "meta": {"k": "v"}}
    assert client.post(f"/v0/topics/{topic}", {"records": [record]}).code == "record_too_large"
    meta = {"k": "x" * (16_384 - len('{"k":""}'))}
    assert (
        client.post(f"/v0/topics/{topic}", {"records": [{"data": 1, "meta": meta}]}).status == 200
    )
    assert client.write(topic, *range(10_000)).json["count"] == 10_000
    name = "A" + "z" * 254
    assert client.put(f"/v0/topics/{name}").status == 201


def test_names_are_case_sensitive_and_take_all_their_characters(client: Client, topic: str) -> None:
    for name in (f"{topic}Aa", f"{topic}aA", f"{topic}._:-", f"{topic}:tenant-A"):
        assert client.put(f"/v0/topics/{name}").status == 201, name
    assert client.get(f"/v0/topics/{topic}%3Atenant%2DA").json["topic"] == f"{topic}:tenant-A"


def test_the_node_of_a_record_counts_for_more_than_that_of_the_batch(
    client: Client, topic: str
) -> None:
    records = [{"data": 1, "node": "own"}, {"data": 2}, {"data": 3, "node": None}]
    client.post(f"/v0/topics/{topic}", {"records": records, "node": "batch"})
    nodes = [record["$node"] for record in client.diff(topic).json["records"]]
    assert nodes == ["own", "batch", "batch"]


def test_a_key_belongs_to_its_topic_and_goes_with_it(client: Client, topic: str) -> None:
    for name in (topic, topic + "-2"):
        assert client.write(name, 1, idempotency_key="k").json["deduped"] is False
        assert client.write(name, 1, idempotency_key="k").json["deduped"] is True
    client.delete(f"/v0/topics/{topic}")
    again = client.write(topic, 2, idempotency_key="k")
    assert (again.status, again.json["deduped"], again.json["seqs"]) == (201, False, [1])
    assert client.write(topic + "-2", 3, idempotency_key="k").json["deduped"] is True


def test_only_a_touching_read_moves_the_recency_clock(client: Client, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    client.write(topic, 1)

    def read_at() -> Any:
        return client.get(path + "?touch=false").json["last_read_ts"]

    assert read_at() is None
    client.get("/v0/topics")
    client.post(path + "/delete", {"before_seq": 1})
    assert read_at() is None
    client.get(path)
    assert read_at() is not None
    client.delete(path)
    client.write(topic, 1)
    client.diff(topic)
    assert read_at() is not None


def test_a_read_is_bounded_in_bytes_and_always_goes_forward(client: Client, topic: str) -> None:
    """About 1 MiB unless asked for less or more; 8 MiB at most; one record at least."""
    for _ in range(4):
        client.write(topic, *["x" * 1_000_000] * 3)

    def count(**body: Any) -> int:
        return len(client.diff(topic, **body).json["records"])

    assert count() == 2
    assert count(max_batch_bytes=0) == 2
    assert count(max_batch_bytes=1) == 1
    assert count(max_batch_bytes=2**60) == 9
    page = client.diff(topic, max_batch_bytes=1).json
    assert (page["next_from_seq"], page["caught_up"], page["lag"]) == (1, False, 11)


CAPS = {
    "TOPICS_MAX_TOPICS": "0", "TOPICS_MAX_ROUTERS": "0", "TOPICS_MAX_WATCH_SESSIONS": "0",
    "TOPICS_MAX_SSE_CONNECTIONS": "0", "TOPICS_MAX_SSE_CONNECTIONS_PER_KEY": "0",
    "TOPICS_MAX_INFLIGHT_PER_KEY": "0", "TOPICS_MAX_TOTAL_BYTES": "0",
}  # fmt: skip


def test_a_cap_of_zero_is_no_cap(tmp_path: Path) -> None:
    with inside(tmp_path, TOPICS_API_KEYS="s", **CAPS) as served, served.client("s") as client:
        assert client.write("a", 1).status == 201
        assert client.put("/v0/routers/r", {"source": "a", "dest": "b"}).status == 201
        made = client.post("/v0/watch", {"topics": {"a": {}}})
        assert made.status == 200
        assert client.call("HEAD", made.json["stream_url"]).status == 200


@pytest.mark.parametrize(
    ("given", "durability"),
    [
        ({}, "disk"),
        ({"durable": False}, "disk"),
        ({"durable": True}, "fsync"),
        ({"durability": "disk", "durable": True}, "disk"),
        ({"durability": "fsync", "durable": False}, "fsync"),
        ({"durability": "memory", "durable": True}, "memory"),
        ({"durability": "ephemeral"}, "ephemeral"),
    ],
)
def test_a_durability_that_is_named_wins(
    client: Client, topic: str, given: dict[str, Any], durability: str
) -> None:
    """And the class can be changed in place, to any other and back."""
    path = f"/v0/topics/{topic}"
    made = client.put(path, given).json["config"]
    assert (made["durability"], made["durable"]) == (durability, durability == "fsync")
    client.write(topic, 1)
    for other in ("ephemeral", "memory", "disk", "fsync", durability):
        assert client.put(path, {"durability": other}).json["config"]["durability"] == other
        assert client.get(path).json["config"]["durability"] == other
    assert json.dumps(client.diff(topic).json["records"][0]["data"]) == "1"
