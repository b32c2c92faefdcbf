"""One topic's state: its blocks, its floors and its counters, kept true after every change.

The seqs of a topic fall into four parts, in this order:

    base ≤ … < floor      gone; the account says why for each
    floor … head          published: blocks and holes, the first of them live
    head+1 … next_seq-1   assigned, on their way to the disk, invisible
    next_seq …            not assigned

Always true: `floor` is the seq of the first live record or head + 1 (it is `earliest_seq`);
`evict_floor` ≤ `floor`; neither ever goes back. `evict_floor` moves only past seqs that were lost
while live (evicted, expired) or that never could be read (crash, corruption, source_trim,
restart).
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import Any

from topics.engine.state import lacking
from topics.engine.state.account import Account
from topics.engine.state.block import Block, Loader, ghost_block
from topics.engine.state.ceiling import Ceiling
from topics.engine.state.cursors import Cursors
from topics.engine.state.holes import Hole, add_last, joined
from topics.engine.state.idempotency import Keys
from topics.engine.state.queue import Queue
from topics.engine.state.tags import TagIndex
from topics.errors import TopicsError
from topics.storage.columns import Columns
from topics.types import DELETED, SEQ_BASE, Cursor, Durability, TopicConfig

FIRST = attrgetter("first")
# A write smaller than this joins the open block; a larger one is a block of its own, uncopied.
JOIN_BYTES_MAX = 64 * 1024


class Topic:
    """Owns all of that and changes itself; it decides nothing about time, caps or the log."""

    __slots__ = (
        "account", "blocks", "bytes_total", "ceiling", "compacted", "config", "config_staged",
        "config_version", "counted_bytes", "cursors", "cut_totals", "dropped", "durability",
        "epoch", "floor", "gated", "head", "holds", "holes", "id", "joining", "keys",
        "last_read_ts", "last_ts", "last_write_ts", "live_bytes", "live_count", "lost", "name",
        "next_seq", "pending_bytes", "queue", "refusal", "segments_from", "tags", "taken_back",
        "unsealed_bytes", "unsealed_records", "untagged", "version_staged",
    )  # fmt: skip

    def __init__(self, topic_id: int, name: str, epoch: int, config: TopicConfig) -> None:
        self.id, self.name, self.epoch = topic_id, name, epoch
        self.config = config
        # The config that was submitted last, and the class that operations belong to since then.
        self.config_staged, self.durability = config, config.durability
        self.config_version = self.version_staged = 1
        self.next_seq = self.floor = SEQ_BASE
        self.head = SEQ_BASE - 1
        self.blocks: list[Block] = []
        self.holes: list[Hole] | None = None
        self.account: Account | None = None
        # Highest seq lost for each involuntary state, as (state, seq) pairs.
        self.lost: tuple[tuple[int, int], ...] = ()
        self.live_count = self.live_bytes = self.last_ts = 0
        # Bytes ever written; and by then, when the last two checkpoints took the topic's state.
        self.bytes_total, self.cut_totals = 0, (0, 0)
        self.last_write_ts: int | None = None
        self.last_read_ts: int | None = None
        # What was promised on disk: no seq above the ceiling was ever acknowledged.
        self.ceiling = Ceiling()
        # The staged frame that a single record may still join; ops/singles knows more of it.
        self.joining: Any = None
        # Operations of this topic that wait for a sync; later ones must not overtake them.
        self.gated = 0
        self.keys: Keys | None = None
        self.cursors: Cursors | None = None
        # Cursors that keep records from cap and TTL.
        self.holds: tuple[Cursor, ...] = ()
        # Who holds which job; None on a log.
        self.queue = Queue() if config.type == "queue" else None
        self.tags: TagIndex | None = None
        self.unsealed_bytes = self.unsealed_records = 0
        # Bytes assigned but not published yet, and the part of live_bytes in the instance's total.
        self.pending_bytes = self.counted_bytes = 0
        # Blocks whose tags are not in the index yet.
        self.untagged: list[Block] | None = None
        # Rows of older segments are of records that were logged, and sealed, again since.
        self.segments_from = 0
        self.dropped = False
        # What a bucket's past lacks, and how often seqs were given back.
        self.compacted, self.taken_back = lacking.NOTHING, 0
        # Why the log did not take its creation: then it may have no frame of it at all.
        self.refusal: TopicsError | None = None

    # -- config ------------------------------------------------------------------------------

    def stage_config(self, config: TopicConfig) -> int:
        """What is submitted from now on is of the new class; the version of the config to come."""
        self.version_staged = max(self.config_version, self.version_staged) + 1
        self.config_staged, self.durability = config, config.durability
        return self.version_staged

    def unstage_config(self, config: TopicConfig, durability: Durability, version: int) -> None:
        """The disk was too full: it is as it was."""
        self.config_staged, self.durability, self.version_staged = config, durability, version

    def configure(self, config: TopicConfig, version: int) -> None:
        """From here on this config holds; another one may be staged behind it."""
        self.config, self.config_version = config, version
        if version >= self.version_staged:
            self.config_staged, self.durability = config, config.durability

    def become(self, name: str, config: TopicConfig) -> None:
        """Its name and config are known at last, of which nothing was when it was entered."""
        self.name = name
        self.queue = Queue() if config.type == "queue" else None
        self.configure(config, 1)

    def renew(self, epoch: int) -> None:
        """Begins an epoch; it never goes back."""
        self.epoch = max(self.epoch, epoch)

    def drop(self) -> None:
        """Its records are gone. Empty, and as any other: what is on its way to it still arrives."""
        self.dropped = True
        for block in self.blocks:
            self.release(block)
        self.blocks, self.holes = [], None
        self.floor = self.head + 1
        self.live_count = self.live_bytes = 0

    # -- floors ------------------------------------------------------------------------------

    @property
    def evict_floor(self) -> int:
        return max([SEQ_BASE, *(seq + 1 for _, seq in self.lost)])

    def lose(self, state: int, seq: int) -> None:
        """Notes that `seq`, live or never readable, was lost involuntarily."""
        kept = tuple((s, q) for s, q in self.lost if s != state)
        before = next((q for s, q in self.lost if s == state), 0)
        self.lost = (*kept, (state, max(seq, before)))

    def raise_floor(self, target: int, state: int, load: Loader) -> None:
        """Accounts for every seq below `target`: live ones as `state`, the rest as what they are.

        Cost: what is dropped, by whole blocks, plus the runs of deleted records inside them.
        """
        target = min(target, self.head + 1)
        self._accounted()
        while self.floor < target:
            if self._absorb_hole():
                continue
            block = self.blocks[0]
            stop = min(block.stop, target)
            self._account_for(block, stop, state, load)
            self.floor = stop
            if stop == block.stop:
                self._pop(block)
        self.pass_gone()

    def _accounted(self) -> Account:
        self.account = self.account or Account(self.floor)
        return self.account

    def recall(self, first: int, last: int, state: int) -> None:
        """Accounts for seqs below the floor as what they were told to be."""
        account = self.account
        assert account is not None
        last = min(last, account.next - 1)
        before = {known for _, _, known in account.ranges(first, last)} - {state}
        if not before:
            return
        account.replace(first, last, state)
        self.lose(state, last)
        kept = [(s, account.latest(s) if first <= q <= last else q) for s, q in self.lost]
        self.lost = tuple((s, q) for s, q in kept if q)

    def _account_for(self, block: Block, stop: int, state: int, load: Loader) -> None:
        """Moves the records [floor, stop) of the first block into the account."""
        assert self.account is not None
        first, last = self.floor - block.first, stop - block.first
        for start, end in block.live_runs(first, last):
            self.account.extend(block.first + start - 1, DELETED)
            self.account.extend(block.first + end - 1, state)
            if state != DELETED:
                self.lose(state, block.first + end - 1)
            span = block.span(start, end, load)
            block.lose(span)
            self.live_bytes -= span
            self.live_count -= end - start
            if self.queue is not None:
                self.queue.gone(block.first + start, block.first + end)
        self.account.extend(stop - 1, DELETED)

    def pass_gone(self) -> None:
        """Moves the floor over what is already gone: deleted records and holes at the front."""
        while self.floor <= self.head:
            if self._absorb_hole():
                continue
            block = self.blocks[0]
            index = self.floor - block.first
            if not block.is_dead(index):
                return
            assert block.dead is not None
            live = block.dead.find(0, index)
            stop = block.stop if live < 0 else block.first + live
            self._accounted().extend(stop - 1, DELETED)
            self.floor = stop
            if live < 0:
                self._pop(block)

    def _absorb_hole(self) -> bool:
        if not self.holes or self.holes[0][0] > self.floor:
            return False
        _, last, state = self.holes.pop(0)
        self._accounted().extend(last, state)
        if last >= self.floor:
            self.lose(state, last)
            self.floor = last + 1
        if not self.holes:
            self.holes = None
        return True

    def _pop(self, block: Block) -> None:
        # What an estimate left over goes with the block.
        self.live_bytes -= block.live_bytes
        block.lose(block.live_bytes)
        del self.blocks[0]
        self.release(block)

    def kill(self, block: Block, start: int, end: int, load: Loader) -> None:
        """Deletes the records [start, end) of a block, all of them live until now."""
        span = block.span(start, end, load)
        block.mark_run_dead(start, end)
        block.lose(span)
        self.live_bytes -= span
        self.live_count -= end - start
        if self.queue is not None:
            self.queue.gone(block.first + start, block.first + end)
        if block.segment is not None and block.row is not None:
            at = block.row.flag_at
            block.segment.unflagged.extend(range(at + start, at + end))

    def release(self, block: Block) -> None:
        """Lets go of a block's bytes; its segment goes when no block needs it."""
        if block.segment is not None:
            block.segment.release(block)
        elif not block.is_ghost:
            self.seal(block)

    def seal(self, block: Block) -> None:
        """A block with bytes is one of those that no segment has no longer."""
        self.unsealed_bytes -= block.size
        self.unsealed_records -= block.count

    def unseal(self, block: Block) -> None:
        self.unsealed_bytes += block.size
        self.unsealed_records += block.count

    def correct(self, block: Block, live_bytes: int) -> None:
        """The live bytes of a block are known exactly now."""
        self.live_bytes += live_bytes - block.live_bytes
        block.lose(block.live_bytes - live_bytes)

    def recount(self) -> int:
        """By how much the live bytes have changed since the instance last counted them."""
        changed = self.live_bytes - self.counted_bytes
        self.counted_bytes = self.live_bytes
        return changed

    # -- growth ------------------------------------------------------------------------------

    def note_compacted(self, more: lacking.Lacking) -> None:
        """What a bucket's past lacks since something was removed."""
        self.compacted = self.compacted.with_more(more)

    def assign(self, count: int, size: int, ts: int) -> None:
        """Gives the next seqs to something that is now on its way."""
        self.next_seq += count
        self.last_ts = ts
        self.pending_bytes += size

    def arrive(self, size: int) -> None:
        """It is on its way no longer."""
        self.pending_bytes -= size

    def unassign(self, first: int, last_ts: int) -> None:
        """Takes seqs back, from the last one to `first`."""
        self.next_seq, self.last_ts = first, last_ts
        self.taken_back += 1

    def pass_time(self, ts: int) -> None:
        """Times of later records are not before this one."""
        self.last_ts = max(self.last_ts, ts)

    def count_bytes(self, total: int) -> None:
        """So many were written, of which the log does not have all."""
        self.bytes_total = max(self.bytes_total, total)

    def note_read(self, now_ms: int) -> None:
        self.last_read_ts = now_ms

    def publish(self, first: int, columns: Columns, block_bytes_max: int) -> None:
        """Makes a run of records readable. `first` is head + 1."""
        assert first == self.head + 1, (self.name, first, self.head)
        count, size = len(columns.ends), len(columns.payload)
        last = self.blocks[-1] if self.blocks else None
        joins = last is not None and last.stop == first and last.is_open
        if joins and size < JOIN_BYTES_MAX and last is not None:
            last.add(columns)
            if last.size >= block_bytes_max:
                last.freeze()
        else:
            if last is not None:
                last.freeze()
            if size < JOIN_BYTES_MAX and type(columns.payload) is not bytearray:
                columns.payload = bytearray(columns.payload)
            self.blocks.append(Block(first, columns))
        self.head = first + count - 1
        if self.next_seq <= self.head:
            self.next_seq = self.head + 1
        self.live_count += count
        self.live_bytes += size
        self.bytes_total += size
        self.unsealed_bytes += size
        self.unsealed_records += count
        self.last_ts = max(self.last_ts, columns.times[-1])
        self.last_write_ts = columns.times[-1]

    def publish_one(self, seq: int, payload: bytes, ts: int) -> bool:
        """Like `publish` for one record of nothing but data; False where it can not just join."""
        assert seq == self.head + 1, (self.name, seq, self.head)
        block = self.blocks[-1] if self.blocks else None
        if block is None or not block.add_one(payload, ts, seq):
            return False
        size = len(payload)
        self.head = seq
        if self.next_seq <= seq:
            self.next_seq = seq + 1
        self.live_count += 1
        self.live_bytes += size
        self.bytes_total += size
        self.unsealed_bytes += size
        self.unsealed_records += 1
        if ts > self.last_ts:
            self.last_ts = ts
        self.last_write_ts = ts
        return True

    def add_hole(self, first: int, last: int, state: int) -> None:
        """Notes that [first, last], after the head, can never be read."""
        assert first == self.head + 1 <= last
        self.holes = self.holes or []
        add_last(self.holes, first, last, state)
        self.head = last
        self.next_seq = max(self.next_seq, last + 1)
        self.pass_gone()

    def add_ghost(self, first: int, last: int, ts: int) -> None:
        """Notes that [first, last], after the head, was deleted; `ts` is of what is before it."""
        assert first == self.head + 1 <= last
        self.blocks.append(ghost_block(first, last - first + 1, ts))
        self.head = last
        self.next_seq = max(self.next_seq, last + 1)
        self.pass_gone()

    def patch(self, first: int, last: int, state: int) -> None:
        """Notes that [first, last] can not be read any more; what it adjoins is one gap with it."""
        self.holes = joined([*(self.holes or []), (first, last, state)])

    def block_at(self, seq: int) -> int:
        """Index of the block that holds `seq`, or of the first one after it."""
        index = bisect_right(self.blocks, seq, key=FIRST) - 1
        return index if index >= 0 and seq < self.blocks[index].stop else index + 1

    def place(self, cursor: Cursor) -> int:
        """The last seq a cursor has passed; its seq in another epoch says nothing of this one."""
        return cursor.seq if cursor.epoch == self.epoch else SEQ_BASE - 1

    # -- keys, tags --------------------------------------------------------------------------

    def remember(self, digests: bytes, first: int, count: int, ts: int) -> int:
        """Remembers the key of a write, or those of a frame; by how many there are more now."""
        keys = self.keys
        if keys is None:
            keys = self.keys = Keys()
        before = len(keys)
        keys.add(digests, first, count, ts)
        return len(keys) - before

    def forget_keys(self) -> int:
        """Idempotency keys go with the records they stood for; how many."""
        forgotten, self.keys = len(self.keys or ()), None
        return forgotten

    def add_tags(self, tags: list[str | None], first: int) -> None:
        self.tags = self.tags or TagIndex()
        self.tags.add(tags, first)
