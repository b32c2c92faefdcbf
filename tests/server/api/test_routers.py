"""Routers over HTTP: created, changed, looked at, listed, deleted, and at work."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.server.api.conftest import KEYS
from tests.support.servers import Client, Reply, Served


def route(client: Client, source: str, dest: str, name: str = "", **options: Any) -> Reply:
    path = f"/v0/routers/{name or source + '-%3E' + dest}"
    return client.put(path, {"source": source, "dest": dest, **options})


def write(client: Client, topic: str, *data: Any) -> None:
    body = {"records": [{"data": value, "node": "n1", "tag": "t"} for value in data]}
    assert client.post(f"/v0/topics/{topic}", body).status == 200


def arrived(client: Client, topic: str, count: int) -> list[dict[str, Any]]:
    """The records of a topic once there are as many."""
    stop = time.monotonic() + 10
    while time.monotonic() < stop:
        body = {"from_seq": 0, "limit": 1000, "include_tags": True, "wait_ms": 100}
        page = client.post(f"/v0/topics/{topic}/diff", body).json
        if len(page["records"]) >= count:
            return list(page["records"])
        time.sleep(0.005)
    raise AssertionError(page)


def test_put_creates_then_confirms_then_changes(client: Client, topic: str) -> None:
    made = route(client, topic, topic + ".b")
    again = route(client, topic, topic + ".b")
    other = route(client, topic, topic + ".b", preserve_tag=False, filter=["tag", "Glob", "p:*"])
    assert (made.status, again.status, other.status) == (201, 200, 200)
    assert [reply.json["created"] for reply in (made, again, other)] == [True, False, False]
    assert {k: v for k, v in made.json.items() if k != "performance"} == {
        "router": f"{topic}->{topic}.b", "created": True, "source": topic, "dest": topic + ".b",
        "preserve_node": True, "preserve_tag": True, "filter": None, "allow_cycle": False,
        "guarantee": "at_least_once",
    }  # fmt: skip
    assert other.json["filter"] == ["tag", "Glob", "p:*"]
    assert client.get(f"/v0/topics/{topic}").status == 200
    assert client.get(f"/v0/topics/{topic}.b").status == 200


def test_what_is_written_arrives_within_moments(client: Client, topic: str) -> None:
    route(client, topic, topic + ".b", guarantee="exactly_once")
    write(client, topic, *range(50))
    began = time.monotonic()
    records = arrived(client, topic + ".b", 50)
    assert time.monotonic() - began < 2
    assert [record["data"] for record in records] == list(range(50))
    assert records[0]["$node"] == "n1"
    assert records[0]["$tag"] == "t"
    assert records[3]["meta"]["_topics_router"]["source_seq"] == 4
    state = client.get(f"/v0/routers/{topic}->{topic}.b")
    assert (state.status, state.json["forwarded_total"]) == (200, 50)


def test_a_chain_and_a_fan_out_deliver_everything(client: Client, topic: str) -> None:
    for source, dest in (("", ".b"), (".b", ".c"), ("", ".d")):
        assert route(client, topic + source, topic + dest).status == 201
    for turn in range(20):
        write(client, topic, turn)
    for dest in (".b", ".c", ".d"):
        found = [record["data"] for record in arrived(client, topic + dest, 20)]
        assert found == list(range(20))


def test_a_cycle_and_a_second_source_are_refused(client: Client, topic: str) -> None:
    a, b, c = topic, topic + ".b", topic + ".c"
    route(client, a, b)
    cycle = route(client, b, a)
    assert (cycle.status, cycle.code, cycle.detail) == (
        409, "router_cycle", {"cycle": [a, b, a]},
    )  # fmt: skip
    fan_in = route(client, c, b)
    assert (fan_in.status, fan_in.code) == (409, "topic_exists_incompatible")
    assert fan_in.detail["reason"] == "router_dest_fan_in"
    assert client.get(f"/v0/topics/{c}").status == 404
    assert route(client, b, a, allow_cycle=True).status == 201
    write(client, a, 1)
    assert len(arrived(client, b, 1)) == 1
    time.sleep(0.1)
    assert client.get(f"/v0/topics/{a}").json["head_seq"] == 1


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"source": "a"},
        {"source": "a", "dest": "a"},
        {"source": "a", "dest": "b", "x": 1},
        {"source": "-", "dest": "b"},
        {"source": "a", "dest": "b", "guarantee": "always"},
        {"source": "a", "dest": "b", "filter": ["tag", "Glob", "x"]},
        {"source": "a", "dest": "b", "filter": ["node", "Eq", "x"]},
        {"source": "a", "dest": "b", "from_seq": -1},
        [],
    ],
)
def test_a_router_that_is_not_one_is_refused(client: Client, topic: str, body: Any) -> None:
    refused = client.put(f"/v0/routers/{topic}", body)
    assert (refused.status, refused.code) == (400, "invalid_request")


def test_a_missing_destination_and_a_missing_router(client: Client, topic: str) -> None:
    refused = route(client, topic, topic + ".b", create_dest=False)
    assert (refused.status, refused.code) == (404, "topic_not_found")
    assert client.get(f"/v0/topics/{topic}").status == 404
    missing = client.get(f"/v0/routers/{topic}")
    assert (missing.status, missing.code) == (404, "router_not_found")
    gone = client.delete(f"/v0/routers/{topic}")
    assert (gone.status, gone.json["deleted"]) == (200, False)


def test_a_deleted_router_forwards_no_more(client: Client, topic: str) -> None:
    route(client, topic, topic + ".b", name=topic)
    write(client, topic, 1)
    arrived(client, topic + ".b", 1)
    assert client.delete(f"/v0/routers/{topic}").json["deleted"] is True
    write(client, topic, 2)
    time.sleep(0.05)
    assert client.get(f"/v0/topics/{topic}.b").json["count"] == 1


def test_deleting_a_topic_names_the_routers_that_went_with_it(client: Client, topic: str) -> None:
    for source, dest in (("", ".z"), ("", ".b"), (".b", ".c")):
        route(client, topic + source, topic + dest)
    gone = client.delete(f"/v0/topics/{topic}")
    assert gone.json["routers_removed"] == [f"{topic}->{topic}.b", f"{topic}->{topic}.z"]
    assert client.delete(f"/v0/topics/{topic}.b").json["routers_removed"] == [
        f"{topic}.b->{topic}.c"
    ]
    assert client.delete(f"/v0/topics/{topic}").json["routers_removed"] == []


def test_the_list_is_paged_and_filtered(client: Client, topic: str) -> None:
    for n in range(5):
        route(client, topic, f"{topic}.d{n}", name=f"{topic}:{n}")
    route(client, f"{topic}.x", f"{topic}.y", name=f"{topic}:5")
    seen: list[str] = []
    cursor = ""
    while True:
        page = client.get(f"/v0/routers?prefix={topic}:&page_size=2&cursor={cursor}").json
        seen += [router["router"] for router in page["routers"]]
        cursor = page.get("next_cursor", "")
        if not cursor:
            break
    assert seen == [f"{topic}:{n}" for n in range(6)]
    by_source = client.get(f"/v0/routers?source={topic}&page_size=3").json
    assert [router["router"] for router in by_source["routers"]] == seen[:3]
    rest = client.get(f"/v0/routers?source={topic}&cursor={by_source['next_cursor']}").json
    assert [router["router"] for router in rest["routers"]] == seen[3:5]
    assert "next_cursor" not in rest
    [only] = client.get(f"/v0/routers?dest={topic}.d3").json["routers"]
    assert only == {
        "router": f"{topic}:3", "source": topic, "dest": f"{topic}.d3",
        "guarantee": "at_least_once", "forwarded_total": 0,
    }  # fmt: skip
    assert client.get("/v0/routers?cursor=nonsense").status == 400


@pytest.mark.slow
def test_a_key_needs_scope_and_names(tmp_path: Path) -> None:
    with Served(tmp_path, TOPICS_API_KEYS=KEYS).wait_ready() as locked:
        check_scope_and_names(locked)


def check_scope_and_names(locked: Served) -> None:
    with locked.client("reader") as reader, locked.client("manager") as admin:
        assert route(reader, "ra", "rb").status == 403
        assert route(admin, "ra", "rb").status == 201
        assert reader.get("/v0/routers/ra->rb").status == 200
        assert admin.get("/v0/routers/ra->rb").status == 403
        assert admin.delete("/v0/routers/ra->rb").status == 403
    with locked.client("tenant") as tenant, locked.client("root-secret") as root:
        assert route(tenant, "t42:a", "other", name="t42:r").status == 403
        assert route(tenant, "other", "t42:a", name="t42:r").status == 403
        assert route(tenant, "t42:a", "shared.b", name="other").status == 403
        assert root.get("/v0/topics/t42:a").status == 404
        assert route(tenant, "t42:a", "shared.b", name="t42:r").status == 201
        names = [router["router"] for router in tenant.get("/v0/routers").json["routers"]]
        assert names == ["t42:r"]
        everything = [router["router"] for router in root.get("/v0/routers").json["routers"]]
        assert everything == ["ra->rb", "t42:r"]
    with locked.client("deleter") as deleter:
        assert deleter.delete("/v0/routers/ra->rb").json["deleted"] is True


@pytest.mark.slow
def test_routers_are_counted_and_bounded(tmp_path: Any) -> None:
    with Served(tmp_path, TOPICS_MAX_ROUTERS="1") as served:
        served.wait_ready()
        with served.client() as client:
            assert route(client, "a", "b").status == 201
            refused = route(client, "c", "d")
            assert (refused.status, refused.detail) == (429, {"limit": "max_routers", "max": 1})
            assert route(client, "a", "b", preserve_node=False).status == 200
            assert client.get("/v0/topics/c").status == 404
            assert b"topics_routers 1\n" in client.get("/v0/metrics").raw


@pytest.mark.slow
def test_a_router_goes_on_after_a_restart(tmp_path: Any) -> None:
    with Served(tmp_path) as served:
        served.wait_ready()
        with served.client() as client:
            route(client, "a", "b")
            write(client, "a", *range(2000))
            arrived(client, "b", 1000)
        served.stop()
    with Served(tmp_path) as served:
        served.wait_ready()
        with served.client() as client:
            write(client, "a", "more")
            body = {"from_seq": 1990, "wait_ms": 1000}
            stop = time.monotonic() + 10
            while client.get("/v0/topics/b").json["head_seq"] < 2001 and time.monotonic() < stop:
                time.sleep(0.01)
            found = client.post("/v0/topics/b/diff", body).json["records"]
            assert [record["data"] for record in found] == [*range(1990, 2000), "more"]
        served.stop()


def state_when(client: Client, name: str, blocked: str | None, lag: int) -> Any:
    """A router's state once it is blocked like this, and so far behind."""
    stop = time.monotonic() + 10
    while time.monotonic() < stop:
        state = client.get(f"/v0/routers/{name}").json
        if (state["blocked"], state["lag"]) == (blocked, lag):
            return state
        time.sleep(0.005)
    raise AssertionError(state)


def test_a_full_destination_is_said_to_block(client: Client, topic: str) -> None:
    dest = topic + ".b"
    client.put(f"/v0/topics/{dest}", {"cap_records": 1, "discard": "reject"})
    route(client, topic, dest, topic)
    write(client, topic, 1, 2, 3)
    assert state_when(client, topic, "topic_full", lag=2)["forwarded_total"] == 1
    client.put(f"/v0/topics/{dest}", {})
    assert state_when(client, topic, None, lag=0)["forwarded_total"] == 3
    assert [record["data"] for record in arrived(client, dest, 3)] == [1, 2, 3]


@pytest.mark.parametrize("way_out", ["raise the cap", "delete the record", "discard the old"])
def test_a_record_that_can_never_fit_blocks_and_is_not_passed_over(
    client: Client, topic: str, way_out: str
) -> None:
    """The router keeps its place, says why, and goes on when it can: nothing is lost in silence."""
    dest = topic + ".b"
    client.put(f"/v0/topics/{dest}", {"cap_bytes": 1000, "discard": "reject"})
    route(client, topic, dest, topic)
    write(client, topic, "small", "x" * 2000, "last")
    assert state_when(client, topic, "record_too_large", lag=2)["forwarded_total"] == 1
    assert client.metrics()["topics_routers_blocked"] >= 1
    seqs = {"raise the cap": [1, 2, 3], "delete the record": [1, 3], "discard the old": [3]}
    if way_out == "raise the cap":
        client.put(f"/v0/topics/{dest}", {"cap_bytes": 9000, "discard": "reject"})
    elif way_out == "delete the record":
        client.post(f"/v0/topics/{topic}/delete", {"match": "t", "before_seq": 3})
    else:
        client.put(f"/v0/topics/{dest}", {"cap_bytes": 1000})
    state_when(client, topic, None, lag=0)
    found = arrived(client, dest, len(seqs[way_out]))
    values = {1: "small", 2: "x" * 2000, 3: "last"}
    assert [record["data"] for record in found] == [values[seq] for seq in seqs[way_out]]


@pytest.mark.parametrize("durability", ["disk", "memory", "ephemeral"])
def test_who_has_the_answer_to_a_write_finds_its_copies(
    client: Client, topic: str, durability: str
) -> None:
    """Through a chain, with no wait in between."""
    names = [f"{topic}.{durability}.{number}" for number in range(5)]
    for name in names:
        assert client.put(f"/v0/topics/{name}", {"durability": durability}).status == 201
    for source, dest in pairwise(names):
        assert route(client, source, dest).status == 201
    for number in range(30):
        write(client, names[0], number)
        page = client.post(f"/v0/topics/{names[-1]}/diff", {"from_seq": number}).json
        assert [record["data"] for record in page["records"]] == [number]
