"""What is on its way to a bucket decides compare-and-set, before anybody can read it."""

from __future__ import annotations

import random

import pytest

from tests.support.engines import World
from topics.engine.state.kinds import MARKER, RANGE
from topics.engine.state.write_request import json_of, request_of
from topics.errors import Conflicting
from topics.kv.assigned import Assigned
from topics.kv.buckets import Buckets
from topics.kv.embedded import buckets_of, open_bucket
from topics.kv.index import Index

KEYS = ["a", "aa", "ab", "b", "c"]
PREFIXES = ["", "a", "aa", "b", "q"]


def apply(index: Index, brought: tuple[int, str | None, str | None]) -> None:
    seq, tag, kind = brought
    if kind is None and tag is not None:
        index.put(tag, seq)
    elif kind == MARKER and tag is not None:
        index.delete(tag, seq, 1)
    elif kind is not None:
        index.delete_prefix(kind[len(RANGE) :], seq, 1)
    index.head = seq


def test_it_is_what_the_bucket_becomes() -> None:
    """Against the index that everything on its way is folded into."""
    for seed in range(60):
        chance = random.Random(seed)
        index, after = Index(), Index()
        assigned = Assigned(index)
        waiting: list[tuple[int, str | None, str | None]] = []
        for seq in range(1, 60):
            brought = (seq, chance.choice(KEYS), chance.choice((None, None, MARKER)))
            if chance.random() < 0.15:
                brought = (seq, None, RANGE + chance.choice(PREFIXES))
            assigned.note([brought])
            apply(after, brought)
            waiting.append(brought)
            while waiting and chance.random() < 0.45:
                apply(index, waiting.pop(0))
            for key in KEYS:
                assert assigned.live_seq(key) == after.live_seq(key), (seed, seq, key)
            for prefix in PREFIXES:
                wanted = after.keys.count_under(prefix)
                assert assigned.count_under(prefix) == wanted, (seed, seq, prefix)


@pytest.fixture
def buckets() -> Buckets:
    """Of an engine whose bucket is of class fsync: nothing is published before a sync."""
    world = World()
    world.engine.put_bucket("kv:b", {"durability": "fsync"})
    return buckets_of(world.engine)


def test_two_puts_with_one_if_seq_in_one_commit_have_one_winner(buckets: Buckets) -> None:
    """Neither is readable yet when the second is judged."""
    first = buckets.put("b", "k", json_of(1), if_seq=0)
    assert first.created
    with pytest.raises(Conflicting) as refused:
        buckets.put("b", "k", json_of(2), if_seq=0)
    assert refused.value.detail["seq"] == 1
    kv = open_bucket(buckets.engine, "b")
    assert kv.get("k") is None
    second = buckets.put("b", "k", json_of(2), if_seq=1)
    assert not second.created
    buckets.engine.wait(second.ticket)
    assert kv.get("k") == 2


def test_what_the_log_brings_counts_too(buckets: Buckets) -> None:
    """Writes to the topic itself, of one record or of several, on their way as well."""
    engine = buckets.engine
    many = request_of([{"data": 1, "tag": "k"}, {"data": 2, "tag": "x"}])
    engine.submit_append("kv:b", many)
    with pytest.raises(Conflicting):
        buckets.put("b", "k", json_of(3), if_seq=0)
    engine.submit_append("kv:b", request_of([{"data": 0, "tag": "k", "meta": {"kv": "delete"}}]))
    assert buckets.put("b", "k", json_of(3), if_seq=0).created
    hidden, ticket = buckets.delete_prefix("b", "")
    assert hidden == 2
    assert buckets.delete("b", "x") is None
    assert ticket is not None
    engine.wait(ticket)
    assert open_bucket(engine, "b").size == 0


def test_seqs_that_were_given_back_are_forgotten(buckets: Buckets) -> None:
    """A write that the disk had no room for never happened."""
    world = World()
    world.engine.put_bucket("kv:b", {"durability": "fsync"})
    mine = buckets_of(world.engine)
    mine.put("b", "k", json_of(1))
    bucket = mine.get("b")
    assert bucket.look_ahead().live_seq("k") == 1
    bucket.topic.unassign(1, 0)
    assert bucket.look_ahead().live_seq("k") == 0
