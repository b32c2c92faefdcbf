"""What somebody outside knows of the topics of a history: what was acknowledged, and what refused.

A record that was acknowledged is there with the data it was written with, or its loss is told and
somebody asked for it; its seq has no other record, ever. A key that was answered is answered so
again. An epoch is given to one topic.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from typing import Any, NamedTuple

from tests.crash.harness.class_draws import BUCKET, WINDOWS_MS
from tests.support.engines import explained, read_all
from topics.engine.engine import Engine
from topics.engine.state.topic import Topic
from topics.testing.modelcheck import Ending, require
from topics.types import EVICTED, Appended, TopicConfig

# What a start may say of records that went with a process or a machine.
LOST = {"crash", "restart"}


class Answer(NamedTuple):
    """What the first call with a key was told."""

    epoch: int
    first: int
    ts: int


class Reject(NamedTuple):
    """How far a topic that rejects had given records to its caps."""

    epoch: int
    version: int
    config: TopicConfig
    evicted_upto: int


class Facts:
    def __init__(self) -> None:
        self._serial = 0
        # (topic, epoch) to seq to value.
        self.records: dict[tuple[str, int], dict[int, int]] = {}
        self.refused: set[int] = set()
        self.answers: dict[tuple[str, str], Answer] = {}
        # Epochs of topics that are there, and of those that were.
        self.epochs: dict[int, int] = {}
        self.past_epochs: set[int] = set()
        # Topics that were acknowledged and that nobody asked to drop; how often somebody did.
        self.made: set[str] = set()
        self.drops: Counter[str] = Counter()
        # Topics that had a cap, or a time to live, since they were first made.
        self.capped: set[str] = set()
        self.expiring: set[str] = set()
        self._rejecting: dict[int, Reject] = {}

    def values(self, count: int) -> list[int]:
        self._serial += count
        return list(range(self._serial - count + 1, self._serial + 1))

    # -- answers -----------------------------------------------------------------------------

    def written(self, name: str, epoch: int, first: int, values: list[int]) -> None:
        there = self.records.setdefault((name, epoch), {})
        for seq, value in enumerate(values, first):
            other = there.setdefault(seq, value)
            require(other == value, f"{name}, epoch {epoch}: seq {seq} is {other}, then {value}")

    def answered(
        self, name: str, key: str, answer: Appended, known: Answer | None, now_ms: int
    ) -> None:
        """`known` is what was known of the key when the write was submitted."""
        is_same = known is not None and known.epoch == answer.epoch
        if known is not None and is_same and now_ms - known.ts < min(WINDOWS_MS):
            require(
                answer.deduped and answer.first_seq == known.first,
                f"{name}: key {key} of {known} is written again: {answer}",
            )
        if not answer.deduped:
            self.answers[name, key] = Answer(answer.epoch, answer.first_seq, answer.ts)

    def configured(self, name: str, config: dict[str, Any]) -> None:
        """A config was asked for, whatever becomes of it."""
        if config.get("cap_records") or config.get("cap_bytes"):
            self.capped.add(name)
        if config.get("ttl_ms"):
            self.expiring.add(name)

    def is_there(self, name: str, drops: int) -> None:
        """A call that needs the topic was answered; so often had its drop been asked for before."""
        if drops == self.drops[name]:
            self.made.add(name)

    def dropped(self, name: str) -> None:
        self.drops[name] += 1
        self.made.discard(name)
        for key in [key for key in self.answers if key[0] == name]:
            del self.answers[key]

    # -- looks -------------------------------------------------------------------------------

    def watch(self, engine: Engine) -> None:
        """After every step: whose the epochs are, and what topics that reject have given up."""
        rejecting: dict[int, Reject] = {}
        for topic in engine.core.by_name.values():
            if not engine.core.committer.has_staged(topic):
                # Before that no process knows of it but this one, and it has told nobody.
                is_new = self.epochs.setdefault(topic.epoch, topic.id) == topic.id
                is_new &= topic.epoch not in self.past_epochs
                require(is_new, f"epoch {topic.epoch} of {topic.name} was another topic's")
            if topic.config.discard == "reject":
                now = _reject(topic)
                _require_kept(topic.name, self._rejecting.get(topic.id, now), now)
                rejecting[topic.id] = now
        self._rejecting = rejecting

    def judge(self, engine: Engine, ending: Ending) -> None:
        """After a start: everything that was acknowledged is there, as its class promises."""
        self._rejecting = {}
        there = engine.core.by_name
        # A topic that a crash took may have had the number of the next one, and its epoch.
        self.past_epochs |= self.epochs.keys() - {topic.epoch for topic in there.values()}
        self.watch(engine)
        require(self.made <= there.keys(), f"gone: {sorted(self.made - there.keys())}")
        for name, topic in there.items():
            durability = topic.config.durability
            is_kept = durability == "fsync" or (durability != "ephemeral" and ending != "crash")
            if not is_kept:
                for key in [key for key in self.answers if key[0] == name]:
                    del self.answers[key]
            if name != BUCKET:
                self._judge_topic(engine, topic, is_kept=is_kept)

    def _judge_topic(self, engine: Engine, topic: Topic, *, is_kept: bool) -> None:
        name = topic.name
        account = explained(engine, name)
        starts = [first for first, _, _ in account]
        states = {state for _, _, state in account}
        require("evicted" not in states or name in self.capped, f"{name} evicts without a cap")
        require("expired" not in states or name in self.expiring, f"{name} expires without a ttl")
        live = {
            record.seq: record.value["n"]
            for page in read_all(engine, name)
            for record in page.records
            if isinstance(record.value, dict)
        }
        require(self.refused.isdisjoint(live.values()), f"{name} has what it refused: {live}")
        known = self.records.get((name, topic.epoch), {})
        for seq, value in list(known.items()):
            require(seq <= topic.head or not is_kept, f"{name}: {seq} was told, head {topic.head}")
            place = bisect_right(starts, seq) - 1
            state = account[place][2] if seq <= topic.head else "crash"
            if state in LOST:
                require(not is_kept, f"{name}: {seq} was acknowledged and is lost: {account}")
                del known[seq]
            elif state == "live":
                require(live.get(seq) == value, f"{name}: {seq} was {value}, is {live.get(seq)}")


def _reject(topic: Topic) -> Reject:
    upto = dict(topic.lost).get(EVICTED, 0)
    return Reject(topic.epoch, topic.config_version, topic.config, upto)


def _require_kept(name: str, before: Reject, now: Reject) -> None:
    """Only a tighter cap makes a topic give up what it may not evict."""
    if now.epoch != before.epoch or now.version > before.version + 1:
        return
    caps = (
        (before.config.cap_records, now.config.cap_records),
        (before.config.cap_bytes, now.config.cap_bytes),
    )
    is_tighter = any(cap and (not was or cap < was) for was, cap in caps)
    require(
        is_tighter or before.config.discard != "reject" or now.evicted_upto <= before.evicted_upto,
        f"{name} rejects, and evicts: {before}, then {now}",
    )
