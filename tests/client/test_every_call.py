"""Every call of the API through both clients, against a real server."""

from __future__ import annotations

import asyncio
import inspect
import pydoc
import re
from typing import Any

import msgspec
import pytest

from topics import AsyncClient, Client, errors
from topics.client import (
    kv_calls,
    log_calls,
    queue_calls,
    reader_calls,
    stage_calls,
    stream_calls,
)
from topics.client.reader_calls import WatchFrom
from topics.client.request import Reply, error_of
from topics.client.sync_socket import Socket
from topics.client.web_socket import AsyncSocket
from topics.types import Hold

# A call of each description, with everything that decides its path.
SAMPLES = (
    log_calls.create_topic("t"), log_calls.change_topic("t", ttl_ms=1), log_calls.topic("t"),
    log_calls.topics(), log_calls.delete_topic("t"), log_calls.append("t", []),
    log_calls.delete("t", before_seq=1), log_calls.rewrite("t"), log_calls.explain("t"),
    log_calls.create_router("r", source="a", dest="b"), log_calls.router("r"), log_calls.routers(),
    log_calls.delete_router("r"), log_calls.health(), log_calls.ready(), log_calls.metrics(),
    log_calls.openapi(), reader_calls.diff("t"), reader_calls.range("t"),
    reader_calls.seq_at("t", 1), reader_calls.set_cursor("t", "c"), reader_calls.cursor("t", "c"),
    reader_calls.cursors("t"), reader_calls.delete_cursor("t", "c"), reader_calls.watch({}),
    queue_calls.claim("t", "w"), queue_calls.ack("t", "w", []), queue_calls.nack("t", "w", []),
    queue_calls.extend("t", "w", [], 1), queue_calls.leases("t"), log_calls.connections(),
    log_calls.begin_backup("/backups"), log_calls.backup(),
    stage_calls.stage("t", [], producer="p", batch=0),
    stage_calls.commit("p", 0, query="q", stages=[]), stage_calls.drop_stages("p", 0),
    kv_calls.create_bucket("b"), kv_calls.bucket("b"), kv_calls.buckets(),
    kv_calls.delete_bucket("b"), kv_calls.put_key("b", "k", 1), kv_calls.get_key("b", "k"),
    kv_calls.key_history("b", "k"), kv_calls.delete_key("b", "k"), kv_calls.keys("b"),
    kv_calls.delete_prefix("b", "p"), kv_calls.compact("b"), kv_calls.open_snapshot("b"),
    kv_calls.close_snapshot("b", "s"),
)  # fmt: skip
STREAMS = (
    stream_calls.stream("t", node="n"), stream_calls.watch_stream("w"),
    stream_calls.work("t", "n"),
)  # fmt: skip
# What `socket` opens: it has commands instead of requests.
SOCKET = ("GET", "/v0/ws")
ALIASES = re.compile(r"^/(healthz|readyz|metrics|v0/?|v0/docs)?$")
# Calls that are not described once for both.
OTHERS = (
    "all_", "close", "follow", "kv", "of", "producer", "receive", "send", "socket", "worker",
)  # fmt: skip
CALLS = [
    name for name, value in vars(Client).items()
    if inspect.isfunction(value) and not name.startswith("_")
]  # fmt: skip


def test_both_clients_have_the_same_calls() -> None:
    """What works in one works in the other, by the same name."""
    ours = {name for name in vars(AsyncClient) if not name.startswith("_")} - {"open_stream"}
    assert ours == {name for name in vars(Client) if not name.startswith("_")}
    for name in CALLS:
        if not name.startswith(OTHERS):
            assert signature(Client, name) == signature(AsyncClient, name)
    for name in ("subscribe", "unsubscribe", "publish", "ping"):
        assert signature(Socket, name) == signature(AsyncSocket, name)


def signature(kind: type, name: str) -> tuple[list[inspect.Parameter], str]:
    """Parameters and answer; a stream for asyncio is called so."""
    found = inspect.signature(getattr(kind, name))
    return list(found.parameters.values()), found.return_annotation.removeprefix("Async")


def test_every_route_of_the_server_has_a_call(client: Client) -> None:
    """A client that lacks a call sends its users to curl."""
    document = client.openapi()
    routes = {
        (method.upper(), route)
        for route, item in document["paths"].items()
        for method in item
        if method in ("get", "put", "post", "delete", "patch") and not ALIASES.match(route)
    }
    described = {(sample.method, template(sample.path, document)) for sample in SAMPLES}
    streams = {("GET", template(sample.path, document)) for sample in STREAMS}
    assert routes == described | streams | {SOCKET}


def template(path: str, document: dict[str, Any]) -> str:
    """The route that a path belongs to."""
    plain = path.partition("?")[0]
    for route in sorted(document["paths"], key=lambda route: route.count("{")):
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", route), plain):
            return str(route)
    return plain


def test_help_shows_each_call_with_its_words() -> None:
    """The signature is the call's own, and what comes back is a value, not a request."""
    shown = pydoc.plain(pydoc.render_doc(Client))
    assert "-> 'Request" not in shown
    assert "-> 'Page'" in shown or "-> Page" in shown
    for name in CALLS:
        assert getattr(Client, name).__doc__, name


def test_what_is_written_is_read_back_verbatim(client: Client) -> None:
    """Records come back with their seqs, tags, nodes, meta, and data in the spelling it had."""
    raw = msgspec.Raw(b'{"b": 1.0, "a": "\\ud800"}')
    written = client.append(
        "verbatim",
        [{"data": raw, "tag": "x", "meta": {"k": "v"}}, {"data": {"n": [1, None, "ü"]}}],
        node="n1",
    )
    assert (written.first_seq, written.last_seq, written.created) == (1, 2, True)
    page = client.diff("verbatim", include_tags=True)
    first, second = page.records
    assert bytes(first.data) == bytes(raw)
    assert (first.seq, first.tag, first.node, first.meta) == (1, "x", "n1", {"k": "v"})
    assert second.value == {"n": [1, None, "ü"]}
    assert page.tombstone is None
    assert page.caught_up
    assert (page.next_from_seq, page.lag) == (2, 0)


def test_a_batch_is_there_once(client: Client) -> None:
    """Staged, committed and repeated through the client; what expired is an error of its own."""
    made = client.stage("batched", [{"data": 1}, {"data": 2}], producer="p", batch=4, attempt="a")
    done = client.commit("p", 4, query="q", stages=[made.stage])
    assert (done.repeated, done.topics["batched"].last_seq) == (False, 2)
    assert client.commit("p", 4, query="q", stages=[]).repeated
    with pytest.raises(errors.StageExpired):
        client.commit("p", 5, query="q", stages=[made.stage])
    with pytest.raises(errors.Conflicting):
        client.commit("p", 3, query="q", stages=[])
    client.stage("batched", [{"data": 3}], producer="p", batch=6)
    assert client.drop_stages("p", 6).deleted == 1


def test_a_loss_is_a_tombstone_and_a_delete_is_silent(client: Client) -> None:
    """The client tells the two apart as the server does."""
    client.create_topic("capped", cap_records=2, type="log")
    for number in range(5):
        client.append("capped", [{"data": number, "tag": "odd" if number % 2 else "even"}])
    page = client.diff("capped")
    assert page.tombstone is not None
    assert (page.tombstone.gap_from, page.tombstone.reason) == (1, "cap")
    assert page.tombstone.gap_to + 1 == page.records[0].seq
    kept = client.range("capped")
    assert [(gap.gap_from, gap.reason) for gap in kept.gaps] == [(1, "cap")]
    size = client.range_size("capped")
    assert (size.count, size.gaps) == (len(kept.records), kept.gaps)
    deleted = client.delete("capped", match=("tag", "Eq", "even"))
    assert deleted.deleted >= 1
    states = {found.state for found in client.explain("capped").ranges}
    assert states == {"evicted", "deleted", "live"}
    done = client.rewrite("capped")
    assert 0 < done.bytes_after < done.bytes_before


def test_topics_are_made_changed_listed_and_removed(client: Client) -> None:
    """A PUT says what it changed, a PATCH leaves the rest."""
    assert client.create_topic("made", ttl_ms=60_000, cap_records=10).created
    assert client.change_topic("made", cap_records=20).config.ttl_ms == 60_000
    assert client.create_topic("made", cap_records=20).changed == {"ttl_ms": (60_000, 0)}
    for number in range(3):
        client.create_topic(f"listed-{number}")
    names = [found.topic for found in client.all_topics(prefix="listed-")]
    assert names == ["listed-0", "listed-1", "listed-2"]
    assert client.topics(prefix="listed-", page_size=2).next_cursor is not None
    assert client.topic("made").config.cap_records == 20
    assert client.delete_topic("made").deleted
    assert not client.delete_topic("made").deleted


def test_cursors_and_times(client: Client) -> None:
    """A named place is set, held, moved and removed."""
    client.append("places", [{"data": 1}, {"data": 2}])
    assert client.set_cursor("places", "c", 1, hold=Hold(max_bytes=10)).created
    with pytest.raises(errors.CursorRegressed):
        client.set_cursor("places", "c", 0)
    assert client.set_cursor("places", "c", 0, reset=True, hold="none").hold is None
    assert client.cursor("places", "c").lag == 2
    assert [found.cursor for found in client.cursors("places").cursors] == ["c"]
    assert client.delete_cursor("places", "c").deleted
    with pytest.raises(errors.NotFound):
        client.cursor("places", "c")
    assert client.seq_at("places", 0).seq == 1
    assert client.seq_at("places", 2**50).seq is None


def test_a_queue_from_job_to_ack(client: Client) -> None:
    """Claim, extend, nack, claim again, ack."""
    client.create_topic("jobs", type="queue")
    client.append("jobs", [{"data": {"n": 1}}, {"data": {"n": 2}}])
    claimed = client.claim("jobs", "w", 2, lease_ms=5000, wait_ms=50)
    assert [job.value for job in claimed.claimed] == [{"n": 1}, {"n": 2}]
    tokens = [job.lease_id for job in claimed.claimed]
    extended = client.extend("jobs", "w", [1], 60_000, lease_ids=tokens[:1])
    assert extended.deadlines[1] > claimed.claimed[0].deadline
    held = client.leases("jobs").leases
    assert [(lease.seq, lease.node) for lease in held] == [(1, "w"), (2, "w")]
    assert client.nack("jobs", "w", [2], lease_ids=tokens[1:]).nacked == 1
    assert client.claim("jobs", "w").claimed[0].deliveries == 2
    assert client.ack("jobs", "w", [1, 2, 3]).skipped == [3]
    state = client.topic("jobs").queue
    assert state is not None
    assert (state.ready, state.in_flight) == (0, 0)


def test_routers_watches_and_probes(client: Client) -> None:
    """What is left of the surface."""
    made = client.create_router("a->b", source="a", dest="b", filter=("tag", "Glob", "x*"))
    assert (made.created, made.filter) == (True, ("tag", "Glob", "x*"))
    assert client.router("a->b").source == "a"
    assert [found.router for found in client.all_routers()] == ["a->b"]
    assert client.delete_router("a->b").deleted
    with pytest.raises(errors.RouterNotFound):
        client.router("a->b")
    client.create_topic("watched")
    session = client.watch({"watched": WatchFrom(tail=True), "none": WatchFrom()}, lenient=True)
    assert list(session.topics) == ["watched"]
    assert client.connections().connections == []
    assert client.health().status == "ok"
    assert client.ready().wal_replay_complete
    assert "topics_topics" in client.metrics_text()
    assert client.metrics()
    assert client.range_arrow("watched").startswith(b"\xff\xff\xff\xff")


def test_the_asyncio_client_does_the_same(url: str) -> None:
    """One write and one read, many at once."""

    async def use() -> None:
        async with AsyncClient(url) as client:
            wanted = [client.append("many", [{"data": number}]) for number in range(50)]
            seqs = {written.first_seq for written in await asyncio.gather(*wanted)}
            assert seqs == set(range(1, 51))
            assert (await client.diff("many", limit=1000)).head_seq == 50
            assert "many" in [found.topic async for found in client.all_topics()]
            with pytest.raises(errors.TopicNotFound):
                await client.diff("nowhere")

    asyncio.run(use())


def test_a_read_can_wait_for_a_record(client: Client) -> None:
    """A long-poll answers when there is something, and in the end with nothing."""
    client.create_topic("slow")
    assert client.diff("slow", wait_ms=30).records == []
    client.append("slow", [{"data": 1}])
    assert len(client.diff("slow", wait_ms=20_000).records) == 1


def test_every_error_of_the_tree_is_raised_as_itself() -> None:
    """The code of an answer decides; one that is not known keeps its code and status."""
    for name in ("TopicFull", "Throttled", "OutcomeUnknown", "DiskFull", "Forbidden", "NotFound"):
        kind = getattr(errors, name)
        body = b'{"error":{"code":"%b","message":"m","detail":{"a":1}}}' % kind.code.encode()
        error = error_of(Reply(kind.status, body))
        assert type(error) is kind
        assert (error.message, error.detail) == ("m", {"a": 1})
    unknown = error_of(Reply(418, b'{"error":{"code":"teapot","message":"short and stout"}}'))
    assert (type(unknown), unknown.code, unknown.status) == (errors.Refused, "teapot", 418)
    strange = error_of(Reply(502, b"<html>bad gateway</html>", "3"))
    assert strange.detail == {"retry_after_ms": 3000}
    assert "bad gateway" in strange.message


def test_bad_values_are_refused_before_they_are_sent(client: Client) -> None:
    """What JSON can not say, and what is no URL."""
    with pytest.raises(errors.InvalidRequest, match="JSON"):
        client.append("t", [{"data": object()}])
    for number in (float("nan"), float("inf")):
        with pytest.raises(errors.InvalidRequest, match="NaN and infinity"):
            client.append("t", [{"data": {"ok": None, "deep": [1.5, {"n": (number,)}]}}])
        with pytest.raises(errors.InvalidRequest, match="NaN and infinity"):
            client.kv("b").put("k", number)
    client.append("t", [{"data": {"ok": None, "deep": [1.5, msgspec.Raw(b"null")]}}])
    for url in ("localhost:4000", "ftp://host", "http://"):
        with pytest.raises(errors.InvalidRequest, match="URL"):
            Client(url)
