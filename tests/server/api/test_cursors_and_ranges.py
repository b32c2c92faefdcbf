"""Cursors, ranges and seq-at over HTTP: shapes, scopes, errors, both formats."""

from __future__ import annotations

import importlib.util
import io
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.servers import Client, Served, inside
from topics.server.api import shapes

HAS_ARROW = importlib.util.find_spec("pyarrow") is not None
COLUMNS = [
    "topic", "epoch", "seq", "ts", "node", "tag", "meta", "data", "_kind", "_gap_to", "_gap_reason",
]  # fmt: skip


def test_a_cursor_is_put_read_listed_and_deleted(client: Client, topic: str) -> None:
    path = f"/v0/topics/{topic}/cursors"
    client.write(topic, 1, 2, 3, 4)
    epoch = client.get(f"/v0/topics/{topic}").json["epoch"]
    put = client.put(f"{path}/spark", {"seq": 3, "epoch": epoch})
    assert put.status == 200
    body = put.json
    assert body.pop("performance")["fsync_ms"] > 0
    assert body.pop("updated_ts") > 0
    assert body == {
        "topic": topic, "cursor": "spark", "seq": 3, "epoch": epoch, "lag": 1, "created": True,
        "hold": None,
    }  # fmt: skip
    client.put(f"{path}/a", {"seq": 0, "hold": {"max_bytes": 10**6, "max_age_ms": 1000}})
    assert client.get(f"{path}/spark").json["lag"] == 1
    listed = client.get(path).json["cursors"]
    assert [(c["cursor"], c["seq"], c["lag"]) for c in listed] == [("a", 0, 4), ("spark", 3, 1)]
    assert listed[0]["hold"] == {"max_bytes": 10**6, "max_age_ms": 1000}
    assert client.get(f"/v0/topics/{topic}").json["cursors"] == listed
    assert client.delete(f"{path}/spark").json["deleted"] is True
    assert client.delete(f"{path}/spark").json["deleted"] is False
    assert (client.get(f"{path}/spark").status, client.get(f"{path}/spark").code) == (
        404,
        "not_found",
    )


def test_every_answer_is_of_its_declared_type(client: Client, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    client.put(path, {"cap_records": 2})
    client.post(path, {"records": [{"data": 1, "tag": "t", "meta": {"k": "v"}}] * 4})
    replies: list[tuple[type, Any]] = [
        (shapes.CursorBody, client.put(path + "/cursors/c", {"seq": 1, "hold": {"max_bytes": 9}})),
        (shapes.CursorBody, client.get(path + "/cursors/c")),
        (shapes.CursorList, client.get(path + "/cursors")),
        (shapes.TopicStateBody, client.get(path)),
        (shapes.RangeAnswer, client.post(path + "/range", {"to_seq": 4})),
        (shapes.RangeAnswer, client.post(path + "/range", {"to_seq": 4, "format": "none"})),
        (shapes.SeqAt, client.get(path + "/seq-at?ts=0")),
        (shapes.SeqAt, client.get(path + f"/seq-at?ts={2**63}")),
        (shapes.CursorDeleted, client.delete(path + "/cursors/c")),
    ]
    for kind, reply in replies:
        assert reply.status == 200, reply.raw
        decoded = msgspec.json.decode(reply.raw, type=kind)
        assert msgspec.to_builtins(decoded) == reply.json, kind


def test_if_absent_reset_and_epoch_are_honoured(client: Client, topic: str) -> None:
    path = f"/v0/topics/{topic}/cursors/c"
    client.write(topic, 1, 2, 3)
    assert client.put(path, {"seq": 2, "if_absent": True}).json["created"] is True
    again = client.put(path, {"seq": 3, "if_absent": True}).json
    assert (again["created"], again["seq"]) == (False, 2)
    back = client.put(path, {"seq": 1})
    assert (back.status, back.code, back.detail["seq"]) == (409, "cursor_regressed", 2)
    assert client.put(path, {"seq": 1, "reset": True}).json["seq"] == 1
    other = client.put(path, {"seq": 3, "epoch": "999999999"})
    assert (other.status, other.code) == (409, "conflict")


def test_a_leased_cursor_is_one_readers(client: Client, topic: str) -> None:
    """Another owner is refused until the lease is over or given back; who names none never is."""
    path = f"/v0/topics/{topic}/cursors/c"
    client.write(topic, 1, 2, 3)
    mine, other = {"owner": "a", "lease_ms": 60_000}, {"owner": "b", "lease_ms": 1}
    assert client.put(path, {"seq": 1, **mine}).status == 200
    refused = client.put(path, {"seq": 2, **other})
    assert (refused.status, refused.code) == (409, "cursor_leased")
    assert 0 < refused.detail["left_ms"] <= 60_000
    assert client.get(path).json["seq"] == 1
    assert client.put(path, mine).json["seq"] == 1
    assert client.put(path, {"seq": 2}).json["seq"] == 2
    assert client.put(path, {**mine, "lease_ms": 0}).status == 200
    assert client.put(path, {"seq": 3, **other}).status == 200
    time.sleep(0.01)
    assert client.put(path, mine).status == 200


@pytest.mark.parametrize(
    "body",
    [
        {"owner": "a"}, {"lease_ms": 1}, {"owner": "", "lease_ms": 1}, {"owner": 1, "lease_ms": 1},
        {"owner": "a" * 129, "lease_ms": 1}, {"owner": "a", "lease_ms": -1},
        {}, {"seq": -1}, {"seq": "1"}, {"seq": 4}, {"seq": True}, {"seq": 1, "epoch": 1},
        {"seq": 1, "epoch": "x"}, {"seq": 1, "hold": {}}, {"seq": 1, "hold": {"max_bytes": 0}},
        {"seq": 1, "hold": {"max_age_ms": -1}}, {"seq": 1, "hold": 5},
    ],
)  # fmt: skip
def test_a_cursor_that_is_none_is_refused(client: Client, topic: str, body: Any) -> None:
    client.write(topic, 1, 2, 3)
    refused = client.put(f"/v0/topics/{topic}/cursors/c", body)
    assert (refused.status, refused.code) == (400, "invalid_request")
    assert client.get(f"/v0/topics/{topic}/cursors").json["cursors"] == []
    assert client.put(f"/v0/topics/{topic}/cursors/a%20b", {"seq": 0}).status == 400


def test_nothing_here_creates_a_topic(client: Client, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    for reply in (
        client.put(path + "/cursors/c", {"seq": 0}), client.get(path + "/cursors"),
        client.get(path + "/cursors/c"), client.delete(path + "/cursors/c"),
        client.post(path + "/range", {}), client.get(path + "/seq-at?ts=0"),
    ):  # fmt: skip
        assert (reply.status, reply.code) == (404, "topic_not_found")


def test_reading_is_enough_but_for_holds_and_deletes(locked: Served) -> None:
    with locked.client("root-secret") as root:
        root.write("scoped", 1, 2, 3)
        root.write("t42:scoped", 1)
        reader, writer = root.with_token("reader"), root.with_token("writer")
        path = "/v0/topics/scoped/cursors/c"
        assert reader.put(path, {"seq": 1}).status == 200
        assert reader.get(path).status == 200
        assert reader.get("/v0/topics/scoped/cursors").status == 200
        assert reader.post("/v0/topics/scoped/range", {}).status == 200
        assert reader.get("/v0/topics/scoped/seq-at?ts=0").status == 200
        for reply in (
            reader.put(path, {"seq": 2, "hold": {"max_bytes": 10}}),
            reader.put(path, {"seq": 2, "hold": None}), reader.delete(path),
            writer.put(path, {"seq": 2}), writer.post("/v0/topics/scoped/range", {}),
            root.with_token("tenant-reader").put(path, {"seq": 1}),
        ):  # fmt: skip
            assert (reply.status, reply.code) == (403, "forbidden")
        assert root.put(path, {"seq": 1, "hold": {"max_bytes": 10}}).status == 200
        # A reader moves on without losing what an admin gave it.
        assert reader.put(path, {"seq": 2}).json["hold"] == {"max_bytes": 10, "max_age_ms": None}
        assert root.delete(path).json["deleted"] is True
        tenant = root.with_token("tenant-reader")
        assert tenant.put("/v0/topics/t42:scoped/cursors/c", {"seq": 1}).status == 200


def test_a_hold_keeps_what_a_cap_would_take(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"cap_records": 2})
    path = f"/v0/topics/{topic}/cursors/c"
    client.put(path, {"seq": 0, "hold": {"max_age_ms": 600_000}})
    client.write(topic, 1, 2, 3, 4, 5)
    assert client.get(f"/v0/topics/{topic}").json["count"] == 5
    client.put(path, {"seq": 5})
    assert client.get(f"/v0/topics/{topic}").json["earliest_seq"] == 4
    assert client.diff(topic).json["tombstone"]["reason"] == "cap"


def test_lag_is_in_the_metrics(client: Client, topic: str) -> None:
    client.write(topic, 1, 2, 3)
    client.put(f"/v0/topics/{topic}/cursors/c", {"seq": 1})
    text = client.get("/v0/metrics").raw.decode()
    samples = {
        (sample.labels["topic"], sample.labels["cursor"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "topics_cursor_lag"
    }
    assert samples[topic, "c"] == 2
    metrics = client.metrics()
    assert metrics["topics_cursor_lag"][topic] == {"c": 2}
    assert metrics["topics_cursor_metrics_truncated"] == 0


def test_the_document_has_all_of_it(client: Client) -> None:
    paths = client.get("/v0/openapi.json").json["paths"]
    one = paths["/v0/topics/{topic}/cursors/{cursor}"]
    assert set(one) == {"put", "get", "delete"}
    assert "`cursor_regressed`" in one["put"]["responses"]["409"]["description"]
    assert "admin" in one["delete"]["description"]
    content = paths["/v0/topics/{topic}/range"]["post"]["responses"]["200"]["content"]
    assert set(content) == {"application/json", "application/vnd.apache.arrow.stream"}
    assert paths["/v0/topics/{topic}/seq-at"]["get"]
    assert paths["/v0/topics/{topic}/cursors"]["get"]


def test_a_range_as_json(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"cap_records": 4})
    records = [{"data": n, "tag": f"t{n}", "node": "n"} for n in range(1, 7)]
    client.post(f"/v0/topics/{topic}", {"records": records})
    epoch = client.get(f"/v0/topics/{topic}").json["epoch"]
    page = client.post(f"/v0/topics/{topic}/range", {"from_seq": 0, "to_seq": 5}).json
    assert page["gaps"] == [{"gap_from": 1, "gap_to": 2, "reason": "cap"}]
    assert [(r["$seq"], r["$tag"], r["$node"], r["data"]) for r in page["records"]] == [
        (n, f"t{n}", "n", n) for n in (3, 4, 5)
    ]
    assert (page["next_from_seq"], page["complete"], page["epoch"]) == (5, True, epoch)
    part = client.post(f"/v0/topics/{topic}/range", {"from_seq": 3, "max_records": 2}).json
    assert (part["next_from_seq"], part["complete"], len(part["records"])) == (5, False, 2)
    bytes_bound = client.post(f"/v0/topics/{topic}/range", {"from_seq": 3, "max_bytes": 1}).json
    assert len(bytes_bound["records"]) == 1
    client.delete(f"/v0/topics/{topic}")
    client.write(topic, 1)
    stale = client.post(
        f"/v0/topics/{topic}/range", {"from_seq": 1, "to_seq": 5, "epoch": epoch}
    ).json
    assert stale["gaps"] == [{"gap_from": 2, "gap_to": 5, "reason": "recreated"}]
    assert (stale["records"], stale["next_from_seq"], stale["complete"]) == ([], 0, True)
    assert stale["epoch"] != epoch


@pytest.mark.parametrize(
    "body",
    [
        {"from_seq": 2, "to_seq": 1}, {"from_seq": -1}, {"to_seq": 2**64}, {"epoch": "x"},
        {"format": "csv"}, {"max_bytes": -1},
        {"format": "arrow", "to_seq": 2**63},
    ],
)  # fmt: skip
def test_a_range_that_is_none_is_refused(client: Client, topic: str, body: Any) -> None:
    client.write(topic, 1, 2)
    refused = client.post(f"/v0/topics/{topic}/range", body)
    assert (refused.status, refused.code) == (400, "invalid_request")


@pytest.mark.skipif(not HAS_ARROW, reason="pyarrow is an extra")
def test_a_range_as_arrow(client: Client, topic: str) -> None:
    import pyarrow as pa
    import pyarrow.ipc as ipc

    client.put(f"/v0/topics/{topic}", {"cap_records": 3})
    first = {"data": {"a": 1.0}, "tag": "t", "node": "n", "meta": {"k": "v"}}
    client.post(f"/v0/topics/{topic}", {"records": [{"data": 0}] * 2 + [first, {"data": None}]})
    client.write(topic, "é")
    state = client.get(f"/v0/topics/{topic}").json
    reply = client.post(f"/v0/topics/{topic}/range", {"to_seq": 5, "format": "arrow"})
    assert reply.headers["content-type"] == "application/vnd.apache.arrow.stream"
    table = ipc.open_stream(io.BytesIO(reply.raw)).read_all()
    assert table.schema.names == COLUMNS
    assert table.schema.field("ts").type == pa.timestamp("us", "UTC")
    assert table.schema.field("meta").type == pa.map_(pa.string(), pa.string())
    told = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    assert told == {
        "topic": topic, "epoch": state["epoch"], "next_from_seq": "5", "complete": "true",
    }  # fmt: skip
    gap, *records = table.to_pylist()
    assert (gap["seq"], gap["_gap_to"], gap["_gap_reason"], gap["_kind"]) == (1, 2, "cap", "gap")
    assert [gap[name] for name in ("ts", "node", "tag", "meta", "data")] == [None] * 5
    assert (gap["topic"], gap["epoch"]) == (topic, state["epoch"])
    assert [row["seq"] for row in records] == [3, 4, 5]
    assert [row["data"] for row in records] == ['{"a": 1.0}', "null", '"\\u00e9"']
    row = records[0]
    assert (row["node"], row["tag"], row["meta"]) == ("n", "t", [("k", "v")])
    assert (row["_kind"], row["_gap_to"], row["_gap_reason"]) == ("record", None, None)
    assert round(records[-1]["ts"].timestamp() * 1000) == state["last_write_ts"]
    empty = client.post(
        f"/v0/topics/{topic}/range", {"from_seq": 5, "to_seq": 9, "format": "arrow"}
    )
    table = ipc.open_stream(io.BytesIO(empty.raw)).read_all()
    assert (table.num_rows, table.schema.metadata[b"complete"]) == (0, b"false")


@pytest.mark.skipif(not HAS_ARROW, reason="pyarrow is an extra")
def test_a_recreated_topic_is_a_row_of_the_old_epoch(client: Client, topic: str) -> None:
    import pyarrow.ipc as ipc

    client.write(topic, 1, 2)
    old = client.get(f"/v0/topics/{topic}").json["epoch"]
    client.delete(f"/v0/topics/{topic}")
    client.write(topic, 1, 2, 3)
    body = {"from_seq": 1, "to_seq": 2, "epoch": old, "format": "arrow"}
    reply = client.post(f"/v0/topics/{topic}/range", body)
    table = ipc.open_stream(io.BytesIO(reply.raw)).read_all()
    (row,) = table.to_pylist()
    assert (row["epoch"], row["seq"], row["_gap_to"], row["_gap_reason"]) == (
        old,
        2,
        2,
        "recreated",
    )
    assert table.schema.metadata[b"next_from_seq"] == b"0"
    assert table.schema.metadata[b"epoch"].decode() != old


def test_without_pyarrow_there_are_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with inside(tmp_path) as served, served.client() as client:
        client.write("t", 1)
        refused = client.post("/v0/topics/t/range", {"format": "arrow"})
        assert (refused.status, refused.code) == (400, "invalid_request")
        assert "pyarrow" in refused.json["error"]["message"]


def test_a_range_that_is_only_counted(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"cap_records": 5})
    record = {"data": "12345678", "node": "n", "tag": "t", "meta": {"k": "v"}}
    client.post(f"/v0/topics/{topic}", {"records": [record] * 7})
    path, each = f"/v0/topics/{topic}/range", 10 + len('{"k":"v"}')
    page = client.post(path, {"format": "none"}).json
    assert page.pop("performance")
    assert page == {
        "topic": topic, "count": 5, "bytes": 5 * each, "next_from_seq": 7, "complete": True,
        "gaps": [{"gap_from": 1, "gap_to": 2, "reason": "cap"}],
        "epoch": client.get(f"/v0/topics/{topic}").json["epoch"],
    }  # fmt: skip
    for budget, count in (({"max_bytes": each + 1}, 2), ({"max_records": 3}, 3)):
        ends = []
        for kind in ("none", "json"):
            part = client.post(path, {"format": kind, "from_seq": 2, **budget}).json
            ends.append((part["next_from_seq"], part["complete"]))
        assert ends == [(2 + count, False)] * 2


def test_a_large_range_is_as_a_small_one(client: Client, topic: str) -> None:
    """It is rendered beside the loop, small records gathered and large ones uncopied."""
    records: list[dict[str, Any]] = [
        {"data": str(n) * 3000, "tag": f"t{n}", "meta": {"n": str(n)}} for n in range(60)
    ]
    for n in (10, 30, 31, 59):
        records[n]["data"] = str(n) * 50_000
    client.post(f"/v0/topics/{topic}", {"records": records})
    large = client.post(f"/v0/topics/{topic}/range", {"from_seq": 10})
    small = [
        client.post(f"/v0/topics/{topic}/range", {"from_seq": n, "to_seq": n + 1}).json["records"]
        for n in range(10, 60)
    ]
    assert large.json["records"] == [record for page in small for record in page]
    assert (large.json["next_from_seq"], large.json["complete"]) == (60, True)


@pytest.mark.parametrize("match", ["a", ["tag", "Eq", "a"], ["tag", "Glob", "a*"]])
def test_a_range_of_what_matches(client: Client, topic: str, match: Any) -> None:
    tags = ["a", "b", None, "a", "ab"]
    client.post(f"/v0/topics/{topic}", {"records": [{"data": 1, "tag": t} for t in tags]})
    path = f"/v0/topics/{topic}/range"
    expected = [1, 4, 5] if "Glob" in match else [1, 4]
    page = client.post(path, {"match": match}).json
    assert [record["$seq"] for record in page["records"]] == expected
    assert (page["next_from_seq"], page["complete"]) == (5, True)
    assert client.post(path, {"match": match, "format": "none"}).json["count"] == len(expected)
    if HAS_ARROW:
        import pyarrow.ipc as ipc

        reply = client.post(path, {"match": match, "format": "arrow"})
        table = ipc.open_stream(io.BytesIO(reply.raw)).read_all()
        assert table["seq"].to_pylist() == expected
    for bad in (["tag", "Glob", "a"], ["node", "Eq", "a"], ["tag"], 5, {}):
        refused = client.post(path, {"match": bad})
        assert (refused.status, refused.code) == (400, "invalid_request")


def test_a_cold_range_is_fetched(tmp_path: Path) -> None:
    variables = {
        "TOPICS_COLD_DIR": str(tmp_path / "cold"), "TOPICS_HOT_BYTES": "0",
        "TOPICS_RESIDENT_BYTES": "0", "TOPICS_BLOCK_BYTES": "256", "TOPICS_BLOCK_CACHE_BYTES": "1",
        "TOPICS_OWN_SEGMENT_BYTES": "256",
    }  # fmt: skip
    with inside(tmp_path / "data", None, **variables) as served, served.client() as client:
        client.write("t", *range(100))
        served.run(served.services.engine.checkpoint)
        at, found = 0, []
        while at < 100:
            page = client.post("/v0/topics/t/range", {"from_seq": at, "to_seq": 100}).json
            found += [record["data"] for record in page["records"]]
            at = page["next_from_seq"]
        assert found == list(range(100))
        assert client.get("/v0/topics/t/seq-at?ts=0").json["seq"] == 1


def test_the_seq_of_a_time(client: Client, topic: str) -> None:
    client.write(topic, 1, 2)
    ts = client.diff(topic).json["records"][0]["$ts"]
    found = client.get(f"/v0/topics/{topic}/seq-at?ts={ts}").json
    assert (found["seq"], found["ts"], found["from_seq"]) == (1, ts, 0)
    past = client.get(f"/v0/topics/{topic}/seq-at?ts={ts + 10**7}").json
    assert (past["seq"], past["ts"], past["from_seq"]) == (None, None, 2)
    for query in ("", "?ts=", "?ts=-1", "?ts=1.5", f"?ts={2**64}"):
        refused = client.get(f"/v0/topics/{topic}/seq-at{query}")
        assert (refused.status, refused.code) == (400, "invalid_request")
