"""Who syncs the log, and when: inline, or in one thread for each shard.

The same makes the next log file while the present one fills (`Shard.prepare`), after it has told
those who wait for the sync: the loop goes on in a file that is there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from topics.storage.frames import Mark
from topics.storage.wal import Shard


class Syncer:
    """Syncs when asked, in the calling thread: the deterministic one.

    `applied_max` operations are applied in one go when they have become durable.
    """

    applied_max = 1 << 62

    def kick(self, shard: Shard) -> None:
        """Something waits for this shard."""
        for each in shard.footings.below(shard):
            _sync(each)

    def touch(self, shard: Shard) -> None:
        """Something was written that nobody waits for."""

    def interval(self, shard: Shard) -> None:
        """The sync interval is over, and there is something to sync."""
        _sync(shard)

    def wait(self, shard: Shard, upto: Mark) -> None:
        if shard.synced < upto:
            for each in shard.footings.below(shard):
                _sync(each)

    def poll_again(self) -> None:
        """More has become durable than is applied in one go."""

    def close(self) -> None:
        pass


def _sync(shard: Shard) -> None:
    shard.sync()
    shard.prepare()


class Signal:
    """What the engine's thread tells the sync thread of one shard."""

    __slots__ = ("_gate", "asked", "is_dirty")

    def __init__(self) -> None:
        # How often somebody has begun to wait.
        self.asked = 0
        # Whether something was written since the last sync began.
        self.is_dirty = False
        # A bare lock that is free when there is something to look at. An event would hold the
        # interpreter several times as long for each sync, and both threads want it then.
        self._gate = threading.Lock()
        self._gate.acquire()

    def give(self) -> None:
        """Wakes the thread. From the engine's thread only: nobody else frees the lock."""
        self.is_dirty = True
        if self._gate.locked():
            self._gate.release()

    def take(self, timeout_s: float = -1) -> None:
        """Waits until something is given."""
        self._gate.acquire(timeout=timeout_s)


class ThreadSyncer(Syncer):
    """One thread for each shard. It syncs at once when somebody waits, else at an interval.

    While a sync runs, further groups gather behind it: that is the group commit, and its window is
    as long as the disk makes it. What gathers behind a slow one is applied a millisecond or two at
    a time.
    """

    applied_max = 512

    def __init__(self, shards: list[Shard], interval_s: float, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._interval_s = interval_s
        self._stopping = False
        self._signals = {shard.index: Signal() for shard in shards}
        self._synced = threading.Condition()
        # Whether the engine's thread blocks until something is durable.
        self._is_awaited = False
        self._threads = [
            threading.Thread(target=self._run, args=(shard,), name=f"topics-sync-{shard.index}")
            for shard in shards
        ]
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def kick(self, shard: Shard) -> None:
        for each in shard.footings.below(shard):
            signal = self._signals[each.index]
            # Counted first: a signal that is taken for an earlier one is noticed by the count.
            signal.asked += 1
            signal.give()

    def touch(self, shard: Shard) -> None:
        signal = self._signals[shard.index]
        if not signal.is_dirty:
            signal.give()

    def interval(self, shard: Shard) -> None:
        """Its thread keeps the interval itself."""

    def wait(self, shard: Shard, upto: Mark) -> None:
        with self._synced:
            # Said before the look at the mark: whoever moves it later sees this.
            self._is_awaited = True
            while shard.synced < upto and not shard.footings.is_given_up(shard):
                self.kick(shard)
                self._synced.wait(1.0)
            self._is_awaited = False

    def poll_again(self) -> None:
        self._notify()

    def close(self) -> None:
        self._stopping = True
        for signal in self._signals.values():
            signal.give()
        for thread in self._threads:
            thread.join()

    def _run(self, shard: Shard) -> None:
        signal = self._signals[shard.index]
        seen = 0
        while True:
            signal.take()
            if signal.asked == seen and signal.is_dirty and not self._stopping:
                # Nobody waits, until somebody asks.
                signal.take(self._interval_s)
            if self._stopping:
                return
            if not signal.is_dirty:
                # What it was given for was covered by the last sync.
                continue
            signal.is_dirty = False
            # Read in front of the sync: who asks later is not covered by it and asks again.
            asked = signal.asked
            try:
                shard.sync()
            except Exception as error:
                # Whatever it was: others wait for this thread, and for what they are not told.
                shard.poison = error
            # Where nobody waits the interpreter is left to those who work.
            if asked != seen or shard.poison is not None:
                seen = asked
                self._tell()
            self._prepare(shard)

    def _prepare(self, shard: Shard) -> None:
        """Who asks for a sync meanwhile waits for it, as everybody would if the loop did it."""
        if shard.poison is not None:
            return
        try:
            shard.prepare()
        except Exception as error:
            shard.poison = error
        if shard.poison is not None:
            self._tell()

    def _tell(self) -> None:
        if self._is_awaited:
            with self._synced:
                self._synced.notify_all()
        self._notify()
