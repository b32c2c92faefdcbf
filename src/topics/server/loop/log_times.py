"""What the log took of the calls that end now, as answers say it.

It is the same for all calls of a group, so it is written once for them.
"""

from __future__ import annotations

from topics.server.loop.driver import Driver

_SPENT = b'"wal_append_ms":%.3f,"fsync_ms":%.3f'
NOTHING = _SPENT % (0.0, 0.0)


class LogTimes:
    __slots__ = ("_driver", "_last", "_rendered")

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._last = (0.0, 0.0)
        self._rendered = NOTHING

    def of(self, name: str) -> bytes:
        """The times of a call for this topic that waited for the log."""
        engine = self._driver.engine
        times = engine.log_times
        write_s, sync_s = times.write_s, times.sync_s
        if sync_s:
            config = engine.config_of(name)
            if config is None or not config.durable:
                # A topic that does not wait for the disk may share the sync of one that does.
                sync_s = 0.0
        if (write_s, sync_s) != self._last:
            self._last = (write_s, sync_s)
            self._rendered = _SPENT % (write_s * 1000, sync_s * 1000)
        return self._rendered
