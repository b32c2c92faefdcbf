"""A large delete is prepared and applied in pieces, between everything else that goes on.

It removes what matched when it was asked for, whole, and nothing that came later; what is behind it
in its topic waits; a checkpoint, a kill and a change of class in the middle of it change nothing.
"""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

from tests.support.engines import World
from tests.support.tiers import quick_first
from topics.engine.commit import core
from topics.engine.commit.ticket import Ticket
from topics.engine.ops import deletes, deleting
from topics.engine.state import tags
from topics.engine.state.write_request import request_of
from topics.errors import Closed
from topics.testing import Lateness

SMALL: dict[str, Any] = {
    "wal_shards": 2, "block_bytes": 400, "segment_bytes": 2000, "own_segment_bytes": 1000,
    "resident_bytes": 500, "block_cache_bytes": 1000, "gc_freeze": False,
}  # fmt: skip
PIECES = (
    (deleting, "AT_ONCE_PIECES", 1), (tags, "STRETCH_BITS", 2), (deletes, "PIECE_COST", 2),
    (deletes, "PACKED_MIN", 4), (deletes, "PACKED_PIECE", 2), (tags, "FRESH_PIECE", 2),
    (tags, "SORTED_PIECE", 2), (tags, "SEQS_PIECE", 3), (tags, "CHECKED_PIECE", 2),
    (core, "TIDY_AT_ONCE_PIECES", 1),
)  # fmt: skip
MATCHES = ("x", ["tag", "Glob", "k*"], ["tag", "Glob", "*"], ["tag", "Eq", "k1"])


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is done in pieces has many of them."""
    for module, name, value in PIECES:
        monkeypatch.setattr(module, name, value)


def matches(match: Any, tag: str | None) -> bool:
    if tag is None:
        return False
    text, is_prefix = tags.parse_match(match)
    return tag.startswith(text) if is_prefix else tag == text


class Deleting:
    """One history: the tags of what was written, and what each delete was to remove."""

    def __init__(self, seed: int, durability: str) -> None:
        self.rng = random.Random(seed)
        self.world = World(**SMALL)
        self.durability = durability
        self.world.engine.put_topic("t", {"durability": durability})
        self.tags: dict[int, str | None] = {}
        self.late: Lateness
        self.writes: list[tuple[Ticket, list[str | None]]] = []
        self.deletes: list[tuple[Ticket, set[int]]] = []
        self.gone: set[int] = set()
        self._attach()

    def _attach(self) -> None:
        self.late = Lateness()
        self.late.attach(self.world.engine)

    def write(self) -> None:
        given = [
            self.rng.choice(("x", "k1", "k2", f"k{self.rng.random()}", None))
            for _ in range(self.rng.randrange(1, 12))
        ]
        records = [{"data": n, **({"tag": tag} if tag else {})} for n, tag in enumerate(given)]
        self.writes.append((self.world.engine.submit_append("t", request_of(records)), given))

    def delete(self) -> None:
        engine = self.world.engine
        head = engine.core.by_name["t"].head
        match = self.rng.choice((None, *MATCHES))
        before = self.rng.choice((None, self.rng.randrange(1, head + 5)))
        if match is None and before is None:
            before = head
        ticket = engine.submit_delete("t", before_seq=before, match=match)
        self.deletes.append((ticket, self._asked(match, before, head)))

    def _asked(self, match: Any, before: int | None, head: int) -> set[int]:
        self.settle_writes()
        return {
            seq
            for seq, tag in self.tags.items()
            if seq <= head
            and (before is None or seq < before)
            and (match is None or matches(match, tag))
        }

    def settle_writes(self) -> None:
        for ticket, given in list(self.writes):
            if ticket.done:
                assert ticket.error is None
                self.tags.update(enumerate(given, ticket.result.first_seq))
                self.writes.remove((ticket, given))
        for ticket, asked in list(self.deletes):
            if ticket.done:
                assert ticket.error is None
                self.gone |= asked
                self.deletes.remove((ticket, asked))

    def step(self) -> None:
        engine, choice = self.world.engine, self.rng.random()
        if choice < 0.2:
            self.write()
        elif choice < 0.35:
            self.delete()
        elif choice < 0.37 and not engine.maintenance.is_running:
            engine.begin_checkpoint()
        elif choice < 0.7:
            engine.maintain(0)
        else:
            self.late.step(self.rng)
        self.rng.choice((engine.flush, engine.poll))()
        self.check()

    def check(self) -> None:
        """Nobody sees what was told to be gone, and everybody what nobody asked to delete."""
        self.settle_writes()
        seen = self.seen()
        assert not seen & self.gone, "deleted records are back"
        asked = {seq for _, each in self.deletes for seq in each}
        assert self.tags.keys() - self.gone - asked <= seen, "records went that nobody deleted"
        state = self.world.engine.state("t")
        assert state.count == len(seen)

    def seen(self) -> set[int]:
        engine = self.world.engine
        assert engine.state("t").evict_floor == 1, "a delete is silent"
        parts = [part for part in engine.explain("t") if part.state == "live"]
        live = {seq for part in parts for seq in range(part.first, part.last + 1)}
        first = engine.diff("t", limit=1000).records
        assert [record.seq for record in first] == sorted(live)[: len(first)]
        return live

    def restart(self, how: Any) -> None:
        self.settle_writes()
        pending = [asked for _, asked in self.deletes]
        if how == "clean":
            self.world.engine.close()
            for ticket, asked in self.deletes:
                assert ticket.done
                if ticket.error is None:
                    self.gone |= asked
                else:
                    assert isinstance(ticket.error, Closed)
            self.writes = [write for write in self.writes if write[0].error is None]
            self.deletes = []
            self.settle_writes()
        engine = self.world.engine = (
            self.world.open() if how == "clean" else self.world.restart("kill")
        )
        self.writes, self.deletes = [], []
        # What was on its way is there whole or not at all.
        seen = self.seen()
        for asked in pending:
            left = asked & seen
            others = {seq for each in pending if each is not asked for seq in each}
            assert not left or (asked - self.gone - others) <= seen, "half of a delete"
            if not left:
                self.gone |= asked
        self.tags |= dict.fromkeys(seen - self.tags.keys())
        engine = self.world.engine
        page = {r.seq: r.tag for r in engine.diff("t", limit=1000, include_tags=True).records}
        self.tags.update(page)
        self.gone |= self.tags.keys() - seen if how == "kill" else set()
        self._attach()
        self.check()


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory"])
@pytest.mark.parametrize("seed", quick_first(range(25), 3))
def test_deletes_in_pieces_are_whole(seed: int, durability: str) -> None:
    history = Deleting(seed, durability)
    for _ in range(3):
        for _ in range(60):
            history.step()
        history.restart(history.rng.choice(("clean", "kill")))
    history.world.engine.close()


@pytest.mark.parametrize("seed", range(15))
def test_an_ephemeral_topic_deletes_in_pieces_also_while_it_becomes_durable(seed: int) -> None:
    history = Deleting(seed, "ephemeral")
    for _ in range(80):
        history.step()
    while history.world.engine.maintain():
        history.late.drain()
    history.settle_writes()
    for _ in range(3):
        history.delete()
    history.world.engine.put_topic("t", {"durability": "fsync"})
    while history.world.engine.maintain() or history.late.pending:
        history.late.drain()
        history.world.engine.poll()
    history.settle_writes()
    assert not history.deletes
    seen = history.seen()
    history.check()
    history.world.restart("kill")
    assert history.seen() == seen


def filled(durability: str = "disk") -> World:
    world = World(**SMALL)
    world.engine.put_topic("t", {"durability": durability})
    for n in range(40):
        world.engine.append("t", [{"data": n, "tag": f"k{n % 20}"}])
    world.engine.sync()
    return world


def held(world: World) -> Ticket:
    """A delete whose frame is durable and of which a part is applied."""
    ticket = world.engine.submit_delete("t", before_seq=None, match=["tag", "Glob", "k*"])
    while not world.engine.core.committer.is_holding:
        world.engine.maintain(0)
        world.engine.flush()
    assert not ticket.done
    return ticket


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory", "ephemeral"])
def test_what_is_behind_a_delete_in_its_topic_waits_for_it(durability: str) -> None:
    world = filled(durability)
    engine = world.engine
    engine.put_topic("u", {"durability": "fsync"})
    ticket = held(world)
    behind = engine.submit_append("t", request_of([{"data": 0, "tag": "k1"}]))
    other = engine.submit_append("u", request_of([{"data": 0}]))
    engine.flush()
    engine.poll()
    assert other.done, "other topics do not wait"
    assert not behind.done
    while not behind.done:
        engine.maintain(0)
        assert ticket.done or not behind.done
    assert ticket.result.deleted == 40
    assert behind.result.first_seq == 41
    assert engine.diff("t").count == 1


@pytest.mark.parametrize("how", ["clean", "kill"])
def test_a_checkpoint_waits_for_a_delete_that_it_would_trim(how: Any) -> None:
    world = filled()
    engine = world.engine
    ticket = held(world)
    for _ in range(3):
        assert engine.begin_checkpoint()
        while engine.maintenance.is_running:
            engine.maintain(0)
    assert ticket.done
    assert engine.diff("t").count == 0
    world.restart(how)
    assert world.engine.diff("t").count == 0


@pytest.mark.parametrize("steps", range(0, 60, 6))
def test_a_kill_in_the_middle_of_a_delete_leaves_all_of_it_or_nothing(steps: int) -> None:
    world = filled("fsync")
    ticket = world.engine.submit_delete("t", before_seq=None, match=["tag", "Glob", "k*"])
    for _ in range(steps):
        world.engine.maintain(0)
        world.engine.flush()
    count = world.restart("kill").diff("t").count
    assert count in (0, 40)
    assert count == 0 or not ticket.done


def test_a_topic_dropped_in_the_middle_ends_its_delete() -> None:
    for is_applied in (False, True):
        world = filled()
        if is_applied:
            ticket = held(world)
        else:
            ticket = world.engine.submit_delete("t", before_seq=None, match=["tag", "Glob", "k*"])
        world.engine.delete_topic("t")
        world.engine.append("t", [{"data": 0, "tag": "k1"}])
        while not ticket.done:
            world.engine.maintain(0)
        assert ticket.error is None
        assert world.engine.diff("t").count == 1, "the new topic is another one"
        with contextlib.suppress(Closed):
            world.engine.close()


def test_a_delete_that_is_still_prepared_fails_when_the_engine_closes() -> None:
    world = filled()
    ticket = world.engine.submit_delete("t", before_seq=None, match=["tag", "Glob", "k*"])
    assert not ticket.done
    world.engine.close()
    assert isinstance(ticket.error, Closed)
    world.engine = world.open()
    assert world.engine.diff("t").count == 40
