"""Claims: one pass over a queue leases its next jobs to all who ask at once.

Jobs that came back go first, then those that were never handed out. What there is is divided in
proportion to what each claimant asked for, and what is left over goes round in turn. What one of
them gets in one pass is one answer, with a budget of bytes; whoever has room for more asks again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import count, groupby

from topics.configs import LEASE_MS_MAX, LEASE_MS_MIN
from topics.engine.commit.core import Core
from topics.engine.commit.ticket import Ticket
from topics.engine.ops import lease_frames
from topics.engine.queues import dead_letters
from topics.engine.state.batch import utf8
from topics.engine.state.queue import Lease, Queue
from topics.engine.state.queue_values import Claimant, Claimed
from topics.engine.state.record import tagged
from topics.engine.state.segments import ColdMiss
from topics.engine.state.topic import Topic
from topics.errors import InvalidRequest
from topics.settings import MIB, Settings
from topics.storage.columns import Columns
from topics.types import Payload, clamp

# Node, jobs, milliseconds.
Asked = tuple[str, int, int]
# Seqs, wire objects, number of the first lease, deadline.
Granted = tuple[list[int], list[bytes], int, int]
# The last digits of a lease's number, which are never the only ones: it begins with a generation.
_DIGITS = [b"%03x" % low for low in range(16**3)]
# Jobs that one pass moves to the dead-letter topic.
DOOMED_MAX = 1000
# Of the jobs that one claimant gets in one pass; the one that crosses it is among them.
BYTES_MAX = 8 * MIB


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


def claimant_of(node: object, most: object, lease_ms: object, settings: Settings) -> Claimant:
    """Somebody who asks, within the limits. Raises InvalidRequest."""
    holder = check_node(node, settings)
    if type(most) is not int or most < 0:
        raise InvalidRequest("max must be a number of jobs")
    held_ms = None if lease_ms is None else check_lease_ms(lease_ms)
    return Claimant(holder, clamp(most, 1, settings.max_claim), held_ms)


def claim(
    core: Core, topic: Topic, claimants: Sequence[Claimant], ticket: Ticket[list[Claimed]]
) -> None:
    """Leases jobs to a cohort; the ticket ends in a Claimed for each of it.

    Jobs that were delivered too often are moved to the dead-letter topic first, which waits for
    the disk. Raises ColdMiss when a job is out of reach: nothing is leased.
    """
    queue = topic.queue
    assert queue is not None
    usual_ms = topic.config.lease_ms
    asked = [
        (one.node, one.max, usual_ms if one.lease_ms is None else one.lease_ms) for one in claimants
    ]
    core.expire(topic)
    now_ms = core.monotonic_ms()
    queue.expire(now_ms)
    wanted = sum([most for _, most, _ in asked])
    again, doomed = _freed(core, topic, queue, wanted)
    if doomed:
        # In front of all others: both may be in the cold store, and the cache holds one of them.
        dead_letters.move(core, topic, doomed)
        # Moving let others go on.
        now_ms = core.monotonic_ms()
        again, _ = _freed(core, topic, queue, wanted)
    picked = Picked(core, topic, again, wanted, len(asked))
    granted = _grant(core, queue, asked, picked, now_ms)
    core.tally.read += len(picked.seqs)
    if not picked.seqs or not lease_frames.are_logged(topic):
        ticket.resolve(_told(topic, queue, granted))
        return
    held = [
        lease_frames.granted(queue, node, deadline, lease_ms, zip(seqs, count(first), strict=False))
        for (node, _, lease_ms), (seqs, _, first, deadline) in zip(asked, granted, strict=True)
        if seqs
    ]
    lease_frames.stage(
        core, topic, held, [], ticket, lambda: _told(topic, queue, granted),
        lambda: picked.give_back(queue),
    )  # fmt: skip


def _freed(core: Core, topic: Topic, queue: Queue, wanted: int) -> tuple[list[int], list[int]]:
    """Jobs that came back: to be handed out again, and delivered as often as they may be."""
    again: list[int] = []
    doomed: list[int] = []
    if not queue.free:
        return again, doomed
    limit = dead_letters.deliveries_max(core, topic)
    for seq in queue.free:
        if limit and queue.deliveries(seq) >= limit:
            doomed.append(seq)
        else:
            again.append(seq)
        if len(again) == wanted or len(doomed) == DOOMED_MAX:
            break
    return again, doomed


def _told(topic: Topic, queue: Queue, granted: list[Granted]) -> list[Claimed]:
    counts = queue.counts(topic.live_count)
    return [Claimed(*parts, *counts) for parts in granted]


def _grant(
    core: Core, queue: Queue, asked: list[Asked], picked: Picked, now_ms: int
) -> list[Granted]:
    """Leases what was picked; what each claimant gets."""
    wall_ms = core.wall_at(now_ms)
    shares = _divide(queue, [most for _, most, _ in asked], picked)
    tries = picked.take(queue)
    granted: list[Granted] = []
    start = 0
    # Most ask for the same time: what depends on it alone is done once for all of those.
    for lease_ms, group in groupby(zip(asked, shares, strict=True), _lease_ms):
        together = [(node, share) for (node, _, _), share in group]
        stop = start + sum([share for _, share in together])
        seqs, deadline = picked.seqs[start:stop], wall_ms + lease_ms
        first = core.numbers.new_leases(len(seqs))
        # A lease holds up to its deadline and has run out after it.
        queue.grant(together, seqs, first, now_ms + lease_ms + 1)
        pieces = _render(picked.raws[start:stop], tries[start:stop], first, deadline)
        at = 0
        for _, share in together:
            end = at + share
            granted.append((seqs[at:end], pieces[at:end], first + at, deadline))
            at = end
        start = stop
    return granted


def _lease_ms(pair: tuple[Asked, int]) -> int:
    return pair[0][2]


def _divide(queue: Queue, wanted: list[int], picked: Picked) -> list[int]:
    """How many jobs each claimant gets; the others are not picked any more."""
    available = len(picked.seqs)
    if picked.is_cut:
        # There are more: nobody is told that there are none.
        more = _shares(queue, [most - 1 for most in wanted], available - len(wanted))
        shares = [1 + each for each in more]
    else:
        shares = _shares(queue, wanted, available)
    if picked.size_bytes <= BYTES_MAX:
        return shares
    at = 0
    for index, share in enumerate(shares):
        shares[index] = picked.fitting(at, share)
        at += shares[index]
    picked.keep(at)
    return shares


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
    pieces: list[bytes] = []
    again = len(tries)
    for number, (raw, deliveries) in enumerate(zip(raws, tries, strict=False), first):
        head = b'{"lease_id":"lease_%x","deadline":%d,"deliveries":%d,' % (
            number, deadline, deliveries,
        )  # fmt: skip
        pieces.append(head + raw)
    # Most are delivered for the first time, under numbers that differ in their last digits only.
    end = b'","deadline":%d,"deliveries":1,' % deadline
    while again < len(raws):
        high, low = divmod(first + again, len(_DIGITS))
        begin = b'{"lease_id":"lease_%x' % high
        some = raws[again : again + len(_DIGITS) - low]
        pieces += [
            b"".join((begin, digits, end, raw))
            for digits, raw in zip(_DIGITS[low : low + len(some)], some, strict=True)
        ]
        again += len(some)
    return pieces


class Picked:
    """The next jobs of a queue, ascending by seq, with their bytes. Nothing is leased yet.

    `is_cut` says that there are more, which the budgets of so many claimants had no room for; then
    there is at least one job for each of them.
    """

    __slots__ = (
        "_bytes_max", "_claimants", "_cursor_before", "_ended", "cursor", "is_cut", "raws",
        "reclaimed", "seqs", "size_bytes",
    )  # fmt: skip

    def __init__(
        self, core: Core, topic: Topic, again: list[int], wanted: int, claimants: int
    ) -> None:
        queue = topic.queue
        assert queue is not None
        self._claimants = claimants
        self._bytes_max = BYTES_MAX * claimants
        self.size_bytes = 0
        self.is_cut = False
        self.seqs: list[int] = []
        # The records' bytes behind their first brace.
        self.raws: list[Payload] = []
        self.cursor = self._cursor_before = queue.cursor
        # How many of them, in front, were handed out before, and the leases that ran out.
        self.reclaimed = 0
        self._ended: dict[int, Lease] = {}
        try:
            self._reclaim(core, topic, again)
            if self.cursor <= topic.head and len(self.seqs) < wanted and not self.is_cut:
                self._go_on(core, topic, wanted - len(self.seqs))
        except ColdMiss:
            # Fewer jobs now rather than all of them later, however small the cache is.
            if not self.seqs:
                raise

    def fitting(self, at: int, share: int) -> int:
        """How many of the jobs from a place on are within the budget of one claimant."""
        size = 0
        for jobs, raw in enumerate(self.raws[at : at + share]):
            if size >= BYTES_MAX:
                return jobs
            size += len(raw)
        return share

    def keep(self, jobs: int) -> None:
        """Picks no more than the first so many."""
        if jobs == len(self.seqs):
            return
        del self.seqs[jobs:], self.raws[jobs:]
        if jobs <= self.reclaimed:
            self.reclaimed = jobs
            self.cursor = self._cursor_before
        else:
            self.cursor = self.seqs[-1] + 1

    def take(self, queue: Queue) -> list[int]:
        """Takes the jobs out of the queue; how often each that came back is delivered now."""
        queue.cursor = self.cursor
        if not self.reclaimed:
            return []
        again = self.seqs[: self.reclaimed]
        self._ended = queue.reclaim(again)
        tries = [queue.deliveries(seq) + 1 for seq in again]
        queue.tries.update(zip(again, tries, strict=True))
        return tries

    def give_back(self, queue: Queue) -> None:
        """Undoes that all of them were leased. What was claimed later has been given back."""
        queue.cursor = self._cursor_before
        for index, seq in enumerate(self.seqs):
            # It may have been deleted, evicted or expired meanwhile.
            if seq not in queue.leases:
                continue
            queue.forget(seq)
            if index >= self.reclaimed:
                continue
            queue.tries[seq] -= 1
            if seq in self._ended:
                queue.put(seq, self._ended[seq])
            else:
                queue.free[seq] = None

    def _reclaim(self, core: Core, topic: Topic, again: list[int]) -> None:
        """Jobs that came back, those in front that did so first."""
        found: list[tuple[int, int, Columns]] = []
        try:
            for seq in again:
                if self._is_full(len(found)):
                    self.is_cut = True
                    break
                block = topic.blocks[topic.block_at(seq)]
                columns, index = core.segments.columns(block), seq - block.first
                self.size_bytes += columns.ends[index] - columns.start(index)
                found.append((seq, index, columns))
        finally:
            for seq, index, columns in sorted(found):
                self._add(columns, index, index + 1)
                self.seqs.append(seq)
                self.reclaimed += 1

    def _is_full(self, picked: int) -> bool:
        return self.size_bytes >= self._bytes_max and picked >= self._claimants

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
                    if self._is_full(len(self.seqs)):
                        self.is_cut = True
                        return
                    columns = core.segments.columns(block)
                    fits = self._fitting_end(columns, start, min(end, start + wanted))
                    self._add(columns, start, fits)
                    self.seqs.extend(range(block.first + start, block.first + fits))
                    self.size_bytes += columns.ends[fits - 1] - columns.start(start)
                    wanted -= fits - start
                    self.cursor = block.first + fits
                    if not wanted:
                        return
                    if fits < end:
                        self.is_cut = True
                        return
            self.cursor = block.stop

    def _fitting_end(self, columns: Columns, start: int, end: int) -> int:
        """Where a run ends that begins at `start`: with the job that crosses the budget."""
        room = columns.start(start) + self._bytes_max - self.size_bytes
        if columns.ends[end - 1] <= room:
            return end
        crossing = bisect_left(columns.ends, room, start, end) + 1
        return min(end, max(crossing, start + self._claimants - len(self.seqs)))

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
            raws.append(raw if tag is None else tagged(raw, tag))
            at = stop
