"""What pressure costs on every way in, and what strong readers see over real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.watch.conftest import stream, watch
from tests.support.servers import Client, Inside, inside
from tests.support.streams import EventSource, Refused, Socket


@pytest.fixture
def pressed(tmp_path: Path) -> Iterator[Inside]:
    """A server whose pressure is what the test says: nothing measures it any more."""
    with inside(tmp_path) as served:
        with served.client() as client:
            client.write("t", 1)
            client.put("/v0/topics/important", {"priority": 100})
            client.put("/v0/topics/low", {"priority": -100})
        served.run(lambda: served.services.delivery.close())
        yield served


def press(served: Inside, level: float) -> None:
    served.run(lambda: served.services.delivery.pressure.set_level(level))


def test_at_the_limit_requests_are_told_when_to_come_back(pressed: Inside) -> None:
    """Low and middle first; what has priority when nothing else helps."""
    with pressed.client() as client, Socket(pressed.port) as socket:
        url = watch(client, {"t": {}})["stream_url"]
        press(pressed, 1.2)
        for reply in (client.write("low", 1), client.diff("low")):
            assert (reply.status, reply.code) == (429, "throttled")
            assert reply.detail["retry_after_ms"] >= 250
            assert int(reply.headers["retry-after"]) >= 1
            assert "limit" not in reply.detail
        assert client.post("/v0/watch", {"topics": {"t": {}}}).status == 429
        with pytest.raises(Refused) as refused:
            EventSource(pressed.port, url)
        assert refused.value.status == 429
        answer = socket.ask("publish", topic="low", records=[{"data": 1}])
        assert (answer["code"], "retry_after_ms" in answer["detail"]) == ("throttled", True)
        assert client.write("important", 1).status == 200
        assert client.diff("important").status == 200
        press(pressed, 2.5)
        assert client.write("important", 1).status == 429
        # A loader that would rather wait is let in.
        assert client.write("low", 1, disable_backpressure=True).status == 200
        published = socket.ask(
            "publish", topic="low", records=[{"data": 1}], disable_backpressure=True
        )
        assert published["op"] == "ack"
        press(pressed, 0.9)
        assert client.write("low", 1).status == 200


def test_streams_stay_open_and_are_told_that_they_are_paced(pressed: Inside) -> None:
    with pressed.client() as client, stream(client, {"t": {}}) as events:
        events.until("caught-up")
        feeds = pressed.services.delivery.feeds

        def pace() -> None:
            for feed in list(feeds):
                feed.paced(1500)
                feed.paced(1500)

        pressed.run(pace)
        advice = events.next()
        assert advice.name == "error"
        assert advice.data == {
            "code": 429, "error": "watch throttled under CPU pressure", "retry_after_ms": 1500,
            "topics": ["t"],
        }  # fmt: skip
        press(pressed, 1.5)
        client.write("t", 2, disable_backpressure=True)
        # Told once, and served.
        assert events.next().name == "record"


@pytest.mark.parametrize("durability", ["disk", "memory", "fsync", "ephemeral"])
def test_a_strong_reader_gets_everything_on_an_idle_server(
    client: Client, topic: str, durability: str
) -> None:
    client.put(f"/v0/topics/{topic}", {"durability": durability})
    client.write(topic, 1)
    with stream(client, {topic: {}}, consistency="strong") as events:
        assert [e.name for e in events.until("caught-up")] == ["record", "caught-up"]
        for number in range(2, 6):
            client.write(topic, number)
            frame = events.next("record").data
            assert frame["to_seq"] == frame["head_seq"] == number
    # Again, with nothing written since.
    with stream(client, {topic: {}}, consistency="strong") as events:
        assert events.until("caught-up")[0].data["to_seq"] == 5


def test_a_backlog_in_the_cold_store_is_streamed_like_any_other(tmp_path: Path) -> None:
    """While blocks are fetched beside the loop, live readers of the same topic go on."""
    variables = {
        "TOPICS_COLD_DIR": str(tmp_path / "cold"), "TOPICS_HOT_BYTES": "0",
        "TOPICS_RESIDENT_BYTES": "0", "TOPICS_BLOCK_CACHE_BYTES": "1",
        "TOPICS_OWN_SEGMENT_BYTES": "1",
    }  # fmt: skip
    with inside(tmp_path / "data", **variables) as served, served.client() as client:
        for _ in range(10):
            client.write("t", *["x" * 1000] * 200)
        served.run(lambda: served.services.engine.checkpoint())
        blocks = served.services.engine.core.by_name["t"].blocks
        served.wait_until(
            lambda: all(block.segment and block.segment.is_cold for block in list(blocks))
        )
        with stream(client, {"t": {}}) as events, stream(client, {"t": {"tail": True}}) as live:
            live.until("caught-up")
            client.write("t", "new")
            assert live.next("record").data["to_seq"] == 2001
            seqs: list[int] = []
            while len(seqs) < 2001:
                seqs += [r["$seq"] for r in events.next("record").data["records"]]
        assert seqs == list(range(1, 2002))
