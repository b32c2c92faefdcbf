"""Reading over HTTP: pages, tombstones, filters, epochs, and waiting for what comes."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tests.support.servers import Client, Reply, Served


class Waiting:
    """A read in another thread."""

    def __init__(self, served: Served, topic: str, **body: Any) -> None:
        self.client = served.client()
        self.reply: Reply | None = None
        self.began_s = time.monotonic()
        self.took_s = 0.0
        self._thread = threading.Thread(target=self._run, args=(topic, body))
        self._thread.start()
        wait_for_polls(served, 1)

    def _run(self, topic: str, body: dict[str, Any]) -> None:
        with self.client:
            self.reply = self.client.diff(topic, **body)
        self.took_s = time.monotonic() - self.began_s

    def result(self) -> Reply:
        self._thread.join(35)
        assert self.reply is not None
        return self.reply


def wait_for_polls(served: Served, count: int) -> None:
    """Until this many reads wait on the server."""
    deadline = time.monotonic() + 10
    with served.client() as client:
        while client.metrics()["topics_long_polls"] != count:
            assert time.monotonic() < deadline
            time.sleep(0.005)


def data(reply: Reply) -> list[Any]:
    return [record["data"] for record in reply.json["records"]]


def test_a_page_says_everything_a_reader_needs(client: Client, topic: str) -> None:
    client.write(topic, "a", "b", "c")
    page = client.diff(topic, from_seq=1, limit=1)
    performance = page.json["performance"]
    assert page.status == 200
    assert data(page) == ["b"]
    assert {key: page.json[key] for key in page.json if key not in ("records", "performance")} == {
        "topic": topic, "next_from_seq": 2, "head_seq": 3, "earliest_seq": 1, "caught_up": False,
        "tombstone": None, "lag": 1, "epoch": client.get(f"/v0/topics/{topic}").json["epoch"],
    }  # fmt: skip
    assert performance["records_scanned"] == 1
    assert performance["throttle_wait_ms"] == 0
    assert performance["server_total_ms"] > 0


def test_an_empty_body_reads_from_the_start(client: Client, topic: str) -> None:
    client.write(topic, 1)
    assert data(client.post(f"/v0/topics/{topic}/diff")) == [1]
    assert client.post(f"/v0/topics/{topic}/diff").json["caught_up"] is True


def test_limits_are_clamped_not_refused(client: Client, topic: str) -> None:
    client.write(topic, *range(1500))
    assert len(data(client.diff(topic))) == 256
    assert len(data(client.diff(topic, limit=0))) == 256
    assert len(data(client.diff(topic, limit=2**40))) == 1000
    assert client.diff(topic, from_seq=1500, wait_ms=0).json["caught_up"] is True


@pytest.mark.parametrize(
    "body",
    [
        {"from_seq": -1},
        {"from_seq": 2**64},
        {"from_seq": 1.5},
        {"from_seq": "1"},
        {"from_seq": True},
        {"limit": -1},
        {"wait_ms": "1"},
        {"node": 1},
        {"node": [1]},
        {"include_tags": 1},
        {"epoch": 1},
        {"epoch": "x"},
        b"[]",
        b"{",
    ],
)
def test_a_diff_that_is_not_one_is_refused(client: Client, topic: str, body: Any) -> None:
    client.write(topic, 1)
    refused = client.post(f"/v0/topics/{topic}/diff", body)
    assert (refused.status, refused.code) == (400, "invalid_request")


def test_a_diff_never_creates(client: Client, topic: str) -> None:
    missing = client.diff(topic, wait_ms=1000)
    assert (missing.status, missing.code) == (404, "topic_not_found")


def test_tags_meta_and_node_are_shown_as_asked(client: Client, topic: str) -> None:
    record = {"data": 1, "tag": "t", "node": "n", "meta": {"k": "v"}}
    client.post(f"/v0/topics/{topic}", {"records": [record, {"data": 2}]})
    full, bare = client.diff(topic, include_tags=True).json["records"]
    assert set(full) == {"$seq", "$ts", "$node", "$tag", "data", "meta"}
    assert set(bare) == {"$seq", "$ts", "data"}
    slim = client.diff(topic, include_meta=False).json["records"][0]
    assert set(slim) == {"$seq", "$ts", "$node", "data"}


def test_own_records_are_passed_over(client: Client, topic: str) -> None:
    for node in ("a", "b", "c"):
        client.write(topic, node, node=node)
    assert data(client.diff(topic, node="a")) == ["b", "c"]
    page = client.diff(topic, node=["a", "b", "c"])
    assert (data(page), page.json["next_from_seq"], page.json["caught_up"]) == ([], 3, True)


def test_a_node_may_have_an_empty_name(client: Client, topic: str) -> None:
    client.write(topic, 1, node="")
    assert data(client.diff(topic, node="")) == []
    assert data(client.diff(topic)) == [1]


def test_a_loss_is_told_with_exactly_its_fields(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"cap_records": 2})
    client.write(topic, *range(5))
    page = client.diff(topic, from_seq=1, wait_ms=30_000).json
    assert page["tombstone"] == {
        "gap_from": 2, "gap_to": 3, "reason": "cap", "missed_estimate": 2, "earliest_seq": 4,
        "head_seq": 5,
    }  # fmt: skip
    assert [record["$seq"] for record in page["records"]] == [4, 5]


def test_another_epoch_is_told_at_once(client: Client, topic: str) -> None:
    client.write(topic, 1)
    old = client.diff(topic).json["epoch"]
    client.delete(f"/v0/topics/{topic}")
    client.write(topic, 2)
    page = client.diff(topic, from_seq=1, epoch=old, wait_ms=30_000).json
    assert page["tombstone"]["reason"] == "recreated"
    assert [record["data"] for record in page["records"]] == [2]
    ahead = client.diff(topic, from_seq=7, wait_ms=30_000).json
    assert ahead["tombstone"]["reason"] == "recreated"


def test_a_wait_ends_with_a_record(served: Served, client: Client, topic: str) -> None:
    client.write(topic, 1)
    waiting = Waiting(served, topic, from_seq=1, wait_ms=30_000)
    client.write(topic, 2)
    assert data(waiting.result()) == [2]
    assert waiting.took_s < 5


def test_a_wait_ends_when_a_durable_record_is_durable(
    served: Served, client: Client, topic: str
) -> None:
    client.put(f"/v0/topics/{topic}", {"durability": "fsync"})
    waiting = Waiting(served, topic, wait_ms=30_000)
    client.write(topic, 2)
    assert data(waiting.result()) == [2]


def test_a_wait_without_news_ends_empty(client: Client, topic: str) -> None:
    client.write(topic, 1)
    began = time.monotonic()
    page = client.diff(topic, from_seq=1, wait_ms=150)
    assert 0.14 < time.monotonic() - began < 5
    assert (page.status, data(page), page.json["next_from_seq"]) == (200, [], 1)
    assert page.json["performance"]["server_total_ms"] >= 140


def test_own_records_do_not_end_a_wait_but_move_it(
    served: Served, client: Client, topic: str
) -> None:
    client.write(topic, 1)
    waiting = Waiting(served, topic, from_seq=1, node="me", wait_ms=30_000)
    client.write(topic, "mine", node="me")
    client.write(topic, "yours", node="you")
    page = waiting.result()
    assert (data(page), page.json["next_from_seq"]) == (["yours"], 3)


def test_a_wait_ends_when_its_topic_does(served: Served, client: Client, topic: str) -> None:
    client.write(topic, 1)
    waiting = Waiting(served, topic, from_seq=1, wait_ms=30_000)
    client.delete(f"/v0/topics/{topic}")
    assert waiting.result().code == "topic_not_found"


def test_a_client_that_leaves_is_forgotten(served: Served, client: Client, topic: str) -> None:
    client.write(topic, 1)
    with served.client() as leaver:
        body = b'{"from_seq":1,"wait_ms":30000}'
        headers = {"Content-Type": "application/json"}
        leaver.connection.request("POST", f"/v0/topics/{topic}/diff", body, headers)
        wait_for_polls(served, 1)
    wait_for_polls(served, 0)
    assert client.write(topic, 2).status == 200


def test_answers_are_compressed_for_those_who_ask(client: Client, topic: str) -> None:
    client.write(topic, "x" * 5000)
    reply = client.post(f"/v0/topics/{topic}/diff", {}, **{"Accept-Encoding": "gzip"})
    assert reply.headers["content-encoding"] == "gzip"
    assert len(reply.raw) < 1000
