"""A cold store that is away: requests that need it say so and may be repeated, others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import Inside, inside
from tests.support.streams import EventSource, Socket

RECORDS = 50


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Inside]:
    """A server whose sealed records are all in the cold store and none of them in memory."""
    variables = {
        "TOPICS_COLD_DIR": str(tmp_path / "cold"), "TOPICS_HOT_BYTES": "0",
        "TOPICS_RESIDENT_BYTES": "0", "TOPICS_SEAL_RECORDS": str(RECORDS),
        "TOPICS_BLOCK_CACHE_BYTES": "1", "TOPICS_OWN_SEGMENT_BYTES": "1",
    }  # fmt: skip
    with inside(tmp_path / "data", **variables) as served:
        with served.client() as client:
            records = [{"data": "x" * 100, "tag": "t"}] * RECORDS
            assert client.post("/v0/topics/far", {"records": records}).status == 201
        blocks = served.services.engine.core.by_name["far"].blocks
        served.wait_until(
            lambda: all(block.segment and block.segment.is_cold for block in list(blocks))
        )
        yield served


@pytest.fixture
def away(served: Inside, tmp_path: Path) -> Callable[[], None]:
    """The store goes away; calling this brings it back."""
    (tmp_path / "cold").rename(tmp_path / "gone")
    return lambda: (tmp_path / "gone").rename(tmp_path / "cold") and None


NEEDS_IT: list[tuple[str, str, Any]] = [
    ("POST", "/v0/topics/far/diff", {}),
    ("POST", "/v0/topics/far/diff", {"wait_ms": 1000}),
    ("POST", "/v0/topics/far/range", {}),
]


@pytest.mark.parametrize(("method", "path", "body"), NEEDS_IT)
def test_a_read_is_told_to_come_again(
    served: Inside, away: Callable[[], None], method: str, path: str, body: Any
) -> None:
    with served.client() as client:
        reply = client.call(method, path, body)
        assert (reply.status, reply.code) == (503, "store_unreachable"), reply.raw
        assert int(reply.headers["retry-after"]) >= 1
        assert set(reply.detail) == {"segment"}
        assert b"/cold" not in reply.raw, "where the store is, is nobody's business"
        away()
        assert client.call(method, path, body).status == 200


def test_it_is_in_the_document(served: Inside) -> None:
    with served.client() as client:
        document = client.get("/v0/openapi.json").json
    for method, path, _ in NEEDS_IT:
        named = path.partition("?")[0].replace("far", "{topic}")
        answer = document["paths"][named][method.lower()]["responses"]["503"]
        assert "`store_unreachable`" in answer["description"]
        assert "Retry-After" in answer["headers"]


def test_what_does_not_need_it_goes_on(served: Inside, away: Callable[[], None]) -> None:
    with served.client() as client:
        assert client.get("/v0/topics/far").json["count"] == RECORDS
        assert client.write("far", "new").json["seqs"] == [RECORDS + 1]
        page = client.diff("far", from_seq=RECORDS).json
        assert [record["data"] for record in page["records"]] == ["new"]
        assert client.get("/v0/topics/far/explain").status == 200
        assert client.get("/v0/topics/far/seq-at?ts=1").json["seq"] == 1


def test_streams_are_told_and_go_on_when_it_is_back(
    served: Inside, away: Callable[[], None]
) -> None:
    with served.client() as client:
        made = client.post("/v0/watch", {"topics": {"far": {}}}).json
    with EventSource(served.port, made["stream_url"]) as events, Socket(served.port) as socket:
        told = events.next("error").data
        assert (told["code"], told["topics"]) == (503, ["far"])
        socket.ask("subscribe", topic="far")
        frame = socket.next("error")
        assert (frame["code"], frame["topic"]) == ("store_unreachable", "far")
        away()
        assert events.next("record").data["records"][0]["$seq"] == 1
        assert socket.next("record")["records"][0]["$seq"] == 1
