"""Deletes: permanent, immediate, silent, and of what exists when they are asked for."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from tests.support.engines import ENDINGS, Ending, World, explained, seqs, tagged
from tests.support.tiers import quick_first
from topics.engine.engine import Engine
from topics.engine.state.write_request import request_of
from topics.errors import InvalidRequest, Overloaded, TopicNotFound
from topics.testing import Fault, FaultFs


@pytest.mark.parametrize(
    ("before_seq", "left"),
    [
        (0, (1, 2, 3, 4, 5)),
        (1, (1, 2, 3, 4, 5)),
        (2, (2, 3, 4, 5)),
        (5, (5,)),
        (6, ()),
        (7, ()),
        (2**64 - 1, ()),
    ],
)
def test_before_seq_deletes_everything_below_it(
    world: World, before_seq: int, left: tuple[int, ...]
) -> None:
    """Records with $seq < before_seq go; the bound may lie beyond the head."""
    world.fill("t", 5)
    done = world.engine.delete("t", before_seq=before_seq)
    look = world.look("t")
    assert look.seqs == left
    assert done.deleted == 5 - len(left)
    assert (done.earliest_seq, done.head_seq) == (look.earliest, 5)
    assert (done.count, done.bytes) == (look.count, look.bytes)
    assert look.tombstones == ()


def test_before_seq_beyond_the_head_does_not_touch_later_records(world: World) -> None:
    """A delete is of what exists now, even when its bound lies in the future."""
    world.fill("t", 2)
    world.engine.delete("t", before_seq=1000)
    world.fill("t", 3)
    assert world.look("t").seqs == (3, 4, 5)
    world.restart("kill")
    assert world.look("t").seqs == (3, 4, 5)


MATCHES: list[tuple[Any, tuple[int, ...]]] = [
    (["tag", "Eq", "a"], (2, 3, 4, 5, 6, 7)),
    ("a", (2, 3, 4, 5, 6, 7)),
    (("tag", "Eq", "a"), (2, 3, 4, 5, 6, 7)),
    (["tag", "Eq", "a*"], (1, 2, 3, 4, 6, 7)),
    ("a*", (1, 2, 3, 4, 6, 7)),
    (["tag", "Glob", "a*"], (3, 6, 7)),
    (["tag", "Glob", "a:*"], (1, 3, 4, 5, 6, 7)),
    (["tag", "Glob", "ab*"], (1, 2, 3, 5, 6, 7)),
    (["tag", "Glob", "*"], (6,)),
    (["tag", "Glob", "A*"], (1, 2, 3, 4, 5, 6)),
    (["tag", "Eq", "nobody"], (1, 2, 3, 4, 5, 6, 7)),
    (["tag", "Glob", "nobody*"], (1, 2, 3, 4, 5, 6, 7)),
]


@pytest.mark.parametrize(("match", "left"), MATCHES, ids=lambda value: str(value))
def test_a_match_deletes_exactly_the_matching_records(
    world: World, match: Any, left: tuple[int, ...]
) -> None:
    """Eq is byte-exact, a bare string means Eq, Glob is a literal prefix; no tag, no match."""
    world.engine.append("t", tagged("a", "a:1", "b", "ab", "a*", None, "A"))
    done = world.engine.delete("t", match=match)
    assert world.look("t").seqs == left
    assert done.deleted == 7 - len(left)


@pytest.mark.parametrize(
    "match",
    [
        ["tag", "Glob", "a"],
        ["tag", "Glob", ""],
        ["tag", "Glob", "a*b"],
        ["tag", "Glob", "a**"],
        ["tag", "Glob", "*a*"],
        ["tag", "Like", "a*"],
        ["tag", "eq", "a"],
        ["node", "Eq", "a"],
        ["tag", "Eq"],
        ["tag", "Eq", "a", "b"],
        ["tag", "Eq", 1],
        ["tag", "Eq", None],
        [],
        {},
        {"tag": "a"},
        1,
        True,
    ],
    ids=str,
)
def test_a_malformed_match_is_refused(world: World, match: Any) -> None:
    """Glob takes one * at its very end; anything else is invalid_request and deletes nothing."""
    world.engine.append("t", tagged("a", "a*b"))
    with pytest.raises(InvalidRequest):
        world.engine.delete("t", match=match)
    assert world.engine.state("t").count == 2


@pytest.mark.parametrize("before_seq", [-1, 2**64, True, False, "1", 1.0, 1.5, [1]], ids=repr)
def test_a_malformed_before_seq_is_refused(world: World, before_seq: Any) -> None:
    """before_seq is an unsigned 64-bit integer; true is not an integer."""
    world.fill("t", 1)
    with pytest.raises(InvalidRequest):
        world.engine.delete("t", before_seq=before_seq)
    assert world.engine.state("t").count == 1


def test_a_delete_needs_a_selector(world: World) -> None:
    """Neither before_seq nor match is invalid_request."""
    world.fill("t", 1)
    with pytest.raises(InvalidRequest):
        world.engine.delete("t")


def test_a_delete_creates_no_topic(engine: Engine) -> None:
    """Deleting from a topic that does not exist is topic_not_found."""
    with pytest.raises(TopicNotFound):
        engine.delete("t", before_seq=1)
    assert engine.list_topics() == []


@pytest.mark.parametrize("before_seq", range(1, 8))
def test_match_and_before_seq_are_both_required_to_hold(world: World, before_seq: int) -> None:
    """Together they delete only what matches and lies below the bound."""
    world.engine.append("t", tagged("v", "w", "v", "w", "v", "w"))
    world.engine.delete("t", match="v", before_seq=before_seq)
    gone = {seq for seq in (1, 3, 5) if seq < before_seq}
    assert world.look("t").seqs == tuple(seq for seq in range(1, 7) if seq not in gone)


def test_the_prior_versions_of_a_message_go_and_the_new_one_stays(world: World) -> None:
    """Publishing a version and deleting those before it leaves exactly the new one."""
    for version in range(5):
        done = world.engine.append("t", [{"data": version, "tag": "msg-1"}])
        world.engine.delete("t", match="msg-1", before_seq=done.first_seq)
    assert world.look("t").seqs == (5,)


def test_a_match_is_not_a_standing_filter(world: World) -> None:
    """A record written after the delete stays, whatever its tag."""
    world.engine.append("t", tagged("x"))
    world.engine.delete("t", match=["tag", "Glob", "x*"])
    world.engine.append("t", tagged("x"))
    assert world.look("t").seqs == (2,)
    world.restart("kill")
    assert world.look("t").seqs == (2,)


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_delete_is_seen_at_once(world: World, durability: str) -> None:
    """Reads, count and bytes change with the call, in every class."""
    world.engine.put_topic("t", {"durability": durability})
    world.engine.append("t", tagged("x", None, "x"))
    before = world.engine.state("t")
    world.engine.delete("t", match="x")
    after = world.engine.state("t")
    assert after.count == 1
    assert after.bytes == before.bytes - 2 * (before.bytes // 3)
    assert (after.earliest_seq, after.evict_floor) == (2, 1)
    assert seqs(world.engine.diff("t")) == [2]


def test_a_cursor_moves_past_deleted_records(world: World) -> None:
    """Deleted seqs are skipped without a word and do not have to be asked for again."""
    world.engine.append("t", tagged(None, "x", "x", None, "x"))
    world.engine.delete("t", match="x")
    page = world.engine.diff("t", from_seq=1, limit=1)
    assert (seqs(page), page.next_from_seq) == ([4], 4)
    page = world.engine.diff("t", from_seq=4)
    assert (seqs(page), page.next_from_seq, page.caught_up) == ([], 5, True)


def test_deleting_again_deletes_nothing(world: World) -> None:
    """`deleted` counts what this call removed."""
    world.engine.append("t", tagged("x", "x"))
    assert world.engine.delete("t", match="x").deleted == 2
    assert world.engine.delete("t", match="x").deleted == 0
    assert world.engine.delete("t", before_seq=3).deleted == 0


def test_what_has_expired_is_not_counted_as_deleted(world: World) -> None:
    """A delete counts live records only, and leaves the reason of an earlier loss alone."""
    world.engine.put_topic("t", {"ttl_ms": 100})
    world.fill("t", 2)
    world.clock.advance(101)
    world.fill("t", 1)
    assert world.engine.delete("t", before_seq=4).deleted == 1
    assert explained(world.engine, "t") == ((1, 2, "expired"), (3, 3, "deleted"))


DELETES: list[dict[str, Any]] = [
    {"before_seq": 4},
    {"before_seq": 1000},
    {"match": "x"},
    {"match": ["tag", "Glob", "x*"]},
    {"match": "x", "before_seq": 5},
    {"match": ["tag", "Glob", "*"]},
]


@pytest.mark.parametrize("delete", DELETES, ids=str)
@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("checkpoints", ["none", "before", "after", "both"])
@pytest.mark.parametrize("durability", quick_first(["disk", "fsync"], 1))
def test_a_delete_survives_restarts(
    world: World, delete: dict[str, Any], how: Ending, checkpoints: str, durability: str
) -> None:
    """An acknowledged delete holds after any restart, sealed or not, log trimmed or not."""
    world.engine.put_topic("t", {"durability": durability})
    world.engine.append("t", tagged("x", "y", "x", None, "xy", "x"))
    world.engine.sync()
    if checkpoints in ("before", "both"):
        world.engine.checkpoint()
    world.engine.delete("t", **delete)
    before = world.look("t")
    if checkpoints in ("after", "both"):
        world.engine.checkpoint()
        world.engine.checkpoint()
        world.engine.checkpoint()
    world.restart(how)
    after = world.look("t")
    assert after.seqs == before.seqs
    assert (after.count, after.bytes) == (before.count, before.bytes)
    assert after.earliest >= before.earliest


def test_a_delete_of_a_whole_segment_frees_it(world: World) -> None:
    """A segment without live records is removed as a whole, and only then."""
    world.fill("t", 5)
    world.engine.checkpoint()
    files = [name for name in world.disk.files() if name.endswith(".seg")]
    assert len(files) == 1
    world.engine.delete("t", before_seq=5)
    for _ in range(3):
        world.engine.checkpoint()
    assert files[0] in world.disk.files()
    world.engine.delete("t", before_seq=6)
    for _ in range(3):
        world.engine.checkpoint()
    assert files[0] not in world.disk.files()
    world.restart("kill")
    assert explained(world.engine, "t") == ((1, 5, "deleted"),)


def test_a_delete_of_an_interior_segment_frees_it(world: World) -> None:
    """Also a segment with live neighbours on both sides is dropped when a match clears it."""
    world.engine.put_topic("t", {"durability": "fsync"})
    for tag in ("a", "b", "c"):
        world.engine.append("t", tagged(tag, tag))
        world.engine.checkpoint()
    segments = sorted(name for name in world.disk.files() if name.endswith(".seg"))
    world.engine.delete("t", match="b")
    for _ in range(3):
        world.engine.checkpoint()
    left = sorted(name for name in world.disk.files() if name.endswith(".seg"))
    assert left == [segments[0], segments[2]]
    for how in ENDINGS:
        world.restart(how)
        assert world.look("t").seqs == (1, 2, 5, 6)
        assert explained(world.engine, "t") == ((1, 2, "live"), (3, 4, "deleted"), (5, 6, "live"))


def test_a_delete_during_a_checkpoint_is_not_lost(world: World) -> None:
    """Deletes between the slices of a checkpoint hold in memory and after a restart."""
    for n in range(6):
        world.engine.append(f"t{n}", tagged("x", None))
    assert world.engine.begin_checkpoint()
    for n in range(6):
        world.engine.delete(f"t{n}", match="x")
        world.engine.maintain(0.0)
    while world.engine.maintain(0.0):
        pass
    for how in ENDINGS:
        for n in range(6):
            assert world.look(f"t{n}").seqs == (2,)
        world.restart(how)


def test_a_delete_waits_its_turn_behind_a_write(world: World) -> None:
    """Operations of one topic take effect in the order in which they were submitted."""
    world.engine.put_topic("t", {"durable": True})
    world.fill("t", 1)
    first = world.engine.submit_append("t", request_of(tagged("x")))
    second = world.engine.submit_delete("t", before_seq=2, match=None)
    world.engine.sync()
    assert first.result.first_seq == 2
    assert second.result.deleted == 1
    assert world.look("t").seqs == (2,)


def test_the_head_does_not_move_when_everything_is_deleted(world: World) -> None:
    """An emptied topic keeps its head; seqs go on from there."""
    world.fill("t", 3)
    world.engine.delete("t", before_seq=4)
    state = world.engine.state("t")
    assert (state.head_seq, state.next_seq, state.earliest_seq) == (3, 4, 4)
    world.restart("kill")
    assert world.engine.append("t", [{"data": 0}]).first_seq == 4


@pytest.mark.parametrize("slices", range(1, 24, 2))
@pytest.mark.parametrize("delete", [{"match": "x"}, {"before_seq": 25}], ids=str)
def test_a_delete_between_the_slices_of_a_large_topic_holds(
    slices: int, delete: dict[str, Any]
) -> None:
    """Whole blocks that are deleted while their segment is written do not come back."""
    world = World(block_bytes=512, own_segment_bytes=1024, segment_bytes=2048, resident_bytes=0)
    for n in range(40):
        world.engine.append("t", [{"data": "x" * 100, "tag": "x" if 8 < n < 30 else "y"}] * 2)
    assert world.engine.begin_checkpoint()
    for _ in range(slices):
        world.engine.maintain(0.0)
    world.engine.delete("t", **delete)
    before = world.look("t")
    while world.engine.maintain(0.0):
        pass
    assert world.look("t") == before
    world.engine.checkpoint()
    world.restart("kill")
    assert world.look("t") == before


@pytest.mark.parametrize("slices", range(12))
def test_a_delete_stays_silent_when_its_segment_goes_during_a_checkpoint(slices: int) -> None:
    """A deleted record is accounted as deleted although a cap took its neighbours meanwhile."""
    world = World(resident_bytes=0)
    world.engine.put_topic("t", {"durability": "fsync"})
    world.engine.append("t", tagged("x", "y", "x", "y"))
    world.engine.checkpoint()
    world.engine.append("t", tagged("z"))
    world.engine.delete("t", match="x")
    assert world.engine.begin_checkpoint()
    for _ in range(slices):
        world.engine.maintain(0.0)
    world.engine.put_topic("t", {"durability": "fsync", "cap_records": 1})
    while world.engine.maintain(0.0):
        pass
    before = world.look("t")
    world.restart("kill")
    assert world.look("t") == before
    assert explained(world.engine, "t")[0] == (1, 1, "deleted")


@pytest.mark.parametrize("how", ["topic", "records", "some"])
def test_what_was_removed_takes_no_room_among_the_records_in_memory(how: str) -> None:
    """Sealed records stay in memory up to a bound; deleted ones neither count nor stay."""
    world = World(block_bytes=512, resident_bytes=1 << 20)
    for name in ("a", "b"):
        for n in range(20):
            world.engine.append(name, [{"data": "x" * 100, "tag": str(n % 2)}])
    world.engine.checkpoint()
    segments = world.engine.core.segments
    full = segments.residents.bytes
    if how == "topic":
        world.engine.delete_topic("a")
    else:
        world.engine.delete("a", before_seq=21 if how == "records" else 11)
    kept = [b for t in world.engine.core.by_id.values() for b in t.blocks if b.columns is not None]
    assert segments.residents.bytes == sum(block.size for block in kept) < full


def test_too_many_open_files_put_off_the_tags_that_a_start_left_for_later(world: World) -> None:
    """Maintenance says so, and enters them when files can be opened again."""
    for name in ("a", "b"):
        world.engine.append(name, [{"data": 0, "tag": "x"}])
    world.engine.checkpoint()
    world.end("clean")
    fault = Fault("open", errno=errno.EMFILE, path_contains=".seg")
    faults = FaultFs(world.disk)
    engine = world.engine = Engine.open(
        "/data", clock=world.clock, fs=faults, settings=world.settings
    )
    topics = [engine.core.by_name[name] for name in ("a", "b")]
    assert all(topic.untagged for topic in topics)
    faults.fault = fault
    with pytest.raises(Overloaded):
        engine.maintain()
    while engine.maintain():
        pass
    assert (fault.fired, [topic.untagged for topic in topics]) == (1, [[], []])
