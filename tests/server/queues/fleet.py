"""Fifty workers on one queue of a server that is killed under them, and what each of them saw.

A job is *lost* when it was confirmed to its producer, is no longer there, and nobody ever sent an
acknowledgement for it. It is *redelivered* when a worker got it after its acknowledgement had been
confirmed. An acknowledgement whose answer never came may or may not have counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

from tests.support.servers import Served

WORKERS, CLAIM, BATCH = 50, 8, 50
QUEUE = "/v0/topics/jobs"
# Leases of workers that the kill cut off end soon, when they outlive it.
LEASE_MS = 2000


class Fleet:
    def __init__(self, directory: Path, jobs: int, kills: int, **config: Any) -> None:
        self.jobs = jobs
        self.kills = kills
        self.confirmed: set[int] = set()
        self.attempted: set[int] = set()
        self.acknowledged: set[int] = set()
        self.redelivered: list[int] = []
        self.deliveries = 0
        self.unanswered = 0
        self.links: list[Link] = []
        self._directory = directory
        self._config = {"type": "queue", "durable": True, "lease_ms": LEASE_MS, **config}
        self._served: Served
        self._up = asyncio.Event()
        self._moved = asyncio.Condition()
        self._is_over = False

    @property
    def lost(self) -> set[int]:
        return self.confirmed - self.attempted

    async def run(self) -> None:
        """Until every job is done."""
        await self._start()
        try:
            assert (await Link(self).call("PUT", QUEUE, self._config)) is not None
            workers = [asyncio.create_task(self._work(f"w{n}")) for n in range(WORKERS)]
            producer = asyncio.create_task(self._produce())
            await self._kill_now_and_then()
            await producer
            await self._wait_until_empty()
            self._is_over = True
            await asyncio.gather(*workers)
        finally:
            await asyncio.gather(*[link.close() for link in self.links])
            await asyncio.to_thread(self._served.kill)

    # -- the server ----------------------------------------------------------------------------

    async def _start(self) -> None:
        self._served = await asyncio.to_thread(lambda: Served(self._directory).wait_ready())
        self._up.set()

    async def _kill_now_and_then(self) -> None:
        for number in range(1, self.kills + 1):
            enough = self.jobs * number // (self.kills + 1)
            await self._wait_for_acknowledged(enough)
            self._up.clear()
            await asyncio.to_thread(self._served.kill)
            await self._start()

    async def _wait_for_acknowledged(self, count: int) -> None:
        async with self._moved:
            await self._moved.wait_for(lambda: len(self.acknowledged) >= count)

    async def port(self) -> int:
        await self._up.wait()
        return self._served.port

    async def _wait_until_empty(self) -> None:
        link = Link(self)
        while True:
            state = await link.call("GET", QUEUE)
            if state is not None and state["count"] == 0:
                assert state["queue"]["ready"] == state["queue"]["in_flight"] == 0
                return
            # Whoever holds the rest acknowledges it, or its lease ends.
            await asyncio.sleep(0.05)

    # -- its clients ---------------------------------------------------------------------------

    async def _produce(self) -> None:
        link = Link(self)
        for first in range(0, self.jobs, BATCH):
            records = [{"data": number} for number in range(first, first + BATCH)]
            body = {"records": records, "idempotency_key": f"batch-{first}"}
            answer = None
            while answer is None:
                answer = await link.call("POST", QUEUE, body)
            self.confirmed.update(answer["seqs"])

    async def _work(self, node: str) -> None:
        link = Link(self)
        while not self._is_over:
            wanted = {"node": node, "max": CLAIM, "wait_ms": 200}
            answer = await link.call("POST", QUEUE + "/claim", wanted)
            seqs = [job["$seq"] for job in answer["claimed"]] if answer else []
            if not seqs:
                continue
            self.deliveries += len(seqs)
            self.redelivered += [seq for seq in seqs if seq in self.acknowledged]
            self.attempted.update(seqs)
            done = await link.call("POST", QUEUE + "/ack", {"node": node, "seqs": seqs})
            if done is None:
                self.unanswered += 1
                continue
            self.acknowledged.update(set(seqs) - set(done["skipped"]))
            async with self._moved:
                self._moved.notify_all()


class Link:
    """One kept-alive connection; an answer that did not come is None."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        fleet.links.append(self)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, method: str, path: str, body: Any = None) -> dict[str, Any] | None:
        try:
            return await self._ask(method, path, b"" if body is None else json.dumps(body).encode())
        except (OSError, EOFError):
            await self.close()
            return None

    async def close(self) -> None:
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()
            with contextlib.suppress(OSError):
                await streams[1].wait_closed()

    async def _ask(self, method: str, path: str, body: bytes) -> dict[str, Any]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", await self._fleet.port())
        reader, writer = self._streams
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        size = int(answer.partition("content-length: ")[2].partition("\r\n")[0])
        content = await reader.readexactly(size)
        assert answer.split()[1] in ("200", "201"), content
        found: dict[str, Any] = json.loads(content)
        return found
