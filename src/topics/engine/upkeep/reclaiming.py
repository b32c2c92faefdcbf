"""Reclaiming: which segments are rewritten, and when, so that space comes back without a call.

- A segment of which a third is gone is rewritten, those with the largest part gone first. So a
  topic never takes much more than half as much again as its live records, once it has settled.
- One that has held bytes of what is gone for half of `rewrite_age_ms` is rewritten however little
  that is. The rest of the time is for the checkpoints after which the old file goes.
- What has expired in a topic that nobody asks for goes too: it is looked at now and then.

Segments of one topic become one, up to the size of a segment; so do packed ones. No more than about
`seal_bytes` wait to be removed at once: then a checkpoint comes first. What fails leaves everything
as it was and is tried again after a while; a segment with a damaged block is left to `repair`.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator

from topics.engine.commit.core import Core
from topics.engine.state.block import Segment
from topics.engine.upkeep.rewriting import rewrite
from topics.errors import CorruptData, Poisoned, StoreUnreachable, TopicsError

LOG = logging.getLogger("topics.engine")

# A segment is rewritten when at least one in so many of its bytes is gone.
GONE_ONE_IN = 3
# Of the time that bytes may stay, how much passes before they are due, and between two checkpoints.
DUE_SHARE, STEP_SHARE = 2, 8
# Segments and topics that are looked at in one tick.
LOOK_SEGMENTS, LOOK_TOPICS = 500, 200
BACKOFF_MIN_S, BACKOFF_MAX_S = 1.0, 300.0


class Reclaimer:
    def __init__(self, core: Core) -> None:
        self._core = core
        # Live segments that were found due by the look that ended last, and by the one under way.
        self._due: set[int] = set()
        self._looking: Iterator[None] = iter(())
        self._looked_s = self._expired_s = self._rewritten_s = core.clock.monotonic_s()
        self._expiring: Iterator[None] = iter(())
        # Segments with a block that can not be read.
        self._damaged: set[int] = set()
        self._backoff_s = self._retry_s = 0.0

    @property
    def step_s(self) -> float:
        """How long to wait with small things: what is to go in time needs three such steps."""
        settings = self._core.settings
        age_ms = settings.rewrite_age_ms or settings.seal_age_ms * STEP_SHARE
        return min(settings.seal_age_ms, age_ms // STEP_SHARE) / 1000

    def tick(self, now_s: float) -> None:
        """Looks at some segments and topics, all of them in turn."""
        core, now_ms = self._core, self._core.clock.wall_ms()
        for number in core.segments.newly_soiled:
            if core.segments.soiled_ms.get(number) == 0:
                core.segments.soiled_ms[number] = now_ms
        core.segments.newly_soiled.clear()
        if next(self._looking, self) is self and now_s - self._looked_s >= self.step_s / 8:
            self._looked_s, self._looking = now_s, self._look(now_ms)
        if next(self._expiring, self) is self and now_s - self._expired_s >= self.step_s:
            self._expired_s, self._expiring = now_s, self._expire()

    def _look(self, now_ms: int) -> Iterator[None]:
        segments, age_ms = self._core.segments, self._core.settings.rewrite_age_ms
        for index, number in enumerate(list(segments.soiled_ms)):
            if index % LOOK_SEGMENTS == LOOK_SEGMENTS - 1:
                yield
            held = segments.live.get(number)
            if held is None or number in self._damaged:
                continue
            since_ms = min(segments.soiled_ms.get(number, now_ms), now_ms)
            is_old = 0 < age_ms <= (now_ms - since_ms) * DUE_SHARE
            is_much = 0 < held.payload_bytes <= held.dead_bytes * GONE_ONE_IN
            if is_old or is_much:
                self._due.add(number)

    def _expire(self) -> Iterator[None]:
        for index, topic in enumerate(list(self._core.by_id.values())):
            if index % LOOK_TOPICS == LOOK_TOPICS - 1:
                yield
            if not topic.dropped:
                self._core.expire(topic)

    def is_due(self, now_s: float) -> bool:
        """Whether there is something to rewrite now."""
        segments, settings = self._core.segments, self._core.settings
        self._due.intersection_update(segments.live)
        if not self._due or now_s < self._retry_s or segments.leaving_bytes >= settings.seal_bytes:
            return False
        if now_s - self._rewritten_s >= self.step_s:
            return True
        gone = sum(segments.live[number].dead_bytes for number in self._due)
        return gone >= settings.segment_bytes

    def slices(self, is_urgent: Callable[[], bool]) -> Iterator[None]:
        """Rewrites what is due, until something else is urgent."""
        core = self._core
        self._rewritten_s = core.clock.monotonic_s()
        for sources in self._groups():
            if is_urgent() or core.segments.leaving_bytes >= core.settings.seal_bytes:
                return
            sources = [held for held in sources if held.number in core.segments.live]
            if any(held.is_cold for held in sources) and not core.tiering.may_try:
                continue
            try:
                yield from rewrite(core, sources, is_paced=True)
            except Poisoned:
                raise
            except (OSError, TopicsError, MemoryError) as error:
                self._failed(error)
                return
            self._backoff_s = 0.0
            self._due.difference_update(held.number for held in sources)
            # What came of cold ones may have to go back there.
            core.tiering.look()

    def _groups(self) -> Iterator[list[Segment]]:
        """What is due, largest part gone first, with others that fit into the same new segment."""
        live, size_max = self._core.segments.live, self._core.settings.segment_bytes
        found = [live[number] for number in self._due if number in live]
        found.sort(key=lambda held: -held.dead_bytes / max(held.payload_bytes, 1))
        by_owner: dict[int, list[Segment]] = defaultdict(list)
        for held in found:
            by_owner[_owner(held)].append(held)
        for owned in by_owner.values():
            group: list[Segment] = []
            for held in owned:
                if group and sum(each.live_bytes for each in group) + held.live_bytes > size_max:
                    yield group
                    group = []
                group.append(held)
            yield group

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, CorruptData):
            LOG.error("a segment is not rewritten: %s", error)
            number = error.detail.get("segment")
            if isinstance(number, int):
                self._damaged.add(number)
                self._due.discard(number)
            return
        if isinstance(error, StoreUnreachable):
            self._core.tiering.failed(error)
        self._backoff_s = min(max(self._backoff_s * 2, BACKOFF_MIN_S), BACKOFF_MAX_S)
        self._retry_s = self._core.clock.monotonic_s() + self._backoff_s
        LOG.error("segments are not rewritten now, next try in %d s: %s", self._backoff_s, error)


def _owner(held: Segment) -> int:
    """The one topic whose segment it is; 0 for a packed one."""
    first, last = held.info.rows[0].topic_id, held.info.rows[-1].topic_id
    return first if first == last else 0
