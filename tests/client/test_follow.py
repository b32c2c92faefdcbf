"""Following topics: every record once, every gap once, in order, whatever breaks in between."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from tests.support.proxy import CALM, Fate, Proxy
from tests.support.scripted import SILENT, Scripted, answer
from tests.support.servers import inside
from tests.support.waiting import until
from topics import AsyncClient, Client, RetryPolicy, errors
from topics.client.event_stream import EventReader
from topics.client.follow import Mode
from topics.client.following import Item, Received
from topics.client.reader_calls import WatchFrom
from topics.client.values import Gap

QUICK = RetryPolicy(give_up_after_s=20.0, pause_s_min=0.01, pause_s_max=0.05)
both = pytest.mark.parametrize("mode", ["stream", "poll"])


def seqs(items: Iterable[Item]) -> list[object]:
    """Seqs of records, and (first, last) of gaps."""
    return [x.seq if isinstance(x, Received) else (x.gap_from, x.gap_to) for x in items]


def write(client: Client, topic: str, count: int) -> None:
    client.append(topic, [{"data": number} for number in range(count)])


@both
def test_what_is_there_and_what_comes(client: Client, mode: Mode) -> None:
    """Records and losses of before, then those of now, with topic and value."""
    topic = f"before-{mode}"
    client.create_topic(topic, cap_records=3)
    for _ in range(5):
        write(client, topic, 1)
    found: list[Item] = []
    for item in client.follow(topic, mode=mode):
        found.append(item)
        if len(found) == 4:
            write(client, topic, 2)
        if len(found) == 6:
            break
    assert seqs(found) == [(1, 2), 3, 4, 5, 6, 7]
    gap, record = found[0], found[1]
    assert isinstance(gap, Gap)
    assert isinstance(record, Received)
    assert (gap.topic, record.topic, record.value) == (topic, topic, 0)


@both
def test_many_topics_at_once(client: Client, mode: Mode) -> None:
    """Each in its own order."""
    names = [f"many-{mode}-{number}" for number in range(3)]
    for name in names:
        write(client, name, 10)
    found = list(itertools.islice(client.follow(*names, mode=mode), 30))
    for name in names:
        assert seqs(x for x in found if x.topic == name) == list(range(1, 11))


@both
def test_where_it_begins(client: Client, mode: Mode) -> None:
    """After a seq, at a time, or at the tail."""
    topic = f"begins-{mode}"
    write(client, topic, 5)
    time.sleep(0.01)
    now = int(time.time() * 1000)
    time.sleep(0.01)
    write(client, topic, 5)
    assert seqs(itertools.islice(client.follow(topic, from_seq=7, mode=mode), 3)) == [8, 9, 10]
    at = client.follow(topic, from_ts_ms=now, mode=mode)
    assert seqs(itertools.islice(at, 2)) == [6, 7]
    later = client.follow(topic, tail=True, mode=mode)
    timer = threading.Timer(0.3, write, (client, topic, 1))
    timer.start()
    assert seqs(itertools.islice(later, 1)) == [11]
    timer.join()


@both
def test_a_loss_that_may_be_of_a_time_is_told(client: Client, mode: Mode) -> None:
    """Between the last record before it and the first one after it; what is older is not."""
    topic = f"since-{mode}"
    client.create_topic(topic, cap_records=3)
    for _ in range(5):
        write(client, topic, 1)
        time.sleep(0.002)
    third, fourth, _ = client.range(topic).records
    early = client.follow(topic, from_ts_ms=third.ts, mode=mode)
    assert seqs(itertools.islice(early, 2)) == [(1, 2), 3]
    later = client.follow(topic, from_ts_ms=fourth.ts, mode=mode)
    assert seqs(itertools.islice(later, 2)) == [4, 5]
    client.delete(topic, before_seq=6)
    none_left = client.follow(topic, from_ts_ms=int(time.time() * 1000), mode=mode)
    write(client, topic, 1)
    assert seqs(itertools.islice(none_left, 2)) == [(1, 5), 6]


def test_a_cursor_keeps_the_place(client: Client) -> None:
    """A commit stores what the caller was given, not what was read ahead of it."""
    write(client, "kept", 10)
    with client.follow("kept", cursor="reader") as follower:
        assert seqs(itertools.islice(follower, 4)) == [1, 2, 3, 4]
        follower.commit()
    assert client.cursor("kept", "reader").seq == 4
    client.delete("kept", before_seq=8)
    again = client.follow("kept", cursor="reader")
    assert seqs(itertools.islice(again, 3)) == [8, 9, 10]
    again.commit()
    assert client.cursor("kept", "reader").lag == 0
    with pytest.raises(errors.InvalidRequest, match="cursor="):
        client.follow("kept").commit()


@both
def test_a_topic_that_was_recreated_is_told_once(client: Client, mode: Mode, url: str) -> None:
    """The old place means nothing in the new instance: the gap says so, then all of it comes."""
    topic = f"again-{mode}"
    write(client, topic, 5)
    found: list[Item] = []
    with Proxy(int(url.rpartition(":")[2])) as proxy, Client(proxy.url, retries=QUICK) as far:
        for item in far.follow(topic, mode=mode):
            found.append(item)
            if len(found) == 5:
                proxy.fate = lambda: Fate(is_refused=True)
                proxy.cut_all()
                client.delete_topic(topic)
                write(client, topic, 2)
                proxy.fate = Fate
            if len(found) == 8:
                break
    assert seqs(found) == [1, 2, 3, 4, 5, (1, 2), 1, 2]
    assert isinstance(found[5], Gap)
    assert found[5].reason == "recreated"


@both
def test_interruptions_that_are_far_apart_do_not_add_up(
    client: Client, mode: Mode, url: str
) -> None:
    """Of a topic that nobody writes to, too: patience is for one interruption."""
    topic = f"idle-{mode}"
    client.create_topic(topic)
    patience = RetryPolicy(give_up_after_s=0.5, pause_s_min=0.01, pause_s_max=0.05)
    with Proxy(int(url.rpartition(":")[2])) as proxy, Client(proxy.url, retries=patience) as far:
        follower = far.follow(topic, mode=mode)
        done = threading.Event()

        def interrupt() -> None:
            for _ in range(3):
                until(lambda: proxy.connections or done.is_set())
                done.wait(0.4)
                proxy.cut_all()
            done.wait(0.4)
            write(client, topic, 1)

        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            assert seqs(itertools.islice(follower, 1)) == [1]
        finally:
            done.set()
            thread.join()


def test_a_commit_that_failed_is_made_again(client: Client, url: str) -> None:
    write(client, "uncommitted", 3)
    impatient = RetryPolicy(give_up_after_s=0.0)
    with Proxy(int(url.rpartition(":")[2])) as proxy, Client(proxy.url, retries=impatient) as far:
        follower = far.follow("uncommitted", cursor="late")
        assert seqs(itertools.islice(follower, 2)) == [1, 2]
        proxy.fate = lambda: Fate(is_refused=True)
        proxy.cut_all()
        with pytest.raises(errors.TopicsError):
            follower.commit()
        proxy.fate = Fate
        follower.commit()
    assert client.cursor("uncommitted", "late").seq == 2


def test_a_deleted_topic_ends_its_part(client: Client) -> None:
    """When none is left, so does the iteration."""
    write(client, "ends-a", 1)
    write(client, "ends-b", 1)
    found = []
    for item in client.follow("ends-a", "ends-b"):
        found.append(item.topic)
        if len(found) == 2:
            client.delete_topic("ends-a")
            write(client, "ends-b", 1)
        if len(found) == 3:
            client.delete_topic("ends-b")
    assert found[2] == "ends-b"


@both
def test_a_topic_that_is_not_there_is_an_error(client: Client, mode: Mode) -> None:
    """At the start; nothing waits for it in silence."""
    with pytest.raises(errors.TopicNotFound):
        list(client.follow("never-there", mode=mode))
    with pytest.raises(errors.InvalidRequest, match="one of"):
        client.follow("x", from_seq=3, tail=True)
    with pytest.raises(errors.InvalidRequest, match="at least one"):
        client.follow()


def test_cut_at_every_place_of_a_stream(client: Client, url: str) -> None:
    """In heads, between events and inside of them: each record once."""
    write(client, "cut", 200)
    places = itertools.chain(range(0, 900, 37), itertools.repeat(4000))
    with Proxy(int(url.rpartition(":")[2]), lambda: Fate(down_bytes=next(places))) as proxy:
        with Client(proxy.url, retries=QUICK) as far:
            found = list(itertools.islice(far.follow("cut", mode="stream"), 200))
        assert proxy.cuts > 20
    assert seqs(found) == list(range(1, 201))


def test_a_place_that_never_was_is_told_whatever_is_cut(client: Client, url: str) -> None:
    """The server has passed on when the word is lost: the follower has to ask for it again."""
    write(client, "beyond", 2)
    port = int(url.rpartition(":")[2])
    for cut in range(300, 1200, 60):
        fates = itertools.chain([Fate(down_bytes=cut)] * 2, itertools.repeat(CALM))
        fate = functools.partial(next, fates)
        with Proxy(port, fate) as proxy, Client(proxy.url, retries=QUICK) as far:
            followed = far.follow("beyond", from_seq=50, mode="stream")
            assert seqs(itertools.islice(followed, 3)) == [(1, 2), 1, 2]


def test_one_session_outlasts_interruptions(tmp_path: Path) -> None:
    """A server has room for so many: cut streams must not leave one behind each, for minutes."""
    names = ["lasts-a", "lasts-b"]
    found: list[Item] = []
    with (
        inside(tmp_path / "data") as served,
        Proxy(served.port) as proxy,
        Client(f"http://127.0.0.1:{served.port}") as client,
        Client(proxy.url, retries=QUICK) as far,
    ):
        for name in names:
            write(client, name, 1)
        for item in far.follow(*names, mode="stream"):
            found.append(item)
            if len(found) >= 2 and len(found) % 2 == 0:
                proxy.cut_all()
                for name in names:
                    write(client, name, 1)
            if len(found) == 20:
                break
        assert client.metrics()["topics_watch_sessions"] == 1
    for name in names:
        assert seqs(x for x in found if x.topic == name) == list(range(1, 11))


def test_a_session_that_is_over_is_made_anew(tmp_path: Path) -> None:
    """The server forgets one that was idle for its time; the follower goes on where it was."""
    with inside(tmp_path / "data", TOPICS_SESSION_TTL_MS="2000") as served:
        own = f"http://127.0.0.1:{served.port}"
        with Client(own) as near, Proxy(served.port) as proxy:
            write(near, "over", 1)
            with Client(proxy.url, retries=QUICK) as far:
                found: list[Item] = []
                for item in far.follow("over", mode="stream"):
                    found.append(item)
                    if len(found) == 1:
                        proxy.fate = lambda: Fate(is_refused=True)
                        proxy.cut_all()
                        write(near, "over", 2)
                        until(lambda: near.metrics()["topics_sse_connections"] == 0)
                        time.sleep(2.1)
                        proxy.fate = Fate
                    if len(found) == 3:
                        break
    assert seqs(found) == [1, 2, 3]


def test_more_topics_than_an_id_has_room_for(client: Client, url: str) -> None:
    """They get a session for each interruption."""
    names = [f"wide-{number:02}-{'x' * 200}" for number in range(40)]
    for name in names:
        write(client, name, 1)
    found: list[Item] = []
    with Proxy(int(url.rpartition(":")[2])) as proxy, Client(proxy.url, retries=QUICK) as far:
        for item in far.follow(*names, mode="stream"):
            found.append(item)
            if len(found) == 40:
                proxy.cut_all()
                for name in names:
                    write(client, name, 1)
            if len(found) == 80:
                break
    assert sorted((x.topic, *seqs([x])) for x in found) == [(n, s) for n in names for s in (1, 2)]


def test_a_stream_that_is_held_back_becomes_a_poll(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something in between that keeps a stream's bytes to itself costs seconds, not records."""
    monkeypatch.setattr("topics.client.streaming.FIRST_BYTES_S", 0.5)
    write(client, "held", 1)
    session = answer(200, msgspec.json.encode(client.watch({"held": WatchFrom()})))
    page = {"topic": "held", "epoch": "1", "next_from_seq": 3, "tombstone": None}
    records = [{"$seq": n, "$ts": 1, "data": n} for n in (1, 2, 3)]
    polled = answer(200, msgspec.json.encode({**page, "records": records}))
    with Scripted([session, SILENT, SILENT, polled, polled]) as server:
        with Client(server.url, retries=QUICK) as far:
            assert seqs(itertools.islice(far.follow("held"), 3)) == [1, 2, 3]
        assert "/diff" in server.requests[3][0]


def test_asyncio_follows_alike(url: str, client: Client) -> None:
    """And ends with its task."""
    write(client, "loop", 3)

    async def use() -> list[object]:
        async with AsyncClient(url) as far:
            found: list[Item] = []
            follower = far.follow("loop", cursor="c")
            async for item in follower:
                found.append(item)
                if len(found) == 3:
                    await follower.commit()
                    break
            return seqs(found)

    assert asyncio.run(use()) == [1, 2, 3]
    assert client.cursor("loop", "c").seq == 3


@pytest.mark.slow
def test_a_follower_that_waits_hears_signals(url: str, client: Client) -> None:
    """Ctrl-C ends it at once, although nothing comes."""
    client.create_topic("quiet")
    code = (
        "import sys; from topics import Client\n"
        "print('up', flush=True)\n"
        "try:\n"
        "    for _ in Client(sys.argv[1]).follow('quiet'): pass\n"
        "except KeyboardInterrupt: print('interrupted')\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, url], stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    time.sleep(0.5)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=10)[0] == "interrupted\n"
    assert time.monotonic() - began < 5


def test_events_are_whole_wherever_their_bytes_are_cut() -> None:
    """Byte by byte or all at once: the same events."""
    text = (
        b'retry: 2000\n\n: hb 1\n\nid: a\nevent: record\ndata: {"a":1}\n\n'
        b"event: error\ndata: x\ndata: y\n\ndata: last\n\nevent: half\ndata: never"
    )
    expected = [("record", b'{"a":1}'), ("error", b"x\ny"), ("message", b"last")]
    for size in (1, 2, 3, 7, len(text)):
        reader = EventReader()
        events = [
            (event.name, event.data)
            for start in range(0, len(text), size)
            for event in reader.feed(text[start : start + size])
        ]
        assert events == expected
