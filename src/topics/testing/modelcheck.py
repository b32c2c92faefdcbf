"""Judging a recovered engine by what the model knows was promised before.

A machine crash may take what was never promised, so recovery is not predicted but checked: each
seq must have a state that the promises allow, and what survived must be what was written. Then
`adopt` makes that state the model's own, and from there on every answer is predicted exactly.

`ending` says how the process before ended: "clean", "kill" (nothing written is lost) or "crash"
(of the machine: only what was synced is sure).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from topics.configs import resolve_config
from topics.engine.engine import Engine
from topics.testing.model import HOLES, Entry, Model, ModelTopic, Operation, entries_of
from topics.types import TopicConfig

Ending = Literal["clean", "kill", "crash"]
PAGE_LIMIT = 7


class Violation(AssertionError):
    """A promise was broken; the message says which, and where."""


def require(condition: bool, message: str) -> None:
    if not condition:
        raise Violation(message)


@dataclass(slots=True)
class Seen:
    """Everything a recovered engine says of one topic."""

    state: dict[str, Any]
    config: TopicConfig
    states: list[str]
    records: dict[int, dict[str, Any]]
    tags: dict[int, str | None] = field(default_factory=dict)


def look(engine: Engine, name: str) -> Seen:
    """Reads a topic in every way there is and checks that the ways agree."""
    shown = engine.state(name)
    state = msgspec.structs.asdict(shown)
    head = shown.head_seq
    states: list[str] = []
    for part in engine.explain(name, 1, head) if head else ():
        require(part.first == len(states) + 1, f"{name}: explain leaves out {len(states) + 1}")
        states += [part.state] * (part.last - part.first + 1)
    require(len(states) == head, f"{name}: explain covers {len(states)} of {head} seqs")
    records: dict[int, dict[str, Any]] = {}
    tags: dict[int, str | None] = {}
    cursor = 0
    while cursor < head:
        page = engine.diff(name, from_seq=cursor, limit=PAGE_LIMIT, include_tags=True)
        for record in json.loads(page.records_json):
            seq = record["$seq"]
            require(seq not in records, f"{name}: seq {seq} was delivered twice")
            tags[seq] = record.pop("$tag", None)
            records[seq] = record
        require(page.next_from_seq > cursor, f"{name}: the cursor stands still at {cursor}")
        cursor = page.next_from_seq
    live = [seq for seq, state in enumerate(states, 1) if state == "live"]
    require(sorted(records) == live, f"{name}: reads give {sorted(records)}, explain says {live}")
    require(shown.count == len(live), f"{name}: count {shown.count}, live {len(live)}")
    return Seen(state, shown.config, states, records, tags)


class Judge:
    """One recovered engine against one model; `adopt` when nothing was broken."""

    def __init__(self, model: Model, engine: Engine, ending: Ending, now_ms: int) -> None:
        self.model = model
        self.engine = engine
        self.ending = ending
        self.now_ms = now_ms
        self._newest_epoch = max(model.epochs, default=0)

    def check(self) -> None:
        """Raises Violation, or brings the model to what was recovered."""
        there = set(self.engine.list_topics(limit=10_000))
        asked = {operation.topic for operation in self.model.in_flight}
        for name in sorted(there | asked | set(self.model.topics)):
            operations = [o for o in self.model.in_flight if o.topic == name]
            before = self.model.topics.get(name)
            if name not in there:
                dropped = before is None or any(o.kind == "drop" for o in operations)
                require(dropped, f"{name}: the topic is gone")
                self.model.topics.pop(name, None)
                continue
            after = self._topic(name, before, operations)
            # The time of a record that was lost is lost with it; times go on from what is there.
            after.last_ts = self.engine.core.by_name[name].last_ts
            times = [entry.ts for entry in after.entries if entry.state == "live"]
            require(after.last_ts >= max(times, default=0), f"{name}: time went back")
            self.model.topics[name] = after
        self.model.in_flight.clear()

    def _topic(
        self, name: str, before: ModelTopic | None, operations: list[Operation]
    ) -> ModelTopic:
        seen = look(self.engine, name)
        epoch = seen.state["epoch"]
        drops = [index for index, o in enumerate(operations) if o.kind == "drop"]
        if before is not None and drops and epoch != before.epoch:
            before, operations = None, operations[drops[-1] + 1 :]
        if before is None:
            creates = any(o.kind in ("put", "append") for o in operations)
            require(creates, f"{name}: the topic came back")
            # Others that were created beside it may have been acknowledged before it.
            require(epoch not in self.model.epochs, f"{name}: epoch {epoch} was used before")
            self.model.epochs.add(epoch)
            before = ModelTopic(name, epoch, seen.config)
        elif epoch != before.epoch:
            self._check_new_epoch(before, operations)
            self._fresh_epoch(name, epoch)
            if seen.config.durability == "ephemeral":
                return self._restarted(before, seen)
            return self._any_prefix(before, seen, operations)
        else:
            self._check_floors(before, seen, operations)
        was = [entry.state for entry in before.entries]
        if before.config.durability == "ephemeral" != seen.config.durability:
            before.promote()
        after = ModelTopic(name, epoch, seen.config, [], before.last_ts)
        self._check_config(before, seen, operations)
        self._check_known(before, seen, operations, after)
        self._check_new(before, seen, operations, after)
        self._check_given_back(before, was, after)
        self._check_crash_is_suffix(was, after)
        self._keep_keys(before, operations, after)
        return after

    # -- epochs ------------------------------------------------------------------------------

    def _fresh_epoch(self, name: str, epoch: int) -> None:
        fresh = epoch > self._newest_epoch and epoch not in self.model.epochs
        require(fresh, f"{name}: epoch {epoch} is not new, seen {sorted(self.model.epochs)[-3:]}")
        self.model.epochs.add(epoch)

    def _check_new_epoch(self, before: ModelTopic, operations: list[Operation]) -> None:
        classes = self._classes(before, operations)
        lost = {"crash": {"memory", "ephemeral"}, "kill": {"ephemeral"}, "clean": set[str]()}
        allowed = bool(classes & lost[self.ending])
        require(allowed, f"{before.name}: new epoch after {self.ending} in class {classes}")

    def _classes(self, before: ModelTopic, operations: list[Operation]) -> set[str]:
        return {config.durability for config in self._configs(before, operations)}

    def _configs(self, before: ModelTopic, operations: list[Operation]) -> list[TopicConfig]:
        puts = [o for o in operations if o.kind == "put"]
        given = [
            resolve_config(dict(o.config or {}), topic=before.name, type_now=before.config.type)
            for o in puts
        ]
        return [before.config, *given]

    def _restarted(self, before: ModelTopic, seen: Seen) -> ModelTopic:
        """An ephemeral topic behind a new epoch: nothing of it may be left."""
        require(not seen.records, f"{before.name}: ephemeral records came back")
        after = ModelTopic(before.name, seen.state["epoch"], seen.config, [], before.last_ts)
        after.entries = [Entry(state) for state in seen.states]
        after.doubtful = before.doubtful | set(before.keys)
        return after

    def _any_prefix(
        self, before: ModelTopic, seen: Seen, operations: list[Operation]
    ) -> ModelTopic:
        """A memory topic behind a new epoch: whatever is there was written, at that seq."""
        written = list(before.entries)
        for o in operations:
            if o.kind == "append":
                first = len(written) + 1
                written += entries_of(o, 0, first=first, config=before.config)
        after = ModelTopic(before.name, seen.state["epoch"], seen.config, [], before.last_ts)
        for seq, state in enumerate(seen.states, 1):
            if state == "live":
                require(seq <= len(written), f"{before.name}: seq {seq} was never written")
                # Not even a delete is promised to outlive the machine in this class.
                written[seq - 1].state = "live"
                after.entries.append(self._same(before.name, written[seq - 1], seq, seen))
            else:
                after.entries.append(Entry(state))
        after.last_ts = max([before.last_ts, *(e.ts for e in after.entries)])
        self._keep_keys(before, operations, after)
        return after

    # -- seqs --------------------------------------------------------------------------------

    def _check_floors(self, before: ModelTopic, seen: Seen, operations: list[Operation]) -> None:
        name, state = before.name, seen.state
        require(state["head_seq"] >= before.head, f"{name}: head fell to {state['head_seq']}")
        if self._gives_back(before, operations):
            return
        for what, was in (("earliest_seq", before.earliest), ("evict_floor", before.evict_floor)):
            require(state[what] >= was, f"{name}: {what} fell from {was} to {state[what]}")

    def _gives_back(self, before: ModelTopic, operations: list[Operation]) -> bool:
        """Whether what lost records had pushed out may be there again."""
        configs = self._configs(before, operations)
        caps = any(c.discard == "old" and (c.cap_records or c.cap_bytes) for c in configs)
        return caps and self.ending == "crash" and "disk" in self._classes(before, operations)

    def _check_given_back(self, before: ModelTopic, was: list[str], after: ModelTopic) -> None:
        """No more comes back than was lost: that had pushed it out."""
        now = [entry.state for entry in after.entries[: len(was)]]
        back = [seq for seq, state in enumerate(now, 1) if state == "live" != was[seq - 1]]
        lost = sum(a != "crash" == b for a, b in zip(was, now, strict=True))
        fits = len(back) <= lost or (before.config.cap_bytes and lost)
        require(not back or bool(fits), f"{before.name}: {back} came back for {lost} lost records")

    def _check_config(self, before: ModelTopic, seen: Seen, operations: list[Operation]) -> None:
        known = any(seen.config == config for config in self._configs(before, operations))
        require(known, f"{before.name}: config is {seen.config}")

    def _check_known(
        self, before: ModelTopic, seen: Seen, operations: list[Operation], after: ModelTopic
    ) -> None:
        for seq, entry in before.numbered():
            state = seen.states[seq - 1]
            allowed = state == entry.state or self._may_become(before, seq, seen, operations)
            require(allowed, f"{before.name}: seq {seq} was {entry.state}, is now {state}")
            entry.state = state
            if state == "live":
                self._same(before.name, entry, seq, seen)
            after.entries.append(entry)

    def _may_become(
        self, before: ModelTopic, seq: int, seen: Seen, operations: list[Operation]
    ) -> bool:
        """Whether a seq whose state was acknowledged may stand with another one now."""
        entry, state = before.entries[seq - 1], seen.states[seq - 1]
        is_ephemeral = seen.config.durability == "ephemeral"
        configs = self._configs(before, operations)
        classes = {config.durability for config in configs}
        loses = self.ending == "crash" and "disk" in classes
        caps = any(config.cap_records or config.cap_bytes for config in configs)
        back = entry.state == "evicted" and self._gives_back(before, operations)
        if back and state == "live":
            return True
        if entry.state != "live" and not (back and state == "deleted"):
            # Which of two involuntary causes came first may be lost with the end of the log.
            causes = {"evicted", "expired"} if entry.is_durable else {"evicted", "expired", "crash"}
            swaps = loses and entry.state in ("evicted", "expired") and state in causes
            return swaps or (state == "restart" and is_ephemeral)
        if state == "deleted":
            return any(o.kind == "delete" and before.matches(seq, o) for o in operations)
        if state == "expired":
            return any(c.ttl_ms and self.now_ms - entry.ts > c.ttl_ms for c in configs)
        if state == "evicted":
            return caps and any(o.kind in ("append", "put") for o in operations)
        if state == "crash":
            return loses and not entry.is_durable
        return state == "restart" and is_ephemeral

    def _check_new(
        self, before: ModelTopic, seen: Seen, operations: list[Operation], after: ModelTopic
    ) -> None:
        """Behind the acknowledged head: unknown writes, each whole, in order, then holes."""
        name, head = before.name, len(seen.states)
        for o in (o for o in operations if o.kind == "append"):
            first = after.head + 1
            span = range(first, first + len(o.records))
            states = [seen.states[seq - 1] for seq in span if seq <= head]
            if not states or set(states) <= set(HOLES):
                break
            require(len(states) == len(o.records), f"{name}: half of a write, from seq {first}")
            require(not set(states) & set(HOLES), f"{name}: a hole inside the write at {first}")
            for seq, entry in zip(
                span, entries_of(o, 0, first=first, config=before.config), strict=True
            ):
                if seen.states[seq - 1] == "live":
                    after.entries.append(self._same(name, entry, seq, seen))
                    after.last_ts = max(after.last_ts, entry.ts)
                else:
                    entry.state = seen.states[seq - 1]
                    gone = entry.state in ("evicted", "expired", "deleted")
                    require(gone, f"{name}: seq {seq} is {entry.state}")
                    after.entries.append(entry)
        for seq in range(after.head + 1, head + 1):
            state = seen.states[seq - 1]
            require(state in HOLES, f"{name}: seq {seq} is {state} and nobody wrote it")
            after.entries.append(Entry(state))

    def _same(self, name: str, entry: Entry, seq: int, seen: Seen) -> Entry:
        """The entry, once what is read is what was written; an unknown time becomes known."""
        record = seen.records[seq]
        entry.ts = entry.ts or record["$ts"]
        require(record == entry.content(seq), f"{name}: {seq} reads {record}, was {entry}")
        require(seen.tags[seq] == entry.tag, f"{name}: tag of {seq} is {seen.tags[seq]!r}")
        return entry

    def _check_crash_is_suffix(self, was: list[str], after: ModelTopic) -> None:
        """What a crash took is the end of the log, from the start of a write on."""
        name, entries = after.name, after.entries
        lost = [
            seq
            for seq, entry in after.numbered()
            if entry.state == "crash" and (seq > len(was) or was[seq - 1] != "crash")
        ]
        if not lost:
            return
        first = lost[0]
        require(self.ending == "crash", f"{name}: {first} on was lost in a {self.ending}")
        whole = list(range(first, after.head + 1))
        require(lost == whole, f"{name}: crash took {lost}, which is not the end of the log")
        cut = first > 1 and entries[first - 1].write and (
            entries[first - 2].write == entries[first - 1].write
        )  # fmt: skip
        require(not cut, f"{name}: crash took half of the write at {first}")
        for seq in lost:
            entries[seq - 1] = Entry("crash")

    def _keep_keys(
        self, before: ModelTopic, operations: list[Operation], after: ModelTopic
    ) -> None:
        after.doubtful = set(before.doubtful)
        for key, (first, count, ts) in before.keys.items():
            if before.entries[first - 1].is_resident or before.config.durability == "ephemeral":
                after.doubtful.add(key)
            elif first + count - 1 <= after.head and after.entries[first - 1].state not in HOLES:
                after.keys[key] = (first, count, ts)
        first = before.head + 1
        for o in operations:
            if o.kind != "append":
                continue
            stands = first <= after.head and after.entries[first - 1].state not in HOLES
            if o.key is not None and stands:
                ts = after.entries[first - 1].ts
                after.keys[o.key] = (first, len(o.records), ts)
                if not ts:
                    # Gone before its time could be read: nobody knows when its window ends.
                    after.doubtful.add(o.key)
            first += len(o.records)


def verify(model: Model, engine: Engine, now_ms: int, cursors: Iterable[int] = ()) -> None:
    """Every answer of the engine is the one the model predicts, for a choice of cursors."""
    require(
        engine.list_topics(limit=10_000) == sorted(model.topics),
        f"topics are {engine.list_topics(limit=10_000)}, expected {sorted(model.topics)}",
    )
    for name, topic in model.topics.items():
        topic.expire(now_ms)
        shown = msgspec.structs.asdict(engine.state(name))
        for what, expected in topic.state().items():
            require(shown[what] == expected, f"{name}: {what} is {shown[what]}, not {expected}")
        require(shown["config"] == topic.config, f"{name}: config is {shown['config']}")
        ranges = [(r.first, r.last, r.state) for r in engine.explain(name, 0, topic.head + 2)]
        expected = topic.explain(0, topic.head + 2)
        require(ranges == expected, f"{name}: explain says {ranges}, not {expected}")
        for cursor in {0, topic.head, topic.head + 1, *cursors}:
            verify_read(topic, engine, cursor)


def verify_read(topic: ModelTopic, engine: Engine, cursor: int) -> None:
    for limit, nodes in ((0, ()), (2, ("n1",))):
        page = engine.diff(topic.name, from_seq=cursor, limit=limit, node=nodes)
        told = page.tombstone
        got = {
            "records": json.loads(page.records_json),
            "next_from_seq": page.next_from_seq, "head_seq": page.head_seq,
            "earliest_seq": page.earliest_seq,
            "tombstone": None if told is None else msgspec.structs.asdict(told),
        }  # fmt: skip
        expected = topic.diff(cursor, limit=limit, nodes=nodes)
        stands = page.next_from_seq
        is_short = page.records_scanned > 0 and stands < expected["next_from_seq"]
        if engine.core.segments.store is not None and is_short:
            # A read may end in front of what is in the cold store.
            expected = topic.diff(cursor, limit=limit, nodes=nodes, upto=stands)
        require(got == expected, f"{topic.name} from {cursor}: read {got}, expected {expected}")
