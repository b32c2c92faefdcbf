"""Open snapshots of a bucket: a seq that reads may ask for, and until when.

They live as long as the process. What one sees stays until it is closed or has run out.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import NamedTuple

from topics.errors import InvalidRequest, SnapshotNotFound, Throttled

TTL_MS, TTL_MS_MAX = 3_600_000, 86_400_000
# Snapshots of one bucket that may be open at once.
OPEN_MAX = 1000


class Snapshot(NamedTuple):
    id: str
    seq: int
    expires_ts: int


class Snapshots:
    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._open: dict[str, Snapshot] = {}

    def open(self, seq: int, ttl_ms: int) -> Snapshot:
        if not 1 <= ttl_ms <= TTL_MS_MAX:
            raise InvalidRequest(f"ttl_ms must be from 1 to {TTL_MS_MAX}")
        if len(self) >= OPEN_MAX:
            raise Throttled(
                f"{OPEN_MAX} snapshots of this bucket are open, the most there may be; close some",
                limit="snapshots", max=OPEN_MAX,
            )  # fmt: skip
        made = Snapshot(f"snap_{secrets.token_urlsafe(12)}", seq, self._now_ms() + ttl_ms)
        self._open[made.id] = made
        return made

    def close(self, name: str) -> bool:
        """Whether it was open."""
        self._expire()
        return self._open.pop(name, None) is not None

    def get(self, name: str) -> Snapshot:
        self._expire()
        found = self._open.get(name)
        if found is None:
            raise SnapshotNotFound(
                "there is no such snapshot, or no longer: it was closed, has run out, or was open "
                "before the server started", snapshot=name[:100],
            )  # fmt: skip
        return found

    def seqs(self) -> list[int]:
        """Their seqs, each once."""
        self._expire()
        return sorted({each.seq for each in self._open.values()})

    def __len__(self) -> int:
        self._expire()
        return len(self._open)

    def _expire(self) -> None:
        if self._open:
            now_ms = self._now_ms()
            gone = [each.id for each in self._open.values() if each.expires_ts <= now_ms]
            for name in gone:
                del self._open[name]
