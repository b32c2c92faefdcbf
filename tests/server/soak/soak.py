"""A server under load that is killed again and again; what must be true each time it is back."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from tests.server.soak.clients import Deleter, Worker
from tests.server.soak.journal import TopicJournal
from tests.support.servers import Client, Served

# Small files and early checkpoints: kills meet rotation, sealing and trimming too.
SETTINGS = {
    "TOPICS_WAL_FILE_BYTES": "262144", "TOPICS_WAL_RESERVE_BYTES": "8192",
    "TOPICS_SEAL_RECORDS": "400", "TOPICS_OWN_SEGMENT_BYTES": "16384",
}  # fmt: skip
# A server whose unsynced bytes live in its own memory: to it a kill is a power failure.
BUFFERED = """
import asyncio, os, uvloop
from topics.server.config import load
from topics.server.process import serve
from topics.storage.fs import OsFs
from topics.testing import BufferedFs
with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(serve(load(os.environ, {}), fs=BufferedFs(OsFs())))
"""
CATCH_UP_S = 60.0
ACKS_S = 120.0
PAGE = 1000


class Found(msgspec.Struct):
    seq: int = msgspec.field(name="$seq")
    tag: str = msgspec.field(name="$tag", default="")
    data: msgspec.Raw = msgspec.Raw(b"")
    meta: dict[str, Any] = {}


class Page(msgspec.Struct):
    records: list[Found]
    next_from_seq: int
    head_seq: int
    caught_up: bool
    tombstone: dict[str, Any] | None


_PAGE = msgspec.json.Decoder(Page)


def read(client: Client, topic: str) -> tuple[list[Found], int]:
    """Everything in a topic, and its head. A kill loses nothing, so nothing may be told as lost."""
    found: list[Found] = []
    cursor = 0
    deadline = time.monotonic() + CATCH_UP_S
    while True:
        reply = client.diff(topic, from_seq=cursor, limit=PAGE, include_tags=True)
        if reply.code == "store_unreachable":
            assert time.monotonic() < deadline, reply.raw
            continue
        assert reply.status == 200, reply.raw
        page = _PAGE.decode(reply.raw)
        assert page.tombstone is None, (topic, page.tombstone)
        found += page.records
        cursor = page.next_from_seq
        if page.caught_up:
            return found, page.head_seq


class Soak:
    """One data directory and its clients. `figures` adds up what was checked.

    A process that is killed loses nothing, whatever the class of a topic. When the power fails,
    only what was synced is kept: then all topics are of class fsync.
    """

    def __init__(self, directory: Path, seed: int, *, is_power_failing: bool = False) -> None:
        self.directory = directory
        self._script = BUFFERED if is_power_failing else ""
        self._other = "fsync" if is_power_failing else "disk"
        self.figures: Counter[str] = Counter()
        self._draw = random.Random(seed)
        self._acks = 0
        self._enough = threading.Condition()
        self.journals = {name: TopicJournal(name) for name in ("fsync", "disk", "trimmed")}
        self._workers = [
            Worker(self.journals["fsync"], "a", self._acknowledged),
            Worker(self.journals["fsync"], "b", self._acknowledged),
            Worker(self.journals["disk"], "c", self._acknowledged),
            Worker(self.journals["disk"], "d", self._acknowledged),
            Deleter(self.journals["trimmed"], "e", self._acknowledged),
        ]

    def _acknowledged(self) -> None:
        with self._enough:
            self._acks += 1
            self._enough.notify_all()

    def run(self, kills: int, acks: int) -> None:
        """Kills the server this often, each time after about so many answers."""
        for _ in range(kills):
            with self._serve() as served:
                self._load(served, self._draw.randint(acks // 2, acks * 3 // 2))
                served.kill()
            self.figures["kills"] += 1
        with self._serve() as served:
            assert served.stop() == 0

    def _serve(self) -> Served:
        """The server again, checked; now and then it is killed on the way."""
        if self.figures["kills"] % 3 == 1:
            with Served(self.directory, script=self._script, **SETTINGS) as unready:
                unready.signal(signal.SIGKILL)
                unready.wait()
            self.figures["kills"] += 1
            self.figures["kills_recovering"] += 1
        served = Served(self.directory, script=self._script, **SETTINGS).wait_ready()
        with served.client() as client:
            if self.figures["kills"]:
                self._check(client)
            else:
                self._furnish(client)
        return served

    def _furnish(self, client: Client) -> None:
        for name in ("fsync", "trimmed", "often-copy"):
            assert client.put(f"/v0/topics/{name}", {"durability": "fsync"}).status == 201
        for name in ("disk", "once-copy"):
            assert client.put(f"/v0/topics/{name}", {"durability": self._other}).status == 201
        routes = (("often", "fsync", "at_least_once"), ("once", "disk", "exactly_once"))
        for name, source, guarantee in routes:
            body = {"source": source, "dest": f"{name}-copy", "guarantee": guarantee}
            assert client.put(f"/v0/routers/{name}", body).status == 201

    def _load(self, served: Served, acks: int) -> None:
        self._acks = 0
        threads = [worker.start(served.client()) for worker in self._workers]
        with self._enough:
            enough = self._enough.wait_for(lambda: self._acks >= acks or self._failed(), ACKS_S)
        served.kill()
        for thread in threads:
            thread.join()
        for worker in self._workers:
            if worker.error is not None:
                raise worker.error
        assert enough, "the load was none"
        self.figures["acks"] += acks

    def _failed(self) -> bool:
        return any(worker.error is not None for worker in self._workers)

    # -- what must be true ---------------------------------------------------------------------

    def _check(self, client: Client) -> None:
        sources = {}
        for name, journal in self.journals.items():
            records, head_seq = read(client, name)
            sources[name] = records
            assert head_seq >= journal.head_seq, f"the head of {name} went back"
            found = {record.seq: (bytes(record.data), record.tag) for record in records}
            assert len(found) == len(records)
            self.figures.update(journal.settle(found))
            journal.head_seq = head_seq
            self._check_account(client, name)
        self._check_often(client, sources["fsync"])
        self._check_once(client, sources["disk"])

    def _check_account(self, client: Client, name: str) -> None:
        """No seq is missing for a reason that a kill does not have."""
        ranges = client.get(f"/v0/topics/{name}/explain").json["ranges"]
        states = {found["state"] for found in ranges}
        assert states <= {"live", "deleted"}, (name, states)

    def _check_often(self, client: Client, source: list[Found]) -> None:
        """At least once: all of the source, in its order, some of it perhaps again."""
        copies = self._copies(client, "often-copy", source)
        place = {bytes(record.data): index for index, record in enumerate(source)}
        first = list(dict.fromkeys(place[bytes(copy.data)] for copy in copies))
        assert first == list(range(len(source))), "often: lost or out of order"
        self.figures["copies"] += len(first)
        self.figures["copies_again"] += len(copies) - len(first)

    def _check_once(self, client: Client, source: list[Found]) -> None:
        """Exactly once: the source seqs that the copies name are the source's own, each once."""
        copies = self._copies(client, "once-copy", source)
        named = [copy.meta["_topics_router"]["source_seq"] for copy in copies]
        assert named == [record.seq for record in source], "once: lost, repeated or out of order"
        pairs = zip(copies, source, strict=True)
        assert all((a.data, a.tag) == (b.data, b.tag) for a, b in pairs)
        self.figures["copies"] += len(copies)

    def _copies(self, client: Client, name: str, source: list[Found]) -> list[Found]:
        """The copies, once the last record of the source is among them."""
        deadline = time.monotonic() + CATCH_UP_S
        while True:
            copies, _ = read(client, name)
            if not source or (copies and copies[-1].data == source[-1].data):
                return copies
            assert time.monotonic() < deadline, f"{name} stays behind: {len(copies)} copies"
            # Forwarding goes on beside the requests: there is nothing to wait on but its result.
            time.sleep(0.02)
