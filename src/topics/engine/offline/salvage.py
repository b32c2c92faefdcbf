"""Salvage: the best state that a damaged directory still proves, built in memory for repair.

Everything whose checksum holds is kept: blocks of segments, groups of the log, also behind damage.
What must be true of the result:

- Every seq up to a topic's head that can not be read, and is not known to be deleted or below the
  floor, is in a hole of state `corruption`.
- The head is the highest that anything left speaks for: records, later frames, ceilings, snapshot.
- A topic of which nobody can say how far it went (frames of its shard are missing and none of its
  own follow) is `unproved`: it gets a new epoch, so that no seq ever names two records.

What was lost with a frame besides seqs can not be known: a delete, a drop, a change of config.
"""

from __future__ import annotations

from topics.engine.commit.core import Core
from topics.engine.offline.salvage_log import replay_log
from topics.engine.offline.salvage_segments import enter_base, enter_unnamed, number_behind_all
from topics.engine.offline.salvaged import Base, Salvage
from topics.engine.ops import cursors, lease_frames
from topics.engine.recovery.inventory import begin_from, enter_topic
from topics.engine.state import retention
from topics.storage.snapshot import Snapshot, TopicRecord
from topics.storage.wal_reader import Timeline
from topics.types import CORRUPTION


def build(core: Core, base: Base, lines: list[Timeline], newest_snapshot: int) -> Salvage:
    """Folds what is left into `core`, which is empty. Reads only."""
    found = Salvage(core)
    core.numbers.pass_snapshot(newest_snapshot)
    number_behind_all(core)
    if base.summary is not None:
        begin_from(core, base.summary, newest_snapshot)
        enter_base(found, base.summary, base.records)
    elif base.uses_segments:
        enter_unnamed(found)
    replay_log(found, base, lines)
    for summary, records in base.newer:
        _believe(found, summary, records)
    _conclude(found)
    return found


def _believe(found: Salvage, summary: Snapshot, records: list[TopicRecord]) -> None:
    """Heads, floors and epochs that a newer snapshot has seen never go back."""
    core = found.core
    core.numbers.pass_epoch(summary.next_epoch - 1)
    core.numbers.pass_topic_id(summary.next_topic_id - 1)
    for record in records:
        topic = core.by_id.get(record.id)
        if topic is None:
            if record.id not in found.dropped and record.name not in core.by_name:
                enter_topic(core, record, [], found.fill)
            continue
        topic.renew(record.epoch)
        if topic.cursors is None or topic.cursors.version < record.cursors_version:
            cursors.enter(topic, record.cursors, record.cursors_version)
        if topic.queue is not None:
            topic.queue.dead_lettered = max(topic.queue.dead_lettered, record.dead_lettered)
        if record.head > topic.head:
            found.lose(topic, topic.head + 1, record.head)
            topic.add_hole(topic.head + 1, record.head, CORRUPTION)
        if record.floor > topic.floor:
            topic.raise_floor(record.floor, CORRUPTION, core.segments.spans)


def _conclude(found: Salvage) -> None:
    core = found.core
    if found.lost_frames is not None and found.skips >= found.lost_frames:
        # Each skip is at least one of the missing frames: there are none left for other topics.
        found.unproved.clear()
    found.unproved &= core.by_id.keys()
    found.nameless &= core.by_id.keys()
    load = core.segments.spans
    for topic in core.by_id.values():
        # Lease events may be among the missing frames: every job can be claimed again.
        lease_frames.forget(topic)
        holes = [h for h in topic.holes or () if h[2] == CORRUPTION]
        missing = sum(last - max(first, topic.floor) + 1 for first, last, _ in holes)
        is_doubtful = topic.id in found.unproved or topic.id in found.nameless
        if is_doubtful and topic.ceiling.seq > topic.head:
            found.lose(topic, topic.head + 1, topic.ceiling.seq)
            topic.add_hole(topic.head + 1, topic.ceiling.seq, CORRUPTION)
        if missing:
            # A floor that was seen does not go back: the lost records count as if they were there.
            each = topic.bytes_total // max(topic.head, 1)
            retention.evict(
                topic, load, now_ms=core.clock.wall_ms(), spare_records=missing,
                spare_bytes=missing * each,
            )  # fmt: skip
        core.recount(topic)
