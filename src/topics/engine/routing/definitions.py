"""Routers come, change and go; each of these is durable before it is acknowledged."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from topics.configs import resolve_config
from topics.engine.commit.core import Core
from topics.engine.commit.frame import Op, nothing
from topics.engine.commit.leaving import Name
from topics.engine.commit.ticket import Ticket
from topics.engine.ops import catalog, ceilings
from topics.engine.state import router_frames
from topics.engine.state.router_frames import Fed, Guarantee, Place, RouterOptions
from topics.engine.state.routers import Router, check_router_name
from topics.engine.state.tags import parse_match
from topics.engine.state.topic import Topic
from topics.errors import DiskFull, Incompatible, InvalidRequest, Throttled, TopicNotFound
from topics.storage import frames
from topics.types import U64, U64_MAX, TopicConfig, bucket_of, check_name, convert


class RouterInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A router as a client writes it."""

    source: str
    dest: str
    preserve_node: bool = True
    preserve_tag: bool = True
    create_dest: bool = True
    filter: str | list[str] | None = None
    allow_cycle: bool = False
    guarantee: Guarantee = "at_least_once"
    # Where a new router starts in its source; at the head when it is left out.
    from_seq: U64 | None = None


Given = RouterInput | Mapping[str, object]


def read_input(given: Given) -> RouterInput:
    if isinstance(given, RouterInput):
        return given
    asked: RouterInput = convert(dict(given), RouterInput, "router")
    return asked


def put(core: Core, name: str, given: Given) -> tuple[Router, bool, Ticket[None]]:
    """Creates or changes a router: (router, created, ticket). When it raises, nothing happened."""
    check_router_name(name)
    asked = read_input(given)
    options = _options(asked)
    ticket: Ticket[None] = Ticket()
    before = core.routers.by_name.get(name)
    # While something of its destination is on its way to the disk, so may the router be.
    if before is not None and before.options == options and not before.dest.gated:
        ticket.resolve(None)
        return before, False, ticket
    limit = core.settings.max_routers
    if before is None and limit and len(core.routers) >= limit:
        raise Throttled(
            f"there are {limit} routers, the most this server allows; delete one or raise "
            "TOPICS_MAX_ROUTERS",
            limit="max_routers", max=limit,
        )  # fmt: skip
    by_name = core.by_name
    core.routers.check(name, options, by_name.get(options.source), by_name.get(options.dest))
    if options.dest not in by_name and not asked.create_dest:
        raise TopicNotFound(f'topic "{options.dest}" does not exist', topic=options.dest)
    if before is not None and _is_between(before, asked):
        _change(core, before, options, ticket)
        return before, False, ticket
    _check_topics(core, options)
    core.log.route()
    source = _lasting(core, _topic(core, options.source))
    dest = _topic(core, options.dest)
    before = core.routers.by_name.get(name)
    router = _create(core, name, asked, options, source, dest)
    if before is not None:
        core.routers.leave(before)
    core.routers.enter(router)
    # Durable with the router, so that the first copy finds room.
    ceilings.open_ahead(core, source)
    ceilings.open_ahead(core, dest)

    def apply() -> None:
        # It needs no frame for its end: of those with one name only the youngest counts.
        if before is not None:
            core.routers.end(before)

    def undo() -> None:
        core.routers.leave(router)
        core.routers.forget(router)
        if before is not None:
            core.routers.enter(before)

    _log(core, router, ticket, apply, undo)
    return router, before is None, ticket


def _is_between(router: Router, asked: RouterInput) -> bool:
    return (router.source.name, router.dest.name) == (asked.source, asked.dest)


def _create(
    core: Core, name: str, asked: RouterInput, options: RouterOptions, source: Topic, dest: Topic
) -> Router:
    router = Router(core.routers.next_id, name, options, source, dest)
    router.created_ts = core.clock.wall_ms()
    start = source.head if asked.from_seq is None else min(asked.from_seq, source.head)
    router.began = start
    if router.is_replicating:
        start = _resume(core, router, start)
    elif start < source.head:
        # Whatever it guarantees now: it may become exactly-once while it catches up.
        router.known_upto = source.head
    router.place = router.ahead = Place(start)
    return router


def _resume(core: Core, router: Router, start: int) -> int:
    """Where a replica goes on that an earlier router fed.

    Not before what it has: it may have compacted some of that since, and nothing there would tell
    that an old version, or a deleted key, came again. Raises Incompatible.
    """
    source, dest = router.source, router.dest
    if any(core.routers.by_name.get(each.name) is not each for each in core.routers.kept_for(dest)):
        # One that ended is about to say how far it came.
        core.committer.sync()
    fed = core.routers.fed.get(dest.id, {}).get(source.id)
    if fed is None or fed.source_epoch != source.epoch or start > fed.upto:
        return start
    if source.compacted.unmarked_seq > fed.upto:
        raise Incompatible(
            f'bucket "{dest.name}" has "{source.name}" up to seq {fed.upto}, and markers after '
            "that were compacted while no router held them: it may have keys that were deleted. "
            "Make the replica anew, or let a follower resynchronise it",
            reason="router_dest_outdated", fed_seq=fed.upto,
            unmarked_seq=source.compacted.unmarked_seq,
        )  # fmt: skip
    if start == fed.upto and not fed.covers(router.options.filter):
        return start
    if start < fed.began or not fed.covers(router.options.filter):
        raise Incompatible(
            f'bucket "{dest.name}" has other records of "{source.name}" up to seq {fed.upto}; '
            "what is older would come after what is newer. Make another replica, or begin from "
            "there", reason="router_dest_ahead", fed_seq=fed.upto,
        )  # fmt: skip
    router.began = fed.began
    return fed.upto


def _change(core: Core, router: Router, options: RouterOptions, ticket: Ticket[None]) -> None:
    """Changes how a router forwards from now on: it neither replays nor skips."""
    before = router.options, router.version, router.began
    taken = Fed(0, 0, router.options.filter, 0, 0)
    if not taken.covers(options.filter):
        router.began = router.ahead.cursor
    router.options, router.version = options, router.version + 1

    def undo() -> None:
        router.options, router.version, router.began = before

    _log(core, router, ticket, nothing, undo)


def _options(asked: RouterInput) -> RouterOptions:
    check_name(asked.source, "source")
    check_name(asked.dest, "dest")
    if asked.from_seq is not None and asked.from_seq > U64_MAX:
        raise InvalidRequest("from_seq must be from 0 to 2^64 - 1")
    if asked.source == asked.dest:
        raise InvalidRequest("source and dest must differ", source=asked.source)
    return RouterOptions(
        source=asked.source,
        dest=asked.dest,
        preserve_node=asked.preserve_node,
        preserve_tag=asked.preserve_tag,
        filter=None if asked.filter is None else parse_match(asked.filter, "filter"),
        allow_cycle=asked.allow_cycle,
        # A bucket's change that came twice could undo one in between.
        guarantee="exactly_once" if _is_replica(asked) else asked.guarantee,
    )


def _is_replica(asked: RouterInput) -> bool:
    return bucket_of(asked.source) is not None and bucket_of(asked.dest) is not None


def _check_topics(core: Core, options: RouterOptions) -> None:
    """Both topics can be made, or none is."""
    missing = sum(name not in core.by_name for name in (options.source, options.dest))
    if missing:
        catalog.check_topic_count(core, missing)


def _topic(core: Core, name: str) -> Topic:
    topic = core.by_name.get(name)
    return topic if topic is not None else catalog.create(core, name, _default(name), None)[0]


def _default(name: str) -> TopicConfig:
    return resolve_config(None, topic=name, type_now=None)


def _lasting(core: Core, source: Topic) -> Topic:
    """Waits for a source that is on its way to the disk.

    It may be in another shard than the router, which is acknowledged only with a source that a
    crash does not take.
    """
    if source.gated:
        core.committer.sync()
    if source.dropped:
        raise DiskFull(f'no space left on the device for topic "{source.name}"; nothing changed')
    return source


def _log(
    core: Core,
    router: Router,
    ticket: Ticket[None],
    apply: catalog.Callback,
    undo: catalog.Callback,
) -> None:
    core.committer.stage(
        Op(
            router.dest, frames.ROUTER, apply, gated=True, ticket=ticket, undo=undo,
            payload=router_frames.encode(router.frame()),
        )
    )  # fmt: skip


def remove(core: Core, name: str) -> tuple[bool, Ticket[None]]:
    """Stops forwarding at once; copies that were made stay. (whether there was one, ticket)"""
    ticket: Ticket[None] = Ticket()
    key: Name = ("router", check_router_name(name))
    if key in core.leaving:
        # A full disk may refuse its end even now.
        core.committer.flush()
    router = core.routers.by_name.get(name)
    if router is None:
        core.leaving.answer(core.committer, key, ticket)
        return False, ticket

    def apply() -> None:
        core.leaving.end(ticket)
        core.routers.end(router)

    def undo() -> None:
        core.leaving.end(ticket)
        core.routers.enter(router)

    core.routers.leave(router)
    core.leaving.begin(ticket, router.dest, [key])
    core.committer.stage(
        Op(
            router.dest, frames.UNROUTE, apply, gated=True, ticket=ticket, undo=undo,
            payload=router_frames.encode(router.id),
        )
    )  # fmt: skip
    return True, ticket
