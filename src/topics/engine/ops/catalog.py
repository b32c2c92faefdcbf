"""Topics come, change and go; each of these is durable before it is acknowledged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import msgspec

from topics.configs import patched, resolve_config
from topics.engine.commit.core import Core
from topics.engine.commit.frame import Op, nothing
from topics.engine.commit.leaving import Name
from topics.engine.commit.ticket import Ticket
from topics.engine.ops import ceilings, cursors, lease_frames, promotion
from topics.engine.state.topic import Topic
from topics.errors import Incompatible, NotEmpty, Throttled
from topics.settings import U32_MAX
from topics.storage import frames
from topics.types import ConfigInput, ConfigPatch, QueueState, TopicConfig, TopicState, check_name


class CreateFrame(msgspec.Struct, array_like=True):
    """`ceiling` is what a topic of class disk begins with."""

    name: str
    epoch: int
    config: TopicConfig
    ceiling: int = 0


class ConfigureFrame(msgspec.Struct, array_like=True):
    config: TopicConfig
    version: int


decode_create = msgspec.msgpack.Decoder(CreateFrame).decode
decode_configure = msgspec.msgpack.Decoder(ConfigureFrame).decode


_ENCODER = msgspec.msgpack.Encoder()
Given = ConfigInput | Mapping[str, object] | None
Callback = Callable[[], None]


class Put(NamedTuple):
    """A change on its way; `before` is the config that it replaces."""

    topic: Topic
    created: bool
    ticket: Ticket[None]
    before: TopicConfig | None


def put(core: Core, name: str, given: Given) -> Put:
    """Creates the topic, or replaces its config."""
    topic = core.by_name.get(check_name(name))
    if topic is not None:
        config = resolve_config(
            given, topic=name, type_now=topic.config.type, before=topic.config_staged
        )
        return _replace(core, topic, config)
    ticket: Ticket[None] = Ticket()
    made = create(core, name, resolve_config(given, topic=name, type_now=None), ticket)
    return Put(*made, before=None)


def patch(core: Core, topic: Topic, given: ConfigPatch) -> Put:
    """Changes some fields of a config, whatever else is on its way to it."""
    core.preparing.finish_promotion(topic.id)
    name, before = topic.name, topic.config_staged
    config = resolve_config(
        patched(before, given), topic=name, type_now=topic.config.type, before=before
    )
    return _replace(core, topic, config)


def _replace(core: Core, topic: Topic, config: TopicConfig) -> Put:
    name = topic.name
    if config.type != topic.config.type:
        raise Incompatible(
            f'topic "{name}" is a {topic.config.type}; its type can not change. '
            "Delete it first, or use another name.",
            topic=name, type=topic.config.type,
        )  # fmt: skip
    core.preparing.finish_promotion(topic.id)
    ticket: Ticket[None] = Ticket()
    put = Put(topic, False, ticket, topic.config_staged)
    # While something of the topic is on its way to the disk, `config` is not the last word.
    if config == topic.config and not topic.gated:
        ticket.resolve(None)
    else:
        configure(core, topic, config, ticket)
    return put


def check_topic_count(core: Core, more: int) -> None:
    """Raises Throttled when there may not be so many more topics."""
    limit = core.settings.max_topics
    if limit and len(core.by_name) + more > limit:
        raise Throttled(
            f"there are {limit} topics, the most this server allows; delete one or raise "
            "TOPICS_MAX_TOPICS",
            limit="max_topics", max=limit,
        )  # fmt: skip


def create(
    core: Core,
    name: str,
    config: TopicConfig,
    ticket: Ticket[None] | None,
    *,
    is_open: bool = True,
) -> tuple[Topic, bool, Ticket[None]]:
    """Creates a topic; open for writes that are told before they are durable, or not yet."""
    check_topic_count(core, 1)
    if core.numbers.next_topic_id > U32_MAX:
        raise Throttled(
            f"{U32_MAX} topics were created in this directory, and their numbers are used up",
            limit="topic_ids", max=U32_MAX,
        )  # fmt: skip
    topic = Topic(core.numbers.next_topic_id, name, core.numbers.next_epoch, config)
    core.enter(topic)
    ceiling = ceilings.begin(core, topic) if is_open and config.durability == "disk" else 0
    payload = _ENCODER.encode(CreateFrame(name, topic.epoch, config, ceiling))
    ticket = ticket or Ticket()
    core.committer.stage(
        Op(
            topic, frames.CREATE, partial(topic.ceiling.rise, ceiling) if ceiling else nothing,
            gated=True, ticket=ticket, payload=payload, undo=lambda: _take_back(core, topic),
        )
    )  # fmt: skip
    return topic, True, ticket


def _take_back(core: Core, topic: Topic) -> None:
    core.leave(topic)
    # Somebody may have begun to watch it.
    core.published(topic)


def uncreate(core: Core, topic: Topic) -> None:
    """Takes back a create that nothing was staged after: its first write was refused."""
    core.committer.unstage(topic)
    core.leave(topic)


def configure(core: Core, topic: Topic, config: TopicConfig, ticket: Ticket[None]) -> None:
    before = topic.durability
    keeps_leases = lease_frames.are_kept(config) and topic.queue is not None
    if topic.gated and (before != config.durability or keeps_leases):
        # Where an operation goes depends on the class: none may be on its way when that changes.
        core.committer.sync()
        if topic.refusal is not None:
            ticket.fail(topic.refusal)
            return
    if before == "ephemeral" != config.durability:
        promotion.begin(core, topic, ticket, lambda: _change(core, topic, config, ticket))
    else:
        core.expire(topic)
        _change(core, topic, config, ticket)


def _change(core: Core, topic: Topic, config: TopicConfig, ticket: Ticket[None]) -> None:
    before, staged_before = topic.durability, (topic.config_staged, topic.durability)
    version_before = topic.version_staged
    keeps_leases = lease_frames.are_kept(config) and topic.queue is not None
    # Not the topic's own before the config is: a snapshot taken meanwhile has the old of both.
    version = topic.stage_config(config)
    payload = _ENCODER.encode(ConfigureFrame(config, version))

    def undo() -> None:
        topic.unstage_config(*staged_before, version_before)

    def apply() -> None:
        if topic.dropped:
            return
        config_before = topic.config
        topic.configure(config, version)
        if topic.queue is not None:
            topic.queue.is_logged = False
        topic.ceiling.end(topic.head)
        core.refit(topic, config_before, now_ms)

    op = Op(topic, frames.CONFIGURE, apply, gated=True, ticket=ticket, payload=payload, undo=undo)
    # So that replay expires and evicts the same, and counts the bytes that no frame has.
    op.ts = now_ms = core.clock.wall_ms()
    op.floor = topic.bytes_total
    core.committer.stage(op)
    if keeps_leases and not lease_frames.are_kept(topic.config):
        lease_frames.stage_whole(core, topic)
    if before != config.durability:
        # What follows must know whether the class has changed or the disk was too full for it.
        core.committer.flush()


def drop(core: Core, name: str, *, if_empty: bool) -> tuple[bool, Ticket[None]]:
    topic = core.by_name.get(check_name(name))
    ticket: Ticket[None] = Ticket()
    if topic is None:
        core.leaving.answer(core.committer, ("topic", name), ticket)
        return False, ticket
    core.expire(topic)
    if if_empty and (topic.live_count or topic.next_seq > topic.head + 1):
        raise NotEmpty(
            f'topic "{name}" has {topic.live_count} records; nothing was deleted',
            topic=name, count=topic.live_count,
        )  # fmt: skip
    names: list[Name] = [("topic", name)]
    names.extend(("router", router.name) for router in core.routers.touching(topic))
    core.leaving.begin(ticket, topic, names)

    def end() -> None:
        core.leaving.end(ticket)

    core.committer.stage(Op(topic, frames.DROP, end, gated=True, ticket=ticket, undo=end))
    # At once, because there is no way back from `leave` when the disk turns out to be full.
    core.committer.flush()
    if ticket.error is None:
        core.leave(topic)
        core.published(topic)
    return True, ticket


def queue_state(core: Core, topic: Topic) -> QueueState | None:
    """The counters of a queue as of now; None for a log."""
    queue = topic.queue
    if queue is None:
        return None
    queue.expire(core.monotonic_ms())
    return QueueState(*queue.counts(topic.live_count), queue.dead_lettered)


def state_of(core: Core, topic: Topic, *, with_cursors: bool = True) -> TopicState:
    """A topic as it stands; the caller has expired it to now before."""
    return TopicState(
        topic=topic.name, epoch=topic.epoch, head_seq=topic.head, earliest_seq=topic.floor,
        next_seq=topic.head + 1, count=topic.live_count, bytes=topic.live_bytes,
        config=topic.config, last_write_ts=topic.last_write_ts,
        last_read_ts=topic.last_read_ts, evict_floor=topic.evict_floor,
        cursors=cursors.page(topic) if with_cursors else [], queue=queue_state(core, topic),
    )  # fmt: skip
