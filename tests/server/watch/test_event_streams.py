"""The stream itself: its head, its ids, where a reader resumes, what it hears when nothing happens.

A record is delivered at least once for as long as its topic keeps it, whatever becomes of the
connection: the session knows what was sent, the reader's last id says what was processed.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import time
from contextlib import ExitStack
from typing import Any

import pytest

from tests.server.watch.conftest import stream, watch
from tests.support.servers import Client, Inside
from tests.support.streams import Event, EventSource, Refused


def seqs(event: Event) -> list[int]:
    assert event.name == "record", event
    return [record["$seq"] for record in event.data["records"]]


def reopen(client: Client, session: dict[str, Any], last_id: str = "") -> EventSource:
    return EventSource(client.port, session["stream_url"], last_id=last_id)


# -- opening -------------------------------------------------------------------------------------


def test_the_head_keeps_proxies_from_holding_events_back(client: Client, topic: str) -> None:
    client.write(topic, 1)
    with stream(client, {topic: {}}) as events:
        assert events.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert events.headers["cache-control"] == "no-store"
        assert events.headers["x-accel-buffering"] == "no"
        assert events.headers["connection"] == "keep-alive"
        assert "content-encoding" not in events.headers


def test_the_retry_time_is_said_once(client: Client, topic: str) -> None:
    client.write(topic, 1)
    with stream(client, {topic: {}}) as events:
        events.until("caught-up")
        client.write(topic, 2)
        events.next("record")
        assert events.retries == [2000]


def test_the_session_says_where_it_begins(client: Client, topic: str) -> None:
    """from_seq as given, the head for a tail, and the watermarks beside them."""
    client.put(f"/v0/topics/{topic}", {"cap_records": 2})
    client.write(topic, 1)
    client.write(topic, 2)
    client.write(topic, 3)
    epoch = client.get(f"/v0/topics/{topic}").json["epoch"]
    marks = {"head_seq": 3, "earliest_seq": 2, "epoch": epoch}
    session = watch(client, {topic: {"from_seq": 1}})
    assert session["topics"] == {topic: {"from_seq": 1, **marks}}
    assert session["stream_url"] == f"/v0/watch/{session['wid']}"
    assert session["session_ttl_ms"] == 300000
    assert session["performance"]["server_total_ms"] >= 0
    # At least 128 bits, and never the same.
    assert len(session["wid"]) >= len("wid_") + 22
    tail = watch(client, {topic: {"tail": True, "from_seq": 1}})
    assert tail["topics"][topic]["from_seq"] == 3
    assert tail["wid"] != session["wid"]
    assert watch(client, {topic: None})["topics"][topic]["from_seq"] == 0


def test_a_tail_begins_behind_what_was_there(client: Client, topic: str) -> None:
    client.write(topic, "old")
    session = watch(client, {topic: {"tail": True}})
    # Written between the session and its stream: it is after the subscription.
    client.write(topic, "new")
    with reopen(client, session) as events:
        assert seqs(events.next()) == [2]
        assert events.next().name == "caught-up"


def test_what_a_record_shows_is_asked_for(client: Client, topic: str) -> None:
    record = {"data": {"a": 1.50}, "tag": "t", "node": "n", "meta": {"k": "v"}}
    client.post(f"/v0/topics/{topic}", {"records": [record]})
    looks: list[tuple[dict[str, bool], set[str]]] = [
        ({}, {"$node", "data", "meta"}),
        ({"include_tags": True}, {"$node", "$tag", "data", "meta"}),
        ({"include_meta": False}, {"$node", "data"}),
        ({"include_data": False}, {"$node", "meta"}),
        ({"include_data": False, "include_tags": True, "include_meta": False}, {"$node", "$tag"}),
    ]
    for look, fields in looks:
        with stream(client, {topic: {}}, **look) as events:
            (shown,) = events.next("record").data["records"]
            assert shown.keys() == {"$seq", "$ts"} | fields


def test_a_frame_has_its_place_and_the_lag(client: Client, topic: str) -> None:
    client.write(topic, *range(5))
    with stream(client, {topic: {}}, limit=2) as events:
        frames = [events.next("record").data for _ in range(3)]
        places = [(f["from_seq"], f["to_seq"], f["head_seq"]) for f in frames]
        assert places == [(0, 2, 5), (2, 4, 5), (4, 5, 5)]
        assert {f["epoch"] for f in frames} == {client.get(f"/v0/topics/{topic}").json["epoch"]}


def test_a_byte_budget_stops_at_the_record_that_crosses_it(client: Client, topic: str) -> None:
    client.write(topic, *["x" * 1000] * 5)
    with stream(client, {topic: {}}, max_batch_bytes=1500) as events:
        assert [len(seqs(events.next("record"))) for _ in range(3)] == [2, 2, 1]


@pytest.mark.parametrize(
    "accept", ["application/json", "text/html, application/*", "text/event-stream;q=0"]
)
def test_a_reader_that_takes_no_events_is_refused(client: Client, topic: str, accept: str) -> None:
    client.write(topic, 1)
    url = watch(client, {topic: {}})["stream_url"]
    with pytest.raises(Refused) as refused:
        EventSource(client.port, url, Accept=accept)
    assert (refused.value.status, refused.value.code) == (406, "not_acceptable")


@pytest.mark.parametrize("accept", ["", "*/*", "text/*;q=0.5", "TEXT/EVENT-STREAM; q=1, */*;q=0"])
def test_a_reader_that_takes_events_is_let_in(client: Client, topic: str, accept: str) -> None:
    client.write(topic, 1)
    url = watch(client, {topic: {}})["stream_url"]
    with EventSource(client.port, url, Accept=accept) as events:
        assert seqs(events.next()) == [1]


def test_head_opens_nothing(client: Client, server: Inside, topic: str) -> None:
    client.write(topic, 1)
    url = watch(client, {topic: {}})["stream_url"]
    with EventSource(client.port, url, method="HEAD") as head:
        assert head.status == 200
    with EventSource(client.port, url) as events:
        assert seqs(events.next()) == [1]


@pytest.mark.parametrize(
    "wid",
    ["wid_" + "A" * 22, "wid_short", "1", "%25", "a%20b", "%00", "%ff", "wid_%C3", "%zz", "a%"],
)
def test_a_session_that_never_was_is_not_found(client: Client, wid: str) -> None:
    """Whatever its id looks like."""
    with pytest.raises(Refused) as refused:
        EventSource(client.port, f"/v0/watch/{wid}")
    assert (refused.value.status, refused.value.code) == (404, "not_found")


# -- ids and resuming ----------------------------------------------------------------------------


def test_an_id_is_the_whole_place_of_the_reader(client: Client, topic: str) -> None:
    """Each frame's id has every topic of the session, as it stands behind that frame."""
    one, two = f"{topic}-1", f"{topic}-2"
    client.write(one, 1, 2)
    client.write(two, 1)
    with stream(client, {one: {}, two: {}}) as events:
        seen: dict[str, int] = {one: 0, two: 0}
        for _ in range(4):
            event = events.next()
            if event.name == "record":
                seen[event.data["topic"]] = event.data["to_seq"]
            assert event.place == seen
        client.write(two, 2)
        assert events.next().place == {one: 2, two: 2}


def test_a_reader_that_lost_its_id_goes_on_where_the_server_was(client: Client, topic: str) -> None:
    client.write(topic, 1, 2)
    session = watch(client, {topic: {}})
    with reopen(client, session) as events:
        events.until("caught-up")
    client.write(topic, 3)
    with reopen(client, session) as events:
        assert seqs(events.next()) == [3]


def test_an_id_goes_back_to_what_was_processed(client: Client, topic: str) -> None:
    """What was sent but not processed is sent again; what was processed is not."""
    client.write(topic, *range(6))
    session = watch(client, {topic: {}}, limit=2)
    with reopen(client, session) as events:
        first = events.next("record")
        events.until("caught-up")
    with reopen(client, session, first.id) as events:
        assert seqs(events.next()) == [3, 4]
        assert seqs(events.next()) == [5, 6]
        assert events.next().name == "caught-up"


def test_an_id_never_goes_forward(client: Client, topic: str) -> None:
    client.write(topic, 1, 2, 3)
    session = watch(client, {topic: {}}, limit=1)
    with stream(client, {topic: {"from_seq": 2}}) as ahead:
        last = ahead.next("record").id
    with reopen(client, session, last) as events:
        assert seqs(events.next()) == [1]


def test_an_id_moves_only_the_topics_it_names(client: Client, topic: str) -> None:
    one, two = f"{topic}-1", f"{topic}-2"
    client.write(one, 1)
    client.write(two, 1)
    with stream(client, {one: {}}) as events:
        other = events.next("record").id
    session = watch(client, {two: {}})
    with reopen(client, session, other) as events:
        assert seqs(events.next()) == [1]


@pytest.mark.parametrize("last_id", ["!", "e30x", "bm90IGpzb24", "eyJ0IjotMX0", "eyJ0IjoxLjV9"])
def test_an_id_that_is_not_ours_is_refused(client: Client, topic: str, last_id: str) -> None:
    """Rather than guessed at: a reader that resumes at the wrong place loses records."""
    client.write(topic, 1)
    session = watch(client, {topic: {}})
    with pytest.raises(Refused) as refused:
        reopen(client, session, last_id)
    assert refused.value.status == 400


def test_an_id_begins_a_new_session_where_an_old_one_was(client: Client, topic: str) -> None:
    client.write(topic, 1, 2, 3)
    with stream(client, {topic: {}}, limit=2) as events:
        last = events.next("record").id
    session = watch(client, {topic: {}}, cursor=last)
    assert session["topics"][topic]["from_seq"] == 2
    with reopen(client, session) as events:
        assert seqs(events.next()) == [3]
    assert client.post("/v0/watch", {"topics": {topic: {}}, "cursor": "?"}).status == 400


def test_many_topics_have_a_short_id_that_means_the_same(client: Client, topic: str) -> None:
    names = [f"{topic}-{number}" for number in range(70)]
    for name in names:
        client.write(name, 1)
    session = watch(client, {name: {} for name in names}, limit=1)
    with reopen(client, session) as events:
        first = events.next("record")
        assert not first.id.startswith("ey")
        last = [events.next("record") for _ in names[1:]][-1]
        assert len(last.id) < 400
        client.write(names[0], 2)
        assert seqs(events.next("record")) == [2]
    # The first frame was processed, the other 69 and the 71st were not.
    with reopen(client, session, first.id) as events:
        told = [events.next("record") for _ in names]
    assert first.data["topic"] == names[0]
    assert {event.data["topic"]: seqs(event) for event in told} == (
        {names[0]: [2]} | {name: [1] for name in names[1:]}
    )


def test_a_new_stream_takes_over_from_an_old_one(client: Client, topic: str) -> None:
    """The old connection may be dead without our having noticed."""
    client.write(topic, 1)
    session = watch(client, {topic: {}})
    with reopen(client, session) as old:
        old.until("caught-up")
        with reopen(client, session) as new:
            new.until("caught-up")
            assert list(old.events()) == []
            client.write(topic, 2)
            assert seqs(new.next()) == [2]


# -- recreated topics ----------------------------------------------------------------------------


def test_a_recreated_topic_is_told_to_a_session_that_was_away(client: Client, topic: str) -> None:
    client.write(topic, *range(5))
    session = watch(client, {topic: {}})
    with reopen(client, session) as events:
        events.until("caught-up")
    client.delete(f"/v0/topics/{topic}")
    client.write(topic, *range(9))
    with reopen(client, session) as events:
        told = events.next()
        assert (told.name, told.data["reason"]) == ("tombstone", "recreated")
        # Its id must not make the reader skip the new records.
        assert told.place[topic] == 0
        assert seqs(events.next()) == list(range(1, 10))


def test_an_id_of_before_is_not_taken_for_one_of_after(client: Client, topic: str) -> None:
    """A reader that has not processed the news of the new instance hears it again."""
    client.write(topic, *range(5))
    session = watch(client, {topic: {}})
    with reopen(client, session) as events:
        before = events.until("caught-up")[-1].id
    client.delete(f"/v0/topics/{topic}")
    client.write(topic, *range(9))
    with reopen(client, session, before) as events:
        told = events.next()
        events.until("caught-up")
    # Everything was sent; the reader had processed nothing of it, or only the tombstone.
    with reopen(client, session, before) as events:
        assert events.next().data["reason"] == "recreated"
        assert seqs(events.next()) == list(range(1, 10))
        events.until("caught-up")
    with reopen(client, session, told.id) as events:
        assert seqs(events.next()) == list(range(1, 10))


def test_a_deleted_topic_ends_for_itself_alone(client: Client, topic: str) -> None:
    one, two = f"{topic}-1", f"{topic}-2"
    client.write(one, 1, 2)
    client.write(two, 1)
    with stream(client, {one: {}, two: {}}) as events:
        for _ in range(4):
            events.next()
        client.delete(f"/v0/topics/{one}")
        gone = events.next()
        assert gone.name == "topic-deleted"
        assert gone.data["topic"] == one
        assert (gone.data["head_seq"], gone.data["reason"]) == (2, "deleted")
        assert gone.place == {one: 2, two: 1}
        # The new instance is another topic, until the reader connects again.
        client.write(one, 1)
        client.write(two, 2)
        assert events.next("record").data["topic"] == two
        assert events.is_silent(0.2)


@pytest.mark.parametrize("readers", [1, 3])
def test_the_stream_of_one_topic_ends_with_it(client: Client, topic: str, readers: int) -> None:
    """A reader that comes again with its last id is told of the topic that took the name."""
    client.write(topic, 1, 2)
    path = f"/v0/topics/{topic}/stream"
    with ExitStack() as stack:
        streams = [stack.enter_context(EventSource(client.port, path)) for _ in range(readers)]
        for events in streams:
            events.until("caught-up")
        client.delete(f"/v0/topics/{topic}")
        for events in streams:
            assert events.next().name == "topic-deleted"
            with pytest.raises(EOFError):
                events.next()
        assert client.get(path).status == 404
        client.write(topic, "new")
        with EventSource(client.port, path, last_id=streams[0].last_id) as events:
            assert events.next().data["reason"] == "recreated"
            assert events.next("record").data["records"][0]["data"] == "new"


def test_a_topic_that_is_gone_at_connect_is_told(client: Client, topic: str) -> None:
    client.write(topic, 1)
    session = watch(client, {topic: {}})
    client.delete(f"/v0/topics/{topic}")
    with reopen(client, session) as events:
        assert events.next().name == "topic-deleted"


# -- live ----------------------------------------------------------------------------------------


def test_loss_on_a_live_stream_has_its_reason(client: Client, topic: str) -> None:
    """from_seq_too_old is for what a reader brings along; what happens to it live is named."""
    client.put(f"/v0/topics/{topic}", {"cap_records": 2})
    with stream(client, {topic: {}}) as events:
        events.until("caught-up")
        client.write(topic, *range(5))
        told = events.next()
        assert (told.data["gap_from"], told.data["gap_to"], told.data["reason"]) == (1, 3, "cap")
        assert seqs(events.next()) == [4, 5]


def test_a_reader_hears_that_it_is_live_once_for_each_backlog(client: Client, topic: str) -> None:
    client.write(topic, 1)
    with stream(client, {topic: {}}, limit=2) as events:
        assert [e.name for e in events.until("caught-up")] == ["record", "caught-up"]
        client.write(topic, 2)
        assert seqs(events.next()) == [2]
        client.write(topic, *range(3))
        names = [events.next().name for _ in range(3)]
        assert names == ["record", "record", "caught-up"]
        client.write(topic, 6)
        assert seqs(events.next()) == [6]


def test_own_records_pass_in_silence(client: Client, topic: str) -> None:
    client.write(topic, 1)
    with stream(client, {topic: {}}, node="me") as events:
        events.until("caught-up")
        client.write(topic, "mine", node="me")
        client.write(topic, "theirs")
        frame = events.next().data
        assert [r["$seq"] for r in frame["records"]] == [3]
        assert (frame["from_seq"], frame["to_seq"]) == (1, 3)


@pytest.mark.slow
def test_heartbeats_fill_silence_and_nothing_else(client: Client, topic: str) -> None:
    """`: hb <epoch-ms>`, without an id, after heartbeat_ms without anything else."""
    client.write(topic, 1)
    with stream(client, {topic: {}}, heartbeat_ms=1) as events:
        last = events.until("caught-up")[-1].id
        began = time.time()
        events.wait_for_comment(8)
        at, comment = events.comments[-1]
        word, ms = comment.split()
        assert word == "hb"
        assert abs(int(ms) / 1000 - at) < 2
        # The shortest interval is a second.
        assert 0.9 < at - began < 5
        assert events.last_id == last
        count, times = len(events.comments), [time.time()]
        for number in range(6):
            client.write(topic, number)
            events.next("record")
            times.append(time.time())
            time.sleep(0.25)
        longest_s = max(b - a for a, b in itertools.pairwise(times))
        assert len(events.comments) == count or longest_s > 0.9


def test_data_goes_through_as_it_was_written(client: Client, topic: str) -> None:
    """Spelling of numbers, line breaks and what JSON text can not carry: one line, verbatim."""
    body = b'{"records":[{"data":{"a":1.0,"b":1e400,"a":"\\ud800",\n"c":"x\\ny"}}]}'
    client.post(f"/v0/topics/{topic}", body)
    url = watch(client, {topic: {}})["stream_url"]
    with EventSource(client.port, url) as events:
        text = events.text_until(b"caught-up")
        assert b'"data":{"a":1.0,"b":1e400,"a":"\\ud800", "c":"x\\ny"}' in text


def test_curl_sees_the_same(client: Client, topic: str) -> None:
    client.write(topic, "for curl")
    session = watch(client, {topic: {}})
    url = f"http://127.0.0.1:{client.port}{session['stream_url']}"
    done = subprocess.run(
        ["curl", "-sN", "--max-time", "1.5", url], capture_output=True, text=True, check=False
    )
    assert done.returncode == 28
    retry, heartbeat, record, live = done.stdout.strip().split("\n\n")
    assert retry == "retry: 2000"
    assert heartbeat.startswith(": hb ")
    assert record.split("\n")[0].startswith("id: ")
    assert record.split("\n")[1] == "event: record"
    data = json.loads(record.split("\n")[2].removeprefix("data: "))
    assert data["records"][0]["data"] == "for curl"
    assert "event: caught-up" in live
