"""Streams outlive the server: sessions, their keys and places, and streams without a session."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.watch.test_reconnecting import Ledger
from tests.support.servers import Client, Served
from tests.support.streams import EventSource, Refused
from tests.support.tiers import quick_first

KEYS = "root,reader:read,other:read"
pytestmark = pytest.mark.slow


class Restarting:
    """A server on one directory that ends and begins again."""

    def __init__(self, directory: Path, **variables: str) -> None:
        self._directory = directory
        self._variables = variables
        self.served = self._start()

    def _start(self) -> Served:
        token = self._variables.get("TOPICS_API_KEYS", "").partition(",")[0]
        return Served(self._directory, **self._variables).wait_ready(token)

    @property
    def port(self) -> int:
        return self.served.port

    def client(self, token: str = "") -> Client:
        return self.served.client(token)

    def restart(self, how: str = "stop", **variables: str) -> None:
        if how == "kill":
            self.served.kill()
        else:
            assert self.served.stop() == 0
        self._variables |= variables
        self.served = self._start()

    @property
    def sessions_file(self) -> Path:
        return self.served.data_dir / "SESSIONS"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Restarting]:
    server = Restarting(tmp_path)
    yield server
    server.served.kill()


def watched(client: Client, topics: Any, **fields: Any) -> str:
    reply = client.post("/v0/watch", {"topics": topics, **fields})
    assert reply.status == 200, reply.raw
    url: str = reply.json["stream_url"]
    return url


def numbers(events: EventSource, *, until: int) -> list[int]:
    """The data of records up to one."""
    found: list[int] = []
    while not found or found[-1] != until:
        found += [record["data"] for record in events.next("record").data["records"]]
    return found


def status_of(server: Restarting, path: str, **headers: str) -> int:
    try:
        with EventSource(server.port, path, **headers) as events:
            return events.status
    except Refused as refused:
        return refused.status


@pytest.mark.parametrize("how", quick_first(["kill", "stop"], 1))
def test_a_session_resumes_exactly_over_restarts(server: Restarting, how: str) -> None:
    """Every record is processed once, of all its topics, one of which is recreated meanwhile."""
    chance = random.Random(how)
    names = ["a", "b", "c"]
    with server.client() as client:
        for name in names:
            client.put(f"/v0/topics/{name}")
        url = watched(client, {name: {} for name in names}, limit=3)
    ledger, last_id = Ledger(), ""
    for turn in range(3):
        with server.client() as client:
            if turn == 1:
                client.delete("/v0/topics/b")
            for _ in range(8):
                client.write(chance.choice(names), *range(chance.randint(1, 9)))
            heads = {name: client.get(f"/v0/topics/{name}").json.get("head_seq") for name in names}
        with EventSource(server.port, url, last_id=last_id) as events:
            left = chance.randint(1, 5) if turn < 2 else 1000
            for event in events.events():
                ledger.process(event)
                last_id = events.last_id
                left -= 1
                if left == 0 or (left > 100 and ledger.cursors == heads):
                    break
        server.restart(how)
    assert ledger.cursors == heads
    assert ledger.recreated == 1


@pytest.mark.parametrize("how", quick_first(["kill", "stop"], 1))
def test_without_an_id_it_goes_on_from_what_was_stored(server: Restarting, how: str) -> None:
    """After a clean end from where it was; after a kill from where it began."""
    with server.client() as client:
        client.write("t", 1, 2, 3)
        url = watched(client, {"t": {"from_seq": 1}})
        with EventSource(server.port, url) as events:
            assert numbers(events, until=3) == [2, 3]
        server.restart(how)
    with server.client() as client:
        client.write("t", 4)
        with EventSource(server.port, url) as events:
            assert numbers(events, until=4) == ([4] if how == "stop" else [2, 3, 4])


@pytest.mark.slow
def test_options_are_what_they_were(server: Restarting) -> None:
    """Nodes, tags, meta, data, limit, heartbeat."""
    with server.client() as client:
        client.put("/v0/topics/t")
        url = watched(
            client, {"t": {}}, node=["me", "he"], include_tags=True, include_meta=False,
            include_data=False, limit=2, heartbeat_ms=1000, consistency="strong",
        )  # fmt: skip
    server.restart("kill")
    with server.client() as client:
        records = [
            {"data": n, "node": node, "tag": "x", "meta": {"k": "v"}}
            for n, node in enumerate(["me", "us", "he", "us", "us"])
        ]
        client.post("/v0/topics/t", {"records": records})
        with EventSource(server.port, url) as events:
            found = [event.data["records"] for event in events.until("caught-up")[:-1]]
            assert [[r["$seq"] for r in records] for records in found] == [[2], [4], [5]]
            keys = {"$seq", "$ts", "$node", "$tag"}
            assert all(set(record) == keys for records in found for record in records)
            events.wait_for_comment(3)


def test_an_event_writes_nothing(server: Restarting) -> None:
    """What is stored is written when a session is made, and once more at a clean end."""
    with server.client() as client:
        client.put("/v0/topics/t")
        url = watched(client, {"t": {}})
        size = server.sessions_file.stat().st_size
        with EventSource(server.port, url) as events:
            for n in range(50):
                client.write("t", n)
            assert numbers(events, until=49) == list(range(50))
        assert server.sessions_file.stat().st_size == size


@pytest.mark.slow
def test_the_key_of_a_session_stays_its_key(tmp_path: Path) -> None:
    """Another is 401, none is 401; rights that no longer reach are 403; without keys all may."""
    server = Restarting(tmp_path, TOPICS_API_KEYS=KEYS)
    try:
        with server.client("root") as root:
            root.write("t", 1)
        with server.client("reader") as reader:
            url = watched(reader, {"t": {}})
        server.restart("kill")
        asked = {token: {"Authorization": f"Bearer {token}"} for token in ("reader", "other")}
        assert status_of(server, url, **asked["other"]) == 401
        assert status_of(server, url) == 401
        assert status_of(server, url, **asked["reader"]) == 200
        assert b"reader" not in server.sessions_file.read_bytes()
        for keys, status in (
            ("root,reader:write,other:read", 403), ("root,reader:read:elsewhere.", 403),
            ("root,other:read,reader:read", 200),
        ):  # fmt: skip
            server.restart("kill", TOPICS_API_KEYS=keys)
            assert status_of(server, url, **asked["reader"]) == status, keys
    finally:
        server.served.kill()


def test_a_session_made_without_keys_is_nobodys_with_keys(tmp_path: Path) -> None:
    server = Restarting(tmp_path)
    try:
        with server.client() as client:
            client.write("t", 1)
            url = watched(client, {"t": {}})
        server.restart(TOPICS_API_KEYS=KEYS)
        assert status_of(server, url, Authorization="Bearer root") == 401
    finally:
        server.served.kill()


@pytest.mark.slow
def test_an_idle_session_ends_after_a_restart_too_and_does_not_come_back(tmp_path: Path) -> None:
    server = Restarting(tmp_path, TOPICS_SESSION_TTL_MS="700")
    try:
        with server.client() as client:
            client.write("t", 1)
            url, other = watched(client, {"t": {}}), watched(client, {"t": {}})
            server.restart("kill")
        assert status_of(server, url) == 200
        with EventSource(server.port, url) as events:
            assert events.next("caught-up")
            # One has a stream; the other has none, and its time ends.
            time.sleep(0.9)
            assert status_of(server, other) == 404
        server.restart("kill")
        assert status_of(server, other) == 404
        assert status_of(server, url) == 200
    finally:
        server.served.kill()


def test_a_damaged_file_costs_sessions_and_nothing_else(server: Restarting) -> None:
    with server.client() as client:
        client.write("t", 1)
        first, second = watched(client, {"t": {}}), watched(client, {"t": {}})
    server.served.kill()
    raw = server.sessions_file.read_bytes()
    server.sessions_file.write_bytes(raw[:-5] + b"xxxxx")
    server.restart("kill")
    assert status_of(server, first) == 200
    assert status_of(server, second) == 404
    server.served.kill()
    server.sessions_file.write_bytes(b"nonsense")
    server.restart("kill")
    assert status_of(server, first) == 404
    with server.client() as client:
        assert client.diff("t").json["head_seq"] == 1
        assert status_of(server, watched(client, {"t": {}})) == 200


def test_a_topic_that_was_recreated_while_nobody_looked_is_told(server: Restarting) -> None:
    """The id of before is one of the instance that is gone, also when the new one is longer."""
    with server.client() as client:
        client.write("t", 1, 2)
        url = watched(client, {"t": {}})
        with EventSource(server.port, url) as events:
            numbers(events, until=2)
            last_id = events.last_id
        server.restart("kill")
    with server.client() as client:
        client.delete("/v0/topics/t")
        client.write("t", 11, 12, 13, 14)
        with EventSource(server.port, url, last_id=last_id) as events:
            assert events.next().data["reason"] == "recreated"
            assert numbers(events, until=14) == [11, 12, 13, 14]
            last_id = events.last_id
        server.restart("kill")
    with server.client() as client:
        client.write("t", 15)
        with EventSource(server.port, url, last_id=last_id) as events:
            assert events.next("record").data["records"][0]["data"] == 15


# -- without a session ---------------------------------------------------------------------------


def test_a_stream_without_a_session_begins_where_it_is_told(server: Restarting) -> None:
    """At a seq, at the head, or after the last event, which wins over both."""
    with server.client() as client:
        assert client.get("/v0/topics/t/stream").code == "topic_not_found"
        client.write("t", *range(1, 6))
        path = "/v0/topics/t/stream"
        with EventSource(server.port, path) as events:
            assert numbers(events, until=5) == [1, 2, 3, 4, 5]
            assert events.next().name == "caught-up"
        with EventSource(server.port, path + "?from_seq=3") as events:
            assert numbers(events, until=5) == [4, 5]
            last_id = events.last_id
        with EventSource(server.port, path + "?tail=true") as events:
            assert events.next().name == "caught-up"
        client.write("t", 6)
        for query in ("?from_seq=1", "?tail=true", ""):
            with EventSource(server.port, path + query, last_id=last_id) as events:
                assert numbers(events, until=6) == [6]
        for last_id, code in (("nonsense", 400), ("", 200)):
            assert status_of(server, path, **{"Last-Event-ID": last_id}) == code


def test_a_stream_without_a_session_has_the_options_of_a_watch(server: Restarting) -> None:
    """The same frames: an event of either differs in nothing but its id."""
    with server.client() as client:
        records = [
            {"data": n, "node": node, "tag": "x", "meta": {"k": "v"}}
            for n, node in enumerate(["me", "us", "he", "us", "us"])
        ]
        client.post("/v0/topics/t", {"records": records})
        for fields, query in (
            ({}, ""),
            ({"node": ["me", "he"], "limit": 2}, "?node=me&node=he&limit=2"),
            ({"include_tags": True, "include_meta": False}, "?include_tags=1&include_meta=false"),
            ({"include_data": False, "consistency": "strong"},
             "?include_data=0&consistency=strong"),
        ):  # fmt: skip
            seen = []
            for path in (watched(client, {"t": {}}, **fields), f"/v0/topics/t/stream{query}"):
                with EventSource(server.port, path) as events:
                    seen.append([(e.name, e.data) for e in events.until("caught-up")])
            assert seen[0] == seen[1]


@pytest.mark.parametrize("how", quick_first(["kill", "stop"], 1))
def test_a_stream_without_a_session_resumes_exactly_over_restarts(
    server: Restarting, how: str
) -> None:
    with server.client() as client:
        client.put("/v0/topics/t")
    ledger, last_id, chance = Ledger(), "", random.Random(how)
    for turn in range(3):
        with server.client() as client:
            if turn == 1:
                client.delete("/v0/topics/t")
            client.write("t", *range(chance.randint(20, 40)))
            head = client.get("/v0/topics/t").json["head_seq"]
        with EventSource(server.port, "/v0/topics/t/stream?limit=3", last_id=last_id) as events:
            left = chance.randint(1, 5) if turn < 2 else 1000
            for event in events.events():
                ledger.process(event)
                last_id = events.last_id
                left -= 1
                if left == 0 or (left > 100 and ledger.cursors == {"t": head}):
                    break
        server.restart(how)
    assert ledger.cursors == {"t": head}
    assert ledger.recreated == 1
