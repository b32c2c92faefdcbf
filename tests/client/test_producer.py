"""Producers: everything that was sent is there once, in order, and no failure is silent."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import Any

import pytest

from tests.support.proxy import Fate, Proxy
from tests.support.scripted import Scripted, refusal
from topics import AsyncClient, Client, RetryPolicy, errors

QUICK = RetryPolicy(give_up_after_s=20.0, pause_s_min=0.01, pause_s_max=0.05)


def values(client: Client, topic: str) -> list[Any]:
    """All data of a topic, in order."""
    found: list[Any] = []
    page = client.diff(topic, limit=1000)
    while page.records:
        found += [record.value for record in page.records]
        page = client.diff(topic, from_seq=page.next_from_seq, limit=1000)
    return found


def test_records_arrive_in_order_with_their_seqs(client: Client) -> None:
    """A receipt has the seq of its record; tags, nodes and meta go along."""
    with client.producer(batch_records=7) as producer:
        receipts = [producer.send("sent", number, tag=f"t{number}") for number in range(100)]
        other = producer.send("sent-too", {"a": None}, node="n", meta={"k": "v"})
        assert [receipt.result(10) for receipt in receipts] == list(range(1, 101))
        assert other.result(10) == 1
    assert values(client, "sent") == list(range(100))
    record = client.diff("sent-too", include_tags=True).records[0]
    assert (record.value, record.node, record.meta) == ({"a": None}, "n", {"k": "v"})


def test_closing_sends_what_waits(client: Client) -> None:
    """However long it was to linger."""
    producer = client.producer(linger_ms=60_000)
    for number in range(10):
        producer.send("lingering", number)
    producer.close()
    assert values(client, "lingering") == list(range(10))
    with pytest.raises(errors.Closed):
        producer.send("lingering", 11)


def test_many_threads_share_one(client: Client) -> None:
    """Each thread's records keep their order."""
    with client.producer(batch_records=50) as producer:

        def send(name: int) -> None:
            for number in range(200):
                producer.send("shared", [name, number])

        threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = values(client, "shared")
    assert len(found) == 800
    for name in range(4):
        assert [pair for pair in found if pair[0] == name] == [[name, n] for n in range(200)]


def test_a_full_buffer_makes_the_sender_wait(client: Client) -> None:
    """Memory has a bound; records do not get lost for it."""
    with client.producer(buffer_bytes=2_000, batch_bytes=500) as producer:
        for number in range(300):
            producer.send("narrow", {"n": number, "pad": "x" * 100})
    assert len(values(client, "narrow")) == 300


def test_a_failure_is_told_by_receipt_and_by_close(client: Client) -> None:
    """Whichever is looked at: nothing is lost without a word."""
    client.create_topic("full", cap_records=2, discard="reject")
    producer = client.producer(batch_records=2, linger_ms=1)
    assert producer.send("full", 1).result(10) == 1
    receipts = [producer.send("full", number) for number in range(4)]
    with pytest.raises(errors.TopicFull):
        receipts[-1].result(10)
    told: list[bool] = []
    receipts[-1].add_done_callback(lambda receipt: told.append(receipt.done()))
    assert told == [True]
    with pytest.raises(errors.TopicFull):
        producer.close()
    producer.close()


def test_what_is_no_json_is_refused_at_once(client: Client) -> None:
    """It would take the rest of its batch with it."""
    with client.producer() as producer:
        with pytest.raises(errors.InvalidRequest):
            producer.send("bad", object())
        producer.send("bad", 1)
    assert values(client, "bad") == [1]


def test_connections_that_break_double_nothing(client: Client, url: str) -> None:
    """Each batch is sent with a key until it is acknowledged."""
    places = itertools.cycle([40, 300, 700, 2_000, None, 150])
    with Proxy(int(url.rpartition(":")[2]), lambda: Fate(down_bytes=next(places))) as proxy:
        with Client(proxy.url, retries=QUICK) as far, far.producer(batch_records=5) as producer:
            for number in range(300):
                producer.send("broken", number)
        assert proxy.cuts > 3
    assert values(client, "broken") == list(range(300))


def test_a_flush_has_an_end() -> None:
    """It says so when the server does not take what waits."""
    with Scripted([refusal(503, "not_ready", Retry_After="0.1")] * 9) as server:
        client = Client(server.url, retries=RetryPolicy(give_up_after_s=0.5))
        producer = client.producer()
        producer.send("never", 1)
        with pytest.raises(TimeoutError):
            producer.flush(0.05)
        with pytest.raises(errors.NotReady):
            producer.close()


def test_asyncio_produces_alike(url: str, client: Client) -> None:
    """Receipts are awaited."""

    async def use() -> list[int]:
        async with AsyncClient(url) as far, far.producer(buffer_bytes=1_000) as producer:
            receipts = [await producer.send("loop", number) for number in range(200)]
            return [await receipt for receipt in receipts]

    assert asyncio.run(use()) == list(range(1, 201))
    assert values(client, "loop") == list(range(200))
