"""The rules of a bucket against a plain list of what was written: nothing lost, nothing back.

The list knows every record that ever was. The index knows what compaction has left of it, and has
to answer the same, or say that it can not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from topics.errors import Compacted
from topics.kv.compaction import Batch, Compaction
from topics.kv.index import Index
from topics.kv.past import Past, keys_ever

KEYS = ["a", "aa", "ab", "b", "ba", "é", "é\U0010ffff", "z"]
PREFIXES = ["", "a", "aa", "b", "é", "é\U0010ffff", "q"]


@dataclass(frozen=True)
class Written:
    seq: int
    ts: int
    kind: str
    name: str


def state_at(log: list[Written], seq: int) -> dict[str, int]:
    """Key to the seq of its live version."""
    live: dict[str, int] = {}
    for record in log[:seq]:
        if record.kind == "put":
            live[record.name] = record.seq
        elif record.kind == "delete":
            live.pop(record.name, None)
        else:
            live = {key: at for key, at in live.items() if not key.startswith(record.name)}
    return live


def fold(index: Index, record: Written) -> None:
    if record.kind == "put":
        index.put(record.name, record.seq)
    elif record.kind == "delete":
        index.delete(record.name, record.seq, record.ts)
    else:
        index.delete_prefix(record.name, record.seq, record.ts)
    index.head = record.seq


class BucketMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[Written] = []
        self.removed: set[int] = set()
        self.index = Index()
        self.past = Past()
        self.ts = 1000
        self.snapshots: list[int] = []
        # Where a replica stands that the bucket knows of, and what it holds.
        self.place = 0
        self.replica: dict[str, int] = {}
        self.running: Iterator[Batch | None] | None = None
        self.compaction: Compaction | None = None
        self.terms: tuple[int, str, int, int] = (0, "", 0, 0)

    # -- writing -----------------------------------------------------------------------------

    def _write(self, kind: str, name: str) -> None:
        record = Written(len(self.log) + 1, self.ts, kind, name)
        before = len(state_at(self.log, record.seq))
        self.log.append(record)
        if kind == "put":
            was_live = name in state_at(self.log, record.seq - 1)
            assert self.index.put(name, record.seq) is not was_live
            self.index.head = record.seq
        elif kind == "prefix":
            hidden = self.index.delete_prefix(name, record.seq, record.ts)
            assert hidden == before - len(state_at(self.log, record.seq))
            self.index.head = record.seq
        else:
            fold(self.index, record)

    @rule(key=st.sampled_from(KEYS))
    def put(self, key: str) -> None:
        self._write("put", key)

    @rule(key=st.sampled_from(KEYS))
    def delete(self, key: str) -> None:
        self._write("delete", key)

    @rule(prefix=st.sampled_from(PREFIXES))
    def delete_range(self, prefix: str) -> None:
        self._write("prefix", prefix)

    @rule(ms=st.integers(1, 50))
    def time_passes(self, ms: int) -> None:
        self.ts += ms

    @rule()
    def tidy(self) -> None:
        self.index.tidy()

    @precondition(lambda self: self.running is None)
    @rule(history=st.integers(1, 3))
    def configure(self, history: int) -> None:
        for _ in self.index.keep(history):
            pass

    # -- readers -----------------------------------------------------------------------------

    @rule()
    def open_snapshot(self) -> None:
        self.snapshots.append(len(self.log))

    @precondition(lambda self: self.snapshots)
    @rule(data=st.data())
    def close_snapshot(self, data: st.DataObject) -> None:
        self.snapshots.remove(data.draw(st.sampled_from(self.snapshots)))

    @rule(records=st.integers(1, 4))
    def replica_reads(self, records: int) -> None:
        """It gets what is left of the log, in order."""
        for record in self.log[self.place :][:records]:
            if record.seq not in self.removed:
                self._replicate(record)
            self.place = record.seq

    def _replicate(self, record: Written) -> None:
        if record.kind == "put":
            self.replica[record.name] = record.seq
        elif record.kind == "delete":
            self.replica.pop(record.name, None)
        else:
            kept = {k: s for k, s in self.replica.items() if not k.startswith(record.name)}
            self.replica = kept

    # -- compaction --------------------------------------------------------------------------

    @precondition(lambda self: self.running is None)
    @rule(max_age_ms=st.integers(0, 60), prefix=st.sampled_from(PREFIXES))
    def begin_compaction(self, max_age_ms: int, prefix: str) -> None:
        older = self.ts - max_age_ms
        self.terms = older, prefix, len(self.log), self.place
        self.compaction = Compaction(
            self.index, older_than_ts=older, prefix=prefix, upto=len(self.log),
            readers_seq=self.place, snapshots=lambda: self.snapshots,
        )  # fmt: skip
        self.running = self.compaction.steps()

    @precondition(lambda self: self.running is not None)
    @rule()
    def compact_some(self) -> None:
        assert self.running is not None
        batch = next(self.running, self)
        if batch is self:
            self.running = None
        elif isinstance(batch, Batch):
            self._remove(batch)

    @precondition(lambda self: self.running is None)
    @rule(max_age_ms=st.integers(0, 60), prefix=st.sampled_from(PREFIXES))
    def compact(self, max_age_ms: int, prefix: str) -> None:
        before = self.pending()
        self.begin_compaction(max_age_ms, prefix)
        assert self.running is not None
        for batch in self.running:
            if batch is not None:
                self._remove(batch)
        self.running = None
        self._judge_result(before)

    def pending(self) -> list[Written]:
        return [r for r in self.log if r.kind != "put" and r.seq not in self.removed]

    def _judge_result(self, before: list[Written]) -> None:
        """What had to go is gone, and each that stayed did so for its first reason."""
        assert self.compaction is not None
        done, (older, prefix, upto, place) = self.compaction.done, self.terms
        counts = {"young": 0, "snapshots": 0, "readers": 0, "gone": 0}
        for marker in before:
            if not marker.name.startswith(prefix):
                continue
            if marker.ts >= older:
                counts["young"] += 1
            elif self._needed(marker):
                counts["snapshots"] += 1
            elif marker.seq > place:
                counts["readers"] += 1
            else:
                counts["gone"] += 1
                assert marker.seq in self.removed
        assert (done.young, done.snapshots, done.readers, done.removed_tombstones) == (
            counts["young"], counts["snapshots"], counts["readers"], counts["gone"],
        )  # fmt: skip
        assert upto == len(self.log)
        seen = {seq for at in self.snapshots for seq in state_at(self.log, at).values()}
        for key in KEYS:
            if key.startswith(prefix):
                puts = [r.seq for r in self.log if r.kind == "put" and r.name == key]
                left = [seq for seq in puts if seq not in self.removed]
                beyond = left[: -self.index.history]
                assert all(seq in seen for seq in beyond), (key, left, seen)

    def _needed(self, marker: Written) -> bool:
        """By a snapshot: it is above it and hides a key that is live in it."""
        hidden = state_at(self.log, marker.seq - 1).keys() - state_at(self.log, marker.seq).keys()
        if marker.kind == "delete":
            # Its own key, whether it was live in front of it or not.
            hidden = {marker.name}
        return any(
            at < marker.seq and hidden & state_at(self.log, at).keys() for at in self.snapshots
        )

    def _remove(self, batch: Batch) -> None:
        """The log deletes a batch: nothing that somebody needs may be in it."""
        seqs = batch.seqs()
        assert len(set(seqs)) == len(seqs)
        assert not self.removed & set(seqs)
        live = set(state_at(self.log, len(self.log)).values())
        seen = {seq for at in self.snapshots for seq in state_at(self.log, at).values()}
        assert not set(seqs) & (live | seen)
        older, _, upto, place = self.terms
        self.removed.update(seqs)
        for seq in seqs:
            record = self.log[seq - 1]
            if record.kind != "put":
                assert record.ts < older
                assert record.seq <= min(upto, place)
                assert not self._needed(record)
                shadowed = [
                    r.seq
                    for r in self.log[: seq - 1]
                    if r.kind == "put" and r.name in self._hidden_by(record)
                ]
                assert self.removed.issuperset(shadowed), "what it hid stays behind"
        markers = [seq for seq in seqs if self.log[seq - 1].kind != "put"]
        assert batch.lacking.unmarked_seq == max(markers, default=0)
        self.past.note(seqs[0], seqs[-1], batch.lacking)
        batch.forget(self.index)

    def _hidden_by(self, marker: Written) -> set[str]:
        if marker.kind == "delete":
            return {marker.name}
        return {k for k in state_at(self.log, marker.seq - 1) if k.startswith(marker.name)}

    # -- what has to hold --------------------------------------------------------------------

    @invariant()
    def live_keys_are_those_written(self) -> None:
        live = state_at(self.log, len(self.log))
        assert list(self.index.keys.after("", is_included=True)) == sorted(live, key=str.encode)
        assert {key: self.index.live_seq(key) for key in KEYS} == {
            key: live.get(key, 0) for key in KEYS
        }
        assert list(self.index.markers) == [r.seq for r in self.pending()]

    @invariant()
    def snapshots_see_what_they_saw(self) -> None:
        for at in self.snapshots:
            truth = state_at(self.log, at)
            assert not self.removed & set(truth.values())
            seen = {key: self.index.last_event(key, at) for key in keys_ever_of(self.index)}
            assert {key: seq for key, seq in seen.items() if seq > 0} == truth

    @invariant()
    def the_past_is_true_or_said_to_be_gone(self) -> None:
        check_past(self.index, self.past, self.log, self.removed)

    @invariant()
    def a_start_finds_the_same(self) -> None:
        """What is left of the log, folded anew, is the same index."""
        again = Index(self.index.history)
        for record in self.log:
            if record.seq not in self.removed:
                fold(again, record)
        again.head = self.index.head
        assert list(again.markers) == list(self.index.markers)
        assert list(again.keys.after("", is_included=True)) == list(
            self.index.keys.after("", is_included=True)
        )
        for key in KEYS:
            assert list(again.events(key)) == list(self.index.events(key))
            assert again.history_of(key) == self.index.history_of(key)
        assert sorted(again.crowded) == sorted(self.index.crowded)
        check_past(again, self.past, self.log, self.removed)

    def teardown(self) -> None:
        """However late the replica is, it ends with what the bucket has."""
        while self.place < len(self.log):
            self.replica_reads(10)
        assert self.replica == state_at(self.log, len(self.log))


def keys_ever_of(index: Index) -> list[str]:
    found = list(keys_ever(index, "", is_included=True))
    assert found == sorted(set(found), key=str.encode)
    return found


def check_past(index: Index, past: Past, log: list[Written], removed: set[int]) -> None:
    assert past.compacted_seq == max(removed, default=0)
    for at in range(len(log) + 1):
        truth = state_at(log, at)
        needs = removed & set(truth.values())
        if past.is_whole(at):
            assert not needs
        for key in KEYS:
            try:
                event = past.event_at(index, key, at)
            except Compacted:
                assert removed
                assert min(removed) <= at < past.whole_from
            else:
                assert max(event, 0) == truth.get(key, 0), (key, at)
            if truth.get(key) in removed:
                assert not past.is_whole(at)


TestBucket = pytest.mark.slow(BucketMachine.TestCase)
