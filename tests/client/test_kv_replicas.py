"""Replicas that a client keeps: over any interruption, in this process and in another.

Promises: a follower ends with what its source has; a key that was deleted there never returns, not
even for a moment, and no key goes back to an older value; markers wait for a follower, and one for
whom they could not begins anew.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers import inside
from topics import AsyncClient, Client, errors
from topics.client.kv_follow import FROM, Replica, follow

FOLLOWER = """
import asyncio, sys
from topics import AsyncClient

async def main() -> None:
    source_url, own_url, bucket, into, once = sys.argv[1:]
    async with AsyncClient(source_url) as source, AsyncClient(own_url) as own:
        applied = await source.kv(bucket).follow_into(own.kv(into), until_caught_up=once == "once")
        print(applied)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def other_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Another server, for replicas."""
    with inside(tmp_path_factory.mktemp("other") / "data") as served:
        yield f"http://127.0.0.1:{served.port}"


def process(url: str, other_url: str, bucket: str, into: str, how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", FOLLOWER, url, other_url, bucket, into, how],
        stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip


def caught_up(url: str, other_url: str, bucket: str, into: str) -> int:
    """A follower for asyncio in a process of its own, to its end; what it applied."""
    out, _ = process(url, other_url, bucket, into, "once").communicate(timeout=60)
    return int(out)


def test_a_follower_applies_each_change_in_order(client: Client) -> None:
    """From where it was; the markers it has not seen wait for it."""
    source, replica = client.kv("follow-source"), client.kv("follow-replica")
    source.put("a", 1)
    source.put("p:1", 1)
    replica.put("stranger", 1)
    source.follow_into(replica, until_caught_up=True)
    assert dict(replica.scan()) == {"a": 1, "p:1": 1}
    source.put("b", 2)
    source.delete("a")
    source.delete_range("p:")
    time.sleep(0.003)
    assert source.compact(max_age_ms=0) == 0
    assert source.follow_into(replica, until_caught_up=True) == 3
    assert dict(replica.scan()) == {"b": 2}
    assert source.compact(max_age_ms=0) == 2


def test_a_follower_below_what_was_compacted_begins_anew(client: Client) -> None:
    """A deleted key does not stay in the replica, though nobody tells of it any more."""
    source, replica = client.kv("behind-source"), client.kv("behind-replica")
    source.put("gone", 1)
    source.put("stays", 1)
    source.follow_into(replica, until_caught_up=True)
    source.delete("gone")
    # Somebody takes the follower's place away, and so nothing holds the marker.
    client.delete_cursor("kv:behind-source", "kv-follow-behind-replica")
    time.sleep(0.003)
    assert source.compact(max_age_ms=0) == 1
    client.set_cursor("kv:behind-source", "kv-follow-behind-replica", 2)
    source.follow_into(replica, until_caught_up=True)
    assert dict(replica.scan()) == {"stays": 1}
    with pytest.raises(errors.BucketNotFound):
        client.kv("never").follow_into(replica, until_caught_up=True)


def test_a_bucket_does_not_follow_itself(client: Client, url: str, other_url: str) -> None:
    """Each change would bring another; by whatever address, and nothing is left to hold markers."""
    with Client(url.replace("127.0.0.1", "localhost")) as same, Client(other_url) as other:
        source = client.kv("follow-itself")
        source.put("a", 1)
        with pytest.raises(errors.InvalidRequest, match="follow itself"):
            source.follow_into(same.kv("follow-itself"), until_caught_up=True)
        state = client.bucket("follow-itself")
        assert (state.head_seq, state.readers, state.snapshots) == (1, [], 0)
        # The same name on another server is another bucket.
        for changes in (1, 0):
            again = other.kv("follow-itself")
            assert source.follow_into(again, until_caught_up=True) == changes
        assert dict(again.scan()) == {"a": 1}


def test_the_same_for_asyncio(client: Client, url: str) -> None:
    """Awaited, with a task that is cancelled and begun again."""

    async def run() -> None:
        async with AsyncClient(url) as own:
            source, replica = own.kv("async-source"), own.kv("async-replica")
            await source.put("a", 1)
            await source.put("p:1", 1)
            assert await source.follow_into(replica, until_caught_up=True) == 2
            task = asyncio.create_task(source.follow_into(replica))
            await source.delete_range("p:")
            seq = await source.put("b", 2)
            for _ in range(1000):
                place = await own.cursor("kv:async-source", "kv-follow-async-replica")
                if place.seq == seq:
                    break
                await asyncio.sleep(0.02)
            assert await replica.get("b") == 2
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await source.delete("a")
            assert await source.follow_into(replica, until_caught_up=True) == 1
            assert [pair async for pair in replica.scan()] == [("b", 2)]
            with pytest.raises(errors.BucketNotFound):
                await own.kv("never").follow_into(replica, until_caught_up=True)

    asyncio.run(run())


@pytest.mark.slow
def test_a_follower_in_another_process_on_another_server(
    client: Client, url: str, other_url: str
) -> None:
    """Killed in the middle, below what was compacted, and after its cursor went away."""
    source = client.kv("far-source")
    with Client(other_url) as other:
        replica = other.kv("far-replica")
        for number in range(300):
            source.put(f"k{number:03d}", number)
        running = process(url, other_url, source.name, replica.name, "for ever")
        try:
            deadline = time.monotonic() + 60
            while replica.get("k299") is None:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            source.delete("k000")
            while replica.get("k000") is not None:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        finally:
            running.kill()
            running.communicate()
        source.delete("k001")
        source.delete_range("k01")
        time.sleep(0.003)
        source.compact(max_age_ms=0)
        # The markers wait for the follower, however long it is away; and that of k000, if it was
        # killed before it said that it has it.
        waiting = source.pending_tombstones
        assert waiting in (2, 3)
        assert caught_up(url, other_url, source.name, replica.name) == 2
        assert dict(replica.scan()) == dict(source.scan())
        client.delete_cursor("kv:far-source", "kv-follow-far-replica")
        source.delete("k002")
        time.sleep(0.003)
        assert source.compact(max_age_ms=0) == waiting + 1
        caught_up(url, other_url, source.name, replica.name)
        assert dict(replica.scan()) == dict(source.scan())
        assert replica.get("k002") is None


def test_what_was_applied_before_an_interruption_is_not_applied_again(client: Client) -> None:
    """The cursor was not moved any more: the replica says how far it is, and no key goes back."""
    source, replica = client.kv("twice-source"), client.kv("twice-replica")
    source.put("a", 1)
    source.follow_into(replica, until_caught_up=True)
    cursor = client.cursor("kv:twice-source", "kv-follow-twice-replica")
    source.put("a", 2)
    source.put("gone", 1)
    source.put("p:1", 1)
    source.delete("gone")
    source.delete_range("p:")
    source.put("p:1", 2)
    assert source.follow_into(replica, until_caught_up=True) == 6
    head = client.topic("kv:twice-replica").head_seq
    client.set_cursor("kv:twice-source", cursor.cursor, cursor.seq, reset=True)
    assert source.follow_into(replica, until_caught_up=True) == 0
    assert client.topic("kv:twice-replica").head_seq == head
    assert dict(replica.scan()) == {"a": 2, "p:1": 2}
    records = client.diff("kv:twice-replica", include_tags=True).records
    assert all(FROM in (record.meta or {}) for record in records if record.seq > 1)


def test_a_follower_whose_cursor_goes_while_it_follows_begins_anew(client: Client) -> None:
    """Markers may have gone with it that nobody will tell of."""
    source, replica = client.kv("taken-source"), client.kv("taken-replica")
    source.put("a", 1)
    source.put("b", 1)
    source.follow_into(replica, until_caught_up=True)
    run = Replica(source.name, replica.name, None)
    steps = run.steps(until_caught_up=True)
    asked, given = next(steps), None
    # Up to where it reads the next page.
    while "diff" not in asked.request.path or not asked.is_source:
        given = (source if asked.is_source else replica).client.send(asked.request)
        asked = steps.send(given)
    client.delete_cursor("kv:taken-source", "kv-follow-taken-replica")
    source.delete("a")
    time.sleep(0.003)
    assert source.compact(max_age_ms=0) == 1
    source.put("c", 1)
    while True:
        given = (source if asked.is_source else replica).client.send(asked.request)
        try:
            asked = steps.send(given)
        except StopIteration:
            break
    assert run.resynced == 1
    assert dict(replica.scan()) == {"b": 1, "c": 1}


def test_a_full_replica_takes_the_markers_and_refuses_the_put(client: Client) -> None:
    """Deleting always works; the follower says why it can not go on."""
    source, replica = client.kv("full-source"), client.kv("full-replica")
    source.put("a", 1)
    source.follow_into(replica, until_caught_up=True)
    client.create_bucket("full-replica", cap_records=1)
    source.delete("a")
    source.put("b", 1)
    with pytest.raises(errors.TopicFull):
        follow(Replica(source.name, replica.name, None), source, replica, until_caught_up=True)
    assert dict(replica.scan()) == {}
    client.create_bucket("full-replica")
    source.follow_into(replica, until_caught_up=True)
    assert dict(replica.scan()) == {"b": 1}
