"""Explain: the account of every seq that was ever assigned, kept when the records are gone."""

from __future__ import annotations

import pytest

from tests.support.engines import ENDINGS, SURVIVABLE, Ending, World, explained, tagged
from topics.engine.engine import Engine


def cover(engine: Engine, topic: str, first: int, last: int) -> list[str]:
    """The state of each seq; fails unless the ranges are ordered, disjoint and complete."""
    states: list[str] = []
    at, previous = first, None
    for part in engine.explain(topic, first, last):
        assert part.first == at <= part.last
        assert part.state != previous, "neighbours with one state are one range"
        states += [part.state] * (part.last - part.first + 1)
        at, previous = part.last + 1, part.state
    assert at == last + 1
    return states


@pytest.fixture
def varied(world: World) -> World:
    """1-2 expired, 3 evicted, 4 deleted, 5 evicted, 6 live, 7 deleted, 8 live."""
    world.engine.put_topic("t", {"ttl_ms": 1000})
    world.fill("t", 2)
    world.clock.advance(1001)
    world.engine.append("t", tagged(None, "x", None, None, "x", None))
    world.engine.delete("t", match="x")
    world.engine.put_topic("t", {"ttl_ms": 1000, "cap_records": 2})
    return world


STATES = ["expired"] * 2 + ["evicted", "deleted", "evicted", "live", "deleted", "live"]


def test_every_seq_has_exactly_one_state(varied: World) -> None:
    """Ranges are disjoint, in order, and cover all that was asked for."""
    assert cover(varied.engine, "t", 1, 8) == STATES


@pytest.mark.parametrize("first", range(11))
@pytest.mark.parametrize("length", [1, 2, 5, 12])
def test_any_part_can_be_asked_for(varied: World, first: int, length: int) -> None:
    """A range cuts the account at its ends; seqs nobody has are unassigned."""
    expected = ["unassigned", *STATES, *["unassigned"] * 20][first : first + length]
    assert cover(varied.engine, "t", first, first + length - 1) == expected


def test_the_default_is_everything_up_to_the_head(varied: World) -> None:
    """Without bounds the account goes from the first seq to the head."""
    parts = varied.engine.explain("t")
    assert (parts[0].first, parts[-1].last) == (1, 8)


def test_a_topic_never_written_has_nothing_to_explain(engine: Engine) -> None:
    """Nothing was assigned, so the account is empty, and what is asked for is unassigned."""
    engine.put_topic("t")
    assert engine.explain("t") == []
    assert cover(engine, "t", 1, 3) == ["unassigned"] * 3


@pytest.mark.parametrize("how", SURVIVABLE)
@pytest.mark.parametrize("checkpoints", [0, 1, 3])
def test_the_account_survives_the_segments(varied: World, how: Ending, checkpoints: int) -> None:
    """It stays exact after sealing, trimming and restarts."""
    for _ in range(checkpoints):
        varied.engine.checkpoint()
    varied.restart(how)
    assert cover(varied.engine, "t", 1, 8) == STATES


@pytest.mark.parametrize("how", SURVIVABLE)
def test_the_account_survives_when_nothing_is_left(varied: World, how: Ending) -> None:
    """Every seq is still explained after the last record is deleted and its files are gone."""
    varied.engine.delete("t", before_seq=9)
    for _ in range(3):
        varied.engine.checkpoint()
    varied.restart(how)
    expected = ["deleted" if state == "live" else state for state in STATES]
    assert cover(varied.engine, "t", 1, 8) == expected
    assert not [name for name in varied.disk.files() if name.endswith(".seg")]


def test_what_expires_is_explained_without_a_read(world: World) -> None:
    """Asking for the account brings it up to now."""
    world.engine.put_topic("t", {"ttl_ms": 100})
    world.fill("t", 2)
    world.clock.advance(101)
    assert explained(world.engine, "t") == ((1, 2, "expired"),)


def test_a_crash_is_accounted_for_up_to_the_ceiling(world: World) -> None:
    """Seqs that may have been acknowledged and are gone are marked as lost with the machine."""
    world.engine.put_topic("t", {"durability": "disk"})
    world.fill("t", 2)
    world.engine.sync()
    world.fill("t", 2)
    world.restart("crash")
    head = world.engine.state("t").head_seq
    assert head >= 4
    assert explained(world.engine, "t") == ((1, 2, "live"), (3, head, "crash"))


def test_records_of_a_stopped_process_are_accounted_for_as_restart(world: World) -> None:
    """An ephemeral topic explains its past after a clean stop."""
    world.engine.put_topic("t", {"durability": "ephemeral"})
    world.fill("t", 3)
    world.restart("clean")
    world.fill("t", 1)
    assert explained(world.engine, "t") == ((1, 3, "restart"), (4, 4, "live"))


@pytest.mark.parametrize("how", ENDINGS)
def test_many_alternating_deletes_are_kept_apart(world: World, how: Ending) -> None:
    """The account does not blur neighbours, sealed in between or not."""
    world.engine.put_topic("t", {"durability": "fsync"})
    world.engine.append("t", tagged(*["x" if n % 2 else "y" for n in range(40)]))
    world.engine.checkpoint()
    world.engine.delete("t", match="x")
    world.engine.put_topic("t", {"durability": "fsync", "cap_records": 5})
    expected = ["deleted" if n % 2 else "evicted" if n < 30 else "live" for n in range(40)]
    assert cover(world.engine, "t", 1, 40) == expected
    world.restart(how)
    assert cover(world.engine, "t", 1, 40) == expected
