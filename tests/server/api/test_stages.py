"""Stages over HTTP: shapes, scopes, errors, and what a killed server keeps."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.servers import Client, Reply, Served
from topics.server.api import stage_shapes as shapes

_producers = itertools.count(1)


@pytest.fixture
def producer() -> str:
    """A name nobody else uses."""
    return f"query-{next(_producers)}"


def stage(client: Client, producer: str, topic: str, /, *data: Any, **fields: Any) -> Reply:
    records = [{"data": value} for value in data]
    body = {
        "producer": producer, "batch": 0, "part": 0, "attempt": 0, "topic": topic,
        "records": records, **fields,
    }  # fmt: skip
    return client.post("/v0/stages", body)


def commit(client: Client, producer: str, *stages: Reply, **fields: Any) -> Reply:
    names = [reply.json["stage"] for reply in stages]
    body = {"producer": producer, "batch": 0, "query": "q", "stages": names, **fields}
    return client.post("/v0/stages/commit", body)


def test_a_batch_is_staged_committed_and_repeated(
    client: Client, topic: str, producer: str
) -> None:
    """201 with an id and a count; then 200 with the seqs; then the same as `repeated`."""
    made = stage(client, producer, topic, 1, 2)
    assert (made.status, made.json["count"]) == (201, 2)
    assert client.get(f"/v0/topics/{topic}").status == 404
    more = stage(client, producer, topic + "b", 3, part="x", attempt="task-9")
    done = commit(client, producer, made, more)
    assert done.status == 200
    expected = {
        topic: {"first_seq": 1, "last_seq": 2, "count": 2},
        topic + "b": {"first_seq": 1, "last_seq": 1, "count": 1},
    }
    assert (done.json["repeated"], done.json["topics"]) == (False, expected)
    assert [r["data"] for r in client.diff(topic).json["records"]] == [1, 2]
    again = commit(client, producer)
    assert (again.json["repeated"], again.json["topics"]) == (True, expected)
    assert commit(client, producer, made).json["topics"] == expected


def test_every_answer_is_of_its_declared_type(client: Client, topic: str, producer: str) -> None:
    """What the document shows is what comes."""
    made = stage(client, producer, topic, {"a": 1})
    replies: list[tuple[type, Reply, int]] = [
        (shapes.StageMade, made, 201),
        (shapes.CommitDone, commit(client, producer, made), 200),
        (shapes.StagesDropped, client.delete(f"/v0/stages?producer={producer}&batch=0"), 200),
    ]
    for kind, reply, status in replies:
        assert reply.status == status, reply.raw
        decoded = msgspec.json.decode(reply.raw, type=kind)
        assert msgspec.to_builtins(decoded) == reply.json, kind


def test_conflicts_and_expired_stages(client: Client, topic: str, producer: str) -> None:
    """409 for another query, an older batch, a stranger's stage; 410 for one that is not there."""
    made = stage(client, producer, topic, 1, batch=3)
    stranger = commit(client, producer, stage(client, producer, topic, 1), made, batch=0)
    assert (stranger.status, stranger.code) == (409, "conflict")
    assert commit(client, producer, made, batch=3).status == 200
    for wrong in ({"batch": 3, "query": "other"}, {"batch": 2}):
        refused = commit(client, producer, **wrong)
        assert (refused.status, refused.code) == (409, "conflict")
    gone = commit(client, producer, made, batch=4)
    assert (gone.status, gone.code) == (410, "stage_expired")
    assert gone.detail["stage"] == made.json["stage"]
    never = commit(client, producer, batch=4, stages=["never was"])
    assert (never.status, never.code) == (410, "stage_expired")


def test_dropping_is_idempotent(client: Client, topic: str, producer: str) -> None:
    """What is dropped can not be committed; dropping it again changes nothing."""
    made = stage(client, producer, topic, 1)
    path = f"/v0/stages?producer={producer}&batch=0"
    assert client.delete(path).json["deleted"] == 1
    assert client.delete(path).json["deleted"] == 0
    assert commit(client, producer, made).code == "stage_expired"
    for query in ("", "?batch=1", f"?producer={producer}", f"?producer={producer}&batch=x"):
        assert (client.delete("/v0/stages" + query).status) == 400
    assert client.delete(f"/v0/stages?producer={producer}&batch={2**63}").status == 400


@pytest.mark.parametrize(
    "change",
    [
        {"producer": None}, {"producer": ""}, {"producer": "x" * 257}, {"producer": 1},
        {"batch": None}, {"batch": -1}, {"batch": 1.5}, {"batch": "1"}, {"batch": 2**63},
        {"part": -1}, {"attempt": []}, {"topic": "a/b"}, {"topic": None}, {"records": []},
        {"records": None}, {"records": {}}, {"records": [{}]},
        {"records": [{"data": 1, "tag": 5}]},
        {"records": [{"data": 1, "meta": {"_topics_router": "x"}}]},
    ],
)  # fmt: skip
def test_a_bad_stage_is_400(client: Client, topic: str, producer: str, change: Any) -> None:
    """With words, and nothing staged."""
    refused = stage(client, producer, topic, 1, **change)
    assert (refused.status, refused.code) == (400, "invalid_request")
    assert client.delete(f"/v0/stages?producer={producer}&batch=0").json["deleted"] == 0


def test_data_is_kept_as_it_came(client: Client, topic: str, producer: str) -> None:
    """Spelling of numbers, key order, lone surrogates; whole numbers in any spelling."""
    data = b'{"b":1.50,"a":1e2,"a":"\\ud800","n":[1,\n2]}'
    head = b'{"producer":"%b","batch":7.0,"part":1e0,"topic":"%b",' % (
        producer.encode(),
        topic.encode(),
    )
    for body in (
        head.replace(b"7.0", b"7") + b'"records":[{"data":%b}]}' % data,
        head + b'"records":[{"data":1}]}',
    ):
        body = body if b"7.0" in body else body.replace(b"1e0", b"1")
        made = client.call("POST", "/v0/stages", body, {"Content-Type": "application/json"})
        assert made.status == 201, made.raw
        commit(client, producer, made, batch=7) if b"7.0" not in body else None
    raw = client.diff(topic).raw
    assert data.replace(b"\n", b" ") in raw


def test_scopes_and_prefixes(locked: Served, producer: str) -> None:
    """The scope is write; a key with prefixes stages, commits and drops within them only."""
    with locked.client("writer") as writer:
        made = stage(writer, producer, "other", 1)
        assert made.status == 201
        for token in ("reader", "deleter", "manager"):
            other = writer.with_token(token)
            assert stage(other, producer, "other", 1).status == 403
            assert commit(other, producer, made).status == 403
            assert other.delete(f"/v0/stages?producer={producer}&batch=0").status == 403
        tenant = writer.with_token("tenant")
        assert stage(tenant, producer, "other", 1).status == 403
        assert commit(tenant, producer, made).status == 403
        assert tenant.delete(f"/v0/stages?producer={producer}&batch=0").status == 403
        assert commit(writer, producer, made).status == 200
        assert commit(tenant, producer).status == 403
        own = stage(tenant, producer + "t", "t42:x", 1)
        assert commit(tenant, producer + "t", own).status == 200


def test_stages_are_seen_in_metrics(client: Client, topic: str, producer: str) -> None:
    """How many, their records and bytes; how many batches were committed."""
    before = client.metrics()
    made = stage(client, producer, topic, 1, 2, 3)
    staged = client.metrics()
    assert staged["topics_stages"] - before["topics_stages"] == 1
    assert staged["topics_staged_records"] - before["topics_staged_records"] == 3
    assert staged["topics_staged_bytes"] > before["topics_staged_bytes"]
    commit(client, producer, made)
    after = client.metrics()
    assert after["topics_staged_bytes"] == before["topics_staged_bytes"]
    assert after["topics_commits_total"] - before["topics_commits_total"] == 1


def test_commits_of_one_producer_at_once_are_one(
    served: Served, client: Client, topic: str, producer: str
) -> None:
    """Two that arrive together: one commits, the other is told the same as a repeat."""
    names = [stage(client, producer, topic, number).json["stage"] for number in range(3)]
    body = {"producer": producer, "batch": 0, "query": "q", "stages": names}
    others = [served.client() for _ in range(4)]
    raw = msgspec.json.encode(body)
    for other in others:
        other.connection.request(
            "POST", "/v0/stages/commit", raw, {"Content-Type": "application/json"}
        )
    found = [msgspec.json.decode(other.connection.getresponse().read()) for other in others]
    for other in others:
        other.close()
    assert sorted(answer["repeated"] for answer in found) == [False, True, True, True]
    assert all(answer["topics"] == found[0]["topics"] for answer in found)
    assert client.get(f"/v0/topics/{topic}").json["head_seq"] == 3


@pytest.mark.slow
def test_a_killed_server_keeps_stages_and_batches(tmp_path: Path) -> None:
    """kill -9 after the answers: the stage is there, the batch is known, nothing is double."""
    with Served(tmp_path, TOPICS_STAGE_TTL_MS="60000") as served:
        served.wait_ready()
        with served.client() as client:
            first = stage(client, "p", "t", 1, 2)
            done = commit(client, "p", first)
            kept = stage(client, "p", "t", 3, batch=1)
        served.process.kill()
    with Served(tmp_path) as served:
        served.wait_ready()
        with served.client() as client:
            again = commit(client, "p", first)
            assert (again.json["repeated"], again.json["topics"]) == (True, done.json["topics"])
            assert commit(client, "p", kept, batch=1).json["topics"]["t"]["first_seq"] == 3
            assert [r["data"] for r in client.diff("t").json["records"]] == [1, 2, 3]
        assert served.stop() == 0
