"""What a killed server still knows of its queues when it is back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.server.queues.conftest import Queue
from tests.support.servers import Served

pytestmark = pytest.mark.slow


@pytest.fixture
def restarted(tmp_path: Path) -> Callable[[Callable[[Queue], None]], Served]:
    """Lets a call use a queue, kills the server, and returns the next one."""

    def run(before: Callable[[Queue], None]) -> Served:
        with Served(tmp_path).wait_ready() as served, served.client() as client:
            before(Queue(client, "jobs"))
            served.kill()
        return Served(tmp_path).wait_ready()

    return run


def test_durable_leases_are_still_held(
    restarted: Callable[[Callable[[Queue], None]], Served],
) -> None:
    """With their tokens, their delivery counts, and what was given back for later."""
    tokens: list[str] = []

    def before(queue: Queue) -> None:
        queue.configure(durable=True, leases_durable=True, lease_ms=600_000)
        queue.fill("held", "again", "done", "delayed", "fresh")
        tokens.extend(job["lease_id"] for job in queue.claim("w", 4))
        queue.nack("w", 2)
        queue.ack("w", 3)
        queue.nack("w", 4, delay_ms=600_000)

    with restarted(before) as served, served.client() as client:
        queue = Queue(client, "jobs")
        assert queue.counts == (2, 1, 0)
        first, second = queue.claim("other", 9)
        assert (first["$seq"], first["deliveries"]) == (2, 2)
        assert (second["$seq"], second["deliveries"]) == (5, 1)
        assert not {first["lease_id"], second["lease_id"]} & set(tokens)
        assert queue.ack("other", 1)["skipped"] == [1]
        assert queue.ack("w", 1, lease_ids=tokens[:1])["acked"] == 1


def test_other_leases_are_forgotten_and_acks_are_not(
    restarted: Callable[[Callable[[Queue], None]], Served],
) -> None:
    tokens: list[str] = []

    def before(queue: Queue) -> None:
        queue.configure(durable=True, lease_ms=600_000)
        queue.fill("held", "done", "delayed")
        tokens.extend(job["lease_id"] for job in queue.claim("w", 3))
        queue.ack("w", 2)
        queue.nack("w", 3, delay_ms=600_000)

    with restarted(before) as served, served.client() as client:
        queue = Queue(client, "jobs")
        assert queue.counts == (2, 0, 0)
        assert queue.ack("w", 1)["skipped"] == [1]
        jobs = queue.claim("w", 9)
        assert [job["$seq"] for job in jobs] == [1, 3]
        # A token of before the restart is of no lease of after it.
        assert not {job["lease_id"] for job in jobs} & set(tokens)
        assert queue.ack("w", 1, lease_ids=tokens[:1])["skipped"] == [1]


def test_dead_letters_have_moved_for_good(
    restarted: Callable[[Callable[[Queue], None]], Served],
) -> None:
    def before(queue: Queue) -> None:
        queue.configure(durable=True, max_deliveries=1, dead_letter="jobs.dead")
        queue.fill("bad", "good")
        queue.claim("w")
        queue.nack("w", 1)
        assert queue.claim_seqs("w") == [2]
        queue.ack("w", 2)

    with restarted(before) as served, served.client() as client:
        assert Queue(client, "jobs").counts == (0, 0, 1)
        (letter,) = client.diff("jobs.dead").json["records"]
        assert letter["data"] == "bad"
