"""Every limit and tunable of the log, with its unit in its name and one default.

A setting is read from `TOPICS_<NAME>`; an unknown `TOPICS_` key is an error, because a limit
that was misspelt is a limit that does not hold.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from topics.errors import InvalidRequest

PREFIX = "TOPICS_"
KIB = 1024
MIB = 1024 * KIB
# Files of the log where nobody says, outside of a server: they are allocated when they are made.
EMBEDDED_FILE_BYTES = 4 * MIB
# Without these nothing could be written or read, or checkpoints would never end; 0 does not mean
# unlimited.
AT_LEAST_ONE = (
    "max_batch_records", "max_record_bytes", "max_body_bytes", "max_limit", "max_claim",
    "seal_bytes", "seal_records", "segment_bytes", "block_bytes", "max_producers",
)  # fmt: skip

# What the fields hold in which values end (docs/formats.md). A larger one would be found out when
# the first frame of that size is put together, by a client.
U16_MAX = 2**16 - 1
U32_MAX = 2**32 - 1
# What a record has around its data and meta, without its node; each byte of that may be escaped.
RECORD_EXTRA_BYTES = 128
NODE_ESCAPED = 6
# A job in a frame of leases: its seq, its number, its deliveries.
LEASE_BYTES = 24
# A key in a snapshot: its digest, seq, count, time.
KEY_BYTES = 48
# Timers count no further; nobody waits for longer.
MS_MAX = 10 * 365 * 24 * 3600 * 1000
I64_MAX = 2**63 - 1
AT_MOST = {
    "max_batch_records": U16_MAX,
    # The largest number stands for none.
    "max_tag_bytes": U16_MAX - 1,
    "max_node_bytes": U16_MAX - 1,
    "max_claim": U32_MAX // LEASE_BYTES,
    "max_idempotency_keys": U32_MAX // KEY_BYTES,
    "max_record_bytes": U32_MAX // 2,
    # A snapshot has them in one part for each topic.
    "max_producers": 1_000_000,
    # A group has dozens of them when a class changes.
    "block_bytes": 64 * MIB,
    # A start reads one at a time as a whole.
    "wal_file_bytes": 4096 * MIB,
    "wal_shards": 64,
}


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
    max_staged_bytes: int = 4096 * MIB
    # Producers whose last batch a topic remembers in full.
    max_producers: int = 10_000
    stage_ttl_ms: int = 3_600_000
    # The write-ahead log.
    wal_shards: int = 1
    wal_file_bytes: int = 64 * MIB
    wal_reserve_bytes: int = 256 * KIB
    sync_interval_ms: int = 20
    idle_close_ms: int = 10_000
    # Sealing: unsealed records go into segments, and the log is trimmed, at the first of these.
    seal_bytes: int = 256 * MIB
    seal_records: int = 1_000_000
    seal_age_ms: int = 600_000
    # How long bytes of what was deleted, evicted or expired may stay on the disk; 0 for any time.
    rewrite_age_ms: int = 86_400_000
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


# Asked once: it evaluates every annotation, which took an eighth of the time to open an engine.
_FIELDS = msgspec.structs.fields(Settings)


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Settings from `TOPICS_*`; raises InvalidRequest naming the key that can not be read."""
    values: dict[str, object] = {}
    for field in _FIELDS:
        text = environment.get(PREFIX + field.name.upper())
        if text is None:
            continue
        try:
            values[field.name] = msgspec.convert(text, field.type, strict=False)
        except msgspec.ValidationError as error:
            raise refused(field.name, f"is {text!r}: {error}") from None
    return check(Settings(**values))  # type: ignore[arg-type]


def check(settings: Settings) -> Settings:
    """Raises InvalidRequest, by name, for what no engine could run with or no file could hold."""
    for field in _FIELDS:
        name, value = field.name, getattr(settings, field.name)
        if isinstance(value, int):
            check_number(name, value, is_ms=name.endswith("_ms"), maximum=AT_MOST.get(name))
    for name in AT_LEAST_ONE:
        if getattr(settings, name) < 1:
            raise refused(name, "must be at least 1")
    if settings.wal_shards < 1:
        raise refused("wal_shards", "must be from 1 to 64")
    if settings.wal_file_bytes < 16 * KIB:
        raise refused("wal_file_bytes", "must be at least 16384")
    if settings.wal_reserve_bytes > settings.wal_file_bytes // 2:
        # Each write would begin a file of its own.
        raise refused(
            "wal_reserve_bytes",
            f"is {settings.wal_reserve_bytes}, more than half of TOPICS_WAL_FILE_BYTES, which is "
            f"{settings.wal_file_bytes}: lower the one or raise the other",
        )
    extra_bytes = RECORD_EXTRA_BYTES + NODE_ESCAPED * settings.max_node_bytes
    frame_bytes = settings.max_body_bytes + settings.max_batch_records * extra_bytes
    if frame_bytes > U32_MAX:
        raise refused(
            "max_body_bytes",
            f"is {settings.max_body_bytes}: with TOPICS_MAX_BATCH_RECORDS of "
            f"{settings.max_batch_records} and TOPICS_MAX_NODE_BYTES of {settings.max_node_bytes} "
            f"one write could take {frame_bytes} bytes in the log, which holds {U32_MAX} of one",
        )
    return settings


def check_number(name: str, value: int, *, is_ms: bool, maximum: int | None = None) -> None:
    """Raises InvalidRequest, by name, for a number that no part of the program could count to."""
    if value < 0:
        raise refused(name, f"is negative: {value}")
    most = (MS_MAX if is_ms else I64_MAX) if maximum is None else maximum
    if value > most:
        raise refused(name, f"is {value}; it must be at most {most}")


def refused(name: str, why: str) -> InvalidRequest:
    """For a setting that can not be what it is; its variable is the first word."""
    return InvalidRequest(f"{PREFIX}{name.upper()} {why}", setting=name)


def parse_bool(text: str) -> bool | None:
    """true, false, 1 or 0, in any case; None for anything else."""
    return {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
