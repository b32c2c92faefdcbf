"""Clients of a server that may go away at any moment, each in a thread of its own."""

from __future__ import annotations

import http.client
import random
import threading
from collections.abc import Callable

from tests.server.soak.journal import Delete, TopicJournal, Write
from tests.support.servers import Client, Reply

BATCH_MAX = 20
GONE = (OSError, http.client.HTTPException)


class Stopped(Exception):
    """The server did not answer: it is gone."""


class Member:
    """Works in a thread of its own until the server goes away."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.error: BaseException | None = None
        self._draw = random.Random(name)
        self._client: Client

    def start(self, client: Client) -> threading.Thread:
        self._client = client
        thread = threading.Thread(target=self._run, name=self.name)
        thread.start()
        return thread

    def _run(self) -> None:
        try:
            with self._client:
                while True:
                    self._turn()
        except Stopped:
            pass
        except BaseException as error:
            self.error = error

    def _turn(self) -> None:
        raise NotImplementedError


class Worker(Member):
    """Writes and deletes. What it has asked for when the server goes away is unknown."""

    def __init__(self, journal: TopicJournal, name: str, done: Callable[[], None]) -> None:
        super().__init__(name)
        self.journal = journal
        self._done = done
        self._number = 0
        self._again: Write | None = None

    def _turn(self) -> None:
        self._work()
        self._done()

    def _work(self) -> None:
        again, self._again = self._again, None
        if again is not None:
            self._repeat(again)
        else:
            self._write(self._next())

    def _next(self) -> Write:
        self._number += 1
        count = 1 if self._draw.random() < 0.6 else self._draw.randint(2, BATCH_MAX)
        # Spelt as no encoder would: it has to come back like this.
        payloads = [
            b'{"w":"%b", "n": %d.0,"i":%d}' % (self.name.encode(), self._number, index)
            for index in range(count)
        ]
        key = f"{self.name}-{self._number}" if self._draw.random() < 0.5 else None
        return Write(self._number, payloads, f"{self.name}:{self._number % 7}", key)

    def _write(self, write: Write) -> Reply:
        try:
            reply = self._client.post(f"/v0/topics/{self.journal.name}", write.body)
        except GONE:
            self._unknown(write)
            raise Stopped from None
        if reply.code == "shutting_down":
            self._unknown(write)
            raise Stopped
        assert reply.status == 200, reply.raw
        self.journal.acknowledge(write, reply.json["seqs"])
        return reply

    def _unknown(self, write: Write) -> None:
        with self.journal.lock:
            self.journal.unknown_writes.append(write)
        if write.key is not None:
            self._again = write

    def _repeat(self, write: Write) -> None:
        """The write of before the kill again, with its key: it is there once, whatever happened."""
        was_there, seqs = bool(write.seqs), write.seqs
        reply = self._write(write)
        assert reply.json["deduped"] is was_there, (write.number, reply.raw)
        assert not was_there or reply.json["seqs"] == seqs


class Deleter(Worker):
    """The only one in its topic: writes, and deletes by tag and below a seq."""

    def _work(self) -> None:
        if self._again is None and self._number and self._number % 5 == 0:
            self._delete(self._selected())
            self._number += 1
        else:
            super()._work()

    def _selected(self) -> Delete:
        live = self.journal.expected
        seqs = sorted(live)
        tag = live[self._draw.choice(seqs)][1] if seqs else "none"
        before = seqs[len(seqs) // 3] if seqs else 1
        kind = self._number // 5 % 3
        if kind == 0:
            body: dict[str, object] = {"match": tag}
            found = {seq for seq in seqs if live[seq][1] == tag}
        elif kind == 1:
            body = {"before_seq": before}
            found = {seq for seq in seqs if seq < before}
        else:
            body = {"before_seq": before, "match": ["tag", "Glob", f"{tag[:-1]}*"]}
            found = {seq for seq in seqs if seq < before and live[seq][1].startswith(tag[:-1])}
        return Delete(body, frozenset(found))

    def _delete(self, delete: Delete) -> None:
        try:
            reply = self._client.post(f"/v0/topics/{self.journal.name}/delete", delete.body)
        except GONE:
            with self.journal.lock:
                self.journal.unknown_deletes.append(delete)
            raise Stopped from None
        if reply.code in ("shutting_down", "store_unreachable"):
            # Nothing was deleted: what was asked for is still there.
            return
        assert reply.status == 200, reply.raw
        assert reply.json["deleted"] == len(delete.seqs), (delete.body, reply.raw)
        self.journal.removed(delete)
