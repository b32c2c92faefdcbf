"""Stored bytes that are not what was written: every way to read them says so, in the same words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import Client, Inside, inside
from tests.support.streams import EventSource, Socket

RECORDS = 50


def rot(directory: Path) -> None:
    """Flips a bit in the first block of every segment."""
    segments = list(directory.rglob("*.seg"))
    assert segments
    for path in segments:
        raw = bytearray(path.read_bytes())
        raw[1000] ^= 1
        path.write_bytes(raw)


@pytest.fixture(params=["hot", "cold"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Inside]:
    """A server whose sealed records are on the disk only, damaged, in one tier or the other."""
    variables = {
        "TOPICS_RESIDENT_BYTES": "0", "TOPICS_SEAL_RECORDS": str(2 * RECORDS),
        "TOPICS_BLOCK_CACHE_BYTES": "1", "TOPICS_OWN_SEGMENT_BYTES": "1",
    }  # fmt: skip
    is_cold = request.param == "cold"
    if is_cold:
        variables |= {"TOPICS_COLD_DIR": str(tmp_path / "cold"), "TOPICS_HOT_BYTES": "0"}
    with inside(tmp_path / "data", **variables) as served:
        with served.client() as client:
            client.put("/v0/topics/rotten", {"type": "log"})
            client.put("/v0/topics/jobs", {"type": "queue"})
            records = [{"data": "x" * 100, "tag": "t"}] * RECORDS
            for topic in ("rotten", "jobs"):
                assert client.post(f"/v0/topics/{topic}", {"records": records}).status == 200
        topics = served.services.engine.core.by_name
        served.wait_until(
            lambda: all(
                block.columns is None
                and block.segment is not None
                and block.segment.is_cold == is_cold
                for name in ("rotten", "jobs")
                for block in list(topics[name].blocks)
            )
        )
        rot(tmp_path / ("cold" if is_cold else "data"))
        yield served


READS: list[tuple[str, str, Any]] = [
    ("POST", "/v0/topics/rotten/diff", {}),
    ("POST", "/v0/topics/rotten/diff", {"wait_ms": 1000}),
    ("POST", "/v0/topics/rotten/range", {}),
    ("POST", "/v0/topics/jobs/claim", {"node": "n"}),
    ("POST", "/v0/topics/jobs/claim", {"node": "n", "wait_ms": 1000}),
]


def check_refused(client: Client, method: str, path: str, body: Any) -> None:
    reply = client.call(method, path, body)
    assert (reply.status, reply.code) == (500, "corrupt_data"), reply.raw
    assert reply.detail["segment"] >= 1
    assert (reply.detail["first"], reply.detail["last"]) == (1, RECORDS)
    assert b"topics repair" in reply.raw
    assert b"xxx" not in reply.raw


def test_every_read_has_the_same_answer(served: Inside) -> None:
    with served.client() as client:
        for method, path, body in READS:
            check_refused(client, method, path, body)


def test_streams_and_sockets_are_told(served: Inside) -> None:
    with served.client() as client:
        made = client.post("/v0/watch", {"topics": {"rotten": {}}}).json
    with EventSource(served.port, made["stream_url"]) as events:
        told = events.next("error").data
        assert (told["code"], told["topics"]) == (500, ["rotten"])
        assert told["error"].startswith("corrupt_data: ")
        with pytest.raises(EOFError):
            events.next()
    with Socket(served.port) as socket:
        socket.ask("subscribe", topic="rotten")
        frame = socket.next("error")
        assert (frame["code"], frame["topic"], frame["ended"]) == ("corrupt_data", "rotten", True)


def test_workers_are_told(served: Inside) -> None:
    with EventSource(served.port, "/v0/topics/jobs/work?node=n") as events:
        told = events.next("error").data
        assert (told["code"], told["error"].partition(":")[0]) == (500, "corrupt_data")


def test_what_needs_no_damaged_byte_goes_on(served: Inside) -> None:
    with served.client() as client:
        assert client.get("/v0/topics/rotten").json["count"] == RECORDS
        assert client.write("rotten", "new").json["seqs"] == [RECORDS + 1]
        page = client.diff("rotten", from_seq=RECORDS).json
        assert [record["data"] for record in page["records"]] == ["new"]
        assert client.get("/v0/topics/rotten/explain").status == 200


def test_it_is_in_the_document(served: Inside) -> None:
    with served.client() as client:
        document = client.get("/v0/openapi.json").json
    for method, path, _ in READS:
        name = path.split("/")[3]
        named = path.partition("?")[0].replace(name, "{topic}")
        answer = document["paths"][named][method.lower()]["responses"]["500"]
        assert "`corrupt_data`" in answer["description"], named
