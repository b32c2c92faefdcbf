"""Workers: each job is handled, acknowledged once, kept while it runs, given back if it fails."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest

from topics import AsyncClient, Client, errors
from topics.client.values import Job


def make(client: Client, queue: str, jobs: int, **config: object) -> None:
    client.create_topic(queue, type="queue", **config)  # type: ignore[arg-type]
    client.append(queue, [{"data": number} for number in range(jobs)])


def test_every_job_is_handled_and_acknowledged(client: Client) -> None:
    """Several at a time, each once."""
    make(client, "plain", 50)
    seen: Counter[int] = Counter()
    counts = client.worker(
        "plain", lambda job: seen.update([job.value]), concurrency=8, idle_s=0.1
    ).run()
    assert seen == Counter(range(50))
    assert (counts.done, counts.failed, counts.lost) == (50, 0, 0)
    assert client.topic("plain").count == 0


def test_handlers_run_side_by_side(client: Client) -> None:
    """As many as `concurrency` says, and no more."""
    make(client, "wide", 12)
    running, most, lock = 0, 0, threading.Lock()

    def handle(_: Job) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.05)
        with lock:
            running -= 1

    client.worker("wide", handle, concurrency=4, idle_s=0.1).run()
    assert most == 4


def test_a_job_that_fails_comes_again_later(client: Client) -> None:
    """With a growing delay; after max_deliveries it is a dead letter."""
    make(client, "failing", 3, max_deliveries=3, dead_letter="failing.dead")
    tries: Counter[int] = Counter()

    def handle(job: Job) -> None:
        tries.update([job.value])
        if job.value == 1 or job.deliveries == 1:
            raise ValueError("not yet")

    worker = client.worker("failing", handle, backoff_ms=1, idle_s=0.5)
    counts = worker.run()
    assert tries == {0: 2, 1: 3, 2: 2}
    assert (counts.done, counts.failed) == (2, 5)
    client.claim("failing", "last", wait_ms=100)
    assert [record.value for record in client.diff("failing.dead").records] == [1]


def test_a_long_job_keeps_its_lease(client: Client) -> None:
    """Nobody else gets it, although the lease is much shorter than the job."""
    make(client, "long", 1)
    seen = []

    def handle(job: Job) -> None:
        seen.append(job.deliveries)
        time.sleep(1.0)

    thread = threading.Thread(
        target=client.worker("long", handle, lease_ms=300, idle_s=0.2).run, daemon=True
    )
    thread.start()
    time.sleep(0.1)
    other = client.claim("long", "thief", wait_ms=800)
    thread.join(10)
    assert other.claimed == []
    assert seen == [1]
    assert client.topic("long").count == 0


def test_a_lease_that_is_lost_is_not_acknowledged(client: Client) -> None:
    """Somebody else has the job: it is theirs to finish."""
    make(client, "stolen", 1)

    def handle(job: Job) -> None:
        client.nack("stolen", "victim", [job.seq])
        client.claim("stolen", "thief")
        time.sleep(0.3)

    counts = client.worker("stolen", handle, node="victim", lease_ms=300, idle_s=0.1).run()
    assert (counts.done, counts.lost) == (0, 1)
    assert client.topic("stolen").count == 1


def test_asyncio_handlers_and_stop(url: str, client: Client) -> None:
    """A worker ends when it is told to, after what it has begun."""
    make(client, "loop", 20)

    async def use() -> int:
        async with AsyncClient(url) as far:
            done = 0

            async def handle(_: Job) -> None:
                nonlocal done
                await asyncio.sleep(0.02)
                done += 1
                if done == 10:
                    worker.stop()

            worker = far.worker("loop", handle, concurrency=3)
            counts = await worker.run()
            assert counts.done == done
            return done

    done = asyncio.run(use())
    assert 10 <= done <= 12
    state = client.topic("loop").queue
    assert state is not None
    assert (state.ready, state.in_flight) == (20 - done, 0)


def test_what_is_not_done_in_time_is_given_back(client: Client) -> None:
    """At once, not when its lease is over."""
    make(client, "given-back", 1)
    begun = threading.Event()

    async def handle(_: Job) -> None:
        begun.set()
        await asyncio.sleep(60)

    worker = client.worker("given-back", handle, grace_s=0.1)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    assert begun.wait(10)
    worker.stop()
    thread.join(10)
    state = client.topic("given-back").queue
    assert state is not None
    assert (state.ready, state.in_flight) == (1, 0)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_gently(url: str, client: Client, number: signal.Signals) -> None:
    """What runs is finished and acknowledged; nothing new is claimed."""
    queue = f"signal-{number.name}"
    make(client, queue, 2)
    code = (
        "import sys, time\nfrom topics import Client\n"
        "def handle(job):\n    print('begun', flush=True); time.sleep(0.5)\n"
        "counts = Client(sys.argv[1]).worker(sys.argv[2], handle).run()\n"
        "print(counts.done)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, url, queue], stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(number)
    assert process.communicate(timeout=20)[0] == "1\n"
    assert process.returncode == 0
    state = client.topic(queue).queue
    assert state is not None
    assert (state.ready, state.in_flight) == (1, 0)


def test_a_queue_that_is_none_is_told(client: Client) -> None:
    """No waiting would mend it."""
    client.create_topic("log")
    with pytest.raises(errors.NotAQueue):
        client.worker("log", lambda _: None).run()
    with pytest.raises(errors.TopicNotFound):
        client.worker("nowhere", lambda _: None).run()
