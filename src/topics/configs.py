"""Configs of topics: from what a client writes to what stands, with what a bucket adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

import msgspec
from msgspec import UNSET, UnsetType

from topics.errors import Conflicting, InvalidRequest
from topics.types import (
    U64,
    U64_MAX,
    ConfigInput,
    ConfigPatch,
    Discard,
    Durability,
    TopicConfig,
    TopicType,
    bucket_of,
    check_name,
    clamp,
    convert,
)

HISTORY_MAX = 64
GRACE_MS = 10 * 86_400_000

_U64_FIELDS = (
    "ttl_ms", "cap_records", "cap_bytes", "idempotency_window_ms", "lease_ms", "claim_jitter_ms",
    "max_deliveries",
)  # fmt: skip
LEASE_MS_MIN, LEASE_MS_MAX = 100, 86_400_000
CLAIM_JITTER_MS_MAX = 5_000


# Shown: a bucket that would forget is refused, in words.
_DISCARD = msgspec.Meta(extra_json_schema={"default": "reject"})


class ConfigFields(TypedDict, total=False):
    """The config of a topic; what is left out has its default."""

    type: TopicType
    ttl_ms: int
    cap_records: int
    cap_bytes: int
    discard: Discard
    durable: bool
    durability: Durability
    priority: int | None
    auto_priority: bool
    auto_create: bool
    idempotency_window_ms: int
    dedupe_node: bool
    lease_ms: int
    claim_jitter_ms: int
    max_deliveries: int
    dead_letter: str | None
    leases_durable: bool


class BucketInput(ConfigInput, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A bucket's config as a client writes it."""

    discard: Annotated[Discard | UnsetType, _DISCARD] = UNSET
    history: Annotated[int, msgspec.Meta(ge=1, le=HISTORY_MAX)] = 1
    grace_ms: U64 = GRACE_MS


def config_input(given: Mapping[str, object]) -> ConfigInput:
    checked: ConfigInput = convert(dict(given), ConfigInput, "config")
    return checked


def check_config(given: ConfigInput) -> None:
    """Raises InvalidRequest for a value that no topic's config can have."""
    for field in _U64_FIELDS:
        if getattr(given, field) > U64_MAX:
            raise InvalidRequest(f"config: {field} must be at most 2^64 - 1")
    if given.dead_letter is not None:
        check_name(given.dead_letter, "dead_letter")


def resolve_config(
    given: ConfigInput | Mapping[str, object] | None,
    *,
    topic: str,
    type_now: TopicType | None,
    before: TopicConfig | None = None,
) -> TopicConfig:
    """Merges `given` over the defaults; `type_now` stands where the config names no type.

    A bucket keeps what only its own calls say: what `before` has of it.
    """
    if not isinstance(given, ConfigInput):
        return resolve_config(
            config_input(given or {}), topic=topic, type_now=type_now, before=before
        )
    check_config(given)
    if given.dead_letter == topic:
        raise InvalidRequest("dead_letter must name another topic", dead_letter=topic)
    durability: Durability = given.durability or ("fsync" if given.durable else "disk")
    is_bucket = bucket_of(topic) is not None
    discard: Discard = "reject" if is_bucket else "old"
    history: int | UnsetType = UNSET
    grace_ms: int | UnsetType = UNSET
    if is_bucket:
        _check_bucket(given, topic)
        history, grace_ms = _kept_by_bucket(given, before)
    return TopicConfig(
        type=given.type or type_now or "log",
        ttl_ms=given.ttl_ms,
        cap_records=given.cap_records,
        cap_bytes=given.cap_bytes,
        discard=discard if given.discard is UNSET else given.discard,
        durable=durability == "fsync",
        durability=durability,
        priority=None if given.priority is None else clamp(given.priority, -1000, 1000),
        auto_priority=given.auto_priority,
        auto_create=given.auto_create,
        idempotency_window_ms=given.idempotency_window_ms,
        dedupe_node=given.dedupe_node,
        lease_ms=clamp(given.lease_ms, LEASE_MS_MIN, LEASE_MS_MAX),
        claim_jitter_ms=clamp(given.claim_jitter_ms, 0, CLAIM_JITTER_MS_MAX),
        max_deliveries=given.max_deliveries,
        dead_letter=given.dead_letter,
        leases_durable=given.leases_durable,
        history=history,
        grace_ms=grace_ms,
    )


def _check_bucket(given: ConfigInput, topic: str) -> None:
    """Raises for what a bucket can not be: a queue, or one that forgets."""
    wrong = [
        name
        for name, is_wrong in (
            ("type", given.type == "queue"),
            ("ttl_ms", given.ttl_ms != 0),
            ("discard", given.discard == "old"),
        )
        if is_wrong
    ]
    if not wrong:
        return
    said = f"a bucket is a log that rejects when it is full and forgets nothing: {wrong[0]}"
    if isinstance(given, BucketInput):
        raise InvalidRequest(f"config: {said}")
    raise Conflicting(f'topic "{topic}" is one, and {said} can not be changed', topic=topic)


def _kept_by_bucket(given: ConfigInput, before: TopicConfig | None) -> tuple[int, int]:
    if isinstance(given, BucketInput):
        if given.grace_ms > U64_MAX:
            raise InvalidRequest("config: grace_ms must be at most 2^64 - 1")
        return given.history, given.grace_ms
    history = UNSET if before is None else before.history
    grace_ms = UNSET if before is None else before.grace_ms
    return 1 if history is UNSET else history, GRACE_MS if grace_ms is UNSET else grace_ms


def patched(config: TopicConfig, patch: ConfigPatch) -> ConfigInput:
    """The config that `patch` makes of one that stands, as a client could write it."""
    given, kept = patch.given(), msgspec.structs.asdict(config)
    del kept["durable"], kept["history"], kept["grace_ms"]
    # The class says more than its shorthand: a word about either is about both, but a shorthand
    # that says what is so already must not make `disk` of the other classes it is false for.
    if "durability" in given or given.get("durable", config.durable) != config.durable:
        del kept["durability"]
    return ConfigInput(**{**kept, **given})


def config_changes(before: TopicConfig, now: TopicConfig) -> dict[str, tuple[Any, Any]]:
    """What differs: (before, now) by field."""
    pairs = zip(msgspec.structs.astuple(before), msgspec.structs.astuple(now), strict=True)
    named = zip(TopicConfig.__struct_fields__, pairs, strict=True)
    return {name: pair for name, pair in named if pair[0] != pair[1]}
