"""Forwarding: what was appended to a source becomes copies in its destinations, off the write path.

A copy is derived, not logged: one MAP frame says which source seqs became which destination seqs,
when, and how, so that recovery makes the same records again from the source's own bytes. What is
published in the source is forwarded at once, durable or not. The frame counts as durable no earlier
than those bytes (`storage/footing`); a crash that takes them takes the copies too. Only a
destination of class fsync, in which nothing is ever lost, waits until its source is durable. What a
source lost before it was forwarded takes seqs in the destination too, as a `source_trim` hole.

Where those bytes may not be there, the log has other frames. Copies are appended in their own right
when their source is ephemeral, when it is in the cold store, which a start must not depend on, and
while a checkpoint is under way, which may pass over what they were made from; so that they do not
outlive that, what is forwarded then is durable before. An ephemeral destination keeps its copies in
memory only. In all of these cases the MAP frame just moves the cursor.
"""

from __future__ import annotations

from collections.abc import Iterator

from topics.engine.commit.core import Core
from topics.engine.ops.growth import Brought, Growth, brought, check_room, publish, published
from topics.engine.routing.planning import BYTES_MAX, Piece, Plan, hole_runs, plan
from topics.engine.state import router_frames
from topics.engine.state.router_frames import MapFrame, Place, Run
from topics.engine.state.routers import Router, Source
from topics.engine.state.segments import ColdMiss
from topics.engine.state.topic import Topic
from topics.errors import RecordTooLarge, Throttled, TopicFull, TopicsError
from topics.storage import columns as columns_codec
from topics.storage import frames
from topics.types import LIVE, SOURCE_TRIM

# Maps of one router that may be on their way to the disk at once.
MOVING_MAX = 4
# What one call may forward: the loop has others to serve, and a flood is one piece after the other.
PIECES_MAX = 64
CALL_BYTES_MAX = 2 * BYTES_MAX
# Up to so many records are no backlog but what was written just now, and go through in one call.
FRESH_RECORDS_MAX = 16_384
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.01, 1.0


class Turn:
    """What one call of `forward` may still do, and what it met."""

    __slots__ = ("bytes_left", "failure", "pieces_left", "served")

    def __init__(self) -> None:
        self.pieces_left = PIECES_MAX
        self.bytes_left = CALL_BYTES_MAX
        # Routers with a backlog that had their piece of it: nobody waits for more than that.
        self.served: set[Router] = set()
        self.failure: Exception | None = None

    @property
    def is_over(self) -> bool:
        return self.pieces_left <= 0 or self.bytes_left <= 0


def forward(core: Core) -> bool:
    """Forwards what the routers have, through whole chains; True when there is more at once.

    Each router takes a bounded piece, and goes on until it is through where that is not far; all of
    them together take a bounded number of pieces, and who had none begins the next call. Raises,
    after the others had their turn, what kept a router from its own: ColdMiss when its records are
    out of reach. Whatever it was, the router is tried again.
    """
    routers, turn = core.routers, Turn()
    is_moving = True
    while is_moving and routers.dirty and not turn.is_over:
        before = turn.pieces_left
        for topic_id in list(routers.dirty):
            if not turn.is_over:
                del routers.dirty[topic_id]
                _forward_from(core, topic_id, turn)
        # What this publishes makes the next topic of a chain a source with something to forward.
        core.committer.flush()
        is_moving = turn.pieces_left < before
    if turn.failure is not None:
        raise turn.failure
    return bool(turn.served) or (turn.is_over and bool(routers.dirty))


def _forward_from(core: Core, topic_id: int, turn: Turn) -> None:
    """Takes a piece for each router of one source, beginning with who had none last time."""
    source, topic = core.routers.sources.get(topic_id), core.by_id.get(topic_id)
    if source is None or topic is None:
        return
    routers = source.routers
    begin = source.turn if source.turn < len(routers) else 0
    for router in [*routers[begin:], *routers[:begin]]:
        if turn.is_over:
            source.turn = routers.index(router)
            break
        try:
            has_more = router not in turn.served and _forward_one(core, source, router, turn)
            if has_more and topic.head - router.ahead.cursor > FRESH_RECORDS_MAX:
                turn.served.add(router)
        except ColdMiss as miss:
            turn.failure = turn.failure or miss
        except Exception as error:
            _hold_back(core, router, error)
            turn.failure = error
    if any(router.ahead.cursor < topic.head for router in routers):
        core.routers.dirty[topic_id] = None


def _reach(core: Core, source: Source, router: Router) -> tuple[int, bool]:
    """How far a router may forward now, and whether all of that is durable."""
    topic, dest, committer = router.source, router.dest, core.committer
    if topic.config.durability in ("fsync", "ephemeral"):
        return topic.head, True
    if not core.is_sealing and (dest.durability != "fsync" or committer.is_behind(dest, topic)):
        return topic.head, False
    if source.asked is None and source.durable_head < topic.head:
        source.asked = (committer.position(topic), topic.head)
        committer.ask_sync(topic)
    if source.asked is not None and committer.is_durable(topic, source.asked[0]):
        source.durable_head, source.asked = source.asked[1], None
    return min(source.durable_head, topic.head), True


def _forward_one(core: Core, source: Source, router: Router, turn: Turn) -> bool:
    """Forwards a piece for one router; True when there may be more at once."""
    dest = router.dest
    if core.clock.monotonic_s() < router.retry_s:
        return False
    if core.routers.unmarking and core.routers.is_outrun(router):
        return False
    core.expire(router.source)
    upto, is_durable = _reach(core, source, router)
    if router.ahead.cursor >= upto or router.ahead.step - router.place.step >= MOVING_MAX:
        return False
    is_resident = dest.durability == "ephemeral"
    if dest.durability != dest.config.durability or (is_resident and dest.gated):
        # The class is about to change, or something is in front: soon.
        return False
    core.expire(dest)
    ts = max(core.clock.wall_ms(), dest.last_ts)
    try:
        found = plan(core, router, upto, ts)
        if found.charged:
            check_room(core, dest, found.charged, found.charged_bytes)
    except (Throttled, TopicFull, RecordTooLarge) as error:
        # A record that can never fit holds the router back like any other: passing over it would
        # be a silent loss. It goes on when the cap or the record changes.
        _hold_back(core, router, error)
        return False
    router.backoff_s, router.blocked = 0.0, ""
    if found.cursor == router.ahead.cursor:
        # There is more to look through, or it waits for what is on its way.
        return router.looked_upto < min(router.look_upto, dest.head)
    if not is_durable and not is_resident:
        core.committer.stand_on(dest, router.source)
    _stage(core, router, found, ts)
    turn.pieces_left -= 1
    turn.bytes_left -= found.size
    return router.ahead.cursor < upto


def _hold_back(core: Core, router: Router, error: Exception) -> None:
    router.blocked = error.code if isinstance(error, TopicsError) else TopicsError.code
    _back_off(core, router)


def _back_off(core: Core, router: Router) -> None:
    router.backoff_s = min(max(router.backoff_s * 2, BACKOFF_MIN_S), BACKOFF_MAX_S)
    router.retry_s = core.clock.monotonic_s() + router.backoff_s


def _stage(core: Core, router: Router, found: Plan, ts: int) -> None:
    source, dest = router.source, router.dest
    before, first = router.ahead, dest.next_seq
    is_resident = dest.durability == "ephemeral"
    is_logged = not is_resident and not _is_derivable(core, source, found)
    place = Place(found.cursor, before.forwarded_total + found.copied, before.step + 1)
    # Whatever can fail comes before the first trace of the step: half of one would be copied again
    # or passed over.
    runs = [] if is_resident or is_logged else found.runs
    step = MapOp(core, router, place, None if is_logged else found, runs, ts)
    pieces = found.pieces if is_logged else []
    copied = [CopyOp(core, dest, count, columns, ts) for count, columns in pieces]
    router.ahead = place
    if router.known and found.cursor >= router.known_upto:
        router.known = set()
    _note_hops(core, router, found, first)
    for copy in copied:
        copy.stage()
    step.stage()


def _is_derivable(core: Core, source: Topic, found: Plan) -> bool:
    """Whether recovery finds what was copied for as long as the log has the map, by itself."""
    return not (source.config.durability == "ephemeral" or core.is_sealing or found.is_cold)


class CopyOp(Growth):
    """Copies, or a hole, that the log holds in their own right."""

    __slots__ = ("_piece", "_taken")

    def __init__(self, core: Core, dest: Topic, count: int, columns: Piece, ts: int) -> None:
        kind = frames.HOLE if columns is None else frames.APPEND
        super().__init__(core, dest, kind, ts)
        self._piece = columns
        self._taken = count
        if columns is None:
            self.flags = SOURCE_TRIM
        else:
            self.count = count
            self.flags, self.cols = columns_codec.encode(columns, times=False)
            self.payload = bytes(columns.payload)

    def stage(self) -> None:
        self.assign(self._taken, len(self.payload))
        if self._piece is None:
            self.floor = self.first + self._taken - 1
        self.core.committer.stage(self)

    def apply(self) -> None:
        self.arrive()
        put_pieces(self.core, self.topic, self.first, [(self._taken, self._piece)])


class MapOp(Growth):
    """A step of a router on its way into the destination's timeline.

    With a plan its copies come with it; `runs` are those that recovery is to make again.
    """

    __slots__ = ("_before", "_place", "_plan", "_router")

    def __init__(
        self,
        core: Core,
        router: Router,
        place: Place,
        found: Plan | None,
        runs: list[Run],
        ts: int,
    ) -> None:
        super().__init__(core, router.dest, frames.MAP, ts)
        self._router = router
        self._before = router.ahead
        self._place = place
        self._plan = found
        source, options = router.source, router.options
        self.payload = router_frames.encode(
            MapFrame(
                router.id, router.name, source.id, source.name, source.epoch,
                options.preserve_node, options.preserve_tag,
                options.guarantee == "exactly_once", self._place,
                router_frames.pack(runs),
            )
        )  # fmt: skip

    def stage(self) -> None:
        found = self._plan
        if found is not None and found.count:
            self.assign(found.count, found.size)
        else:
            self.first, self.last_ts_before = self.topic.next_seq, self.topic.last_ts
        self.core.committer.stage(self)

    def brings(self) -> Iterator[Brought]:
        first = self.first
        for count, columns in self._plan.pieces if self._plan is not None else ():
            if columns is not None:
                yield from brought(first, columns)
            first += count

    def apply(self) -> None:
        self._router.place = self._place
        _forget_hops(self.core, self._router.source)
        self.arrive()
        if self._plan is not None:
            put_pieces(self.core, self.topic, self.first, self._plan.pieces)

    def undo(self) -> None:
        self._router.ahead = self._before
        self.core.routers.note(self._router.source.id)
        _back_off(self.core, self._router)
        super().undo()


def put_pieces(core: Core, dest: Topic, first: int, pieces: list[tuple[int, Piece]]) -> None:
    """Makes copies readable, and holes known."""
    for count, columns in pieces:
        if columns is not None:
            publish(core, dest, first, columns)
        else:
            dest.add_hole(first, first + count - 1, SOURCE_TRIM)
            published(core, dest, 0, 0)
        first += count


# -- hops ----------------------------------------------------------------------------------------


def _note_hops(core: Core, router: Router, found: Plan, first: int) -> None:
    """Counts how far each copy has come, for topics in a cycle only."""
    if len(core.routers.ring(router.dest)) == 1:
        return
    routers, source = core.routers, router.source
    behind = routers.hops.get(source.id, {})
    counts = routers.hops.setdefault(router.dest.id, {})
    holes = routers.hole_hops.setdefault(router.dest.id, [])
    for state, low, high in found.runs:
        if state == LIVE:
            for seq in range(low, high + 1):
                counts[first + seq - low] = behind.get(seq, 0) + 1
        else:
            [(*_, hops)] = hole_runs(core, source, low, high)
            holes.append((first, first + high - low, hops + 1))
        first += high - low + 1


def _forget_hops(core: Core, source: Topic) -> None:
    """What every router is past needs no count any more."""
    counts = core.routers.hops.get(source.id, {})
    routers = core.routers.from_topic(source)
    holes = core.routers.hole_hops.get(source.id)
    if (counts or holes) and routers:
        passed = min(router.place.cursor for router in routers)
        for seq in [seq for seq in counts if seq <= passed]:
            del counts[seq]
        if holes:
            holes[:] = [hole for hole in holes if hole[1] > passed]
