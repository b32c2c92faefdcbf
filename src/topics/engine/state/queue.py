"""A queue's leases: who holds which job, until when, and which job comes next.

It is the projection of the lease events, all of it in memory; the jobs are the topic's records.
Every live job below `cursor` is in exactly one of these places, those from `cursor` on were never
handed out:

    leases     somebody holds it; while it is in `free` too, the lease has run out
    free       it can be claimed again, in this order and before those from the cursor on
    delayed    it was given back and can be claimed later
    leaving    its acknowledgement is on its way to the disk
    moving     so is its move to the dead-letter topic

A lease that has run out counts as ready at once, but its holder stays the holder until the job is
handed to somebody else. Times are of the monotonic clock, in whole milliseconds, so a wall clock
that jumps neither revives nor ends a lease.

Work is in proportion to what is due and what is asked for, never to all leases.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain, count, repeat

import numpy as np

from topics.types import SEQ_BASE

# Holder, number of the lease, first moment at which it has run out.
Lease = tuple[str, int, int]
# Moments with nothing due any more that are kept before they are cleared away.
STALE_MAX = 1024


class Queue:
    """Owns the jobs of one topic that were ever handed out: each is in one place at a time.

    Times are monotonic milliseconds, given by the caller; what is durable of it is the log's.
    """

    __slots__ = (
        "cursor", "dead_lettered", "delayed", "due", "expired", "free", "is_logged", "leases",
        "leaving", "moments", "moving", "tries", "turn", "version",
    )  # fmt: skip

    def __init__(self) -> None:
        self.leases: dict[int, Lease] = {}
        self.free: OrderedDict[int, None] = OrderedDict()
        # How many leases have run out and are still there.
        self.expired = 0
        # Moments at which a delay is over, by seq.
        self.delayed: dict[int, int] = {}
        self.leaving: dict[int, Lease] = {}
        self.moving: set[int] = set()
        # How often a job was delivered, for those delivered more than once.
        self.tries: dict[int, int] = {}
        self.cursor = SEQ_BASE
        # Leases that run out and delays that end, by moment. `moments` is the heap of the moments,
        # with some that have nothing due any more.
        self.due: dict[int, dict[int, None]] = {}
        self.moments: list[int] = []
        self.dead_lettered = 0
        # Whose turn it is when jobs do not divide evenly.
        self.turn = 0
        # The version of the last LEASE frame, and whether such frames are wanted before the config
        # says so.
        self.version = 0
        self.is_logged = False

    def clear(self) -> None:
        """Forgets every lease: all jobs are as if they had never been handed out."""
        for place in (self.leases, self.free, self.delayed, self.leaving, self.tries, self.due):
            place.clear()
        self.moving.clear()
        self.moments.clear()
        self.expired = 0
        self.cursor = SEQ_BASE

    def counts(self, live_count: int) -> tuple[int, int]:
        """How many jobs can be claimed, and how many are held."""
        in_flight = len(self.leases) - self.expired + len(self.leaving)
        return live_count - in_flight - len(self.delayed) - len(self.moving), in_flight

    def deliveries(self, seq: int) -> int:
        """How often a job below the cursor was delivered."""
        return self.tries.get(seq, 1)

    def is_held(self, seq: int, number: int) -> bool:
        """Whether a job is under this very lease, which has not run out."""
        lease = self.leases.get(seq)
        return lease is not None and lease[1] == number and seq not in self.free

    def held_after(self, after: int, limit: int) -> list[int]:
        """The jobs after a seq whose leases have not run out, the first `limit` of them."""
        seqs = np.fromiter(self.leases, dtype=np.uint64, count=len(self.leases))
        seqs = seqs[seqs > after]
        # Those that have run out are few, and not always there.
        wanted = min(limit + self.expired, len(seqs))
        if wanted < len(seqs):
            seqs = np.partition(seqs, wanted)[:wanted]
        found = [seq for seq in np.sort(seqs).tolist() if seq not in self.free]
        return found[:limit]

    # -- time --------------------------------------------------------------------------------

    def expire(self, now_ms: int) -> None:
        """Lets what is due be claimed again."""
        moments = self.moments
        while moments and moments[0] <= now_ms:
            for seq in self.due.pop(heappop(moments), ()):
                if self.delayed.pop(seq, None) is None:
                    self.expired += 1
                self.free[seq] = None

    def next_due(self) -> int | None:
        """The moment at which a lease runs out or a delay ends next."""
        moments = self.moments
        while moments and moments[0] not in self.due:
            heappop(moments)
        return moments[0] if moments else None

    def _put_due(self, when: int, seqs: Iterable[int]) -> None:
        bucket = self.due.get(when)
        if bucket is not None:
            bucket.update(dict.fromkeys(seqs))
            return
        self.due[when] = dict.fromkeys(seqs)
        if len(self.moments) > 2 * len(self.due) + STALE_MAX:
            self.moments = list(self.due)
            heapify(self.moments)
        else:
            heappush(self.moments, when)

    # -- leases ------------------------------------------------------------------------------

    def grant(
        self, shares: Iterable[tuple[str, int]], seqs: Sequence[int], first: int, until: int
    ) -> None:
        """Leases jobs that nobody holds, to each node its share, under numbers from `first` on."""
        if not seqs:
            return
        nodes = chain.from_iterable([repeat(node, share) for node, share in shares])
        self.leases.update(zip(seqs, zip(nodes, count(first), repeat(until)), strict=False))
        self._put_due(until, seqs)

    def reclaim(self, seqs: Iterable[int]) -> dict[int, Lease]:
        """Takes jobs off the free ones; the leases that ran out and are now over."""
        ended = {}
        for seq in seqs:
            del self.free[seq]
            lease = self.leases.pop(seq, None)
            if lease is not None:
                self.expired -= 1
                ended[seq] = lease
        return ended

    def take(self, held: dict[int, Lease]) -> None:
        """Ends leases; their jobs are nowhere then."""
        leases, free, due = self.leases, self.free, self.due
        moment, bucket = -1, {}
        for seq, (_, _, until) in held.items():
            del leases[seq]
            if free and seq in free:
                del free[seq]
                self.expired -= 1
                continue
            if until != moment:
                # Those of one claim run out together.
                moment, bucket = until, due[until]
            del bucket[seq]
            if not bucket:
                del due[until]

    def put(self, seq: int, lease: Lease) -> None:
        """Gives back a lease that was taken."""
        self.leases[seq] = lease
        self._put_due(lease[2], (seq,))

    def delay(self, seqs: Sequence[int], until: int) -> None:
        """Keeps jobs that are nowhere back until then."""
        if not seqs:
            return
        self.delayed.update(dict.fromkeys(seqs, until))
        self._put_due(until, seqs)

    def gone(self, first: int, stop: int) -> None:
        """The jobs [first, stop) are no longer there, whatever they went through."""
        stop = min(stop, self.cursor)
        leaving, tries = self.leaving, self.tries
        for seq in self._held(first, stop):
            if leaving.pop(seq, None) is None:
                self.forget(seq)
            if tries:
                tries.pop(seq, None)

    def _held(self, first: int, stop: int) -> Iterable[int]:
        """The jobs of [first, stop) that may be somewhere."""
        count = len(self.leases) + len(self.leaving) + len(self.free) + len(self.delayed)
        if stop - first <= count + len(self.moving):
            return range(first, stop)
        return [
            seq
            for place in (self.leases, self.leaving, self.free, self.delayed, self.moving)
            for seq in place
            if first <= seq < stop
        ]

    def forget(self, seq: int) -> None:
        """Takes a job out of wherever it is."""
        lease = self.leases.get(seq)
        if lease is not None:
            self.take({seq: lease})
            return
        until = self.delayed.pop(seq, None)
        if until is not None:
            del self.due[until][seq]
            if not self.due[until]:
                del self.due[until]
            return
        self.free.pop(seq, None)
        self.moving.discard(seq)
