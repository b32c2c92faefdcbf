"""Requests that are sent behind each other without waiting: each finds what those before did."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.servers import Inside, inside

CLASSES = ("fsync", "disk", "memory", "ephemeral")
Call = tuple[str, str, Any]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    with inside(tmp_path_factory.mktemp("pipelined")) as served:
        yield served


def request(method: str, path: str, body: Any) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    return (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    ).encode() + data


def answers(port: int, calls: list[Call]) -> list[Any]:
    """What is answered to calls that were sent in one piece, with the status of each."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as peer:
        peer.sendall(b"".join(request(*call) for call in calls))
        return read_answers(peer, len(calls))


def read_answers(peer: socket.socket, count: int) -> list[Any]:
    found = []
    with peer.makefile("rb") as source:
        for _ in range(count):
            status = int(source.readline().split()[1])
            length = 0
            while (line := source.readline().strip().lower()) != b"":
                if line.startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            found.append((status, json.loads(source.read(length) or b"null")))
    return found


@pytest.mark.parametrize("durability", CLASSES)
def test_a_write_has_happened_for_what_comes_behind_it(served: Inside, durability: str) -> None:
    path = f"/v0/topics/written-{durability}"
    with served.client() as client:
        client.put(path, {"durability": durability})
    write = ("POST", path, {"records": [{"data": 1}, {"data": 2}]})
    read = ("POST", f"{path}/diff", {})
    delete = ("POST", f"{path}/delete", {"before_seq": 2})
    calls: list[Call] = [write, read, delete, read, ("DELETE", path, None), ("GET", path, None)]
    found = answers(served.port, calls)
    assert [status for status, _ in found] == [200, 200, 200, 200, 200, 404]
    assert [record["data"] for record in found[1][1]["records"]] == [1, 2]
    assert (found[2][1]["deleted"], found[2][1]["head_seq"]) == (1, 2)
    assert [record["data"] for record in found[3][1]["records"]] == [2]


def test_a_batch_is_there_for_what_comes_behind_its_commit(served: Inside) -> None:
    stage = {"producer": "p", "batch": 1, "part": 0, "attempt": 0, "topic": "staged"}
    made = answers(served.port, [("POST", "/v0/stages", {**stage, "records": [{"data": 1}]})])
    commit = {"producer": "p", "batch": 1, "query": "q", "stages": [made[0][1]["stage"]]}
    found = answers(
        served.port,
        [
            ("POST", "/v0/stages/commit", commit),
            ("GET", "/v0/topics/staged", None),
            ("POST", "/v0/stages/commit", commit),
            ("PUT", "/v0/topics/staged/cursors/c", {"seq": 1}),
            ("GET", "/v0/topics/staged/cursors/c", None),
        ],
    )
    assert [status for status, _ in found] == [200] * 5
    assert [found[at][1]["repeated"] for at in (0, 2)] == [False, True]
    assert found[1][1]["head_seq"] == 1


def test_writes_to_one_topic_do_not_wait_for_each_other(served: Inside) -> None:
    """They come to the log in their order, and with one sync."""
    with served.client() as client:
        client.put("/v0/topics/many", {"durability": "fsync"})
    stats = served.services.engine.core.log.shards[0].stats
    before = stats.fsyncs_total
    write = ("POST", "/v0/topics/many", {"records": [{"data": 1}]})
    found = answers(served.port, [write] * 50)
    assert [body["first_seq"] for _, body in found] == list(range(1, 51))
    assert stats.fsyncs_total - before < 25


def test_routers_come_between_a_write_and_what_is_sent_behind_it(served: Inside) -> None:
    """As they do where the answer is waited for: a read, and what ends them, finds the copies."""
    route = ("PUT", "/v0/routers/r", {"source": "from", "dest": "to"})
    write = ("POST", "/v0/topics/from", {"records": [{"data": 1}] * 3000})
    read = ("GET", "/v0/topics/to", None)
    end = ("DELETE", "/v0/routers/r", None)
    found = answers(served.port, [route, write, read, write, end, read])
    assert [status for status, _ in found] == [201, 200, 200, 200, 200, 200]
    assert [found[at][1]["head_seq"] for at in (2, 5)] == [3000, 6000]


def test_nothing_begins_in_the_midst_of_what_is_being_answered(served: Inside) -> None:
    """Behind one write another is sent, to a topic that a third client writes in the same group."""
    with served.client() as client:
        for topic in ("first", "other", "shared"):
            client.put(f"/v0/topics/{topic}", {"durability": "memory"})
    records = {"records": [{"data": 1}, {"data": 2}]}
    sent: list[list[Call]] = [
        [("POST", "/v0/topics/first", records), ("POST", "/v0/topics/shared", records)],
        [("POST", "/v0/topics/other", records), ("GET", "/v0/topics/other", None)],
        [("POST", "/v0/topics/shared", records)],
    ]
    for turn in range(1, 4):
        with contextlib.ExitStack() as stack:
            peers = [
                stack.enter_context(socket.create_connection(("127.0.0.1", served.port), 20))
                for _ in sent
            ]
            with served.standing_still():
                for peer, calls in zip(peers, sent, strict=True):
                    peer.sendall(b"".join(request(*call) for call in calls))
            found = [
                read_answers(peer, len(calls)) for peer, calls in zip(peers, sent, strict=True)
            ]
        assert [status for each in found for status, _ in each] == [200] * 5
        firsts = sorted((found[0][1][1]["first_seq"], found[2][0][1]["first_seq"]))
        assert firsts == [4 * turn - 3, 4 * turn - 1]
