"""Every limit and tunable of the log, with its unit in its name and one default.

A setting is read from `TOPICS_<NAME>`; an unknown `TOPICS_` key is an error, because a limit
that was misspelt is a limit that does not hold.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from topics.errors import InvalidRequest

KIB = 1024
MIB = 1024 * KIB
# Without these nothing could be written or read; 0 does not mean unlimited.
AT_LEAST_ONE = ("max_batch_records", "max_record_bytes", "max_body_bytes", "max_limit", "max_claim")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    # Limits on one write (the contract's batching limits).
    max_batch_records: int = 10_000
    max_record_bytes: int = 1 * MIB
    max_body_bytes: int = 64 * MIB
    max_meta_bytes: int = 16 * KIB
    max_meta_keys: int = 64
    max_tag_bytes: int = 256
    max_node_bytes: int = 128
    max_idempotency_key_chars: int = 256
    # Limits on one read, and on one claim of jobs.
    max_limit: int = 1000
    max_claim: int = 1000
    # Limits on the instance; 0 means unlimited.
    max_topics: int = 100_000
    max_routers: int = 10_000
    max_total_bytes: int = 0
    max_idempotency_keys: int = 4_000_000
    # The write-ahead log.
    wal_shards: int = 2
    wal_file_bytes: int = 64 * MIB
    wal_reserve_bytes: int = 256 * KIB
    sync_interval_ms: int = 20
    idle_close_ms: int = 10_000
    # Sealing: unsealed records go into segments, and the log is trimmed, at the first of these.
    seal_bytes: int = 256 * MIB
    seal_records: int = 1_000_000
    seal_age_ms: int = 600_000
    own_segment_bytes: int = 1 * MIB
    segment_bytes: int = 32 * MIB
    block_bytes: int = 256 * KIB
    # Tiers.
    cold_dir: str = ""
    hot_bytes: int = 4096 * MIB
    resident_bytes: int = 1024 * MIB
    block_cache_bytes: int = 64 * MIB
    # What runs beside the engine.
    threads: bool = True
    # Keeps long-lived state out of the garbage collector, which would stop every caller for tens of
    # milliseconds with many topics. Of the whole process: meant for one that is a server.
    gc_freeze: bool = False


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Settings from `TOPICS_*`; raises InvalidRequest naming the key that can not be read."""
    values: dict[str, object] = {}
    for field in msgspec.structs.fields(Settings):
        key = "TOPICS_" + field.name.upper()
        text = environment.get(key)
        if text is None:
            continue
        try:
            values[field.name] = msgspec.convert(text, field.type, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"{key}={text!r}: {error}", setting=key) from None
    return check(Settings(**values))  # type: ignore[arg-type]


def check(settings: Settings) -> Settings:
    """Raises InvalidRequest for a value that no engine could run with."""
    for field in msgspec.structs.fields(Settings):
        value = getattr(settings, field.name)
        if isinstance(value, int) and value < 0:
            raise InvalidRequest(f"{field.name} is negative: {value}", setting=field.name)
    for name in AT_LEAST_ONE:
        if getattr(settings, name) < 1:
            raise InvalidRequest(f"{name} must be at least 1", setting=name)
    if not 1 <= settings.wal_shards <= 64:
        raise InvalidRequest("wal_shards must be from 1 to 64", setting="wal_shards")
    if settings.wal_file_bytes < 16 * KIB:
        raise InvalidRequest("wal_file_bytes must be at least 16384", setting="wal_file_bytes")
    return settings
