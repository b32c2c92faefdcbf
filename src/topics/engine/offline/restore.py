"""Restore: a new data directory from a backup, as of its end or of a moment in its span.

What it promises:

- The directory is built beside the place that it is for, under another name, and renamed when
  `check` has found nothing wrong with it: whatever cuts a restore short, what stands under the name
  that was asked for is whole or not there.
- Every byte is held against the backup's checksums before it is used.
- What the backup knows to be deleted stays deleted, also by a delete from after the moment. Topics
  that were dropped by its end stay dropped.
- Nobody can say what the original has acknowledged since. So every topic opens with a new epoch,
  and a reader who brings an older one is told `recreated`; only who says that the original wrote
  nothing more keeps the epochs. Epochs begin at the time of the restore (see `first_epoch`), so
  that no two directories of one origin ever give the same one.
- Stages that were not committed, and watch sessions, are in no backup.
"""

from __future__ import annotations

import secrets

import msgspec

from topics.clock import Clock, SystemClock
from topics.engine.commit.core import Core
from topics.engine.commit.ticket import Ticket
from topics.engine.engine import Engine
from topics.engine.offline.check import check
from topics.engine.offline.findings import Progress, in_words
from topics.engine.offline.layout import Layout
from topics.engine.offline.moments import Later, Moment
from topics.engine.ops import deleting
from topics.engine.ops.deleting import Listed
from topics.engine.recovery.recovery import EPOCH_JUMP, Recovery
from topics.engine.state.lacking import NOTHING
from topics.engine.state.segments import Segments
from topics.errors import Conflicting, CorruptData, InvalidRequest
from topics.settings import MIB, Settings
from topics.storage.datadir import DataDir
from topics.storage.fs import Fs, join, owner_name
from topics.storage.tiers import Store
from topics.storage.vault import Manifest
from topics.storage.wal_reader import Timeline
from topics.storage.wal_stats import WalStats
from topics.types import Deleted

EPOCH_BITS = 20
FILE_BYTES = 4 * MIB


class Restored(msgspec.Struct, kw_only=True):
    """What a restore did."""

    backup: str
    to: str
    # The moment that was restored; null is the end of the backup.
    at_ms: int | None
    topics: int
    # Records that were there at the moment, and are known to have been deleted later.
    deleted_later: int = 0
    topics_dropped_later: int = 0
    # Topics that opened with a new epoch.
    epochs_renewed: int = 0
    bytes: int = 0


def first_epoch(now_ms: int) -> int:
    """Epochs of a restored directory begin here.

    A directory counts its epochs one by one from 1, or from its own restore on: it does not come to
    the time of a later restore, unless it makes a million topics in each millisecond.
    """
    return max(now_ms, 0) << EPOCH_BITS


def restore(
    fs: Fs,
    store: Store,
    target: str,
    manifest: Manifest,
    *,
    moment: Moment | None = None,
    keep_epochs: bool = False,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> Restored:
    """Builds `target`. Raises Conflicting where something is, CorruptData for a damaged backup."""
    target = fs.resolve(target).rstrip("/")
    if fs.exists(target) and fs.listdir(target):
        raise Conflicting(f"{target} is there and not empty; name a new directory")
    parent, _, name = target.rpartition("/")
    building = join(parent or "/", f".{name}.restoring-{secrets.token_hex(4)}")
    clock = clock or SystemClock()
    layout = Layout(DataDir(fs, building), store, manifest, moment, progress)
    layout.lay_out()
    done = Restored(
        backup=manifest.id, to=target, at_ms=None if moment is None else moment.at_ms, topics=0,
        bytes=layout.bytes_done,
    )  # fmt: skip
    _open(layout, done, clock, keep_epochs=keep_epochs)
    problems = check(fs, building, clock=clock).problems
    if problems:
        raise CorruptData(
            f"{building} was restored and is not sound: {in_words(problems[0])}; {target} was "
            "not made",
            problems=len(problems),
        )
    fs.rename(building, target)
    fs.sync_dir(parent or "/")
    return done


# -- what becomes of it --------------------------------------------------------------------------


class _Whole(Recovery):
    """Recovery of a log that was put there whole: no crash has taken anything from it."""

    def judge(self, lines: list[Timeline], clean: dict[tuple[int, int], bool]) -> None:
        """Nothing is lost. What the original has acknowledged since is told by new epochs."""


def _open(layout: Layout, done: Restored, clock: Clock, *, keep_epochs: bool) -> None:
    """Lets an engine recover it, and writes down what the moment did not know."""
    data = layout.data
    settings = Settings(threads=False, wal_file_bytes=FILE_BYTES)
    lock = data.fs.lock(join(data.root, "LOCK"), f"topics restore, {owner_name()}")
    segments = Segments(data.fs, data.segments, None, settings.block_cache_bytes)
    core = Core(data, clock, settings, segments)
    recovery = _Whole(core, WalStats())
    try:
        for _ in recovery.steps():
            pass
    except BaseException:
        recovery.abandon()
        lock.release()
        raise
    engine = Engine(core, recovery, lock)
    try:
        engine.finish_recovery()
        _check_head(core, layout.moment)
        _apply_later(engine, layout.later, done)
        core.numbers.skip(epochs=EPOCH_JUMP)
        core.numbers.pass_epoch(first_epoch(clock.wall_ms()) - 1)
        if not keep_epochs:
            for topic in core.by_id.values():
                recovery.renew_epoch(topic)
                done.epochs_renewed += 1
        core.committer.sync()
        engine.checkpoint()
        done.topics = len(core.by_id)
    finally:
        engine.close()


def _check_head(core: Core, moment: Moment | None) -> None:
    place = None if moment is None else moment.place
    if place is not None and place.topic_id not in core.by_id:
        raise InvalidRequest("the topic was not there at that moment")


def _apply_later(engine: Engine, later: Later, done: Restored) -> None:
    core = engine.core
    for topic in list(core.by_id.values()):
        if topic.id in later.dropped:
            engine.delete_topic(topic.name)
            done.topics_dropped_later += 1
            continue
        if topic.config.is_bucket:
            # Deleting a key is a record as any other: it comes and goes with its moment.
            continue
        seqs = later.seqs_of(topic.id, topic.floor, topic.head)
        if seqs:
            # Not by a delete below a seq: that lets a TTL take first what somebody deleted.
            ticket: Ticket[Deleted] = Ticket()
            deleting.remove(core, topic, Listed(seqs, NOTHING), ticket)
            core.preparing.finish_for(ticket)
            done.deleted_later += core.committer.wait(ticket).deleted
