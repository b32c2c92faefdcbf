"""Deleting records over HTTP, and the server's account of every seq."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.servers import Client


def fill(client: Client, topic: str) -> None:
    records = [{"data": n, "tag": f"{'ab'[n % 2]}:{n}"} for n in range(6)]
    assert client.post(f"/v0/topics/{topic}", {"records": records}).json["count"] == 6


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ({"before_seq": 3}, [3, 4, 5, 6]),
        ({"before_seq": 10**9}, []),
        ({"match": "a:2"}, [1, 2, 4, 5, 6]),
        ({"match": ["tag", "Eq", "a:2"]}, [1, 2, 4, 5, 6]),
        ({"match": ["tag", "Glob", "a:*"]}, [2, 4, 6]),
        ({"match": ["tag", "Glob", "a:*"], "before_seq": 4}, [2, 4, 5, 6]),
        ({"match": "nothing"}, [1, 2, 3, 4, 5, 6]),
    ],
)
def test_what_is_deleted_is_gone_in_silence(
    client: Client, topic: str, body: dict[str, Any], left: list[int]
) -> None:
    fill(client, topic)
    done = client.post(f"/v0/topics/{topic}/delete", body)
    page = client.diff(topic).json
    assert done.status == 200
    assert (done.json["deleted"], done.json["count"]) == (6 - len(left), len(left))
    assert (done.json["head_seq"], done.json["earliest_seq"]) == (6, left[0] if left else 7)
    assert done.json["performance"]["wal_append_ms"] > 0
    assert [record["$seq"] for record in page["records"]] == left
    assert page["tombstone"] is None


@pytest.mark.parametrize(
    "body",
    [
        None,
        {},
        {"before_seq": None},
        {"before_seq": -1},
        {"before_seq": "3"},
        {"match": ["tag", "Like", "x"]},
        {"match": ["tag", "Glob", "x"]},
        {"match": ["tag", "Glob", "*x*"]},
        {"match": ["data", "Eq", "x"]},
        {"match": ["tag", "Eq"]},
        {"match": 5},
        {"before": 1},
    ],
)
def test_a_delete_that_is_not_one_deletes_nothing(client: Client, topic: str, body: Any) -> None:
    fill(client, topic)
    refused = client.post(f"/v0/topics/{topic}/delete", body)
    assert (refused.status, refused.code) == (400, "invalid_request")
    assert client.get(f"/v0/topics/{topic}").json["count"] == 6


def test_a_delete_never_creates(client: Client, topic: str) -> None:
    assert client.post(f"/v0/topics/{topic}/delete", {"before_seq": 1}).code == "topic_not_found"


def test_every_seq_has_its_account(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"cap_records": 4})
    fill(client, topic)
    client.post(f"/v0/topics/{topic}/delete", {"match": "b:3"})
    whole = client.get(f"/v0/topics/{topic}/explain").json
    assert whole["ranges"] == [
        {"from": 1, "to": 2, "state": "evicted"},
        {"from": 3, "to": 3, "state": "live"},
        {"from": 4, "to": 4, "state": "deleted"},
        {"from": 5, "to": 6, "state": "live"},
    ]
    assert whole["next_from"] is None
    assert whole["epoch"] == client.get(f"/v0/topics/{topic}").json["epoch"]
    part = client.get(f"/v0/topics/{topic}/explain?from=6&to=9").json
    assert part["ranges"] == [
        {"from": 6, "to": 6, "state": "live"},
        {"from": 7, "to": 9, "state": "unassigned"},
    ]


@pytest.mark.parametrize("query", ["from=-1", "to=x", "from=1.5", f"to={2**64}"])
def test_explain_takes_seqs_only(client: Client, topic: str, query: str) -> None:
    client.write(topic, 1)
    assert client.get(f"/v0/topics/{topic}/explain?{query}").code == "invalid_request"
    assert client.get("/v0/topics/missing/explain").code == "topic_not_found"
