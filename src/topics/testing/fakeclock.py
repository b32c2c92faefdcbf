"""A clock that moves only when told, with wall and monotonic time apart.

The wall may jump, stop and go back; the monotonic clock only ever advances. With `look_ms` every
look at that one takes so long: work that is done in slices of time then ends its slices, as it
does in production, instead of running to its end in the first one.
"""

from __future__ import annotations


class FakeClock:
    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._wall_ms = wall_ms
        # Kept in whole milliseconds: a float accumulating small steps would drift.
        self._monotonic_ms = 1_000_000
        self._is_frozen = False
        self.look_ms = 0

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic_s(self) -> float:
        self._monotonic_ms += self.look_ms
        return self._monotonic_ms / 1000

    def advance(self, ms: int) -> None:
        """Moves both clocks, or only the monotonic one while the wall is frozen."""
        if ms < 0:
            raise ValueError("advance goes forward; use jump_wall to move the wall back")
        self._monotonic_ms += ms
        if not self._is_frozen:
            self._wall_ms += ms

    def jump_wall(self, ms: int) -> None:
        """Moves the wall only, forward or back, also while it is frozen."""
        self._wall_ms += ms

    def freeze(self) -> None:
        self._is_frozen = True

    def unfreeze(self) -> None:
        """Lets the wall move again from where it stopped; the lost time is not made up."""
        self._is_frozen = False
