"""Rules of the key-value contract that take two calls to see, and what every answer has."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.server.api.test_kv import Kv, wait_for
from tests.support.servers import Client, inside


def bucket(client: Client, name: str) -> Kv:
    return Kv(client, f"rules-{name}")


def test_every_answer_says_where_the_time_went(client: Client) -> None:
    """`performance`, as in every answer of `/v0`."""
    kv = bucket(client, "performance")
    replies = [
        client.put(kv.path, {}), kv.put("k", 1), kv.get("k"), kv.get("k", "?history=true"),
        client.get(kv.path), client.get("/v0/kv"), client.get(kv.path + "/keys"),
        client.post(kv.path + "/delete", {"prefix": "x"}), kv.delete("never"), kv.delete("k"),
        client.post(kv.path + "/snapshots", {}), client.post(kv.path + "/compact", {}),
        client.delete(f"{kv.path}/snapshots/x"), client.delete(kv.path),
    ]  # fmt: skip
    assert [reply.status for reply in replies] == [201, *[200] * 9, 201, *[200] * 3]
    assert all("performance" in reply.json for reply in replies)


def test_a_page_has_a_hundred_keys_and_at_most_a_thousand(client: Client) -> None:
    """As pages of topics have: more than that is as many as there may be."""
    kv = bucket(client, "pages")
    records = [{"data": n, "tag": f"k{n:04d}"} for n in range(1001)]
    client.post(f"/v0/topics/{kv.topic}", {"records": records})
    sizes = {
        query: len(client.get(f"{kv.path}/keys{query}").json["keys"])
        for query in ("", "?page_size=7", "?page_size=1000", "?page_size=5000")
    }
    assert sizes == {"": 100, "?page_size=7": 7, "?page_size=1000": 1000, "?page_size=5000": 1000}


def test_kept_counts_markers_by_the_first_reason_that_held_them(client: Client) -> None:
    """Young, then needed by a snapshot, then not passed by a reader: one marker, three times."""
    kv = bucket(client, "kept")
    kv.put("k", 1)
    client.put(f"/v0/topics/{kv.topic}/cursors/slow", {"seq": 1})
    snapshot = client.post(kv.path + "/snapshots", {}).json["snapshot"]
    kv.delete("k")

    def held(**body: Any) -> str:
        done = kv.compact(**body)
        assert (done["removed_tombstones"], done["pending_tombstones"]) == (0, 1)
        [reason] = [name for name, count in done["kept"].items() if count]
        return str(reason)

    assert held() == "young"
    assert held(max_age_ms=0) == "snapshots"
    client.delete(f"{kv.path}/snapshots/{snapshot}")
    assert held(max_age_ms=0) == "readers"
    client.put(f"/v0/topics/{kv.topic}/cursors/slow", {"seq": 2})
    assert kv.compact(max_age_ms=0)["removed_tombstones"] == 1
    assert kv.get("k", "?history=true").code == "key_not_found"


def test_a_watcher_sees_every_change_in_order(client: Client) -> None:
    """`watch` is the log's own: puts, markers and range markers are records like others."""
    kv = bucket(client, "watch")
    for value in range(3):
        kv.put("k", value)
    kv.delete("k")
    kv.put("p:1", 1)
    kv.delete_prefix("p:")
    page = client.diff(kv.topic, wait_ms=1000).json
    kinds = [(record.get("meta") or {}).get("kv") for record in page["records"]]
    assert kinds == [None, None, None, "delete", None, "delete_prefix"]
    assert [record["$seq"] for record in page["records"]] == [1, 2, 3, 4, 5, 6]


def test_a_marker_needs_the_delete_scope_on_every_way_in(tmp_path: Path) -> None:
    """A write, and one that makes the topic; without `meta.kv` the same is a put. Stages are for
    logs: a bucket takes none, whoever asks.
    """
    keys = "root,writer:write,both:write+delete"
    marker = {"data": None, "tag": "k", "meta": {"kv": "delete"}}
    odd = {"data": None, "tag": "k", "meta": {"kv": "whatever"}}
    put = {"data": 1, "tag": "k"}
    with inside(tmp_path, TOPICS_API_KEYS=keys) as served, served.client("root") as root:
        Kv(root, "b").put("k", 1)
        writer, both = root.with_token("writer"), root.with_token("both")

        def stage(client: Client, record: Any) -> int:
            body = {"producer": "p", "batch": 0, "part": 0, "attempt": 0, "topic": "kv:b"}
            return client.post("/v0/stages", {**body, "records": [record]}).status

        for record in (marker, odd):
            for topic in ("kv:b", "kv:new"):
                assert writer.post(f"/v0/topics/{topic}", {"records": [record]}).status == 403
            assert stage(writer, record) == 403
            assert both.post("/v0/topics/kv:b", {"records": [record]}).status == 200
            assert stage(both, record) == 400
        assert writer.post("/v0/topics/kv:b", {"records": [put]}).status == 200
        assert stage(writer, put) == 400


def test_open_and_close_of_a_snapshot_need_read(tmp_path: Path) -> None:
    """Nothing else, and nothing less."""
    keys = "root,reader:read,writer:write,deleter:delete,admin:admin"
    with inside(tmp_path, TOPICS_API_KEYS=keys) as served, served.client("root") as root:
        Kv(root, "b").put("k", 1)
        made = root.with_token("reader").post("/v0/kv/b/snapshots", {}).json["snapshot"]
        for token in ("writer", "deleter", "admin"):
            other = root.with_token(token)
            assert other.post("/v0/kv/b/snapshots", {}).status == 403
            assert other.delete(f"/v0/kv/b/snapshots/{made}").status == 403
        assert root.with_token("reader").delete(f"/v0/kv/b/snapshots/{made}").status == 200


def test_a_snapshot_does_not_keep_what_was_written_after_it(client: Client) -> None:
    """Versions between a snapshot and the newest go: nobody sees them."""
    kv = bucket(client, "between")
    kv.put("k", 0)
    snapshot = client.post(kv.path + "/snapshots", {}).json["snapshot"]
    for value in range(1, 5):
        kv.put("k", value)
    kv.compact()
    versions = kv.get("k", "?history=true").json["versions"]
    assert [version["value"] for version in versions] == [0, 4]
    assert kv.get("k", f"?snapshot={snapshot}").json["value"] == 0


def test_the_history_of_a_key_under_a_range_marker_ends_with_it(client: Client) -> None:
    """With the seq of the range marker, while that remains."""
    kv = bucket(client, "range-history")
    kv.put("p:1", 1)
    done = kv.delete_prefix("p:")
    versions = kv.get("p:1", "?history=true").json["versions"]
    assert [(v["seq"], v.get("deleted", False)) for v in versions] == [(1, False), (2, True)]
    assert versions[-1]["seq"] == done["seq"]
    kv.put("p:1", 2)
    versions = kv.get("p:1", "?history=true").json["versions"]
    assert [v["seq"] for v in versions] == [1, 2, 3]
    time.sleep(0.003)
    kv.compact(max_age_ms=0)
    versions = kv.get("p:1", "?history=true").json["versions"]
    assert [v["seq"] for v in versions] == [3]


def test_a_router_between_buckets_that_is_made_anew_goes_on_or_is_refused(client: Client) -> None:
    """Each source seq is applied once; where a deleted key could stay it is 409, and says why."""
    source, replica = bucket(client, "anew-source"), bucket(client, "anew-replica")
    path, asked = "/v0/routers/rules-anew", {"source": source.topic, "dest": replica.topic}
    source.put("k", 1)
    source.put("k", 2)
    assert client.put(path, {**asked, "from_seq": 0}).status == 201
    wait_for(client, "rules-anew")
    replica.compact(max_age_ms=0)
    second = client.put("/v0/routers/rules-second", {**asked, "from_seq": 0})
    assert (second.status, second.detail["reason"]) == (409, "router_dest_fan_in")
    assert client.delete(path).json["deleted"] is True
    assert client.put(path, {**asked, "from_seq": 0}).status == 201
    wait_for(client, "rules-anew")
    assert (replica.get("k").json["value"], replica.state()["head_seq"]) == (2, 2)
    client.delete(path)
    source.delete("k")
    assert source.compact(max_age_ms=0)["removed_tombstones"] == 1
    refused = client.put(path, {**asked, "from_seq": 0})
    assert (refused.status, refused.code) == (409, "topic_exists_incompatible")
    assert refused.detail["reason"] == "router_dest_outdated"
    client.delete(replica.path)
    assert client.put(path, {**asked, "from_seq": 0}).status == 201
    wait_for(client, "rules-anew")
    assert replica.keys() == []
