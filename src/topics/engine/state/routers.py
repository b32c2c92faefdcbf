"""Routers: who forwards from where to where, and that no record can go in circles for ever.

A router belongs to its destination's timeline in the log: its definition, its end and the maps of
what it forwarded are frames of the destination, in the order of the destination's seqs.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from topics.engine.state.block import Segment
from topics.engine.state.copies import Copying, RouterStamp
from topics.engine.state.names import Names
from topics.engine.state.router_frames import Fed, Place, RouterFrame, RouterOptions
from topics.engine.state.topic import Topic
from topics.errors import Incompatible, InvalidRequest, RouterCycle, RouterNotFound
from topics.storage.frames import Mark

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}")
ROUTER_NAME_SCHEMA = {"type": "string", "pattern": f"^{_NAME.pattern}$"}


def check_router_name(name: object) -> str:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidRequest(
            "router name must be 1 to 255 characters of A-Z a-z 0-9 . _ : - > "
            "and start with a letter or digit",
            router=name if isinstance(name, str) else repr(name),
        )
    return name


class Router:
    """One forwarding rule with its place in the source.

    `place` is what the destination holds; `ahead` is in front of it while a map is on its way.
    """

    __slots__ = (
        "ahead", "backoff_s", "began", "blocked", "created_ts", "dest", "id", "known",
        "known_upto", "look_upto", "looked_upto", "name", "options", "place", "retry_s", "source",
        "version",
    )  # fmt: skip

    def __init__(
        self, router_id: int, name: str, options: RouterOptions, source: Topic, dest: Topic
    ) -> None:
        self.id = router_id
        self.name = name
        self.version = 1
        self.options = options
        self.source = source
        self.dest = dest
        self.created_ts = 0
        self.place = self.ahead = Place(0)
        # All that its filter takes after this source seq was brought, up to its place.
        self.began = 0
        # A full destination is tried again later and later.
        self.retry_s = 0.0
        self.backoff_s = 0.0
        # The code of what keeps it from forwarding; empty while nothing does.
        self.blocked = ""
        # For a router that starts over, while it is exactly-once: source seqs up to `known_upto`
        # may be in the destination already, in front of `look_upto` there, where maps of an
        # earlier router of the name may have been on their way. `known` has those that were found
        # so far, up to `looked_upto`.
        self.known: set[int] = set()
        self.known_upto = 0
        self.looked_upto = 0
        self.look_upto = dest.next_seq - 1

    @property
    def is_replicating(self) -> bool:
        """Whether it keeps one bucket a replica of another."""
        return self.source.config.is_bucket and self.dest.config.is_bucket

    @property
    def lag(self) -> int:
        """Source seqs that it has still to look at."""
        return self.source.head - self.place.cursor

    @property
    def copying(self) -> Copying:
        options = self.options
        return Copying(options.preserve_node, options.preserve_tag, self.stamp)

    @property
    def stamp(self) -> RouterStamp | None:
        source = self.source
        if self.options.guarantee != "exactly_once":
            return None
        return RouterStamp(self.name, source.name, source.id, source.epoch)

    def frame(self) -> RouterFrame:
        return RouterFrame(
            self.id, self.name, self.version, self.source.id, self.dest.id, self.options,
            self.created_ts, self.place, self.known_upto, self.source.epoch, self.began,
        )  # fmt: skip


class Source:
    """A topic that routers read from."""

    __slots__ = ("asked", "durable_head", "routers", "turn")

    def __init__(self) -> None:
        self.routers: list[Router] = []
        # Which of them begins.
        self.turn = 0
        # For copies that have to be durable before: those that would outlive what they are made
        # from, and those of class fsync.
        self.durable_head = 0
        # The place in the log that has to be durable, and the head that it stands for.
        self.asked: tuple[Mark, int] | None = None


class Routers:
    """All routers, by name and by the topics they touch."""

    def __init__(self) -> None:
        self.by_name: dict[str, Router] = {}
        self.names = Names(self.by_name)
        self.next_id = 1
        self.sources: dict[int, Source] = {}
        # Routers by destination, also those that ended, until that is durable.
        self._into: dict[int, list[Router]] = {}
        # What buckets have of others from routers that ended: by destination, by source.
        self.fed: dict[int, dict[int, Fed]] = {}
        # The newest marker among what is about to be removed from a bucket, by its id.
        self.unmarking: dict[int, int] = {}
        # Sources with something to forward.
        self.dirty: dict[int, None] = {}
        # Called with each of them, and again when it has more.
        self.wake: Callable[[], None] = _unheard
        # How often a copy in a cycle was forwarded before: by topic, by seq. So it is for what is
        # told as lost, in ranges (first, last, hops).
        self.hops: dict[int, dict[int, int]] = {}
        self.hole_hops: dict[int, list[tuple[int, int, int]]] = {}
        # What recovery has found so far, by id: what they were, which of them ended, and the
        # segments that its snapshot names.
        self.recovered: dict[int, RouterFrame] = {}
        self.ended: set[int] = set()
        self.segments: list[Segment] = []

    def __len__(self) -> int:
        return len(self.by_name)

    def get(self, name: str) -> Router:
        router = self.by_name.get(name)
        if router is None:
            check_router_name(name)
            raise RouterNotFound(f'router "{name}" does not exist', router=name)
        return router

    def note(self, source_id: int) -> None:
        """A source has something to forward."""
        self.dirty[source_id] = None
        self.wake()

    def enter(self, router: Router) -> None:
        self.by_name[router.name] = router
        self.names.add(router.name)
        self.sources.setdefault(router.source.id, Source()).routers.append(router)
        into = self._into.setdefault(router.dest.id, [])
        if router not in into:
            into.append(router)
        self.note(router.source.id)
        self.next_id = max(self.next_id, router.id + 1)

    def leave(self, router: Router) -> None:
        """Ends forwarding; the destination remembers the router until `forget`."""
        if self.by_name.get(router.name) is router:
            del self.by_name[router.name]
            self.names.discard(router.name)
        source = self.sources.get(router.source.id)
        if source is not None and router in source.routers:
            source.routers.remove(router)
            if not source.routers:
                del self.sources[router.source.id]
                self.dirty.pop(router.source.id, None)

    def forget(self, router: Router) -> None:
        into = self._into.get(router.dest.id, [])
        if router in into:
            into.remove(router)
        if not into:
            self._into.pop(router.dest.id, None)
            self._forget_hops(router.dest)

    def drop(self, topic: Topic) -> None:
        """A router referencing a topic that is gone can not exist."""
        for router in [*self.touching(topic), *self.kept_for(topic)]:
            self.leave(router)
            self.forget(router)
        self._forget_hops(topic)
        self.fed.pop(topic.id, None)
        for fed in self.fed.values():
            fed.pop(topic.id, None)

    def note_fed(self, dest_id: int, fed: Fed, *, copied: int) -> None:
        """A bucket keeps what an ended router brought it, whatever it compacts of that."""
        held = self.fed.get(dest_id, {})
        before = held.get(fed.source_id)
        if not copied and (before is None or before.began != fed.began):
            # It has nothing of it, and went on from nobody.
            return
        if before is None or (before.source_epoch, before.upto) <= (fed.source_epoch, fed.upto):
            self.fed[dest_id] = {**held, fed.source_id: fed}

    def is_outrun(self, router: Router) -> bool:
        """Whether it would copy what is about to go, and never see the marker that goes as well."""
        return router.ahead.cursor < self.unmarking.get(router.source.id, 0)

    def end(self, router: Router) -> None:
        """A router's end is durable: it is forgotten, and what it brought is not."""
        if router.is_replicating:
            source, place = router.source, router.place
            fed = Fed(source.id, source.epoch, router.options.filter, router.began, place.cursor)
            self.note_fed(router.dest.id, fed, copied=place.forwarded_total)
        self.forget(router)

    def _forget_hops(self, topic: Topic) -> None:
        self.hops.pop(topic.id, None)
        self.hole_hops.pop(topic.id, None)

    def from_topic(self, topic: Topic) -> list[Router]:
        source = self.sources.get(topic.id)
        return source.routers if source is not None else []

    def kept_for(self, dest: Topic) -> list[Router]:
        """The routers into a topic, with those whose end is not durable yet."""
        return self._into.get(dest.id, [])

    def into_topic(self, dest: Topic) -> list[Router]:
        return [r for r in self.kept_for(dest) if self.by_name.get(r.name) is r]

    def touching(self, topic: Topic) -> list[Router]:
        """In byte order of their names."""
        found = {r.name: r for r in (*self.from_topic(topic), *self.into_topic(topic))}
        return [found[name] for name in sorted(found)]

    # -- the graph -------------------------------------------------------------------------------

    def check(
        self, name: str, options: RouterOptions, source: Topic | None, dest: Topic | None
    ) -> None:
        """Raises Incompatible or RouterCycle when a router with these options can not be."""
        if dest is None:
            return
        for other in self.into_topic(dest):
            if other.name != name and other.is_replicating:
                raise Incompatible(
                    f'bucket "{options.dest}" is a replica, kept by router "{other.name}"; two '
                    "would bring changes out of their order",
                    reason="router_dest_fan_in", router=other.name, source=other.options.source,
                )  # fmt: skip
            if other.name != name and other.options.source != options.source:
                raise Incompatible(
                    f'topic "{options.dest}" is fed by router "{other.name}" from '
                    f'"{other.options.source}"; a destination has one source',
                    reason="router_dest_fan_in", router=other.name, source=other.options.source,
                )  # fmt: skip
        if options.allow_cycle or source is None or self._is_standing(name, options):
            return
        path = self._path(dest, source, without=name)
        if path is not None:
            raise RouterCycle(
                "this router would close a cycle; set allow_cycle for an intended one",
                cycle=[*path, options.dest],
            )

    def _is_standing(self, name: str, options: RouterOptions) -> bool:
        """Whether this router is there between these topics: a cycle was closed by another one."""
        before = self.by_name.get(name)
        if before is None or before.options.allow_cycle:
            return False
        ends = before.options.source, before.options.dest
        return ends == (options.source, options.dest)

    def _path(self, start: Topic, goal: Topic, *, without: str = "") -> list[str] | None:
        """Names from `start` to `goal` along the routers, both included."""
        came: dict[int, Topic | None] = {start.id: None}
        waiting = [start]
        for here in waiting:
            if here is goal:
                path: list[str] = []
                at: Topic | None = here
                while at is not None:
                    path.append(at.name)
                    at = came[at.id]
                return path[::-1]
            for router in self.from_topic(here):
                if router.dest.id not in came and router.name != without:
                    came[router.dest.id] = here
                    waiting.append(router.dest)
        return None

    def ring(self, topic: Topic) -> list[Topic]:
        """The topics of the cycle that a topic is in: it alone when it is in none.

        Every destination has one source, so there is one way back, and at most one cycle.
        """
        ring = [topic]
        if topic.id not in self.sources:
            # The end of a chain, as most are.
            return ring
        while True:
            behind = self._source_of(ring[-1])
            if behind is topic:
                return ring
            if behind is None or behind in ring:
                return [topic]
            ring.append(behind)

    def _source_of(self, dest: Topic) -> Topic | None:
        for router in self.kept_for(dest):
            if self.by_name.get(router.name) is router:
                return router.source
        return None


def _unheard() -> None:
    pass
