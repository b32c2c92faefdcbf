"""One topic over HTTP: created, looked at, reconfigured, listed, deleted."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.support.servers import Client

DEFAULTS = {
    "type": "log", "ttl_ms": 0, "cap_records": 0, "cap_bytes": 0, "discard": "old",
    "durable": False, "durability": "disk", "priority": None, "auto_priority": True,
    "auto_create": True, "idempotency_window_ms": 120000, "dedupe_node": True,
    "lease_ms": 30000, "claim_jitter_ms": 0, "max_deliveries": 0, "dead_letter": None,
    "leases_durable": False,
}  # fmt: skip


def test_put_creates_then_confirms_then_changes(client: Client, topic: str) -> None:
    made = client.put(f"/v0/topics/{topic}", {"cap_records": 5})
    again = client.put(f"/v0/topics/{topic}", {"cap_records": 5})
    other = client.put(f"/v0/topics/{topic}", {"durable": True, "priority": 4000})
    assert (made.status, again.status, other.status) == (201, 200, 200)
    assert made.json["topic"] == topic
    assert [reply.json["created"] for reply in (made, again, other)] == [True, False, False]
    assert made.json["config"] == DEFAULTS | {"cap_records": 5}
    assert other.json["config"] == DEFAULTS | {
        "durable": True, "durability": "fsync", "priority": 1000,
    }  # fmt: skip
    assert made.json["performance"]["wal_append_ms"] > 0
    # Nothing was written the second time, and only the third topic is one that waits for the disk.
    assert set(again.json["performance"]) == {"server_total_ms"}
    assert "fsync_ms" not in made.json["performance"]
    assert other.json["performance"]["fsync_ms"] > 0


def test_a_put_says_what_it_changed(client: Client, topic: str) -> None:
    """Also what it changed because it was left out: a config is replaced as a whole."""
    path = f"/v0/topics/{topic}"
    made = client.put(path, {"cap_records": 5, "ttl_ms": 60_000})
    assert "changed" not in made.json
    assert client.put(path, {"ttl_ms": 60_000, "cap_records": 5}).json["changed"] == {}
    forgot = client.put(path, {"durable": True, "priority": 4000}).json["changed"]
    assert forgot == {
        "ttl_ms": [60_000, 0], "cap_records": [5, 0], "durable": [False, True],
        "durability": ["disk", "fsync"], "priority": [None, 1000],
    }  # fmt: skip


def test_a_patch_changes_only_what_it_names(client: Client, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    client.put(path, {"cap_records": 5, "ttl_ms": 60_000})
    reply = client.call("PATCH", path, {"ttl_ms": 0})
    assert (reply.status, reply.json["created"]) == (200, False)
    assert reply.json["changed"] == {"ttl_ms": [60_000, 0]}
    assert reply.json["config"] == DEFAULTS | {"cap_records": 5}
    assert client.call("PATCH", path, {"cap_records": 5}).json["changed"] == {}
    assert client.call("PATCH", path).json["changed"] == {}
    assert client.get(path).json["config"] == DEFAULTS | {"cap_records": 5}
    client.call("PATCH", path, {"durability": "ephemeral"})
    assert client.call("PATCH", path, {"durable": False}).json["changed"] == {}


def test_a_patch_is_refused_as_a_put_is(client: Client, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    missing = client.call("PATCH", path, {"ttl_ms": 1})
    assert (missing.status, missing.code) == (404, "topic_not_found")
    client.put(path, {"cap_records": 5})
    for body, status, code in (
        ({"cap_record": 1}, 400, "invalid_request"),
        ({"ttl_ms": -1}, 400, "invalid_request"),
        ({"ttl_ms": None}, 400, "invalid_request"),
        ({"dead_letter": topic}, 400, "invalid_request"),
        ({"type": "queue"}, 409, "topic_exists_incompatible"),
    ):
        reply = client.call("PATCH", path, body)
        assert (reply.status, reply.code) == (status, code), body
    assert client.get(path).json["config"] == DEFAULTS | {"cap_records": 5}


@pytest.mark.parametrize("field", DEFAULTS)
def test_null_is_a_value_only_where_it_means_something(
    client: Client, topic: str, field: str
) -> None:
    """Of no other field it stands for the default: a patch would change the class by it."""
    path, given = f"/v0/topics/{topic}", {field: None}
    client.put(path, {"durability": "fsync"})
    standing = client.get(path).json["config"]
    replies = [
        client.call("PATCH", path, given),
        client.write(f"{topic}-inline", 1, config=given),
        client.put(f"{path}-put", given),
        client.put(f"/v0/kv/{topic}", given),
    ]
    assert client.get(path).json["config"] == standing
    if field in ("priority", "dead_letter"):
        assert [reply.status for reply in replies] == [200, 201, 201, 201]
    else:
        assert {(reply.status, reply.code) for reply in replies} == {(400, "invalid_request")}


def test_patches_that_arrive_together_all_count(client: Client, topic: str) -> None:
    """In one turn of the loop, before any of them is durable."""
    path = f"/v0/topics/{topic}"
    client.put(path)
    fields = ("ttl_ms", "cap_records", "cap_bytes", "max_deliveries")
    sent = b""
    for field in fields:
        body = b'{"%b": 100000}' % field.encode()
        sent += (
            f"PATCH {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode() + body
    client.connection.sock.sendall(sent)
    received = b""
    while received.count(b'"performance"') < len(fields):
        received += client.connection.sock.recv(65536)
    client.close()
    for field in fields:
        assert b'"changed":{"%b":[0,100000]}' % field.encode() in received
    config = client.get(path).json["config"]
    assert config == DEFAULTS | dict.fromkeys(fields, 100_000)


def test_a_large_ephemeral_topic_becomes_durable(client: Client, topic: str) -> None:
    """More than is logged at once: the answer comes when all of it is."""
    client.put(f"/v0/topics/{topic}", {"durability": "ephemeral"})
    for n in range(12):
        record = {"data": f"{n}".ljust(900_000, "x")}
        client.post(f"/v0/topics/{topic}", {"records": [record]})
    reply = client.put(f"/v0/topics/{topic}", {"durable": True})
    assert (reply.status, reply.json["config"]["durability"]) == (200, "fsync")
    state = client.get(f"/v0/topics/{topic}").json
    assert (state["count"], state["earliest_seq"]) == (12, 1)


def test_an_empty_body_is_an_empty_config(client: Client, topic: str) -> None:
    assert client.put(f"/v0/topics/{topic}").json["config"] == DEFAULTS


@pytest.mark.parametrize(
    "body",
    [
        {"cap_record": 5},
        {"ttl_ms": -1},
        {"ttl_ms": True},
        {"ttl_ms": "60"},
        {"ttl_ms": 2**64},
        {"durability": "tape"},
        {"discard": None},
        {"priority": 2**31},
        {"dead_letter": "-"},
        [],
        b"{",
        b"null",
        b'{"ttl_ms": 1} x',
        b"\xff",
        b'{"a":' * 5000,
    ],
)
def test_a_config_that_is_not_one_is_refused(client: Client, topic: str, body: Any) -> None:
    refused = client.put(f"/v0/topics/{topic}", body)
    assert (refused.status, refused.code) == (400, "invalid_request")
    assert client.get(f"/v0/topics/{topic}").status == 404


@pytest.mark.parametrize("name", ["-a", ".a", "a%2Fb", "a%0A", "%C3%A9", "a" * 256, "a%20b"])
def test_a_name_that_is_not_one_is_refused(client: Client, name: str) -> None:
    for reply in (
        client.put(f"/v0/topics/{name}"),
        client.get(f"/v0/topics/{name}"),
        client.delete(f"/v0/topics/{name}"),
        client.write(name, 1),
        client.diff(name),
    ):
        assert (reply.status, reply.code) == (400, "invalid_request"), reply.raw


def test_the_type_can_not_change(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"type": "queue"})
    refused = client.put(f"/v0/topics/{topic}", {"type": "log"})
    assert (refused.status, refused.code) == (409, "topic_exists_incompatible")
    assert client.put(f"/v0/topics/{topic}", {"lease_ms": 1}).json["config"]["lease_ms"] == 100


def test_state_says_where_a_topic_stands(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}")
    fresh = client.get(f"/v0/topics/{topic}?touch=false").json
    assert (fresh["head_seq"], fresh["earliest_seq"], fresh["next_seq"]) == (0, 1, 1)
    assert (fresh["last_write_ts"], fresh["last_read_ts"]) == (None, None)
    assert fresh["effective_priority"] == 0
    client.write(topic, 1, 2, 3)
    client.post(f"/v0/topics/{topic}/delete", {"before_seq": 2})
    state = client.get(f"/v0/topics/{topic}").json
    assert (state["head_seq"], state["earliest_seq"], state["next_seq"]) == (3, 2, 4)
    assert (state["type"], state["count"]) == ("log", 2)
    assert state["bytes"] > 0
    assert state["epoch"].isdigit()
    assert state["config"] == DEFAULTS
    assert state["effective_priority"] == 500
    assert state["last_read_ts"] >= state["last_write_ts"]
    assert "queue" not in state
    assert state["performance"]["server_total_ms"] > 0


def test_a_queue_has_its_counters(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"type": "queue"})
    client.write(topic, 1, 2)
    state = client.get(f"/v0/topics/{topic}").json
    assert state["type"] == "queue"
    assert state["queue"] == {"ready": 2, "in_flight": 0, "dead_lettered": 0}


def test_a_manual_priority_overrides_recency(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"priority": -7})
    assert client.get(f"/v0/topics/{topic}").json["effective_priority"] == -7
    client.put(f"/v0/topics/{topic}", {"auto_priority": False})
    assert client.get(f"/v0/topics/{topic}").json["effective_priority"] == 0


def test_a_state_read_does_not_create(client: Client, topic: str) -> None:
    missing = client.get(f"/v0/topics/{topic}")
    assert (missing.status, missing.code) == (404, "topic_not_found")
    assert missing.detail == {"topic": topic}
    assert client.get(f"/v0/topics/{topic}?touch=perhaps").code == "invalid_request"


def test_delete_is_idempotent_and_starts_anew(client: Client, topic: str) -> None:
    client.write(topic, 1, 2)
    epoch = client.get(f"/v0/topics/{topic}").json["epoch"]
    gone = client.delete(f"/v0/topics/{topic}")
    assert (gone.status, gone.json["deleted"], gone.json["routers_removed"]) == (200, True, [])
    again = client.delete(f"/v0/topics/{topic}")
    assert (again.status, again.json["deleted"], again.json["routers_removed"]) == (200, False, [])
    assert client.write(topic, 3).json["first_seq"] == 1
    assert int(client.get(f"/v0/topics/{topic}").json["epoch"]) > int(epoch)


def test_delete_if_empty_spares_records(client: Client, topic: str) -> None:
    client.write(topic, 1)
    refused = client.delete(f"/v0/topics/{topic}?if_empty=true")
    assert (refused.status, refused.code) == (409, "topic_not_empty")
    client.post(f"/v0/topics/{topic}/delete", {"before_seq": 9})
    assert client.delete(f"/v0/topics/{topic}?if_empty=1").json["deleted"] is True


def test_listing_pages_in_byte_order(client: Client, topic: str) -> None:
    names = [f"{topic}.{end}" for end in ("A", "Z", "a", "b:1", "b:2")]
    for name in reversed(names):
        client.put(f"/v0/topics/{name}", {"durable": name.endswith("A")})
    path, found, cursor = f"/v0/topics?prefix={topic}.&page_size=2", [], ""
    for size in (2, 2, 1):
        page = client.get(path + cursor)
        assert len(page.json["topics"]) == size
        found += page.json["topics"]
        cursor = f"&cursor={page.json.get('next_cursor', '')}"
    assert [entry["topic"] for entry in found] == names
    assert "next_cursor" not in page.json
    epoch = client.get(f"/v0/topics/{names[0]}").json["epoch"]
    assert found[0] == {
        "topic": names[0], "type": "log", "epoch": epoch, "head_seq": 0, "earliest_seq": 1,
        "count": 0, "bytes": 0, "durable": True, "effective_priority": 0,
    }  # fmt: skip


def test_listing_touches_only_when_asked(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}")
    path = f"/v0/topics?prefix={topic}"
    for query, priority in (("", 0), ("&touch=true", 500), ("&touch=false", 500)):
        assert client.get(path + query).json["topics"][0]["effective_priority"] in (
            priority, priority - 1,
        )  # fmt: skip


@pytest.mark.parametrize(
    "cursor",
    ["x", "%%%", "e30=", "bnVsbA==", base64.b64encode(b'{"after": "a"}').decode(), "%ff"],
)
def test_a_cursor_that_is_not_ours_is_refused(client: Client, cursor: str) -> None:
    refused = client.get(f"/v0/topics?cursor={cursor}")
    assert (refused.status, refused.code) == (400, "invalid_request")


@pytest.mark.parametrize(("size", "status"), [("5000", 200), ("0", 200), ("-1", 400), ("x", 400)])
def test_page_sizes_are_clamped_but_have_to_be_numbers(
    client: Client, size: str, status: int
) -> None:
    assert client.get(f"/v0/topics?page_size={size}").status == status
