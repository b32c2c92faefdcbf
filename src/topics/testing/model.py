"""The model: what a log should answer, kept as plain lists and dictionaries.

It shares nothing with the engine but the words of the data model. A topic is the list of every seq
it ever assigned, each with its state and, while that is known, its content; floors, counts and
tombstones are computed from that list by their definitions, slowly, every time they are asked for.

A caller does something to the engine and then tells the model how it ended: acknowledged (call the
method here and compare its answer), rejected (call nothing), unknown (`in_flight`, see
`modelcheck.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from topics.configs import resolve_config
from topics.types import TopicConfig

INVOLUNTARY = {
    "evicted": "cap", "expired": "ttl", "crash": "crash", "corruption": "corruption",
    "source_trim": "source_trim", "restart": "restart",
}  # fmt: skip
HOLES = ("crash", "corruption", "source_trim", "restart")
LIMIT_DEFAULT = 256


@dataclass(slots=True)
class Entry:
    """One assigned seq. A hole has no content (`data` is None)."""

    state: str
    ts: int = 0
    data: str | None = None
    tag: str | None = None
    node: str | None = None
    meta: Mapping[str, str] | None = None
    # First seq of the write it came with: a write is there as a whole or not at all.
    write: int = 0
    # Whether it was promised to survive a machine crash, and whether it ever reached the log.
    is_durable: bool = False
    is_resident: bool = False

    def content(self, seq: int) -> dict[str, Any]:
        shown: dict[str, Any] = {"$seq": seq, "$ts": self.ts}
        if self.node is not None:
            shown["$node"] = self.node
        shown["data"] = json.loads(self.data or "null")
        if self.meta:
            shown["meta"] = dict(self.meta)
        return shown

    def size(self, seq: int) -> int:
        """Bytes of the rendered record and the comma behind it."""
        shown = self.content(seq)
        meta = shown.pop("meta", None)
        del shown["data"]
        text = json.dumps(shown, separators=(",", ":"), ensure_ascii=False)[:-1]
        text += f',"data":{self.data}'
        if meta is not None:
            text += ',"meta":' + json.dumps(meta, separators=(",", ":"), ensure_ascii=False)
        return len((text + "},").encode())


@dataclass(frozen=True, slots=True)
class Operation:
    """Something asked of the engine: `kind` is append, delete, put or drop."""

    kind: str
    topic: str
    records: tuple[Mapping[str, Any], ...] = ()
    key: str | None = None
    config: Mapping[str, object] | None = None
    before: int | None = None
    match: str | None = None
    if_empty: bool = False


@dataclass(slots=True)
class ModelTopic:
    name: str
    epoch: int
    config: TopicConfig
    entries: list[Entry] = field(default_factory=list)
    last_ts: int = 0
    keys: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    # Keys of records that went with a process: whether they are remembered is not promised.
    doubtful: set[str] = field(default_factory=set)

    def copy(self) -> ModelTopic:
        entries = [replace(entry) for entry in self.entries]
        return replace(self, entries=entries, keys=dict(self.keys), doubtful=set(self.doubtful))

    @property
    def head(self) -> int:
        return len(self.entries)

    def live(self) -> list[int]:
        return [seq for seq, entry in self.numbered() if entry.state == "live"]

    def numbered(self) -> Iterator[tuple[int, Entry]]:
        return iter(enumerate(self.entries, 1))

    @property
    def earliest(self) -> int:
        return min(self.live(), default=self.head + 1)

    @property
    def evict_floor(self) -> int:
        earliest = self.earliest
        lost = [seq for seq, e in self.numbered() if e.state in INVOLUNTARY and seq < earliest]
        return max(lost, default=0) + 1

    @property
    def size(self) -> int:
        return sum(e.size(seq) for seq, e in self.numbered() if e.state == "live")

    def promote(self) -> None:
        """Ephemeral until now: from here on everything is as durable as the log."""
        for key, (first, count, _) in self.keys.items():
            whole = [self.entries[seq - 1].state == "live" for seq in range(first, first + count)]
            if not all(whole):
                self.doubtful.add(key)
        for entry in self.entries:
            entry.is_resident, entry.is_durable = False, True

    def matches(self, seq: int, operation: Operation) -> bool:
        """Whether a delete names this seq."""
        entry = self.entries[seq - 1]
        if operation.before is not None and seq >= operation.before:
            return False
        if operation.match is None:
            return True
        if entry.tag is None:
            return False
        if operation.match.endswith("*"):
            return entry.tag.startswith(operation.match[:-1])
        return entry.tag == operation.match

    # -- loss --------------------------------------------------------------------------------

    def expire(self, now_ms: int) -> None:
        ttl = self.config.ttl_ms
        for _, entry in self.numbered():
            if ttl and entry.state == "live" and now_ms - entry.ts > ttl:
                entry.state = "expired"

    def evict(self) -> None:
        live = self.live()
        cap = self.config.cap_records
        for seq in live[: max(len(live) - cap, 0)] if cap else ():
            self.entries[seq - 1].state = "evicted"
        while self.config.cap_bytes and self.size > self.config.cap_bytes:
            self.entries[self.earliest - 1].state = "evicted"

    # -- reading -----------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch, "head_seq": self.head, "earliest_seq": self.earliest,
            "next_seq": self.head + 1, "count": len(self.live()), "bytes": self.size,
            "evict_floor": self.evict_floor,
        }  # fmt: skip

    def explain(self, first: int, last: int) -> list[tuple[int, int, str]]:
        out: list[tuple[int, int, str]] = []
        for seq in range(first, last + 1):
            inside = 1 <= seq <= self.head
            state = self.entries[seq - 1].state if inside else "unassigned"
            if out and out[-1][2] == state:
                out[-1] = (out[-1][0], seq, state)
            else:
                out.append((seq, seq, state))
        return out

    def diff(
        self,
        from_seq: int,
        *,
        limit: int = 0,
        nodes: Sequence[str] = (),
        epoch: int | None = None,
        upto: int | None = None,
    ) -> dict[str, Any]:
        """One page; `upto` is where a read stopped of its own accord."""
        told, cursor = self._tombstone(from_seq, epoch)
        limit = limit or LIMIT_DEFAULT
        stop = self.head if upto is None else upto
        for seq in range(cursor + 1, stop + 1):
            if self.entries[seq - 1].state in HOLES:
                stop = seq - 1
                break
        scanned = [seq for seq in self.live() if cursor < seq <= stop][:limit]
        hidden = set(nodes) if self.config.dedupe_node else set()
        shown = [s for s in scanned if self.entries[s - 1].node not in hidden]
        return {
            "records": [self.entries[seq - 1].content(seq) for seq in shown],
            "next_from_seq": scanned[-1] if len(scanned) == limit else max(cursor, stop),
            "head_seq": self.head,
            "earliest_seq": self.earliest,
            "tombstone": told,
        }

    def _tombstone(self, from_seq: int, epoch: int | None) -> tuple[dict[str, Any] | None, int]:
        """What the reader is told, and where it goes on."""
        earliest, head = self.earliest, self.head
        told: dict[str, Any] = {"earliest_seq": earliest, "head_seq": head}
        if from_seq > head or (epoch is not None and epoch != self.epoch):
            told.update(gap_from=1, gap_to=head, reason="recreated", missed_estimate=0)
            return told, earliest - 1
        states = [e.state for _, e in self.numbered()]
        if from_seq + 1 < self.evict_floor:
            lost = [s for s in states[from_seq : earliest - 1] if s in INVOLUNTARY]
            reasons = {INVOLUNTARY[state] for state in lost}
            told.update(
                gap_from=from_seq + 1, gap_to=earliest - 1, missed_estimate=len(lost),
                reason=reasons.pop() if len(reasons) == 1 else "mixed",
            )  # fmt: skip
            return told, earliest - 1
        if from_seq + 1 < earliest:
            return None, earliest - 1
        if from_seq < head and states[from_seq] in HOLES:
            end = from_seq + 1
            while end < head and states[end] == states[from_seq]:
                end += 1
            told.update(
                gap_from=from_seq + 1, gap_to=end, missed_estimate=end - from_seq,
                reason=INVOLUNTARY[states[from_seq]],
            )  # fmt: skip
            return told, end
        return None, from_seq


class Model:
    def __init__(self) -> None:
        self.topics: dict[str, ModelTopic] = {}
        # Every epoch that was ever seen: none may come again for another instance.
        self.epochs: set[int] = set()
        self.in_flight: list[Operation] = []

    def copy(self) -> Model:
        other = Model()
        other.topics = {name: topic.copy() for name, topic in self.topics.items()}
        other.epochs = set(self.epochs)
        other.in_flight = list(self.in_flight)
        return other

    def note_epoch(self, epoch: int) -> None:
        assert epoch not in self.epochs, f"epoch {epoch} was used before"
        self.epochs.add(epoch)

    def made_durable(self) -> None:
        """Everything acknowledged so far was synced."""
        for topic in self.topics.values():
            for entry in topic.entries:
                entry.is_durable = not entry.is_resident

    # -- what is acknowledged ----------------------------------------------------------------

    def put(self, operation: Operation, now_ms: int, *, epoch: int) -> bool:
        """The acknowledged config; True when the topic is new."""
        name = operation.topic
        topic = self.topics.get(name)
        type_now = None if topic is None else topic.config.type
        config = resolve_config(dict(operation.config or {}), topic=name, type_now=type_now)
        if topic is None:
            self.note_epoch(epoch)
            self.topics[name] = ModelTopic(name, epoch, config)
            return True
        assert topic.epoch == epoch, f"{name}: epoch changed from {topic.epoch} to {epoch}"
        if config != topic.config:
            topic.expire(now_ms)
            if topic.config.durability == "ephemeral" != config.durability:
                topic.promote()
            topic.config = config
            topic.expire(now_ms)
            topic.evict()
            if config.durability == "ephemeral":
                # From now on nothing of it is promised beyond this process.
                for entry in topic.entries:
                    entry.is_resident, entry.is_durable = True, False
        return False

    def drop(self, name: str) -> bool:
        return self.topics.pop(name, None) is not None

    def rejects(self, operation: Operation, now_ms: int) -> str | None:
        """The code with which an append must be refused, or None."""
        topic = self.topics.get(operation.topic)
        if topic is None or self._deduped(topic, operation, now_ms) is not None:
            return None
        topic.expire(now_ms)
        config = topic.config
        if config.discard != "reject":
            return None
        new = self._entries(topic, operation, now_ms)
        size = sum(entry.size(seq) for seq, entry in enumerate(new, topic.head + 1))
        caps = ((config.cap_records, len(new), len(topic.live())),
                (config.cap_bytes, size, topic.size))  # fmt: skip
        if any(cap and added > cap for cap, added, _ in caps):
            return "record_too_large"
        if any(cap and held + added > cap for cap, added, held in caps):
            return "topic_full"
        return None

    def append(self, operation: Operation, now_ms: int, *, epoch: int) -> dict[str, Any]:
        name = operation.topic
        created = name not in self.topics
        if created:
            self.put(operation, now_ms, epoch=epoch)
        topic = self.topics[name]
        earlier = self._deduped(topic, operation, now_ms)
        if earlier is not None:
            first, count, ts = earlier
            return _answer(topic, first, count, ts, created=False, deduped=True)
        topic.expire(now_ms)
        new = self._entries(topic, operation, now_ms)
        first, ts = topic.head + 1, new[0].ts
        topic.entries += new
        topic.last_ts = ts
        if operation.key is not None:
            topic.keys[operation.key] = (first, len(new), ts)
        topic.evict()
        return _answer(topic, first, len(new), ts, created=created, deduped=False)

    def delete(self, operation: Operation, now_ms: int) -> dict[str, Any]:
        topic = self.topics[operation.topic]
        topic.expire(now_ms)
        gone = [seq for seq in topic.live() if topic.matches(seq, operation)]
        for seq in gone:
            topic.entries[seq - 1].state = "deleted"
        return {
            "deleted": len(gone), "earliest_seq": topic.earliest, "head_seq": topic.head,
            "count": len(topic.live()), "bytes": topic.size,
        }  # fmt: skip

    def _deduped(
        self, topic: ModelTopic, operation: Operation, now_ms: int
    ) -> tuple[int, int, int] | None:
        earlier = topic.keys.get(operation.key) if operation.key is not None else None
        now_ms = max(now_ms, topic.last_ts)
        if earlier is None or now_ms - earlier[2] > topic.config.idempotency_window_ms:
            return None
        return earlier

    def _entries(self, topic: ModelTopic, operation: Operation, now_ms: int) -> list[Entry]:
        ts = max(now_ms, topic.last_ts)
        return entries_of(operation, ts, first=topic.head + 1, config=topic.config)


def entries_of(operation: Operation, ts: int, *, first: int, config: TopicConfig) -> list[Entry]:
    """The records of an append as they will stand in the log."""
    return [
        Entry(
            "live", ts, json.dumps(record["data"], separators=(",", ":"), ensure_ascii=False),
            record.get("tag"), record.get("node"), record.get("meta"), first,
            is_durable=config.durability == "fsync", is_resident=config.durability == "ephemeral",
        )
        for record in operation.records
    ]  # fmt: skip


def _answer(
    topic: ModelTopic, first: int, count: int, ts: int, *, created: bool, deduped: bool
) -> dict[str, Any]:
    return {
        "epoch": topic.epoch, "first_seq": first, "last_seq": first + count - 1,
        "head_seq": topic.head, "count": count, "ts": ts, "created": created, "deduped": deduped,
    }  # fmt: skip
