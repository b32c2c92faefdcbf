"""An ephemeral topic becomes durable: with all that it holds, and nothing that went comes back."""

from __future__ import annotations

import errno
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from tests.support.engines import ENDINGS, PATH, SURVIVABLE, Ending, World, tagged, values
from topics.engine.commit.ticket import Ticket
from topics.engine.offline.check import check
from topics.engine.ops import promotion
from topics.engine.ops.cursors import Given
from topics.engine.state.write_request import request_of
from topics.errors import Closed, CorruptData, DiskFull, Poisoned
from topics.testing import FakeDisk, Fault, FaultFs
from topics.testing.lateness import Lateness

DURABLE = ("memory", "disk", "fsync")


def put(world: World, **config: object) -> None:
    world.engine.put_topic("t", config)


def lasts(durability: str, how: Ending) -> bool:
    return durability != "memory" or how != "crash"


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("durability", DURABLE)
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_promoted_topic_keeps_every_record(
    world: World, durability: str, how: Ending, checkpoint: bool
) -> None:
    """Seqs, times, tags, nodes, meta and data of its ephemeral time are as durable as its class."""
    put(world, durability="ephemeral")
    for n in range(4):
        fields = {"tag": f"t{n}", "node": f"n{n}", "meta": {"k": str(n)}} if n % 2 else {}
        world.engine.append("t", [{"data": n, **fields}])
        world.clock.advance(10)
    world.engine.append("t", [{"data": 4}, {"data": 5}])
    if checkpoint:
        world.engine.checkpoint()
    put(world, durability=durability)
    before = world.look("t"), world.engine.diff("t", include_tags=True).records_json
    world.restart(how)
    if lasts(durability, how):
        assert (world.look("t"), world.engine.diff("t", include_tags=True).records_json) == before


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("durability", DURABLE)
@pytest.mark.parametrize("checkpoint", [False, True])
def test_what_a_promotion_evicts_stays_evicted(
    world: World, durability: str, how: Ending, checkpoint: bool
) -> None:
    """Durable records that resident ones pushed out over a cap do not come back."""
    put(world, durability="fsync")
    world.fill("t", 4)
    put(world, durability="ephemeral")
    if checkpoint:
        world.engine.checkpoint()
    world.fill("t", 4)
    put(world, durability=durability, cap_records=6)
    before = world.look("t")
    assert before.earliest == 3
    world.restart(how)
    if lasts(durability, how):
        assert world.look("t") == before


@pytest.mark.parametrize("how", ENDINGS)
def test_the_bytes_of_an_ephemeral_time_are_no_reason_to_evict(world: World, how: Ending) -> None:
    """What was evicted before a promotion takes no room in a topic with a cap in bytes."""
    put(world, durability="ephemeral", cap_bytes=2000)
    world.fill("t", 400)
    put(world, durability="disk", cap_bytes=200_000)
    world.fill("t", 1)
    world.engine.sync()
    kept = world.look("t").seqs
    world.restart(how)
    assert world.look("t").seqs == kept


@pytest.mark.parametrize("how", SURVIVABLE)
def test_a_ttl_goes_on_behind_a_deleted_record(world: World, how: Ending) -> None:
    """A record that was deleted in an ephemeral time does not keep the next ones from expiring."""
    put(world, durability="ephemeral")
    for tag in "aba":
        world.engine.append("t", tagged(tag))
        world.clock.advance(100)
    world.engine.delete("t", match="b")
    world.clock.advance(10_000)
    world.engine.append("t", tagged("a"))
    put(world, durability="fsync", ttl_ms=20_000)
    world.restart(how)
    world.clock.advance(10_000)
    assert world.look("t").seqs == (4,)


@pytest.mark.parametrize("how", ENDINGS)
def test_a_key_of_an_ephemeral_time_is_remembered(world: World, how: Ending) -> None:
    """A retry finds its write after the promotion and a restart, also in a large one."""
    put(world, durability="ephemeral")
    for n in range(3):
        world.engine.append("t", [{"data": n}, {"data": "x" * 400_000}], idempotency_key=f"k{n}")
        world.fill("t", 2)
    put(world, durability="fsync")
    world.restart(how)
    again = world.engine.append("t", [{"data": 1}, {"data": 2}], idempotency_key="k1")
    assert (again.deduped, again.first_seq) == (True, 5)


@pytest.mark.parametrize("deleted", [False, True])
def test_rows_from_before_an_ephemeral_time_are_not_read_again(world: World, deleted: bool) -> None:
    """A record that was sealed before and after stands once, in a segment that others share."""
    world.fill("other", 3)
    put(world, durability="fsync")
    world.engine.append("t", tagged("a", "b", "c"))
    world.engine.checkpoint()
    put(world, durability="ephemeral")
    world.engine.checkpoint()
    put(world, durability="fsync")
    if deleted:
        world.engine.delete("t", match="b")
    before = world.look("t")
    for how in ("kill", "crash", "clean"):
        world.restart(how)
        assert world.look("t") == before
        world.engine.checkpoint()
    world.engine.close()
    assert check(world.disk, PATH, clock=world.clock).ok
    world.engine = world.open()
    world.engine.scrub()
    assert world.look("t").seqs == before.seqs
    assert len(world.look("other").seqs) == 3


def test_a_full_disk_leaves_the_topic_ephemeral(world: World) -> None:
    """Nothing is lost, the topic can be written, and the promotion can be tried again."""
    put(world, durability="ephemeral")
    world.engine.append("t", [{"data": "x" * 1000}] * 200)
    world.disk.capacity_bytes = world.disk.used_bytes()
    with pytest.raises(DiskFull):
        put(world, durability="fsync")
    assert world.engine.state("t").config.durability == "ephemeral"
    world.fill("t", 1)
    world.engine.delete("t", before_seq=3)
    world.disk.capacity_bytes = None
    put(world, durability="fsync")
    before = world.look("t")
    assert before.seqs == tuple(range(3, 202))
    world.restart("crash")
    assert world.look("t") == before


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("is_known", [False, True])
def test_copies_are_made_again_from_a_promoted_source(
    world: World, how: Ending, is_known: bool
) -> None:
    """A router goes on from records that the log has from the promotion, or from before it too."""
    engine = world.engine
    engine.put_topic("b", {"durability": "fsync"})
    put(world, durability="fsync" if is_known else "ephemeral")
    world.engine.append("t", [{"data": 1}, {"data": 2}])
    put(world, durability="ephemeral")
    world.engine.append("t", [{"data": 3}])
    put(world, durability="fsync")
    engine.put_router("r", {"source": "t", "dest": "b", "from_seq": 0})
    while engine.forward():
        pass
    world.fill("t", 1)
    engine = world.restart(how)
    while engine.forward():
        pass
    assert values(engine.diff("b")) == [1, 2, 3, 0]


# -- topics too large to be promoted at once -----------------------------------------------------


@pytest.fixture
def large(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world with an ephemeral topic of which one group is written at once."""
    monkeypatch.setattr(promotion, "AT_ONCE_BLOCKS", promotion.GROUP_BLOCKS)
    put(world, durability="ephemeral")
    for n in range(6):
        world.engine.append("t", [{"data": f"{n}" + "x" * 300_000, "tag": f"t{n}"}] * 2)
    return world


def submit(world: World, **config: object) -> Ticket:
    ticket = world.engine.submit_put("t", config).ticket
    assert not ticket.done
    return ticket


def test_a_large_topic_is_written_and_read_while_it_is_promoted(large: World) -> None:
    """Writes are answered at once until the class has changed; none of it is lost after that."""
    ticket = submit(large, durability="fsync")
    written = large.engine.submit_append("t", request_of([{"data": "late"}]))
    assert written.done
    assert large.engine.submit_delete("t", before_seq=None, match="t2").done
    assert large.engine.state("t").config.durability == "ephemeral"
    while large.engine.maintain(0):
        pass
    assert (ticket.done, ticket.error) == (True, None)
    assert large.engine.state("t").config.durability == "fsync"
    before = large.look("t")
    large.restart("crash")
    assert large.look("t") == before
    assert before.seqs == (1, 2, 3, 4, *range(7, 14))
    assert values(large.engine.diff("t", from_seq=12)) == ["late"]


@pytest.mark.parametrize("how", ENDINGS)
def test_a_promotion_that_was_cut_short_promises_nothing(large: World, how: Ending) -> None:
    """The topic is ephemeral, without records, and whoever waited at a stop is told."""
    ticket = submit(large, durability="fsync")
    epoch = large.engine.state("t").epoch
    large.restart(how)
    if how == "clean":
        assert isinstance(ticket.error, Closed)
    assert large.engine.state("t").config.durability == "ephemeral"
    assert large.look("t").seqs == ()
    assert (large.engine.state("t").epoch == epoch) == (how == "clean")


def test_a_checkpoint_in_between_loses_nothing_of_a_promotion(large: World) -> None:
    """What was logged before the log was cut is logged again."""
    ticket = submit(large, durability="fsync")
    assert large.engine.begin_checkpoint()
    while large.engine.maintain(0):
        pass
    assert ticket.done
    before = large.look("t")
    assert len(before.seqs) == 12
    large.restart("crash")
    assert large.look("t") == before


def test_a_promotion_ends_at_a_record_that_can_not_be_read(large: World) -> None:
    """Whoever waits is told, and the topic stays ephemeral."""
    ticket = submit(large, durability="fsync")
    topic = large.engine.core.by_name["t"]
    with pytest.MonkeyPatch.context() as patch:
        damaged = CorruptData("segment 1: a block fails its checksum")
        patch.setattr(large.engine.core.segments, "columns", Mock(side_effect=damaged))
        while large.engine.maintain(0):
            pass
    assert isinstance(ticket.error, CorruptData)
    assert topic.config.durability == "ephemeral"
    large.fill("t", 1)


def test_configs_take_effect_in_the_order_they_were_put(large: World) -> None:
    """A config that follows a promotion under way waits for its end."""
    first = submit(large, durability="fsync")
    large.engine.put_topic("t", {"durability": "ephemeral"})
    assert (first.done, first.error) == (True, None)
    assert large.engine.state("t").config.durability == "ephemeral"


def test_a_topic_that_is_dropped_needs_no_promotion(large: World) -> None:
    """The drop wins, and the promotion ends without an error."""
    ticket = submit(large, durability="fsync")
    large.engine.delete_topic("t")
    while large.engine.maintain(0):
        pass
    assert (ticket.done, ticket.error) == (True, None)
    large.restart("kill")
    assert large.engine.list_topics() == []


def test_what_waits_behind_a_cursor_has_its_place_when_the_class_changes(large: World) -> None:
    """Of the class that was, it leaves no frame: the log of the new one would lack it."""
    engine = large.engine
    put = engine.submit_put("t", {"durability": "fsync"})
    late = Lateness()
    late.attach(engine)
    place = engine.submit_put_cursor("t", "reader", Given(seq=5))
    engine.flush()
    behind = engine.submit_append("t", request_of([{"data": "behind"}]))
    assert (place.done, behind.done) == (False, False)
    while engine.core.preparing.promotions:
        engine.maintain(0)
    while not put.ticket.done:
        late.drain()
        engine.poll()
    engine.append("t", [{"data": "after"}])
    head = engine.state("t").head_seq
    large.restart("kill")
    assert large.engine.state("t").head_seq == head
    assert values(large.engine.diff("t", from_seq=head - 2)) == ["behind", "after"]


@pytest.mark.parametrize("how", ["the next config", "a slice"])
def test_a_promotion_during_which_the_log_fails_is_told(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """And a config behind it is not begun: nobody would end it."""
    monkeypatch.setattr(promotion, "AT_ONCE_BLOCKS", promotion.GROUP_BLOCKS)
    faults = FaultFs(FakeDisk())
    world = World(disk=faults)
    put(world, durability="ephemeral")
    for n in range(6):
        world.engine.append("t", [{"data": f"{n}" + "x" * 300_000}] * 2)
    ticket = submit(world, durability="fsync")
    faults.fault = Fault("pwrite", errno=errno.EIO, path_contains=".wal", forever=True)
    calls: dict[str, Callable[[], object]] = {
        "a slice": lambda: world.engine.maintain(0),
        "the next config": lambda: world.engine.submit_put("t", {"durability": "ephemeral"}),
    }
    with pytest.raises(Poisoned):
        calls[how]()
    assert isinstance(ticket.error, Poisoned)
