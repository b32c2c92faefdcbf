"""Claims: one pass over a queue leases its next jobs to all who ask at once.

Jobs that came back go first, then those that were never handed out. What there is is divided in
proportion to what each claimant asked for, and what is left over goes round in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from operator import add

from topics.engine.commit import Ticket
from topics.engine.core import Core
from topics.engine.queue import Queue
from topics.engine.queue_values import Claimant, Claimed
from topics.engine.reading import quote
from topics.engine.segments import ColdMiss
from topics.engine.topic import Topic
from topics.engine.write import utf8
from topics.errors import InvalidRequest
from topics.settings import Settings
from topics.storage.columns import Columns
from topics.types import LEASE_MS_MAX, LEASE_MS_MIN, Payload, clamp

# Node, jobs, milliseconds.
Asked = tuple[str, int, int]


def check_node(node: object, settings: Settings) -> str:
    if not isinstance(node, str) or not node:
        raise InvalidRequest("node must be a text that is not empty")
    limit = settings.max_node_bytes
    if (len(node) if node.isascii() else len(utf8(node, "node"))) > limit:
        raise InvalidRequest(f"node is longer than {limit} bytes", limit=limit)
    return node


def check_lease_ms(lease_ms: object) -> int:
    if type(lease_ms) is not int or lease_ms < 0:
        raise InvalidRequest("lease_ms must be a number of milliseconds")
    return clamp(lease_ms, LEASE_MS_MIN, LEASE_MS_MAX)


def _check(claimant: Claimant, topic: Topic, settings: Settings) -> Asked:
    node, most, lease_ms = check_node(claimant.node, settings), claimant.max, claimant.lease_ms
    if type(most) is not int or most < 0:
        raise InvalidRequest("max must be a number of jobs")
    lease_ms = topic.config.lease_ms if lease_ms is None else check_lease_ms(lease_ms)
    return node, clamp(most, 1, settings.max_claim), lease_ms


def claim(core: Core, topic: Topic, claimants: Sequence[Claimant], ticket: Ticket) -> None:
    """Leases jobs to a cohort; the ticket ends in a Claimed for each of it.

    Raises InvalidRequest, or ColdMiss when the first job is out of reach: nothing has happened.
    """
    queue = topic.queue
    assert queue is not None
    asked = [_check(claimant, topic, core.settings) for claimant in claimants]
    core.expire(topic)
    queue.tick(core.monotonic_ms())
    picked = Picked(core, topic, sum(most for _, most, _ in asked))
    _grant(core, topic, queue, asked, picked, ticket)


def _grant(
    core: Core, topic: Topic, queue: Queue, asked: list[Asked], picked: Picked, ticket: Ticket
) -> None:
    now_ms, wall_ms = core.monotonic_ms(), core.clock.wall_ms()
    tries = picked.take(queue)
    granted = []
    start = 0
    shares = _shares(queue, [most for _, most, _ in asked], len(picked.seqs))
    for (node, _, lease_ms), share in zip(asked, shares, strict=True):
        stop = start + share
        seqs = picked.seqs[start:stop]
        first, deadline = core.next_lease, wall_ms + lease_ms
        if seqs:
            core.next_lease += share
            # A lease holds up to its deadline and has run out behind it.
            queue.grant(node, seqs, first, now_ms + lease_ms + 1)
        pieces = _render(picked.raws[start:stop], tries[start:stop], first, deadline)
        granted.append((seqs, pieces, first, deadline))
        start = stop
    ready, in_flight = queue.ready(topic.live_count), queue.in_flight
    ticket.resolve([Claimed(*parts, ready, in_flight) for parts in granted])


def _shares(queue: Queue, wanted: list[int], available: int) -> list[int]:
    """How many jobs each claimant gets."""
    total = sum(wanted)
    if available >= total:
        return wanted
    shares = [available * each // total for each in wanted]
    left = available - sum(shares)
    at = queue.turn
    while left:
        at += 1
        index = at % len(wanted)
        if shares[index] < wanted[index]:
            shares[index] += 1
            left -= 1
    queue.turn = at
    return shares


def _render(raws: list[Payload], tries: list[int], first: int, deadline: int) -> list[bytes]:
    """The jobs as they are told: what is known of the lease in front of the record's own bytes."""
    # Most are delivered for the first time: one formatting for all is a third of the work.
    if not tries:
        head = b'{"lease_id":"lease_%%x","deadline":%d,"deliveries":1,\0' % deadline
        numbers: Sequence[int] = range(first, first + len(raws))
    else:
        head = b'{"lease_id":"lease_%%x","deadline":%d,"deliveries":%%d,\0' % deadline
        firsts = [1] * (len(raws) - len(tries))
        both = zip(range(first, first + len(raws)), [*tries, *firsts], strict=True)
        numbers = [number for pair in both for number in pair]
    heads = (head * len(raws) % (*numbers,)).split(b"\0")
    return list(map(add, heads, raws))


class Picked:
    """The next jobs of a queue, ascending by seq, with their bytes. Nothing is leased yet."""

    __slots__ = ("cursor", "raws", "reclaimed", "seqs")

    def __init__(self, core: Core, topic: Topic, wanted: int) -> None:
        queue = topic.queue
        assert queue is not None
        self.seqs: list[int] = []
        # The records' bytes behind their first brace.
        self.raws: list[Payload] = []
        self.cursor = queue.cursor
        # How many of them, in front, were handed out before.
        self.reclaimed = 0
        try:
            if queue.free:
                self._reclaim(core, topic, queue, wanted)
            if self.cursor <= topic.head and len(self.seqs) < wanted:
                self._go_on(core, topic, wanted - len(self.seqs))
        except ColdMiss:
            # Fewer jobs now rather than all of them later, however small the cache is.
            if not self.seqs:
                raise

    def take(self, queue: Queue) -> list[int]:
        """Takes the jobs out of the queue; how often each that came back is delivered now."""
        queue.cursor = self.cursor
        if not self.reclaimed:
            return []
        again = self.seqs[: self.reclaimed]
        queue.reclaim(again)
        tries = [queue.deliveries(seq) + 1 for seq in again]
        queue.tries.update(zip(again, tries, strict=True))
        return tries

    def _reclaim(self, core: Core, topic: Topic, queue: Queue, wanted: int) -> None:
        for seq in sorted(islice(queue.free, wanted)):
            block = topic.blocks[topic.block_at(seq)]
            columns = core.segments.columns(block)
            index = seq - block.first
            self._add(columns, index, index + 1)
            self.seqs.append(seq)
            self.reclaimed += 1

    def _go_on(self, core: Core, topic: Topic, wanted: int) -> None:
        """Jobs that were never handed out."""
        at = max(self.cursor, topic.floor)
        blocks = topic.blocks
        position = topic.block_at(at)
        while wanted and position < len(blocks):
            block = blocks[position]
            position += 1
            if block.dead_count < block.count:
                first = max(at - block.first, 0)
                for start, end in block.live_runs(first, block.count):
                    end = min(end, start + wanted)
                    self._add(core.segments.columns(block), start, end)
                    self.seqs.extend(range(block.first + start, block.first + end))
                    wanted -= end - start
                    self.cursor = block.first + end
                    if not wanted:
                        return
            self.cursor = block.stop

    def _add(self, columns: Columns, start: int, end: int) -> None:
        payload, raws = columns.payload, self.raws
        at = columns.start(start)
        if columns.tags is None:
            for stop in columns.ends[start:end]:
                raws.append(payload[at + 1 : stop])
                at = stop
            return
        for index in range(start, end):
            tag, stop = columns.tags[index], columns.ends[index]
            raw = bytes(payload[at + 1 : stop])
            raws.append(raw if tag is None else b'"$tag":' + quote(tag) + b"," + raw)
            at = stop
