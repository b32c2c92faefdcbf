"""Streams through both clients: one topic's, a session's, a worker's, and the WebSocket."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

import msgspec
import pytest
from websockets.sync.server import ServerConnection, serve

from tests.support.proxy import Proxy
from tests.support.servers import Inside, inside
from tests.support.waiting import WAIT_S, until
from topics import AsyncClient, Client, errors
from topics.client import web_socket
from topics.client.event_stream import Event
from topics.client.reader_calls import WatchFrom
from topics.client.stream_values import (
    CaughtUp,
    Lost,
    Paced,
    Records,
    StreamEvent,
    TopicEnded,
    topic_told,
)
from topics.client.sync_socket import Socket

SURROGATE = msgspec.Raw(b'"\\ud800"')


def kinds(events: list[StreamEvent]) -> list[type]:
    return [type(event) for event in events]


def test_one_topic_is_told_from_a_place_on(client: Client) -> None:
    """Records with what they were written with, then that all is told, then what is new."""
    client.append("told", [{"data": SURROGATE, "tag": "t"}, {"data": 2}], node="n")
    with client.stream("told", from_seq=0, include_tags=True) as events:
        found = iter(events)
        first, second = islice(found, 2)
        assert isinstance(first, Records)
        assert [(one.seq, one.tag, one.topic) for one in first.records] == [
            (1, "t", "told"), (2, None, "told"),
        ]  # fmt: skip
        assert bytes(first.records[0].data) == bytes(SURROGATE)
        assert (first.from_seq, first.to_seq, first.head_seq) == (0, 2, 2)
        assert isinstance(second, CaughtUp)
        client.append("told", [{"data": 3}])
        third = next(found)
        assert isinstance(third, Records)
        assert third.records[0].value == 3
        client.delete_topic("told")
        ended = next(one for one in found if not isinstance(one, CaughtUp))
        assert isinstance(ended, TopicEnded)


def test_an_id_goes_on_where_it_was(client: Client) -> None:
    """Also over a loss, which is told with what is behind it."""
    client.create_topic("places", cap_records=2)
    client.append("places", [{"data": 1}])
    with client.stream("places") as events:
        place = next(iter(events))
        assert isinstance(place, Records)
    for number in range(2, 6):
        client.append("places", [{"data": number}])
    with client.stream("places", last_event_id=place.id) as events:
        lost, rest = islice(events, 2)
    assert isinstance(lost, Lost)
    assert (lost.gap_from, lost.gap_to + 1) == (2, lost.earliest_seq)
    assert isinstance(rest, Records)
    assert [one.seq for one in rest.records] == list(range(lost.earliest_seq, 6))


def test_what_a_stream_leaves_out(client: Client) -> None:
    """Nodes, data, and what was there before."""
    client.append("filtered", [{"data": 1, "node": "a"}, {"data": 2, "node": "b"}, {"data": 3}])
    with client.stream("filtered", node=["a", "b"], include_data=False) as events:
        (first,) = islice(events, 1)
    assert isinstance(first, Records)
    assert [(one.seq, one.value) for one in first.records] == [(3, None)]
    with client.stream("filtered", tail=True) as events:
        assert kinds(list(islice(events, 1))) == [CaughtUp]


def test_what_is_refused_is_raised_as_itself(client: Client) -> None:
    with pytest.raises(errors.TopicNotFound), client.stream("nowhere") as events:
        next(iter(events))
    with pytest.raises(errors.NotFound), client.watch_stream("wid_none") as events:
        next(iter(events))
    client.create_topic("log")
    with pytest.raises(errors.NotAQueue), client.work("log", "w") as jobs:
        next(iter(jobs))


def test_a_session_is_told_of_all_its_topics(client: Client) -> None:
    for name in ("one", "two"):
        client.append(name, [{"data": name}])
    session = client.watch({"one": WatchFrom(), "two": WatchFrom()}, heartbeat_ms=1000)
    with client.watch_stream(session.wid, heartbeat_ms=1000) as events:
        found = list(islice(events, 4))
    told = [one.records[0].value for one in found if isinstance(one, Records)]
    assert sorted(told) == ["one", "two"]
    assert kinds(found).count(CaughtUp) == 2


def test_jobs_are_pushed_as_there_is_room_and_go_back_at_the_end(client: Client) -> None:
    """Never more than `max`; what was not acknowledged is ready again when the stream is closed."""
    client.create_topic("pushed", type="queue")
    client.append("pushed", [{"data": number} for number in (SURROGATE, 2, 3)])
    with client.work("pushed", "w", 2, lease_ms=60_000) as jobs:
        found = iter(jobs)
        first, second = islice(found, 2)
        assert (bytes(first.data), second.value) == (bytes(SURROGATE), 2)
        state = client.topic("pushed").queue
        assert state is not None
        assert (state.ready, state.in_flight) == (1, 2)
        assert client.ack("pushed", "w", [first.seq], lease_ids=[first.lease_id]).acked == 1
        assert next(found).value == 3
    until(lambda: _ready(client, "pushed") == 2)


def _ready(client: Client, queue: str) -> int:
    state = client.topic(queue).queue
    assert state is not None
    return state.ready


def test_a_queue_that_is_deleted_ends_its_stream(client: Client) -> None:
    client.create_topic("ended", type="queue")
    client.append("ended", [{"data": 1}])
    with client.work("ended", "w") as jobs:
        found = iter(jobs)
        next(found)
        client.delete_topic("ended")
        with pytest.raises(errors.TopicNotFound):
            next(found)


def test_a_stream_that_breaks_says_so(client: Client, server: Inside) -> None:
    """It is the caller's to go on, from the last id: nothing is skipped in silence."""
    client.append("broken", [{"data": 1}])
    with (
        Proxy(server.port) as proxy,
        Client(f"http://127.0.0.1:{proxy.port}") as far,
        far.stream("broken") as events,
    ):
        found = iter(events)
        assert kinds(list(islice(found, 2))) == [Records, CaughtUp]
        proxy.cut_all()
        with pytest.raises(errors.Unreachable):
            next(found)


def test_asyncio_streams_alike(client: Client, url: str) -> None:
    client.create_topic("later", type="queue")
    client.append("later", [{"data": 1}, {"data": 2}])

    async def use() -> None:
        async with AsyncClient(url) as later:
            async with later.work("later", "w") as jobs:
                async for job in jobs:
                    await later.ack("later", "w", [job.seq])
                    if job.value == 2:
                        break
            async with later.stream("later", tail=True) as events:
                assert isinstance(await anext(events), CaughtUp)
            assert (await later.topic("later")).count == 0

    asyncio.run(use())


def test_streams_of_a_log_in_this_process(tmp_path: Path) -> None:
    """The same streams; only a WebSocket needs a server."""
    with Client.embedded(tmp_path) as client:
        client.append("a", [{"data": 1}])
        with client.stream("a") as events:
            assert kinds(list(islice(events, 2))) == [Records, CaughtUp]
        client.create_topic("q", type="queue")
        client.append("q", [{"data": 1}])
        with client.work("q", "w") as jobs:
            assert next(iter(jobs)).value == 1
        until(lambda: _ready(client, "q") == 1)
        with pytest.raises(errors.InvalidRequest, match="WebSocket"):
            client.socket()


# -- the WebSocket ---------------------------------------------------------------------------------


def test_a_socket_publishes_and_is_told(client: Client) -> None:
    client.append("chat", [{"data": "before"}])
    with client.socket() as socket:
        socket.ping()
        begun = socket.subscribe({"chat": WatchFrom(tail=True)}, include_tags=True)
        assert (begun["chat"].from_seq, begun["chat"].head_seq) == (1, 1)
        written = socket.publish("chat", [{"data": SURROGATE, "tag": "t"}], node="n")
        assert (written.first_seq, written.count, written.deduped) == (2, 1, False)
        told = next(one for one in socket if isinstance(one, Records))
        (record,) = told.records
        assert (record.seq, record.tag, record.node) == (2, "t", "n")
        assert bytes(record.data) == bytes(SURROGATE)
        socket.unsubscribe("chat")
        client.delete_topic("chat")
        with pytest.raises(errors.TopicNotFound):
            socket.publish("chat", [{"data": 1}], create=False)
        with pytest.raises(errors.TopicNotFound):
            socket.subscribe({"chat": WatchFrom()})
        socket.ping()
    with pytest.raises(errors.Unreachable, match="closed"):
        socket.ping()


def test_a_socket_is_told_of_losses(client: Client) -> None:
    client.create_topic("short", cap_records=2)
    for number in range(5):
        client.append("short", [{"data": number}])
    with client.socket() as socket:
        socket.subscribe({"short": WatchFrom()})
        lost = next(iter(socket))
        assert isinstance(lost, Lost)
        assert (lost.gap_from, lost.reason) == (1, "cap")


def test_answers_come_through_events_that_nobody_takes(client: Client) -> None:
    """What waits is held back at the server; what is asked meanwhile is answered."""
    client.create_topic("flood")
    with client.socket() as socket:
        socket.subscribe({"flood": WatchFrom()}, limit=1)
        for number in range(500):
            client.append("flood", [{"data": number}])
        assert socket.publish("flood", [{"data": 500}]).last_seq == 501
        seen = 0
        for told in socket:
            seen += len(told.records) if isinstance(told, Records) else 0
            if seen == 501:
                break


@contextmanager
def answered_by(handler: Callable[[ServerConnection], object]) -> Iterator[str]:
    """A server of WebSockets that is none of ours."""
    with serve(handler, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_a_socket_that_breaks_leaves_a_publish_unknown() -> None:
    """Nobody knows whether it was done; whoever iterates is told that the socket broke."""
    with answered_by(lambda peer: peer.recv()) as place:
        with Client(place).socket() as socket:
            with pytest.raises(errors.OutcomeUnknown):
                socket.publish("t", [{"data": 1}])
            for use in (socket.ping, lambda: next(socket)):
                with pytest.raises(errors.Unreachable, match="broke"):
                    use()
        socket.close()


def test_a_socket_that_breaks_under_a_large_publish_is_closed_in_order(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The server is gone while most of it is still to be sent; asyncio has nothing to complain."""

    async def use(place: str) -> None:
        async with AsyncClient(place) as client, client.socket() as socket:
            with pytest.raises(errors.OutcomeUnknown):
                await socket.publish("t", [{"data": "x" * 1_000_000}] * 40)

    # Such a server takes a MiB in one message.
    with answered_by(lambda peer: peer.recv()) as place:
        asyncio.run(use(place))
    gc.collect()
    assert [each for each in caplog.records if each.name == "asyncio"] == []


@pytest.mark.parametrize(
    ("trouble", "kind"),
    [
        ('"code":"corrupt_data"', errors.CorruptData),
        ('"code":"unreadable","ended":true', errors.Unreadable),
    ],
)
def test_trouble_of_a_socket_is_told_if_it_passes_and_raised_if_not(
    trouble: str, kind: type[errors.TopicsError]
) -> None:
    def tell(peer: ServerConnection) -> None:
        for each in ('"code":"unreadable"', trouble):
            peer.send(f'{{"op":"error",{each},"message":"no","topic":"t"}}')
        peer.recv()

    with answered_by(tell) as place, Client(place).socket() as socket:
        passing = next(socket)
        assert isinstance(passing, Paced)
        assert (passing.code, passing.topics) == (503, ["t"])
        with pytest.raises(kind):
            next(socket)


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (500, "corrupt_data: damaged", errors.CorruptData),
        (500, "unreadable: the disk failed a read", errors.Unreadable),
        (500, "internal: a bug", errors.TopicsError),
        (408, "not read for too long", errors.Unreachable),
    ],
)
def test_what_ends_a_stream_is_raised_as_itself(
    code: int, text: str, kind: type[errors.TopicsError]
) -> None:
    """What may work again is not taken for damage, which ends a follower."""
    event = Event("error", msgspec.json.encode({"code": code, "error": text, "topics": ["t"]}))
    with pytest.raises(kind) as told:
        topic_told(event)
    assert type(told.value) is kind


def test_a_server_that_goes_away_says_so(tmp_path: Path) -> None:
    with inside(tmp_path / "data") as served:
        socket = Client(_url(served)).socket()
        socket.open()
    with pytest.raises(errors.Closed):
        next(socket)
    socket.close()


def _url(served: Inside) -> str:
    return f"http://127.0.0.1:{served.port}"


def test_a_socket_that_is_refused_says_why(tmp_path: Path) -> None:
    with inside(tmp_path / "data", TOPICS_API_KEYS="secret:r") as served:
        with pytest.raises(errors.Unauthorized), Client(_url(served), "wrong").socket():
            pass
        with Client(_url(served), "secret").socket() as socket, pytest.raises(errors.Forbidden):
            socket.publish("t", [{"data": 1}])
    with pytest.raises(errors.Unreachable), Client(_url(served)).socket():
        pass


def test_a_stream_that_is_closed_before_it_began_ends(client: Client) -> None:
    """There is no connection yet that could be ended."""
    client.create_topic("closed-early", type="queue")
    jobs = client.work("closed-early", "nobody")
    jobs.close()
    assert list(jobs) == []


def test_events_that_nobody_takes_are_not_kept_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An answer behind too many of them does not come, and they are all there."""
    monkeypatch.setattr(web_socket, "WAITING_AND_ASKED_MAX", 100)

    def flood(peer: ServerConnection) -> None:
        for count in (200, 0):
            number = msgspec.json.decode(peer.recv())["request_id"]
            for head in range(count):
                peer.send(f'{{"op":"caught_up","topic":"t","head_seq":{head}}}')
            peer.send(f'{{"op":"pong","request_id":{number}}}')
        peer.recv()

    with answered_by(flood) as place, Client(place, timeout_s=3.0).socket() as socket:
        with pytest.raises(errors.Unreachable, match="in time"):
            socket.ping()
        events = list(islice(socket, 200))
        assert [event.head_seq for event in events if isinstance(event, CaughtUp)] == [*range(200)]
        socket.ping()


def test_a_socket_that_is_not_open_says_so(client: Client, url: str) -> None:
    """Before, and after; nobody waits for what can not come."""
    socket = client.socket()
    socket.close()
    with pytest.raises(errors.Unreachable):
        socket.ping()
    with client.socket() as socket:
        socket.ping()
    socket.close()
    with pytest.raises(errors.Unreachable, match="closed"):
        next(socket)

    async def use() -> None:
        async with AsyncClient(url) as later:
            unopened = later.socket()
            with pytest.raises(errors.Unreachable, match="not open"):
                await unopened.ping()
            await unopened.close()

    asyncio.run(use())


def test_threads_that_share_a_socket_all_hear_of_its_end(client: Client) -> None:
    """Also those that ask in the very moment in which it ends."""
    for _ in range(20):
        with client.socket() as socket:
            barrier = threading.Barrier(4)

            def ask(socket: Socket = socket, barrier: threading.Barrier = barrier) -> None:
                barrier.wait()
                with suppress(errors.TopicsError):
                    while True:
                        socket.ping()

            threads = [threading.Thread(target=ask, daemon=True) for _ in range(3)]
            for thread in threads:
                thread.start()
            barrier.wait()
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()


def test_asyncio_has_the_same_socket(client: Client, url: str) -> None:
    client.create_topic("async-chat")

    async def use() -> None:
        async with AsyncClient(url) as later, later.socket() as socket:
            await socket.subscribe({"async-chat": WatchFrom()})
            written = await asyncio.gather(
                *(socket.publish("async-chat", [{"data": number}]) for number in range(20))
            )
            assert sorted(one.last_seq for one in written) == list(range(1, 21))
            seqs: list[int] = []
            async for told in socket:
                if isinstance(told, Records):
                    seqs += [one.seq for one in told.records]
                if len(seqs) == 20:
                    break
            assert seqs == list(range(1, 21))

    asyncio.run(use())
