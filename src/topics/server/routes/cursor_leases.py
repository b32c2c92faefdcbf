"""Leases of cursors: one running reader under a name at a time, for those who ask for it.

A lease lasts until it is renewed, given back or over; it is kept in memory, so a restart ends all
of them, and their owners take them anew. A put that names no owner is never refused by one.
"""

from __future__ import annotations

from topics.clock import Clock
from topics.errors import CursorLeased
from topics.server.http.errors import BadRequest
from topics.types import clamp

LEASE_MS_MAX = 60_000
OWNER_BYTES_MAX = 128
# Leases that are over are forgotten when so many are kept.
_KEPT_MAX = 1000

# A cursor of a topic in one epoch.
Key = tuple[str, int, str]


class CursorLeases:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[Key, tuple[str, float]] = {}

    def check(self, key: Key, owner: str | None, lease_ms: int | None) -> None:
        """Raises CursorLeased where another owner's lease lasts, BadRequest for what is none."""
        if (owner is None) != (lease_ms is None):
            raise BadRequest("owner and lease_ms are given together or not at all")
        if owner is None:
            return
        if not 1 <= len(owner.encode()) <= OWNER_BYTES_MAX:
            raise BadRequest(f"owner must have 1 to {OWNER_BYTES_MAX} bytes")
        held = self._kept.get(key)
        left_s = 0.0 if held is None else held[1] - self._clock.monotonic_s()
        if held is not None and held[0] != owner and left_s > 0:
            raise CursorLeased(
                f'cursor "{key[2]}" is leased to another reader, which renews it while it runs',
                cursor=key[2], left_ms=int(left_s * 1000) + 1,
            )  # fmt: skip

    def take(self, key: Key, owner: str | None, lease_ms: int | None) -> None:
        """Leases, renews, or, with 0, gives back; what `check` has allowed."""
        if owner is None or lease_ms is None:
            return
        if lease_ms == 0:
            self._kept.pop(key, None)
            return
        now_s = self._clock.monotonic_s()
        if len(self._kept) >= _KEPT_MAX:
            self._kept = {key: kept for key, kept in self._kept.items() if kept[1] > now_s}
        self._kept[key] = (owner, now_s + clamp(lease_ms, 1, LEASE_MS_MAX) / 1000)
