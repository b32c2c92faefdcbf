"""Everything that can be seen of an instance, to be held against what is seen after a start."""

from __future__ import annotations

from typing import Any

from tests.crash.harness.class_draws import BUCKET, KEYS, TAGS
from tests.support.engines import explained, read_all
from topics.engine.engine import Engine
from topics.engine.state.topic import Topic
from topics.errors import Compacted
from topics.kv.embedded import open_bucket
from topics.testing.modelcheck import require

Seen = dict[str, Any]
Look = dict[str, Seen]
# What no topic is called: what there is of the instance as a whole.
WHOLE = "#"
COMPACTED = "compacted"


def look(engine: Engine) -> Look:
    found = {name: look_at(engine, name) for name in engine.list_topics(limit=1000)}
    routers = [
        (each.name, each.place.cursor, each.place.forwarded_total)
        for each in engine.core.routers.by_name.values()
        if "ephemeral" not in (each.source.durability, each.dest.durability)
    ]
    live = engine.core.stages.live.items()
    stages = sorted((name, stage.info.topic, stage.info.batch) for name, stage in live)
    found[WHOLE] = {"routers": sorted(routers), "stages": stages}
    return found


def look_at(engine: Engine, name: str) -> Seen:
    topic, state = engine.core.by_name[name], engine.state(name)
    pages = list(read_all(engine, name, include_tags=True))
    seen: Seen = {
        "state": (state.epoch, state.head_seq, state.earliest_seq, state.evict_floor),
        "size": (state.count, state.bytes),
        "config": state.config,
        "cursors": state.cursors,
        "account": explained(engine, name),
        "records": b",".join(bytes(page.records_json[1:-1]) for page in pages if page.records),
        "tombstones": [page.tombstone for page in pages if page.tombstone],
        "lost": (sorted(topic.lost), topic.holes),
        "tags": {tag: _seqs_with(engine, name, tag) for tag in TAGS},
        "batches": _batches(engine, topic),
        "keys": _keys(engine, topic),
    }
    if topic.queue is not None:
        seen["dead letters"] = topic.queue.dead_lettered
        if state.config.leases_durable:
            leases = {seq: (each[0], each[1]) for seq, each in topic.queue.leases.items()}
            tries = {seq: count for seq, count in topic.queue.tries.items() if count > 1}
            seen["leases"] = (state.queue, leases, tries)
    if state.config.is_bucket:
        seen["lacking"] = topic.compacted
        seen["past"] = _past(engine, topic)
    return seen


def _seqs_with(engine: Engine, name: str, tag: str) -> list[int]:
    found: list[int] = []
    at = 0
    while True:
        page = engine.range(name, from_seq=at, match=tag)
        found += [record.seq for record in page.records]
        if page.complete or page.next_from_seq == at:
            return found
        at = page.next_from_seq


def _batches(engine: Engine, topic: Topic) -> dict[str, Any]:
    held = engine.core.stages.producers.get(topic.id)
    return {} if held is None else {name: held.last(name) for name in sorted(held.names())}


def _keys(engine: Engine, topic: Topic) -> list[tuple[bytes, int, int, int]]:
    """Those in their window; others are forgotten sooner or later."""
    held = () if topic.keys is None else topic.keys.dump()
    now_ms = max(engine.core.clock.wall_ms(), topic.last_ts)
    oldest = now_ms - topic.config.idempotency_window_ms
    return sorted(each for each in held if each[3] >= oldest)


def _past(engine: Engine, topic: Topic) -> list[object]:
    """What can be told of every key as of every seq."""
    bucket = open_bucket(engine, BUCKET.partition(":")[2])
    found: list[object] = []
    for seq in range(1, topic.head + 1):
        for key in KEYS:
            try:
                found.append(bucket.entry(key, at_seq=seq))
            except Compacted:
                found.append(COMPACTED)
    return found


def require_same(before: Look, after: Look) -> None:
    """No process that ended takes anything, but from topics that are ephemeral."""
    require(before.keys() == after.keys(), f"topics: {sorted(before)}, then {sorted(after)}")
    for name, seen in before.items():
        if name != WHOLE and seen["config"].durability == "ephemeral":
            continue
        for what, value in seen.items():
            then = after[name][what]
            # A start knows of no key by itself what compaction took of it: it tells less, no other.
            is_same = _is_past_of(value, then) if what == "past" else then == value
            require(is_same, f"{what} of {name} before and after the start:\n{value}\n{then}")


def _is_past_of(before: list[object], after: list[object]) -> bool:
    pairs = zip(before, after, strict=True)
    return all(then in (value, COMPACTED) for value, then in pairs)
