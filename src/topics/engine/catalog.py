"""Topics come, change and go. Each of these is durable before it is acknowledged, in every class."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from topics.engine import retention
from topics.engine.commit import Op, Ticket
from topics.engine.core import Core, nothing
from topics.engine.replay import ConfigureFrame, CreateFrame
from topics.engine.topic import Topic
from topics.errors import Incompatible, NotEmpty, Throttled
from topics.storage import frames
from topics.types import RESTART, ConfigInput, TopicConfig, check_name, resolve_config

_ENCODER = msgspec.msgpack.Encoder()
Given = ConfigInput | Mapping[str, object] | None


def put(core: Core, name: str, given: Given) -> tuple[Topic, bool, Ticket]:
    """Creates the topic, or replaces its config; (topic, created, ticket)."""
    topic = core.by_name.get(check_name(name))
    ticket = Ticket()
    if topic is None:
        return create(core, name, resolve_config(given, topic=name, type_now=None), ticket)
    config = resolve_config(given, topic=name, type_now=topic.config.type)
    if config.type != topic.config.type:
        raise Incompatible(
            f'topic "{name}" is a {topic.config.type}; its type can not change. '
            "Delete it first, or use another name.",
            topic=name, type=topic.config.type,
        )  # fmt: skip
    if config == topic.config:
        ticket.resolve(None)
        return topic, False, ticket
    configure(core, topic, config, ticket)
    return topic, False, ticket


def create(
    core: Core, name: str, config: TopicConfig, ticket: Ticket | None
) -> tuple[Topic, bool, Ticket]:
    limit = core.settings.max_topics
    if limit and len(core.by_name) >= limit:
        raise Throttled(
            f"there are {limit} topics, the most this server allows; delete one or raise "
            "TOPICS_MAX_TOPICS",
            limit="max_topics", max=limit,
        )  # fmt: skip
    topic = Topic(core.next_topic_id, name, core.next_epoch, config)
    core.enter(topic)
    payload = _ENCODER.encode(CreateFrame(name, topic.epoch, config))
    ticket = ticket or Ticket()
    core.committer.stage(
        Op(
            topic, frames.CREATE, nothing, gated=True, ticket=ticket, payload=payload,
            undo=lambda: core.leave(topic),
        )
    )  # fmt: skip
    return topic, True, ticket


def uncreate(core: Core, topic: Topic) -> None:
    """Takes back a create that nothing was staged behind: its first write was refused."""
    core.committer.unstage(topic)
    core.leave(topic)


def configure(core: Core, topic: Topic, config: TopicConfig, ticket: Ticket) -> None:
    core.expire(topic)
    before = topic.config
    if before.durability == "ephemeral" != config.durability and topic.head >= topic.floor:
        # What was written so far is resident only: the log must know that it will be gone.
        core.committer.stage(
            Op(
                topic, frames.HOLE, nothing, gated=False, first=topic.floor, floor=topic.head,
                flags=RESTART,
            )
        )  # fmt: skip
    version = topic.config_version + 1
    topic.config_version = version
    payload = _ENCODER.encode(ConfigureFrame(config, version))

    def apply() -> None:
        topic.config = config
        # Durable up to here; the next write of class disk promises anew.
        topic.ceiling_seq = topic.head
        topic.ask_seq = topic.ask_bytes = 0
        core.expire(topic)
        retention.evict(topic, core.segments.columns_or_none)
        core.recount(topic)

    core.committer.stage(
        Op(topic, frames.CONFIGURE, apply, gated=True, ticket=ticket, payload=payload)
    )


def drop(core: Core, name: str, *, if_empty: bool) -> tuple[bool, Ticket]:
    topic = core.by_name.get(check_name(name))
    ticket = Ticket()
    if topic is None:
        ticket.resolve(None)
        return False, ticket
    core.expire(topic)
    if if_empty and (topic.live_count or topic.next_seq > topic.head + 1):
        raise NotEmpty(
            f'topic "{name}" has {topic.live_count} records; nothing was deleted',
            topic=name, count=topic.live_count,
        )  # fmt: skip
    core.committer.stage(Op(topic, frames.DROP, nothing, gated=True, ticket=ticket))
    core.leave(topic)
    return True, ticket
