"""A queue that rejects what it has no room for: its producer, its workers, what they know."""

from __future__ import annotations

import threading
import time
from collections import Counter

from tests.server.soak.clients import GONE, Member, Stopped
from tests.support.servers import Reply

QUEUE = "/v0/topics/jobs"
CAP_RECORDS = 12
CONFIG = {
    "type": "queue", "durable": True, "discard": "reject", "cap_records": CAP_RECORDS,
    "lease_ms": 500, "idempotency_window_ms": 3_600_000,
}  # fmt: skip
PAUSE_S = 0.01


class Jobs:
    """What is known of the jobs, from outside."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.asked: set[int] = set()
        self.confirmed: set[int] = set()
        # And when that was known, by the clock of those who ask.
        self.acknowledged: dict[int, float] = {}
        # Acknowledgements without an answer, so far or for ever.
        self.pending: Counter[int] = Counter()
        self.rejected = 0

    def settle(self, found: list[int]) -> int:
        """Compares what is in the queue after a restart with what is known of it."""
        live = set(found)
        assert len(live) == len(found), "a job is there twice"
        assert len(found) <= CAP_RECORDS, f"{len(found)} jobs in a queue for {CAP_RECORDS}"
        assert live <= self.asked, "nobody asked for these jobs"
        unsure = {number for number, count in self.pending.items() if count}
        lost = self.confirmed - self.acknowledged.keys() - unsure - live
        assert not lost, f"jobs lost: {sorted(lost)[:5]}"
        back = live & self.acknowledged.keys()
        assert not back, f"acknowledged and back: {sorted(back)[:5]}"
        # Of an acknowledgement without an answer, what was found is so from now on.
        self.acknowledged |= dict.fromkeys(unsure - live, time.monotonic())
        self.pending.clear()
        return len(found)


class OfQueue(Member):
    """A producer or a worker."""

    def __init__(self, jobs: Jobs, name: str) -> None:
        super().__init__(name)
        self.jobs = jobs

    def _post(self, path: str, body: object) -> Reply:
        try:
            reply = self._client.post(path, body)
        except GONE:
            raise Stopped from None
        if reply.code in ("shutting_down", "outcome_unknown"):
            raise Stopped
        return reply


class Producer(OfQueue):
    """Repeats each job with its key until it is confirmed."""

    def __init__(self, jobs: Jobs, name: str) -> None:
        super().__init__(jobs, name)
        self._number = 1

    def _turn(self) -> None:
        number = self._number
        with self.jobs.lock:
            self.jobs.asked.add(number)
        body = {"records": [{"data": number}], "idempotency_key": f"job-{number}"}
        reply = self._post(QUEUE, body)
        if reply.code in ("topic_full", "throttled"):
            self.jobs.rejected += 1
            time.sleep(PAUSE_S)
            return
        assert reply.status == 200, reply.raw
        with self.jobs.lock:
            self.jobs.confirmed.add(number)
        self._number += 1


class Taker(OfQueue):
    """Claims jobs, acknowledges most of them, and lets the leases of the others run out."""

    def _turn(self) -> None:
        asked_s = time.monotonic()
        claim = self._post(f"{QUEUE}/claim", {"node": self.name, "max": 5, "wait_ms": 100})
        if claim.code == "store_unreachable":
            return
        assert claim.status == 200, claim.raw
        for job in claim.json["claimed"]:
            with self.jobs.lock:
                # Who looks at its jobs late may find that others had them meanwhile, to their end.
                known_s = self.jobs.acknowledged.get(job["data"], asked_s)
                assert known_s >= asked_s, "acknowledged and delivered again"
            if self._draw.random() < 0.8:
                self._acknowledge(job["$seq"], job["lease_id"], job["data"])
        # Slower than the producer: the queue is full most of the time.
        time.sleep(5 * PAUSE_S)

    def _acknowledge(self, seq: int, lease: str, number: int) -> None:
        with self.jobs.lock:
            self.jobs.pending[number] += 1
        body = {"node": self.name, "seqs": [seq], "lease_ids": [lease]}
        reply = self._post(f"{QUEUE}/ack", body)
        assert reply.status == 200, reply.raw
        with self.jobs.lock:
            self.jobs.pending[number] -= 1
            if reply.json["acked"]:
                self.jobs.acknowledged[number] = time.monotonic()
