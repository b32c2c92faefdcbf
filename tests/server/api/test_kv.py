"""The key-value store over HTTP: every rule of its contract, as a client meets it."""

from __future__ import annotations

import itertools
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.servers import Client, Reply, Served, inside

_numbers = itertools.count(1)
GRACE_MS = 864_000_000


class Kv:
    """One bucket of a client."""

    def __init__(self, client: Client, name: str = "") -> None:
        self.client = client
        self.name = name or f"bucket-{next(_numbers)}"
        self.path = f"/v0/kv/{self.name}"
        self.topic = f"kv:{self.name}"

    def put(self, key: str, value: Any, query: str = "", **headers: str) -> Reply:
        path = f"{self.path}/keys/{quote(key, safe='')}{query}"
        return self.client.call("PUT", path, value, headers)

    def seq(self, key: str, value: Any) -> int:
        return int(self.put(key, value).json["seq"])

    def get(self, key: str, query: str = "") -> Reply:
        return self.client.get(f"{self.path}/keys/{quote(key, safe='')}{query}")

    def delete(self, key: str, query: str = "", **headers: str) -> Reply:
        path = f"{self.path}/keys/{quote(key, safe='')}{query}"
        return self.client.call("DELETE", path, headers=headers)

    def delete_prefix(self, prefix: str) -> Any:
        return self.client.post(f"{self.path}/delete", {"prefix": prefix}).json

    def compact(self, **body: Any) -> Any:
        # Older than now, strictly.
        time.sleep(0.003)
        return self.client.post(f"{self.path}/compact", body).json

    def keys(self, query: str = "") -> list[str]:
        return [entry["key"] for entry in self.client.get(f"{self.path}/keys{query}").json["keys"]]

    def state(self) -> Any:
        return self.client.get(self.path).json


@pytest.fixture
def kv(client: Client) -> Kv:
    return Kv(client)


def bare(reply: Reply) -> Any:
    body = reply.json
    body.pop("performance", None)
    return body


# -- buckets -----------------------------------------------------------------------------------


def test_a_bucket_is_created_changed_read_and_dropped(kv: Kv, client: Client) -> None:
    assert client.get(kv.path).code == "bucket_not_found"
    made = client.put(kv.path, {})
    assert made.status == 201
    body = bare(made)
    config = body.pop("config")
    assert body == {"bucket": kv.name, "topic": kv.topic, "created": True}
    assert (config["history"], config["grace_ms"]) == (1, GRACE_MS)
    assert (config["discard"], config["ttl_ms"], config["type"]) == ("reject", 0, "log")
    changed = client.put(kv.path, {"history": 3, "grace_ms": 5, "cap_records": 100})
    assert (changed.status, changed.json["created"]) == (200, False)
    config = kv.state()["config"]
    assert (config["history"], config["grace_ms"], config["cap_records"]) == (3, 5, 100)
    assert client.put(kv.path, {"durability": "fsync"}).json["config"]["history"] == 1
    assert bare(client.delete(kv.path)) == {"bucket": kv.name, "deleted": True}
    assert bare(client.delete(kv.path)) == {"bucket": kv.name, "deleted": False}
    assert client.get(kv.path).code == "bucket_not_found"


@pytest.mark.parametrize(
    "config",
    [
        {"history": 0}, {"history": 65}, {"discard": "old"}, {"ttl_ms": 1}, {"type": "queue"},
        {"history": "3"}, {"grace_ms": -1},
    ],
    ids=str,
)  # fmt: skip
def test_a_config_that_no_bucket_has_is_refused(kv: Kv, client: Client, config: Any) -> None:
    reply = client.put(kv.path, config)
    assert (reply.status, reply.code) == (400, "invalid_request")
    assert client.get(kv.path).status == 404


def test_state_counts_keys_and_markers(kv: Kv, client: Client) -> None:
    kv.put("a", 1)
    kv.put("b", 2)
    kv.delete("a")
    state = kv.state()
    assert (state["size"], state["pending_tombstones"], state["head_seq"]) == (1, 1, 3)
    assert state["compacted_seq"] == 0
    assert state["oldest_tombstone_ts"] == kv.get("a", "?history=true").json["versions"][-1]["ts"]
    assert (state["snapshots"], state["readers"], state["topic"]) == (0, [], kv.topic)
    assert state["bytes"] == client.get(f"/v0/topics/{kv.topic}").json["bytes"]
    kv.compact(max_age_ms=0)
    state = kv.state()
    assert (state["pending_tombstones"], state["oldest_tombstone_ts"]) == (0, None)
    assert state["compacted_seq"] == 3


def test_buckets_are_listed_in_byte_order(client: Client) -> None:
    names = ["list-b", "list-a", "list-B", "list-a.1"]
    for name in names:
        Kv(client, name).put("k", 1)
    Kv(client, "list-a").delete("k")
    client.write("kv-list-plain", 1)
    found = client.get("/v0/kv?prefix=list-").json
    assert [b["bucket"] for b in found["buckets"]] == ["list-B", "list-a", "list-a.1", "list-b"]
    first = found["buckets"][1]
    assert (first["size"], first["pending_tombstones"]) == (0, 1)
    assert "next_cursor" not in found
    page = client.get("/v0/kv?prefix=list-&page_size=3").json
    rest = client.get(f"/v0/kv?prefix=list-&page_size=3&cursor={page['next_cursor']}").json
    assert [b["bucket"] for b in rest["buckets"]] == ["list-b"]


# -- keys --------------------------------------------------------------------------------------


def test_a_put_key_is_read_back_verbatim(kv: Kv, client: Client) -> None:
    put = kv.put("k", b'{"b": 1.50,  "a": [1e2]}')
    assert put.status == 200
    body = bare(put)
    ts = body.pop("ts")
    assert body == {"key": "k", "seq": 1, "created": True}
    got = kv.get("k")
    assert b'"value":{"b": 1.50,  "a": [1e2]}' in got.raw
    assert (got.json["seq"], got.json["ts"], got.json["key"]) == (1, ts, "k")
    assert bare(kv.put("k", b"null"))["created"] is False
    assert kv.get("k").json["value"] is None
    assert client.get(kv.path).json["size"] == 1


@pytest.mark.parametrize("body", [b"", b"{", b"1},{", b'"\xff"', b"nul"], ids=repr)
def test_a_value_that_is_no_json_is_refused(kv: Kv, body: bytes) -> None:
    reply = kv.put("k", body)
    assert (reply.status, reply.code) == (400, "invalid_request")


@pytest.mark.parametrize("key", ["a/b", "ä €", "%", "a?b#c", "\U0010ffff", "k" * 256, "..."])
def test_a_key_is_one_segment_percent_encoded(kv: Kv, key: str) -> None:
    kv.put(key, key)
    assert kv.get(key).json["value"] == key
    assert kv.keys() == [key]
    assert kv.delete(key).json["deleted"] is True


@pytest.mark.parametrize("key", ["", ".", "..", "k" * 257, "é" * 129], ids=repr)
@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE"])
def test_a_name_that_is_no_key_is_refused(kv: Kv, client: Client, method: str, key: str) -> None:
    kv.put("other", 1)
    path = f"{kv.path}/keys/{quote(key, safe='')}"
    reply = client.call(method, path, 1 if method == "PUT" else None)
    assert (reply.status, reply.code) == (400, "invalid_request")


@pytest.mark.parametrize("name", ["-a", ".a", "a/b", "a b", "b" * 253], ids=repr)
def test_a_name_that_is_no_bucket_is_refused(client: Client, name: str) -> None:
    reply = client.put(f"/v0/kv/{quote(name, safe='')}", {})
    assert (reply.status, reply.code) == (400, "invalid_request")


def test_the_longest_name_is_a_bucket(client: Client) -> None:
    kv = Kv(client, "b" * 252)
    assert kv.put("k", 1).status == 200
    assert kv.get("k").json["value"] == 1


def test_a_call_on_a_missing_bucket_is_not_found(kv: Kv, client: Client) -> None:
    calls = [
        client.get(kv.path), kv.get("k"), kv.delete("k"), client.get(kv.path + "/keys"),
        client.post(kv.path + "/delete", {"prefix": ""}), client.post(kv.path + "/compact", {}),
        client.post(kv.path + "/snapshots", {}), client.delete(kv.path + "/snapshots/x"),
    ]  # fmt: skip
    assert {(reply.status, reply.code) for reply in calls} == {(404, "bucket_not_found")}


def test_a_deleted_key_is_not_found_like_one_never_written(kv: Kv) -> None:
    seq = kv.seq("k", 1)
    gone = bare(kv.delete("k"))
    assert gone == {"key": "k", "deleted": True, "seq": seq + 1}
    assert bare(kv.delete("k")) == {"key": "k", "deleted": False, "seq": None}
    replies = [kv.get("k"), kv.get("never")]
    assert {(reply.status, reply.code) for reply in replies} == {(404, "key_not_found")}
    assert kv.state()["head_seq"] == seq + 1
    assert kv.put("k", 2).json["created"] is True


def test_compare_and_set_means_the_same_on_put_and_delete(kv: Kv) -> None:
    for call in (lambda q: kv.put("k", 1, q), lambda q: kv.delete("k", q)):
        kv.put("other", 0)
        refused = call("?if_seq=7")
        assert (refused.status, refused.code, refused.detail["seq"]) == (409, "conflict", 0)
    seq = kv.put("k", 1, "?if_seq=0").json["seq"]
    for call in (lambda q: kv.put("k", 2, q), lambda q: kv.delete("k", q)):
        for wrong in (0, seq + 1):
            refused = call(f"?if_seq={wrong}")
            assert (refused.status, refused.code, refused.detail["seq"]) == (409, "conflict", seq)
    seq = kv.put("k", 2, f"?if_seq={seq}").json["seq"]
    assert kv.delete("k", f"?if_seq={seq}").json["deleted"] is True
    assert kv.delete("k", "?if_seq=0").json["deleted"] is False


def test_a_repeated_put_with_an_idempotency_key_does_not_conflict_with_itself(kv: Kv) -> None:
    named = {"Idempotency-Key": "once"}
    first = bare(kv.put("k", 1, "?if_seq=0", **named))
    assert first["created"] is True
    kv.put("k", 2)
    assert bare(kv.put("k", 1, "?if_seq=0", **named)) == first
    assert kv.get("k").json["value"] == 2
    seq = kv.get("k").json["seq"]
    gone = bare(kv.delete("k", f"?if_seq={seq}", **named))
    assert gone["deleted"] is True
    assert bare(kv.delete("k", f"?if_seq={seq}", **named)) == gone
    assert kv.state()["head_seq"] == gone["seq"]


def test_a_repeated_delete_that_found_nothing_finds_nothing_again(kv: Kv) -> None:
    """Whatever was put since: it is the same call, and it has been answered."""
    kv.put("other", 1)
    named = {"Idempotency-Key": "once"}
    nothing = {"key": "k", "deleted": False, "seq": None}
    assert bare(kv.delete("k", **named)) == nothing
    kv.put("k", 1)
    assert bare(kv.delete("k", **named)) == nothing
    assert bare(kv.delete("k", "?if_seq=0", **named)) == nothing
    assert kv.get("k").json["value"] == 1
    assert kv.delete("k", **{"Idempotency-Key": "another"}).json["deleted"] is True


def test_two_puts_with_one_if_seq_have_one_winner(kv: Kv, client: Client, served: Served) -> None:
    """In a bucket of class fsync both stand in one commit, and neither is readable yet."""
    client.put(kv.path, {"durability": "fsync"})
    body = b"1"
    request = (
        f"PUT {kv.path}/keys/k?if_seq=0 HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    with socket.create_connection(("127.0.0.1", served.port)) as sock:
        sock.sendall(request * 2)
        raw = b""
        while raw.count(b"HTTP/1.1 ") < 2 or not raw.endswith(b"}"):
            raw += sock.recv(65536)
    assert (raw.count(b"HTTP/1.1 200"), raw.count(b"HTTP/1.1 409")) == (1, 1)
    assert kv.state()["head_seq"] == 1


# -- range deletes -----------------------------------------------------------------------------


def test_a_range_delete_is_one_marker_however_many_keys(kv: Kv, client: Client) -> None:
    for name in ("a", "a:1", "a:2", "b"):
        kv.put(name, 1)
    done = kv.delete_prefix("a:")
    assert (done["deleted"], done["seq"]) == (2, 5)
    assert kv.keys() == ["a", "b"]
    assert kv.state()["pending_tombstones"] == 1
    assert kv.put("a:1", 2).json["created"] is True
    assert kv.keys() == ["a", "a:1", "b"]
    again = kv.delete_prefix("x")
    assert (again["deleted"], again["seq"]) == (0, None)
    assert kv.delete_prefix("")["deleted"] == 3
    assert (kv.keys(), kv.state()["size"]) == ([], 0)
    assert client.post(kv.path + "/delete", {}).code == "invalid_request"


# -- listing -----------------------------------------------------------------------------------


def test_live_keys_are_listed_in_byte_order_in_pages(kv: Kv, client: Client) -> None:
    names = ["a", "B", "é", "z", "\U0001f600", "￿", "a\x01"]
    for name in names:
        kv.put(name, name)
    kv.put("gone", 1)
    kv.delete("gone")
    wanted = sorted(names, key=str.encode)
    assert kv.keys() == wanted
    found, cursor = [], ""
    while True:
        page = client.get(f"{kv.path}/keys?page_size=3&values=true{cursor}").json
        found += [(entry["key"], entry["value"]) for entry in page["keys"]]
        if "next_cursor" not in page:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert found == [(name, name) for name in wanted]
    assert kv.keys("?prefix=a") == ["a", "a\x01"]
    entry = client.get(f"{kv.path}/keys?prefix=z").json["keys"][0]
    got = kv.get("z").json
    assert entry == {"key": "z", "seq": got["seq"], "ts": got["ts"]}


# -- the past ----------------------------------------------------------------------------------


def test_history_ends_in_the_marker_while_it_remains(kv: Kv, client: Client) -> None:
    client.put(kv.path, {"history": 3})
    for value in range(4):
        kv.put("k", value)
    kv.delete("k")
    kv.compact()
    versions = kv.get("k", "?history=true").json["versions"]
    assert [v.get("value", "deleted") for v in versions] == [1, 2, 3, "deleted"]
    assert versions[-1] == {"seq": 5, "ts": versions[-1]["ts"], "deleted": True}
    kv.put("other", 1)
    kv.delete_prefix("oth")
    assert kv.get("other", "?history=true").json["versions"][-1] == {
        "seq": 7, "ts": kv.get("other", "?history=true").json["versions"][-1]["ts"],
        "deleted": True,
    }  # fmt: skip
    kv.compact(max_age_ms=0)
    replies = [kv.get("k", "?history=true"), kv.get("other", "?history=true")]
    assert {(reply.status, reply.code) for reply in replies} == {(404, "key_not_found")}


def test_markers_do_not_count_towards_history(kv: Kv, client: Client) -> None:
    client.put(kv.path, {"history": 2})
    kv.put("k", 1)
    kv.delete("k")
    kv.put("k", 2)
    kv.compact()
    versions = kv.get("k", "?history=true").json["versions"]
    assert [v.get("value", "deleted") for v in versions] == [1, "deleted", 2]


def test_past_reads_are_answered_or_compacted(kv: Kv, client: Client) -> None:
    kv.put("k", 1)
    kv.put("other", 1)
    kv.put("k", 2)
    assert kv.get("k", "?at_seq=1").json["value"] == 1
    assert kv.get("k", "?at_seq=0").code == "key_not_found"
    assert kv.get("other", "?at_seq=1").code == "key_not_found"
    assert kv.keys("?at_seq=1") == ["k"]
    assert kv.keys("?at_seq=0") == []
    for path in ("/keys/k?at_seq=4", "/keys?at_seq=4", "/keys/k?at_seq=1&snapshot=x"):
        assert client.get(kv.path + path).code == "invalid_request"
    kv.compact()
    assert kv.state()["compacted_seq"] == 1
    for at in (1, 2):
        assert (kv.get("k", f"?at_seq={at}").status, kv.get("k", f"?at_seq={at}").code) == (
            410,
            "compacted",
        )
        assert client.get(f"{kv.path}/keys?at_seq={at}").code == "compacted"
    assert kv.get("k", "?at_seq=3").json["value"] == 2
    assert kv.get("other", "?at_seq=2").json["value"] == 1
    assert kv.keys("?at_seq=3") == ["k", "other"]
    assert kv.get("k", "?at_seq=0").code == "key_not_found"


def test_a_version_that_a_snapshot_kept_is_not_taken_for_a_later_one(kv: Kv) -> None:
    kv.put("k", 1)
    snapshot = kv.client.post(kv.path + "/snapshots", {}).json["snapshot"]
    kv.put("k", 2)
    kv.put("k", 3)
    assert kv.compact()["removed_versions"] == 1
    assert kv.get("k", "?at_seq=2").code == "compacted"
    assert kv.get("k", "?at_seq=3").json["value"] == 3
    assert kv.get("k", f"?snapshot={snapshot}").json["value"] == 1


# -- snapshots ---------------------------------------------------------------------------------


def test_a_snapshot_sees_what_it_saw_until_it_is_closed(kv: Kv, client: Client) -> None:
    kv.put("a", 1)
    kv.put("b", 1)
    opened = client.post(kv.path + "/snapshots", {"ttl_ms": 60_000})
    assert opened.status == 201
    name = opened.json["snapshot"]
    assert opened.json["seq"] == 2
    assert 0 < opened.json["expires_ts"] - time.time() * 1000 <= 61_000
    kv.put("a", 2)
    kv.delete("b")
    kv.put("c", 1)
    done = kv.compact(max_age_ms=0)
    assert done["kept"] == {"young": 0, "snapshots": 1, "readers": 0}
    assert (done["removed_tombstones"], done["removed_versions"]) == (0, 0)
    assert kv.state()["snapshots"] == 1
    assert kv.keys(f"?snapshot={name}") == ["a", "b"]
    assert kv.get("a", f"?snapshot={name}").json["value"] == 1
    assert kv.get("c", f"?snapshot={name}").code == "key_not_found"
    closed = client.delete(f"{kv.path}/snapshots/{name}")
    assert closed.status == 200
    assert client.delete(f"{kv.path}/snapshots/{name}").status == 200
    assert kv.get("a", f"?snapshot={name}").code == "snapshot_not_found"
    done = kv.compact(max_age_ms=0)
    assert (done["removed_tombstones"], done["removed_versions"]) == (1, 2)


def test_a_snapshot_runs_out(kv: Kv, client: Client) -> None:
    kv.put("a", 1)
    name = client.post(kv.path + "/snapshots", {"ttl_ms": 1}).json["snapshot"]
    time.sleep(0.01)
    replies = [kv.get("a", f"?snapshot={name}"), client.get(f"{kv.path}/keys?snapshot={name}")]
    assert {(reply.status, reply.code) for reply in replies} == {(404, "snapshot_not_found")}
    for ttl_ms in (0, 86_400_001):
        refused = client.post(kv.path + "/snapshots", {"ttl_ms": ttl_ms})
        assert (refused.status, refused.code) == (400, "invalid_request")


# -- compaction --------------------------------------------------------------------------------


def test_a_marker_stays_while_it_is_young(kv: Kv) -> None:
    kv.put("k", 1)
    kv.delete("k")
    done = kv.compact()
    assert done["kept"] == {"young": 1, "snapshots": 0, "readers": 0}
    assert done["pending_tombstones"] == 1
    done = kv.compact(max_age_ms=0)
    assert (done["removed_tombstones"], done["removed_versions"]) == (1, 1)
    assert done["pending_tombstones"] == 0


def test_a_marker_stays_until_every_reader_has_passed_it(kv: Kv, client: Client) -> None:
    kv.put("k", 1)
    client.put(f"/v0/topics/{kv.topic}/cursors/slow", {"seq": 1})
    kv.delete("k")
    assert kv.state()["readers"] == [{"name": "slow", "kind": "cursor", "seq": 1}]
    done = kv.compact(max_age_ms=0)
    assert (done["removed_tombstones"], done["kept"]["readers"]) == (0, 1)
    client.put(f"/v0/topics/{kv.topic}/cursors/slow", {"seq": 2})
    assert kv.compact(max_age_ms=0)["removed_tombstones"] == 1


def test_compaction_can_be_asked_for_a_prefix(kv: Kv) -> None:
    for name in ("a1", "a2", "b1"):
        kv.put(name, 1)
        kv.delete(name)
    done = kv.compact(max_age_ms=0, prefix="a")
    assert (done["removed_tombstones"], done["removed_versions"]) == (2, 2)
    assert done["pending_tombstones"] == 1


def test_the_server_compacts_by_itself(kv: Kv, client: Client) -> None:
    client.put(kv.path, {"grace_ms": 1})
    for value in range(50):
        kv.put("k", value)
    kv.put("gone", 1)
    kv.delete("gone")
    deadline = time.monotonic() + 20
    while True:
        state = kv.state()
        count = client.get(f"/v0/topics/{kv.topic}").json["count"]
        if (state["pending_tombstones"], count) == (0, 1):
            break
        assert time.monotonic() < deadline, (state, count)
        time.sleep(0.05)
    assert kv.get("k").json["value"] == 49


# -- on the log --------------------------------------------------------------------------------


def test_changes_are_ordinary_records_of_the_topic(kv: Kv, client: Client) -> None:
    kv.put("k", {"v": 1})
    kv.delete("k")
    kv.put("p:1", 1)
    kv.delete_prefix("p:")
    records = client.diff(kv.topic, include_tags=True).json["records"]
    shown = [(r.get("$tag"), r["data"], r.get("meta")) for r in records]
    assert shown == [
        ("k", {"v": 1}, None),
        ("k", None, {"kv": "delete"}),
        ("p:1", 1, None),
        (None, {"prefix": "p:"}, {"kv": "delete_prefix"}),
    ]


def test_records_written_to_the_log_are_changes_of_the_bucket(kv: Kv, client: Client) -> None:
    records = [
        {"data": 1, "tag": "a"}, {"data": 2, "tag": "b"}, {"data": 3, "tag": "c:1"},
        {"data": "ignored"}, {"data": None, "tag": "a", "meta": {"kv": "delete"}},
        {"data": {"prefix": "c:"}, "meta": {"kv": "delete_prefix"}},
        {"data": 9, "tag": "x", "meta": {"kv": "who knows"}},
        {"data": {"no": "prefix"}, "meta": {"kv": "delete_prefix"}},
        {"data": 4, "tag": "d", "meta": {"of": "mine"}},
    ]  # fmt: skip
    assert client.post(f"/v0/topics/{kv.topic}", {"records": records}).status == 201
    assert kv.keys() == ["b", "d"]
    state = kv.state()
    assert (state["size"], state["pending_tombstones"]) == (2, 2)
    assert state["config"]["history"] == 1
    refused = kv.put("b", 5, "?if_seq=1")
    assert refused.detail["seq"] == 2


def test_the_logs_own_delete_is_refused_on_a_bucket(kv: Kv, client: Client) -> None:
    kv.put("k", 1)
    for body in ({"before_seq": 9}, {"match": "k"}):
        reply = client.post(f"/v0/topics/{kv.topic}/delete", body)
        assert (reply.status, reply.code) == (409, "conflict")
    assert kv.get("k").json["value"] == 1
    assert client.delete(f"/v0/topics/{kv.topic}").json["deleted"] is True
    assert client.get(kv.path).code == "bucket_not_found"


def test_a_topic_of_that_name_is_a_bucket_whoever_makes_it(client: Client) -> None:
    by_put, by_router = Kv(client), Kv(client)
    assert client.put(f"/v0/topics/{by_put.topic}", {"cap_records": 5}).status == 201
    client.write("kv-router-source", 1)
    router = {"source": "kv-router-source", "dest": by_router.topic}
    assert client.put("/v0/routers/kv-maker", router).status == 201
    for kv in (by_put, by_router):
        config = kv.state()["config"]
        assert (config["discard"], config["history"], config["grace_ms"]) == ("reject", 1, GRACE_MS)
    client.put(by_put.path, {"history": 7, "grace_ms": 9})
    assert client.put(f"/v0/topics/{by_put.topic}", {"cap_records": 6}).status == 200
    config = by_put.state()["config"]
    assert (config["history"], config["grace_ms"], config["cap_records"]) == (7, 9, 6)
    for wrong in ({"discard": "old"}, {"ttl_ms": 5}, {"type": "queue"}):
        assert client.put(f"/v0/topics/{by_put.topic}", wrong).status == 409
    assert client.call("PATCH", f"/v0/topics/{by_put.topic}", {"ttl_ms": 5}).status == 409
    written = {"records": [{"data": 1, "tag": "k"}], "config": {"type": "queue"}}
    assert client.post("/v0/topics/kv:none", written).code == "conflict"
    document = client.get("/v0/openapi.json").json["paths"]["/v0/topics/{topic}"]
    assert all("409" in document[method]["responses"] for method in ("put", "patch", "post"))


# -- full buckets ------------------------------------------------------------------------------


def test_a_full_bucket_refuses_puts_and_takes_markers(kv: Kv, client: Client) -> None:
    client.put(kv.path, {"cap_records": 2})
    kv.put("a", 1)
    kv.put("b", 1)
    full = kv.put("c", 1)
    assert (full.status, full.code) == (422, "topic_full")
    assert kv.delete("a").json["deleted"] is True
    assert kv.delete_prefix("b")["deleted"] == 1
    assert kv.get("b", "?at_seq=2").json["value"] == 1
    state = client.get(f"/v0/topics/{kv.topic}").json
    assert (state["count"], state["earliest_seq"]) == (4, 1)
    kv.compact(max_age_ms=0)
    assert kv.put("c", 1).status == 200


def test_a_cap_that_is_lowered_evicts_nothing_from_a_bucket(kv: Kv, client: Client) -> None:
    for name in "abcd":
        kv.put(name, "x" * 100)
    client.put(kv.path, {"cap_records": 1, "cap_bytes": 50})
    assert kv.keys() == ["a", "b", "c", "d"]
    assert kv.delete("a").json["deleted"] is True
    assert kv.keys() == ["b", "c", "d"]
    assert kv.put("e", 1).code == "topic_full"


def wait_for(client: Client, router: str) -> None:
    deadline = time.monotonic() + 10
    while client.get(f"/v0/routers/{router}").json["lag"]:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_router_brings_markers_into_a_full_bucket(client: Client) -> None:
    source, replica = Kv(client), Kv(client)
    client.put(replica.path, {"cap_records": 2})
    name = f"replica-{next(_numbers)}"
    client.put(f"/v0/routers/{name}", {"source": source.topic, "dest": replica.topic})
    for key in ("a", "b"):
        source.put(key, 1)
    source.delete("a")
    source.delete_prefix("b")
    wait_for(client, name)
    assert (replica.keys(), replica.state()["pending_tombstones"]) == ([], 2)
    source.put("c", 1)
    source.delete("c")
    deadline = time.monotonic() + 10
    while client.get(f"/v0/routers/{name}").json["blocked"] != "topic_full":
        assert time.monotonic() < deadline
        time.sleep(0.005)
    replica.compact(max_age_ms=0)
    wait_for(client, name)
    assert replica.state()["head_seq"] == 6
    assert client.get(f"/v0/routers/{name}").json["guarantee"] == "exactly_once"


def test_a_marker_waits_for_a_router_that_is_held_back(client: Client) -> None:
    source, replica = Kv(client), Kv(client)
    client.put(replica.path, {"cap_records": 1})
    name = f"held-{next(_numbers)}"
    client.put(f"/v0/routers/{name}", {"source": source.topic, "dest": replica.topic})
    source.put("a", 1)
    source.put("b", 1)
    source.delete("a")
    deadline = time.monotonic() + 10
    while client.get(f"/v0/routers/{name}").json["blocked"] != "topic_full":
        assert time.monotonic() < deadline
        time.sleep(0.005)
    done = source.compact(max_age_ms=0)
    assert (done["removed_tombstones"], done["kept"]["readers"]) == (0, 1)
    assert source.state()["readers"] == [{"name": name, "kind": "router", "seq": 1}]
    client.put(replica.path, {"cap_records": 9})
    wait_for(client, name)
    assert replica.keys() == ["b"]
    assert source.compact(max_age_ms=0)["removed_tombstones"] == 1


# -- a start, keys, metrics --------------------------------------------------------------------


def test_a_bucket_is_the_same_after_a_start(tmp_path: Path) -> None:
    with inside(tmp_path) as served, served.client() as client:
        kv = Kv(client, "b")
        client.put(kv.path, {"history": 2})
        for value in range(4):
            kv.put("k", value)
        kv.put("x:1", 1)
        kv.delete_prefix("x:")
        kv.put("y", 1)
        kv.delete("y")
        kv.compact()
        shown = kv.client.get(kv.path).json
    with inside(tmp_path) as served, served.client() as client:
        kv = Kv(client, "b")
        again = kv.state()
        for body in (shown, again):
            del body["performance"]
        assert again == shown
        versions = kv.get("k", "?history=true").json["versions"]
        assert [each["value"] for each in versions] == [2, 3]
        assert kv.get("k", "?at_seq=2").code == "compacted"
        assert kv.get("y").code == "key_not_found"
        assert kv.keys() == ["k"]


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_no_key_that_the_log_still_has_is_missing_after_a_start(
    tmp_path: Path, durability: str
) -> None:
    """A topic of class memory is brought back after the start, and its bucket was taken for empty:
    keys that were there were not found, and could be put as new."""
    with inside(tmp_path) as served, served.client() as client:
        kv = Kv(client, "b")
        client.put(kv.path, {"durability": durability})
        for number in range(50):
            kv.put(f"k{number}", number)
        kv.delete("k7")
    with inside(tmp_path) as served, served.client() as client:
        kv = Kv(client, "b")
        assert kv.state()["head_seq"] == 51
        assert (kv.state()["size"], kv.state()["pending_tombstones"]) == (49, 1)
        assert kv.get("k8").json["value"] == 8
        assert kv.get("k7").code == "key_not_found"
        assert kv.put("k8", 0, "?if_seq=0").code == "conflict"


def test_each_call_needs_its_scope_and_a_name_within_the_prefixes(tmp_path: Path) -> None:
    keys = "root,reader:read,writer:write,deleter:delete,admin:admin,tenant::kv:t42-"
    with inside(tmp_path, TOPICS_API_KEYS=keys) as served, served.client("root") as root:
        kv = Kv(root, "t42-a")
        kv.put("k", 1)
        calls = {
            "reader": [("GET", kv.path), ("GET", kv.path + "/keys"), ("GET", kv.path + "/keys/k"),
                       ("GET", "/v0/kv"), ("POST", kv.path + "/snapshots")],
            "writer": [("PUT", kv.path + "/keys/k")],
            "deleter": [("DELETE", kv.path + "/keys/k"), ("POST", kv.path + "/delete"),
                        ("POST", kv.path + "/compact")],
            "admin": [("PUT", kv.path)],
        }  # fmt: skip
        for owner, wanted in calls.items():
            for method, path in wanted:
                body = {"prefix": "q"} if path.endswith("/delete") else {}
                sent = None if method in ("GET", "DELETE") else body
                for token in calls:
                    status = root.with_token(token).call(method, path, sent).status
                    assert (status == 403) == (token != owner), (token, method, path, status)
        tenant = root.with_token("tenant")
        assert tenant.get(kv.path).status == 200
        assert Kv(tenant, "other").put("k", 1).status == 403
        Kv(root, "other").put("k", 1)
        assert [b["bucket"] for b in tenant.get("/v0/kv").json["buckets"]] == ["t42-a"]
        marker = {"records": [{"data": None, "tag": "k", "meta": {"kv": "delete"}}]}
        path = f"/v0/topics/{kv.topic}"
        assert root.with_token("writer").post(path, marker).status == 403
        assert root.with_token("writer").post("/v0/topics/plain", marker).status == 201
        assert root.post(path, marker).status == 200


def test_keys_and_markers_are_in_the_metrics(tmp_path: Path) -> None:
    with inside(tmp_path, TOPICS_KV_TOMBSTONES_WARN="2") as served, served.client() as client:
        kv = Kv(client, "b")
        for key in "abc":
            kv.put(key, 1)
        kv.delete("a")
        metrics = client.metrics()
        assert metrics["topics_kv_size"] == {"b": 2}
        assert metrics["topics_kv_pending_tombstones"] == {"b": 1}
        assert metrics["topics_kv_oldest_tombstone_seconds"]["b"] >= 0
        assert metrics["topics_kv_oldest_tombstone_age_ms"]["b"] >= 0
        assert metrics["topics_kv_tombstones_over"] == {"b": 0}
        kv.delete("b")
        assert client.metrics()["topics_kv_tombstones_over"] == {"b": 1}


def test_a_bucket_is_in_the_metrics_as_soon_as_it_is_there(tmp_path: Path) -> None:
    """However it was made; before, it was there once somebody had used it."""
    with (
        inside(tmp_path, TOPICS_API_KEYS="root,tenant::kv:t-") as served,
        served.client("root") as client,
        served.client("tenant") as tenant,
    ):
        client.put("/v0/kv/empty", {})
        client.put("/v0/kv/t-put/keys/k", 1)
        records = [{"data": 1, "tag": "a"}, {"data": 2, "tag": "b"}]
        client.post("/v0/topics/kv:written", {"records": records})
        sizes = client.metrics()["topics_kv_size"]
        assert sizes == {"empty": 0, "t-put": 1, "written": 2}
        assert tenant.metrics()["topics_kv_size"] == {"t-put": 1}
        client.delete("/v0/kv/empty")
        assert set(client.metrics()["topics_kv_size"]) == {"t-put", "written"}


def test_the_age_of_the_oldest_marker_is_in_the_metrics_in_milliseconds(tmp_path: Path) -> None:
    with inside(tmp_path) as served, served.client() as client:
        kv = Kv(client, "b")
        kv.put("k", 1)
        assert client.metrics()["topics_kv_oldest_tombstone_age_ms"] == {"b": 0}
        kv.delete("k")
        time.sleep(0.01)
        age_ms = client.metrics()["topics_kv_oldest_tombstone_age_ms"]["b"]
        assert isinstance(age_ms, int)
        assert 10 <= age_ms < 60_000
        text = client.get("/v0/metrics").raw.decode()
        assert '\ntopics_kv_oldest_tombstone_age_ms{bucket="b"} ' in text
