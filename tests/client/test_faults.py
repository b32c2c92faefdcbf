"""Random faults between client and server: nothing doubled, nothing missed, no job lost.

A schedule is a seed: a proxy of its own refuses, cuts, delays and throttles connections by it,
while a producer writes, a follower reads and a worker works through the same proxy. Schedules run
side by side, and in some the server is killed in the middle of them.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.cutting import CuttingProxy
from tests.support.servers import Inside, Served, inside
from topics import AsyncClient, Gap, Job, RetryPolicy

RECORDS = 40
JOBS = 8
SIDE_BY_SIDE = 25
# Of the long tier, whatever its budget.
SCHEDULES_MIN = 5_000
CAP = 15
LEASE_MS = 300
PATIENT = RetryPolicy(give_up_after_s=60.0, pause_s_min=0.002, pause_s_max=0.05)


class Schedule:
    """One seed's topics, its proxy, and what its clients saw."""

    def __init__(self, seed: int, port: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.proxy = CuttingProxy(port, self.chance)
        self.log, self.capped, self.queue = f"log-{seed}", f"capped-{seed}", f"jobs-{seed}"
        self.items: list[tuple[str, int, int]] = []
        self.gaps: list[Gap] = []
        self.handled: Counter[int] = Counter()

    async def run(self, near: AsyncClient) -> None:
        """`near` reaches the server without the proxy, to prepare and to look."""
        try:
            await self._run(near)
        except Exception as error:
            raise AssertionError(f"seed {self.seed} failed: {error!r}") from error

    async def _run(self, near: AsyncClient) -> None:
        await near.create_topic(self.log)
        await near.create_topic(self.capped, cap_records=CAP)
        await near.create_topic(self.queue, type="queue")
        async with self.proxy, AsyncClient(self.proxy.url, retries=PATIENT, timeout_s=5) as far:
            follower = asyncio.create_task(self._follow(far))
            worker = asyncio.create_task(self._work(far))
            await asyncio.gather(self._append(far), self._produce(far))
            self.proxy.is_calm = True
            await asyncio.wait_for(asyncio.gather(follower, worker), 30)
        await self._check(near)

    async def _append(self, far: AsyncClient) -> None:
        number = 0
        while number < RECORDS:
            count = min(self.chance.randrange(1, 6), RECORDS - number)
            batch = range(number, number + count)
            await far.append(self.log, [{"data": one} for one in batch])
            await far.append(self.capped, [{"data": one} for one in batch])
            number += count

    async def _produce(self, far: AsyncClient) -> None:
        async with far.producer(batch_records=3, linger_ms=1) as producer:
            for number in range(JOBS):
                await producer.send(self.queue, number)

    async def _follow(self, far: AsyncClient) -> None:
        """Until everything of both topics has been told."""
        left = {self.log, self.capped}
        mode = self.chance.choice(["stream", "poll", "stream"])
        async for item in far.follow(self.log, self.capped, mode=mode):  # type: ignore[arg-type]
            if isinstance(item, Gap):
                self.gaps.append(item)
                self.items.append((item.topic, item.gap_from, item.gap_to))
                last = item.gap_to
            else:
                self.items.append((item.topic, item.seq, item.seq))
                last = item.seq
            if last == RECORDS:
                left.discard(item.topic)
            if not left:
                return

    async def _work(self, far: AsyncClient) -> None:
        async def handle(job: Job) -> None:
            self.handled[job.value] += 1
            if self.chance.random() < 0.1:
                raise ValueError("once more")
            if len(self.handled) == JOBS:
                worker.stop()

        worker = far.worker(
            self.queue,
            handle,
            concurrency=3,
            lease_ms=LEASE_MS,
            backoff_ms=5,
            backoff_ms_max=20,
            grace_s=5,
        )
        self.counts = await worker.run()

    async def _check(self, near: AsyncClient) -> None:
        written = await near.range(self.log)
        assert [record.value for record in written.records] == list(range(RECORDS)), "appends"
        for topic in (self.log, self.capped):
            told = [(first, last) for name, first, last in self.items if name == topic]
            expected = 1
            for first, last in told:
                assert first == expected, f"seed {self.seed}: {topic}: {told}"
                expected = last + 1
            assert expected == RECORDS + 1
        assert all(gap.topic == self.capped for gap in self.gaps)
        assert set(self.handled) == set(range(JOBS)), "a job was lost"
        await self._drain(near)

    async def _drain(self, near: AsyncClient) -> None:
        """Each job was produced once, and is there or acknowledged, which the worker knows of."""
        state = await near.topic(self.queue)
        assert state.head_seq == JOBS, "a job was doubled"
        acked = JOBS - state.count
        assert self.counts.done + self.counts.lost >= acked
        assert self.counts.done <= sum(self.handled.values()) - self.counts.failed


async def run_all(seeds: range, port: int) -> int:
    """All schedules at once; the number of faults they met."""
    schedules = [Schedule(seed, port) for seed in seeds]
    async with AsyncClient(f"http://127.0.0.1:{port}", retries=PATIENT) as near:
        await asyncio.gather(*(schedule.run(near) for schedule in schedules))
    return sum(schedule.proxy.faults for schedule in schedules)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    directory = tmp_path_factory.mktemp("faults") / "data"
    # Each follower leaves a session behind, and the thousands of an hour come within minutes here.
    with inside(directory, TOPICS_SESSION_TTL_MS="5000") as served:
        yield served


@pytest.mark.slow
@pytest.mark.parametrize("group", range(8))
def test_no_record_is_missed_or_doubled_and_no_job_lost(served: Inside, group: int) -> None:
    """0 in 200 schedules."""
    seeds = range(group * SIDE_BY_SIDE, (group + 1) * SIDE_BY_SIDE)
    faults = asyncio.run(run_all(seeds, served.port))
    assert faults > SIDE_BY_SIDE


@pytest.mark.full(share=4)
@pytest.mark.timeout(0)
def test_thousands_of_schedules(
    served: Inside, deadline: float, tally: Callable[..., None]
) -> None:
    """5,000 at least, however long they take: about 60 ms of a processor each."""
    for done in itertools.count(0, SIDE_BY_SIDE):
        if done >= SCHEDULES_MIN and time.monotonic() > deadline:
            return
        first = 1_000_000 + done
        faults = asyncio.run(run_all(range(first, first + SIDE_BY_SIDE), served.port))
        tally(fault_schedules=SIDE_BY_SIDE, client_faults=faults)


def test_a_few_schedules_for_the_quick_gate(served: Inside) -> None:
    """The same, fewer."""
    assert asyncio.run(run_all(range(100_000, 100_006), served.port)) > 6


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_server_that_is_killed_and_started_again(tmp_path: Path, seed: int) -> None:
    """Whatever it was doing: what it acknowledged is there, once."""
    port = _free_port()

    def start() -> Served:
        # It is the same port each time: an old file would be taken for the new one, or the reverse.
        (tmp_path / "port").unlink(missing_ok=True)
        return Served(tmp_path, TOPICS_PORT=str(port)).wait_ready()

    async def chaos(done: asyncio.Event) -> None:
        server = await asyncio.to_thread(start)
        ready.set()
        chance = random.Random(seed)
        while not done.is_set():
            await asyncio.sleep(chance.uniform(0.1, 0.5))
            # The first one always: a fast machine is soon through.
            if len(kills) == 3 or (kills and chance.random() < 0.7):
                kills.pop()
                await asyncio.to_thread(server.kill)
                server = await asyncio.to_thread(start)
        await asyncio.to_thread(server.stop)

    async def run() -> None:
        done = asyncio.Event()
        task = asyncio.create_task(chaos(done))
        await ready.wait()
        try:
            await run_all(range(seed * 1000, seed * 1000 + 10), port)
        finally:
            done.set()
            await task

    ready = asyncio.Event()
    kills = [1, 2, 3]
    asyncio.run(run())
    assert len(kills) < 3


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port
