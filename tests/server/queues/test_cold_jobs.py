"""Jobs that have moved to the cold store are claimed and pushed like any other."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.server.queues.conftest import Queue, jobs_of
from tests.support.servers import Client, Inside, inside
from tests.support.tiers import quick_first

JOBS = 1000


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[Inside]:
    """A server that keeps nothing near: every block is fetched beside the loop."""
    variables = {
        "TOPICS_COLD_DIR": str(tmp_path / "cold"), "TOPICS_HOT_BYTES": "0",
        "TOPICS_RESIDENT_BYTES": "0", "TOPICS_BLOCK_CACHE_BYTES": "1",
        "TOPICS_OWN_SEGMENT_BYTES": "1", "TOPICS_BLOCK_BYTES": "20000",
    }  # fmt: skip
    with inside(tmp_path / "data", **variables) as served:
        yield served


def far_away(served: Inside, client: Client, name: str, **config: object) -> Queue:
    """A queue with jobs that are all in the cold store."""
    queue = Queue(client, name).configure(**config)
    for _ in range(JOBS // 50):
        queue.fill(*["x" * 1000] * 50)
    served.run(lambda: served.services.engine.checkpoint())
    blocks = served.services.engine.core.by_name[name].blocks
    served.wait_until(
        lambda: all(block.segment and block.segment.is_cold for block in list(blocks))
    )
    return queue


@pytest.mark.parametrize("claim_jitter_ms", quick_first([0, 5], 1))
@pytest.mark.parametrize("leases_durable", [False, True])
def test_cold_jobs_are_claimed(cold: Inside, claim_jitter_ms: int, leases_durable: bool) -> None:
    """By several workers at once, each job once."""
    with cold.client() as client:
        config = {"claim_jitter_ms": claim_jitter_ms, "leases_durable": leases_durable}
        far_away(cold, client, "jobs", **config)

        def work(node: str) -> list[int]:
            found: list[int] = []
            with cold.client() as own:
                queue = Queue(own, "jobs")
                while seqs := queue.claim_seqs(node, 50):
                    found += seqs
                    queue.ack(node, *seqs)
            return found

        with ThreadPoolExecutor(4) as pool:
            found = [seq for seqs in pool.map(work, ("a", "b", "c", "d")) for seq in seqs]
        assert sorted(found) == list(range(1, JOBS + 1))


@pytest.mark.slow
def test_cold_jobs_are_pushed(cold: Inside) -> None:
    with cold.client() as client:
        queue = far_away(cold, client, "jobs")
        with queue.work("w", "max=100") as events:
            seqs: list[int] = []
            while len(seqs) < JOBS:
                got = [job["$seq"] for job in jobs_of(events, 10)]
                queue.ack("w", *got)
                seqs += got
        assert seqs == list(range(1, JOBS + 1))


def test_a_store_that_can_not_be_reached_is_an_error(cold: Inside, tmp_path: Path) -> None:
    """A stream is told and goes on when the store is back."""
    with cold.client() as client:
        queue = far_away(cold, client, "jobs")
        (tmp_path / "cold").rename(tmp_path / "gone")
        with queue.work("w") as events:
            assert events.next("error").data["code"] == 503
            reply = queue.call("claim", node="other")
            assert (reply.status, reply.code) == (503, "store_unreachable")
            (tmp_path / "gone").rename(tmp_path / "cold")
            assert len(jobs_of(events, 1)) == 1


@pytest.mark.slow
def test_cold_jobs_that_failed_make_way_for_cold_jobs_that_wait(cold: Inside) -> None:
    """One block in the cache is enough for a claim that moves some jobs and hands out others."""
    with cold.client() as client:
        queue = far_away(cold, client, "jobs", max_deliveries=1, dead_letter="dead")
        held: list[int] = []
        while len(held) < 60:
            held += queue.claim_seqs("a", 20)
        queue.nack("a", *held[:3])
        found = queue.claim_seqs("b", 3)
        assert found == [held[-1] + 1, held[-1] + 2, held[-1] + 3]
        assert client.get("/v0/topics/dead").json["count"] == 3
