"""Workers of every kind on one queue, with bad manners: every job is done once, none is lost."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.server.queues.conftest import Queue
from tests.support.servers import Inside

JOBS, WORKERS = 1500, 12


class Crowd:
    """Who was told that they finished which job."""

    def __init__(self, server: Inside, name: str) -> None:
        self.server = server
        self.name = name
        self.done: Counter[int] = Counter()
        self._lock = threading.Lock()

    @property
    def is_over(self) -> bool:
        return len(self.done) == JOBS

    def settle(self, queue: Queue, node: str, seqs: list[int], dice: random.Random) -> None:
        """Acknowledges jobs, or gives them back, or keeps them for longer and then acknowledges."""
        what = dice.random()
        if what < 0.1:
            queue.nack(node, *seqs, delay_ms=dice.choice((0, 0, 20)))
            return
        if what < 0.2:
            queue.extend(node, *seqs, lease_ms=5000)
        skipped = queue.ack(node, *seqs)["skipped"]
        with self._lock:
            self.done.update(set(seqs) - set(skipped))

    def poll(self, number: int, seed: int) -> None:
        dice, node = random.Random(f"{seed}-{number}"), f"polling-{number}"
        with self.server.client() as client:
            queue = Queue(client, self.name)
            while not self.is_over:
                seqs = queue.claim_seqs(node, dice.randint(1, 9), wait_ms=50, lease_ms=5000)
                # Now and then it forgets what it claimed, until the lease ends.
                if seqs and dice.random() < 0.01:
                    queue.extend(node, *seqs, lease_ms=100)
                elif seqs:
                    self.settle(queue, node, seqs, dice)

    def stream(self, number: int, seed: int) -> None:
        dice, node = random.Random(f"{seed}-{number}"), f"pushed-{number}"
        with self.server.client() as client:
            queue = Queue(client, self.name)
            while not self.is_over:
                most = dice.randint(1, 9)
                with queue.work(node, f"max={most}&lease_ms=5000") as events:
                    events.socket.settimeout(0.2)
                    held: list[int] = []
                    # Until it has had enough, with jobs in its hands or without.
                    for _ in range(dice.randint(1, 60)):
                        with contextlib.suppress(TimeoutError):
                            held.append(events.next("job").data["$seq"])
                        assert len(held) <= most
                        if self.is_over:
                            break
                        if len(held) == most or (held and dice.random() < 0.4):
                            self.settle(queue, node, held, dice)
                            held = []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_crowd_does_every_job_once(queue: Queue, server: Inside, seed: int) -> None:
    dice = random.Random(seed)
    queue.configure(
        claim_jitter_ms=dice.choice((0, 0, 5)), leases_durable=seed == 1,
        durability=dice.choice(("ephemeral", "disk", "fsync")),
    )  # fmt: skip
    crowd = Crowd(server, queue.name)
    with ThreadPoolExecutor(WORKERS) as pool:
        work = [
            pool.submit(crowd.stream if number % 2 else crowd.poll, number, seed)
            for number in range(WORKERS)
        ]
        for first in range(0, JOBS, 50):
            queue.fill(*range(first, first + 50))
        for each in work:
            each.result()
    assert crowd.done == dict.fromkeys(range(1, JOBS + 1), 1)
    server.wait_until(lambda: queue.name not in server.app.desks.by_name)
    assert queue.counts == (0, 0, 0)
    assert server.run(lambda: server.services.delivery.connections) == 0
