"""Who syncs the log, and when: inline, or in one thread for each shard."""

from __future__ import annotations

import threading
from collections.abc import Callable

from topics.storage.frames import Mark
from topics.storage.wal import Shard


class Syncer:
    """Syncs when asked, in the calling thread: the deterministic one."""

    def kick(self, shard: Shard) -> None:
        """Something waits for this shard."""
        for each in shard.footings.below(shard):
            each.sync()

    def touch(self, shard: Shard) -> None:
        """Something was written that nobody waits for."""

    def interval(self, shard: Shard) -> None:
        """The sync interval is over, and there is something to sync."""
        shard.sync()

    def wait(self, shard: Shard, upto: Mark) -> None:
        if shard.synced < upto:
            for each in shard.footings.below(shard):
                each.sync()

    def close(self) -> None:
        pass


class ThreadSyncer(Syncer):
    """One thread for each shard. It syncs at once when somebody waits, else at an interval.

    While a sync runs, further groups gather behind it: that is the group commit, and its window is
    as long as the disk makes it.
    """

    def __init__(self, shards: list[Shard], interval_s: float, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._interval_s = interval_s
        self._stopping = False
        self._wake = {id(shard): threading.Event() for shard in shards}
        self._dirty = {id(shard): threading.Event() for shard in shards}
        self._asked = {id(shard): 0 for shard in shards}
        self._synced = threading.Condition()
        self._threads = [
            threading.Thread(target=self._run, args=(shard,), name=f"topics-sync-{shard.index}")
            for shard in shards
        ]
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def kick(self, shard: Shard) -> None:
        for each in shard.footings.below(shard):
            # Counted before the event: one that is cleared unseen is still noticed after the sync.
            self._asked[id(each)] += 1
            self._wake[id(each)].set()
            self._dirty[id(each)].set()

    def touch(self, shard: Shard) -> None:
        dirty = self._dirty[id(shard)]
        if not dirty.is_set():
            dirty.set()

    def interval(self, shard: Shard) -> None:
        """Its thread keeps the interval itself."""

    def wait(self, shard: Shard, upto: Mark) -> None:
        with self._synced:
            while shard.synced < upto and not shard.footings.is_given_up(shard):
                self.kick(shard)
                self._synced.wait(1.0)

    def close(self) -> None:
        self._stopping = True
        for event in [*self._wake.values(), *self._dirty.values()]:
            event.set()
        for thread in self._threads:
            thread.join()

    def _run(self, shard: Shard) -> None:
        wake, dirty = self._wake[id(shard)], self._dirty[id(shard)]
        seen = 0
        while not self._stopping:
            dirty.wait()
            wake.wait(self._interval_s)
            wake.clear()
            dirty.clear()
            # Read in front of the sync: who asks later is not covered by it and asks again.
            asked = self._asked[id(shard)]
            try:
                shard.sync()
            except Exception as error:
                # Whatever it was: others wait for this thread, and for what they are not told.
                shard.poison = error
            if asked == seen and shard.poison is None:
                # Nobody waits: the interpreter is left to those who work.
                continue
            seen = asked
            with self._synced:
                self._synced.notify_all()
            self._notify()
