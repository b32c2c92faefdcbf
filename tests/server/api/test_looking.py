"""What an operator can look at: connections, leases, the largest topics, an index and a page."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import Client, Served
from tests.support.streams import EventSource, Socket

KEYS = "root,reader:read,tenant:read+write+admin:t42."


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path, TOPICS_API_KEYS=KEYS) as served:
        yield served.wait_ready("root")


def connections(client: Client, query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(f"/v0/connections{query}").json["connections"]
    return found


def wait_for(client: Client, count: int) -> list[dict[str, Any]]:
    """The connections, once there are so many."""
    deadline = time.monotonic() + 10
    while len(found := connections(client)) != count:
        assert time.monotonic() < deadline, found
        time.sleep(0.01)
    return found


@pytest.mark.slow
def test_everybody_who_stays_is_shown_with_what_they_are_at(keyed: Served) -> None:
    """A stream, a socket, a read and a claim that wait, a worker; each until it ends."""
    before_ms = time.time() * 1000
    with keyed.client("root") as root, ThreadPoolExecutor(2) as pool:
        root.write("log", 1, 2, 3)
        root.put("/v0/topics/queue", {"type": "queue"})
        assert connections(root) == []
        wid = root.post("/v0/watch", {"topics": {"log": {"tail": True}}}).json["wid"]
        auth = {"Authorization": "Bearer root"}
        stream = EventSource(keyed.port, f"/v0/watch/{wid}", **auth)
        wait_for(root, 1)
        socket = Socket(keyed.port, token="reader")
        socket.ask("subscribe", topics={"log": {"tail": True}, "queue": {}})
        wait_for(root, 2)
        work = EventSource(keyed.port, "/v0/topics/queue/work?node=w&max=3", **auth)
        wait_for(root, 3)
        with keyed.client("reader") as reader, keyed.client("root") as claimer:
            body = {"node": "v", "wait_ms": 20_000}
            read = pool.submit(reader.diff, "log", from_seq=3, wait_ms=20_000)
            wait_for(root, 4)
            claim = pool.submit(claimer.post, "/v0/topics/queue/claim", body)
            found = wait_for(root, 5)
            shown = [(one["kind"], one["topics"], one["key"], one["lag"]) for one in found]
            assert shown == [
                ("stream", ["log"], 1, 0), ("websocket", ["log", "queue"], 2, 0),
                ("work", ["queue"], 1, 0), ("long_poll", ["log"], 2, 0),
                ("long_poll", ["queue"], 1, 0),
            ]  # fmt: skip
            for one in found:
                assert re.fullmatch(r"127\.0\.0\.1:\d+", one["peer"])
                assert before_ms - 1 <= one["since_ts"] <= time.time() * 1000 + 1
                assert one["buffered_bytes"] == 0
            root.write("log", 4)
            root.write("queue", *range(9))
            assert read.result(10).json["records"][0]["data"] == 4
            assert claim.result(10).json["count"] == 1
        wait_for(root, 3)
        for one in (stream, socket, work):
            one.close()
        wait_for(root, 0)


@pytest.mark.slow
def test_a_reader_that_takes_nothing_shows_its_lag_and_what_waits_for_it(keyed: Served) -> None:
    with keyed.client("root") as root:
        root.put("/v0/topics/log")
        wid = root.post("/v0/watch", {"topics": {"log": {}}}).json["wid"]
        with EventSource(
            keyed.port, f"/v0/watch/{wid}", receive_bytes=4096, Authorization="Bearer root"
        ):
            for _ in range(40):
                root.write("log", "x" * 900_000)
            (one,) = wait_for(root, 1)
            assert one["lag"] > 0
            assert one["buffered_bytes"] > 0


def test_a_stream_is_not_behind_in_a_topic_that_took_the_name(client: Client, topic: str) -> None:
    """It was told that its own was deleted, and gets nothing of the next."""
    client.write(topic, 1)
    made = client.post("/v0/watch", {"topics": {topic: {"tail": True}}}).json
    with EventSource(client.port, made["stream_url"]) as events:
        events.until("caught-up")
        client.delete(f"/v0/topics/{topic}")
        events.until("topic-deleted")
        client.write(topic, 1, 2)
        (seen,) = (one for one in connections(client) if one["topics"] == [topic])
        assert seen["lag"] == 0


@pytest.mark.slow
def test_pages_of_connections_and_what_a_bounded_key_sees(keyed: Served) -> None:
    with keyed.client("root") as root:
        for name in ("t42.a", "log"):
            root.write(name, 1)
        sockets = [Socket(keyed.port, token="root") for _ in range(5)]
        sockets[0].ask("subscribe", topics={"t42.a": {}})
        sockets[1].ask("subscribe", topics={"t42.a": {}, "log": {}})
        seen, cursor = [], ""
        while True:
            page = root.get(f"/v0/connections?page_size=2{cursor}").json
            seen += page["connections"]
            if "next_cursor" not in page:
                break
            cursor = f"&cursor={page['next_cursor']}"
        assert len(seen) == len({one["peer"] for one in seen}) == 5
        with keyed.client("tenant") as tenant:
            assert [one["topics"] for one in connections(tenant)] == [["t42.a"]]
        other = root.get("/v0/topics?page_size=1").json["next_cursor"]
        assert root.get(f"/v0/connections?cursor={other}").code == "invalid_request"
        for socket in sockets:
            socket.close()


def test_leases_of_a_queue_are_listed_in_order(client: Client, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    client.put(path, {"type": "queue"})
    client.write(topic, *range(10))
    claimed = client.post(path + "/claim", {"node": "a", "max": 3, "lease_ms": 60_000}).json
    client.post(path + "/claim", {"node": "b", "max": 2, "lease_ms": 150})
    client.post(path + "/nack", {"node": "a", "seqs": [2]})
    client.post(path + "/claim", {"node": "c", "max": 1, "lease_ms": 60_000})
    client.post(path + "/ack", {"node": "a", "seqs": [3]})
    found = client.get(path + "/leases").json["leases"]
    held = [(one["seq"], one["node"], one["deliveries"]) for one in found]
    assert held == [(1, "a", 1), (2, "c", 2), (4, "b", 1), (5, "b", 1)]
    assert found[0]["expires_ts"] == claimed["claimed"][0]["deadline"]
    first = client.get(path + "/leases?page_size=3").json
    assert [one["seq"] for one in first["leases"]] == [1, 2, 4]
    second = client.get(path + f"/leases?page_size=3&cursor={first['next_cursor']}").json
    assert [one["seq"] for one in second["leases"]] == [5]
    assert "next_cursor" not in second
    time.sleep(0.2)
    # What has run out is ready again, and held by nobody.
    assert [one["seq"] for one in client.get(path + "/leases").json["leases"]] == [1, 2]


def test_a_lease_ends_when_its_holder_was_told(client: Client, topic: str) -> None:
    """The clocks are read anew for every answer; the number stays that of the first."""
    path = f"/v0/topics/{topic}"
    client.put(path, {"type": "queue"})
    client.write(topic, *range(3))
    jobs = client.post(path + "/claim", {"node": "a", "max": 3}).json["claimed"]
    told = {job["$seq"]: job["deadline"] for job in jobs}
    extended = client.post(path + "/extend", {"node": "a", "seqs": [2], "lease_ms": 50_000}).json
    told[2] = extended["deadlines"]["2"]
    for _ in range(50):
        found = client.get(path + "/leases").json["leases"]
        assert {one["seq"]: one["expires_ts"] for one in found} == told
        time.sleep(0.0007)


def test_a_log_has_no_leases(client: Client, topic: str) -> None:
    assert client.get(f"/v0/topics/{topic}/leases").code == "topic_not_found"
    client.write(topic, 1)
    assert client.get(f"/v0/topics/{topic}/leases").code == "not_a_queue"


def test_the_largest_topics_come_first(client: Client, topic: str) -> None:
    """By bytes, records or lag; names decide between equals, and pages leave nobody out."""
    sizes = {"a": (1, 5000), "b": (4, 10), "c": (2, 10), "d": (2, 10), "e": (3, 900)}
    for name, (count, size) in sizes.items():
        client.write(f"{topic}.{name}", *["x" * size] * count)
        client.put(f"/v0/topics/{topic}.{name}/cursors/slow", {"seq": 1})
        client.put(f"/v0/topics/{topic}.{name}/cursors/quick", {"seq": count})
    client.put(f"/v0/topics/{topic}.q", {"type": "queue"})
    client.write(f"{topic}.q", 1, 2, 3)

    def listed(sort: str, size: int = 100) -> str:
        names, cursor = "", ""
        while True:
            query = f"prefix={topic}.&sort={sort}&page_size={size}{cursor}"
            page = client.get(f"/v0/topics?{query}").json
            names += "".join(entry["topic"][-1] for entry in page["topics"])
            assert all(("lag" in entry) == (sort == "lag") for entry in page["topics"])
            if "next_cursor" not in page:
                return names
            cursor = f"&cursor={page['next_cursor']}"

    for size in (1, 2, 4, 100):
        assert listed("name", size) == "abcdeq"
        assert listed("count", size) == "beqcda"
        assert listed("bytes", size)[:3] == "aeb"
        assert listed("lag", size) == "bqecda"
    by_count = client.get("/v0/topics?sort=count&page_size=1").json["next_cursor"]
    for query in ("", "&sort=name", "&sort=bytes"):
        reply = client.get(f"/v0/topics?cursor={by_count}{query}")
        assert (reply.status, reply.code) == (400, "invalid_request")


def test_the_root_says_what_is_here(client: Client, locked: Served) -> None:
    """Without a key too, as probes are; every link leads somewhere."""
    for path in ("/", "/v0"):
        index = client.get(path).json
        assert index["name"] == "topics"
        assert {"topics", "routers", "kv", "stages"} < index["links"].keys()
        with locked.client() as stranger:
            assert stranger.get(path).json["links"] == index["links"]
    for name, link in index["links"].items():
        expected = {"watch": 405, "stages": 405, "websocket": 426}.get(name, 200)
        assert client.get(link).status == expected, name


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.add(value or "")
            elif name in ("href", "src", "action"):
                self.links.append(value or "")


def test_the_page_shows_every_operation_and_asks_for_nothing_else(client: Client) -> None:
    reply = client.get("/v0/docs")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    page = Page(reply.raw.decode())
    document = client.get("/v0/openapi.json").json
    for operations in document["paths"].values():
        assert {operation["operationId"] for operation in operations.values()} <= page.ids
    assert set(document["components"]["schemas"]) <= page.ids
    assert not page.tags & {"script", "img", "iframe", "form"}
    for link in page.links:
        assert link in ("data:,", "/v0/openapi.json") or link.removeprefix("#") in page.ids


def test_metrics_are_at_the_root_too(client: Client) -> None:
    names = [
        {
            line.split()[2]
            for line in client.get(path).raw.decode().splitlines()
            if line[:6] == "# HELP"
        }
        for path in ("/metrics", "/v0/metrics")
    ]
    assert names[0] == names[1] != set()
