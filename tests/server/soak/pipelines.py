"""Chains of routers, a queue that rejects and a store that fails, on a server that never rests.

It is killed and stopped in turn. Whatever ended it, it becomes ready again, and everything that can
be seen from outside is as the clients know it: nothing acknowledged is lost, nothing deleted is
back, no seq names two contents, every seq is accounted for, and a destination is the fold of its
source and of what was written to it directly.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

from tests.server.soak.clients import Deleter, Member, Worker
from tests.server.soak.jobs import CONFIG, QUEUE, Jobs, Producer, Taker
from tests.server.soak.journal import TopicJournal
from tests.server.soak.soak import CATCH_UP_S, Found, read
from tests.support.servers import Client, Served

# Everything is small: each round meets rotation, sealing, relocation and trimming.
SETTINGS = {
    "TOPICS_WAL_FILE_BYTES": "65536", "TOPICS_WAL_RESERVE_BYTES": "8192",
    "TOPICS_SEAL_RECORDS": "200", "TOPICS_SEGMENT_BYTES": "65536",
    "TOPICS_OWN_SEGMENT_BYTES": "8192", "TOPICS_BLOCK_BYTES": "4096", "TOPICS_HOT_BYTES": "0",
    "TOPICS_RESIDENT_BYTES": "0", "TOPICS_BLOCK_CACHE_BYTES": "100000",
    "TOPICS_IDLE_CLOSE_MS": "100", "TOPICS_LOG_LEVEL": "warning",
}  # fmt: skip
# Topics of each chain with their class; routers lead from each to the next.
ONCE = (("one", "fsync"), ("two", "disk"), ("three", "memory"), ("four", "fsync"))
OFTEN = (("first", "disk"), ("second", "fsync"), ("third", "disk"))
LOAD_S_MAX = 60.0


class Pipelines:
    """One data directory through many lives of its server. `figures` adds up what was checked."""

    def __init__(self, directory: Path, seed: int, **variables: str) -> None:
        self.directory = directory
        self.figures: Counter[str] = Counter()
        self._draw = random.Random(seed)
        self._variables = {**SETTINGS, **variables}
        self._acks = 0
        self._enough = threading.Condition()
        self.journals = {name: TopicJournal(name) for name, _ in (*ONCE, *OFTEN)}
        # What each seq of a copy was, from when it was first seen.
        self._copies: dict[str, dict[int, bytes]] = {name: {} for name in self.journals}
        self._jobs = Jobs()
        # Somebody writes to each topic of a chain; what is deleted stays in the copies.
        self._workers: list[Member] = [
            *(Worker(self.journals[name], f"w-{name}", self._acknowledged) for name, _ in ONCE),
            Deleter(self.journals["first"], "w-first", self._acknowledged),
            Worker(self.journals["second"], "w-second", self._acknowledged),
            Producer(self._jobs, "producer"), Taker(self._jobs, "a"), Taker(self._jobs, "b"),
        ]  # fmt: skip

    def _acknowledged(self) -> None:
        with self._enough:
            self._acks += 1
            self._enough.notify_all()

    # -- lives ---------------------------------------------------------------------------------

    def run(self, lives: int, acks: int) -> None:
        for life in range(lives):
            with self._serve() as served:
                self._live(served, self._draw.randint(acks // 2, acks * 3 // 2), life % 2 == 0)
        with self._serve() as served:
            assert served.stop() == 0, served.log()[-2000:]

    def _serve(self) -> Served:
        """The server again, ready and checked; now and then it is killed on the way to that."""
        shards = str(self._draw.randint(1, 3))
        variables = {**self._variables, "TOPICS_WAL_SHARDS": shards}
        is_new = not self.figures["lives"]
        if not is_new and self._draw.random() < 0.2:
            with Served(self.directory, **variables) as unready:
                time.sleep(self._draw.random() * 0.2)
                unready.kill()
            self.figures["kills"] += 1
        served = Served(self.directory, **variables).wait_ready()
        self.figures["lives"] += 1
        with served.client() as client:
            if is_new:
                self._furnish(client)
            else:
                self._check(client)
        return served

    def _furnish(self, client: Client) -> None:
        for name, durability in (*ONCE, *OFTEN):
            body = {"durability": durability, "idempotency_window_ms": 3_600_000}
            assert client.put(f"/v0/topics/{name}", body).status == 201
        assert client.put(QUEUE, CONFIG).status == 201
        for chain, guarantee in ((ONCE, "exactly_once"), (OFTEN, "at_least_once")):
            for (source, _), (dest, _) in pairwise(chain):
                body = {"source": source, "dest": dest, "guarantee": guarantee}
                assert client.put(f"/v0/routers/to-{dest}", body).status == 201

    def _live(self, served: Served, acks: int, is_killed: bool) -> None:
        """Load, and its end: a kill in the middle of it, or a signal to stop."""
        self._acks = 0
        threads = [worker.start(served.client()) for worker in self._workers]
        deadline = time.monotonic() + LOAD_S_MAX
        while self._acks < acks and not self._failed(served) and time.monotonic() < deadline:
            with self._enough:
                self._enough.wait(0.2)
        is_alive = served.process.poll() is None
        if is_killed:
            served.kill()
        else:
            served.signal(signal.SIGTERM)
        code = served.wait(60)
        for thread in threads:
            thread.join()
        for worker in self._workers:
            if worker.error is not None:
                raise worker.error
        assert is_alive, f"the server ended by itself: {served.log()[-2000:]}"
        assert is_killed or code == 0, served.log()[-2000:]
        assert self._acks >= acks, "the load was none"
        self.figures["kills" if is_killed else "stops"] += 1
        self.figures["acks"] += self._acks

    def _failed(self, served: Served) -> bool:
        failed = any(worker.error is not None for worker in self._workers)
        return failed or served.process.poll() is not None

    # -- what must be true ---------------------------------------------------------------------

    def _check(self, client: Client) -> None:
        self._wait_for_routers(client)
        found = {}
        for name, journal in self.journals.items():
            records, head_seq = read(client, name)
            found[name] = records
            assert head_seq >= journal.head_seq, f"the head of {name} went back"
            own = {r.seq: (bytes(r.data), r.tag) for r in records if self._is_own(name, r)}
            self.figures.update(journal.settle(own))
            journal.head_seq = head_seq
            self._check_copies(name, [r for r in records if r.seq not in own])
            self._check_account(client, name, [r.seq for r in records], head_seq)
        self._check_once(found)
        self._check_often(found)
        jobs, _ = read(client, "jobs")
        self.figures["jobs"] += self._jobs.settle([int(job.data) for job in jobs])
        self.figures["rejected"] = self._jobs.rejected

    def _is_own(self, name: str, record: Found) -> bool:
        """Whether it was written to this topic directly."""
        return bytes(record.data).startswith(b'{"w":"w-%b"' % name.encode())

    def _wait_for_routers(self, client: Client) -> None:
        deadline = time.monotonic() + CATCH_UP_S
        for chain in (ONCE, OFTEN):
            for name, _ in chain[1:]:
                while True:
                    state = client.get(f"/v0/routers/to-{name}").json
                    if state["lag"] == 0:
                        break
                    assert time.monotonic() < deadline, f"a router stays behind: {state}"
                    time.sleep(0.02)

    def _check_copies(self, name: str, records: list[Found]) -> None:
        """A copy stays what it was, where it was."""
        known = self._copies[name]
        now = {record.seq: bytes(record.data) for record in records}
        for seq, data in known.items():
            assert now.get(seq) == data, f"{name} {seq} was {data!r} and is {now.get(seq)!r}"
        known.update(now)

    def _check_account(self, client: Client, name: str, live: list[int], head_seq: int) -> None:
        """Every seq is accounted for, and none is missing for a reason that there was not."""
        seen: list[int] = []
        cursor = 1
        while cursor <= head_seq:
            page = client.get(f"/v0/topics/{name}/explain?from={cursor}&to={head_seq}").json
            for part in page["ranges"]:
                assert part["from"] == cursor, (name, page)
                assert part["state"] in ("live", "deleted"), (name, part)
                cursor = part["to"] + 1
                if part["state"] == "live":
                    seen += range(part["from"], part["to"] + 1)
        assert seen == live, f"{name}: explain and diff differ"

    def _check_once(self, found: dict[str, list[Found]]) -> None:
        """Each record of a source is in its destination once, in its order, with its bytes."""
        for (source, _), (dest, _) in pairwise(ONCE):
            copies = [r for r in found[dest] if not self._is_own(dest, r)]
            named = [copy.meta["_topics_router"]["source_seq"] for copy in copies]
            assert named == [r.seq for r in found[source]], f"{source} to {dest}: not its fold"
            pairs = zip(copies, found[source], strict=True)
            assert all((a.data, a.tag) == (b.data, b.tag) for a, b in pairs)
            self.figures["copies"] += len(copies)

    def _check_often(self, found: dict[str, list[Found]]) -> None:
        """All that is left of a source, and in its order, whatever was deleted from it since."""
        for (source, _), (dest, _) in pairwise(OFTEN):
            copies = [bytes(r.data) for r in found[dest] if not self._is_own(dest, r)]
            place = {data: seq for seq, (data, _) in self.journals[source].contents.items()}
            place |= {data: seq for seq, data in self._copies[source].items()}
            first = list(dict.fromkeys(place[data] for data in copies))
            assert first == sorted(first), f"{source} to {dest}: out of order"
            missing = {r.seq for r in found[source]} - set(first)
            assert not missing, f"{source} to {dest}: without {sorted(missing)[:5]}"
            self.figures["copies"] += len(first)
