"""Sessions: what may be asked for, how many there may be, and when one ends.

What is wrong is said before a stream opens, while the caller can still read an error.
"""

from __future__ import annotations

import base64
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed

from tests.server.watch.conftest import stream, watch
from tests.support.servers import Client, Inside, Served, inside
from tests.support.streams import EventSource, Refused, Socket
from topics.server.api.sse_frames import digest

TTL_MS = 500


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """A server with room for little."""
    with inside(
        tmp_path_factory.mktemp("small"),
        TOPICS_SESSION_TTL_MS=str(TTL_MS),
        TOPICS_MAX_WATCH_SESSIONS="3",
        TOPICS_MAX_SSE_CONNECTIONS="2",
        TOPICS_MAX_WATCH_TOPICS="2",
    ) as served:
        yield served


@pytest.fixture
def few(small: Inside) -> Iterator[Client]:
    """A client of the small server, after everything of earlier tests is gone."""
    time.sleep(TTL_MS / 1000 + 0.05)
    with small.client() as client:
        client.write("t", 1)
        client.write("u", 1)
        yield client


# -- what may be asked for -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"{",
        {"topics": {}},
        {"topics": []},
        {"topics": {"bad name": {}}},
        {"topics": {"t": {"from_seq": -1}}},
        {"topics": {"t": {"from_seq": True}}},
        {"topics": {"t": {"from_seq": 2**64}}},
        {"topics": {"t": {"epoch": "x"}}},
        {"topics": {"t": {"epoch": 1}}},
        {"topics": {"t": {"epoch": str(2**64)}}},
        {"topics": {"t": {}}, "limit": "2"},
        {"topics": {"t": {}}, "heartbeat_ms": -1},
        {"topics": {"t": {}}, "consistency": "perfect"},
        {"topics": {"t": {}}, "node": ["n"] * 1001},
    ],
    ids=str,
)
def test_what_is_not_understood_is_refused(client: Client, body: Any) -> None:
    client.write("t", 1)
    reply = client.post("/v0/watch", body)
    assert (reply.status, reply.code) == (400, "invalid_request")


def ids_with(epoch: int, names: list[str]) -> list[str]:
    """Ids of a reader of these topics, in either form, that say an epoch of the first."""
    place = json.dumps(dict.fromkeys(names, 0) | {"$epochs": {names[0]: str(epoch)}}).encode()
    forms = [place]
    if -(2**63) <= epoch < 2**64:
        packed = (digest(sorted(names)), [0] * len(names), {0: epoch})
        forms.append(msgspec.msgpack.encode(packed))
    return [base64.urlsafe_b64encode(form).rstrip(b"=").decode() for form in forms]


@pytest.mark.parametrize("epoch", [-1, -(2**63), -(10**30), 2**64, 10**30])
def test_an_id_with_an_epoch_that_never_was_one_opens_nothing(
    server: Inside, client: Client, topic: str, epoch: int
) -> None:
    """What can not be stored would be met where the server writes down its sessions: at its end."""
    client.write(topic, 1)
    url = watch(client, {topic: {}})["stream_url"]
    for last_id in ids_with(epoch, [topic]):
        for path in (url, f"/v0/topics/{topic}/stream"):
            with pytest.raises(Refused) as refused:
                EventSource(server.port, path, last_id=last_id)
            assert (refused.value.status, refused.value.code) == (400, "invalid_request")
        reply = client.post("/v0/watch", {"topics": {topic: {}}, "cursor": last_id})
        assert (reply.status, reply.code) == (400, "invalid_request")


def test_an_id_with_any_epoch_there_can_be_opens_a_stream(
    server: Inside, client: Client, topic: str
) -> None:
    client.write(topic, 1)
    url = watch(client, {topic: {}})["stream_url"]
    for epoch in (0, 2**64 - 1):
        for last_id in ids_with(epoch, [topic]):
            EventSource(server.port, url, last_id=last_id).close()


def test_a_body_has_to_be_declared(client: Client) -> None:
    reply = client.call("POST", "/v0/watch", b'{"topics":{"t":{}}}', {"Content-Type": "text/plain"})
    assert reply.status == 415


def test_a_topic_that_is_not_there_is_an_error_or_left_out(client: Client, topic: str) -> None:
    client.write(topic, 1)
    wanted = {"topics": {topic: {}, "nowhere": {}}}
    reply = client.post("/v0/watch", wanted)
    assert (reply.status, reply.code, reply.detail) == (
        404,
        "topic_not_found",
        {"topic": "nowhere"},
    )
    reply = client.post("/v0/watch?lenient=true", wanted)
    assert reply.json["topics"].keys() == {topic}
    assert client.post("/v0/watch?lenient=maybe", wanted).status == 400


def test_limits_are_clamped_and_zero_is_the_default(
    server: Inside, client: Client, topic: str
) -> None:
    client.write(topic, *range(1100))
    for limit, count in ((0, 256), (5000, 1000), (7, 7)):
        with stream(client, {topic: {}}, limit=limit) as events:
            assert len(events.next("record").data["records"]) == count


def test_consuming_is_noted_for_the_priority(client: Client, topic: str) -> None:
    client.write(topic, 1)
    path = f"/v0/topics/{topic}?touch=false"
    assert client.get(path).json["effective_priority"] == 0
    with stream(client, {topic: {"tail": True}}) as events:
        events.until("caught-up")
        assert client.get(path).json["effective_priority"] >= 490


# -- how many --------------------------------------------------------------------------------------


def test_too_many_topics_are_a_bad_request(few: Client) -> None:
    few.write("v", 1)
    reply = few.post("/v0/watch", {"topics": {"t": {}, "u": {}, "v": {}}})
    assert (reply.status, reply.code) == (400, "invalid_request")
    assert reply.detail == {"limit": "max_watch_topics", "max": 2}


def test_a_topic_that_is_gone_leaves_room_for_another_on_a_socket(small: Inside) -> None:
    """Its subscription is over, and counted no more; nor are records of a later one waited for."""
    with small.client() as few, Socket(small.port) as socket:
        for name in ("room-1", "room-2", "room-3"):
            few.write(name, 1)
            assert socket.ask("subscribe", topic=name, tail=True)["op"] == "subscribed"
            few.delete(f"/v0/topics/{name}")
            socket.until("topic_deleted")
        few.write("room-3", 1)
        (seen,) = few.get("/v0/connections").json["connections"]
        assert (seen["topics"], seen["lag"]) == ([], 0)


def test_too_many_sessions_are_throttled_until_idle_ones_are_gone(few: Client) -> None:
    for _ in range(3):
        watch(few, {"t": {}})
    reply = few.post("/v0/watch", {"topics": {"t": {}}})
    assert (reply.status, reply.code) == (429, "throttled")
    assert reply.detail == {"limit": "max_watch_sessions", "max": 3}
    assert int(reply.headers["retry-after"]) >= 1
    time.sleep(TTL_MS / 1000 + 0.05)
    watch(few, {"t": {}})
    assert few.metrics()["topics_watch_sessions"] == 1


def test_too_many_streams_are_throttled_until_one_ends(few: Client) -> None:
    """Event streams and WebSockets count alike."""
    url = watch(few, {"t": {}})["stream_url"]
    with stream(few, {"t": {}}), Socket(few.port):
        assert few.metrics()["topics_sse_connections"] == 2
        with pytest.raises(Refused) as refused:
            EventSource(few.port, url)
        assert (refused.value.status, refused.value.code) == (429, "throttled")
        assert refused.value.detail == {"limit": "max_sse_connections", "max": 2}
        assert "retry-after" in refused.value.headers
    deadline = time.monotonic() + 5
    while few.metrics()["topics_sse_connections"] and time.monotonic() < deadline:
        time.sleep(0.01)
    EventSource(few.port, url).close()


# -- when it ends ----------------------------------------------------------------------------------


def test_a_session_without_a_stream_is_reclaimed(few: Client) -> None:
    session = watch(few, {"t": {}})
    time.sleep(TTL_MS / 1000 + 0.05)
    with pytest.raises(Refused) as refused:
        EventSource(few.port, session["stream_url"])
    assert (refused.value.status, refused.value.code) == (404, "not_found")


def test_a_session_with_a_stream_never_is(few: Client) -> None:
    session = watch(few, {"t": {}})
    with EventSource(few.port, session["stream_url"]) as events:
        events.until("caught-up")
        time.sleep(TTL_MS / 1000 + 0.1)
        watch(few, {"t": {}})
        few.write("t", 2)
        assert events.next("record")
    # Its time begins when its stream ends.
    time.sleep(TTL_MS / 5000)
    with EventSource(few.port, session["stream_url"]) as events:
        assert events.next().name == "caught-up"


def test_a_lost_connection_gives_its_place_back(server: Inside, topic: str) -> None:
    """Closed, reset or cut off: nothing stays behind."""
    with server.client() as client:
        client.write(topic, 1)
        before = client.metrics()["topics_sse_connections"]
        streams = [stream(client, {topic: {}}) for _ in range(5)]
        for events in streams:
            events.until("caught-up")
        sockets = [Socket(server.port) for _ in range(3)]
        for socket in sockets:
            socket.ask("subscribe", topic=topic)
        assert client.metrics()["topics_sse_connections"] == before + 8
        for events in streams:
            events.close()
        for socket in sockets:
            socket.connection.socket.close()
        server.wait_until(lambda: server.services.delivery.connections == before)
        feeds = server.services.delivery.feeds
        server.wait_until(lambda: all(feed.topic.name != topic for feed in feeds))


@pytest.mark.slow
def test_a_drain_tells_streams_and_does_not_wait_for_them(tmp_path: Path) -> None:
    with Served(tmp_path).wait_ready() as served, served.client() as client:
        client.write("t", 1)
        with stream(client, {"t": {}}) as events, Socket(served.port) as socket:
            events.until("caught-up")
            socket.ask("subscribe", topic="t")
            socket.until("caught_up")
            began = time.monotonic()
            served.signal(signal.SIGTERM)
            told = events.next()
            assert (told.name, told.data["code"]) == ("error", 503)
            assert "shutting_down" in told.data["error"]
            assert list(events.events()) == []
            assert events.is_ended
            assert socket.next("error")["code"] == "shutting_down"
            with pytest.raises(ConnectionClosed) as closed:
                socket.next()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1001
        assert served.wait() == 0
        assert time.monotonic() - began < 3
        assert "cut off" not in served.log()
