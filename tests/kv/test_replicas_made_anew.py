"""A replica whose router was dropped and made anew: no old version and no deleted key comes back.

Promises: between two buckets each source seq is applied once, over any number of routers one after
the other, whatever either side has compacted; where that can not be, because a marker is gone that
nobody held, or because older changes would come after newer ones, the router is refused.
"""

from __future__ import annotations

import pytest

from tests.kv.kv_world import REPLICA, ROUTER, SOURCE, KvWorld
from tests.support.engines import Ending
from topics.engine.engine import Engine
from topics.errors import Incompatible
from topics.kv.embedded import buckets_of
from topics.testing import CrashPlan

FROM_START = {"source": SOURCE, "dest": REPLICA, "from_seq": 0}


def overwritten(**settings: int) -> KvWorld:
    """The replica has compacted a version and a deleted key that its source still has."""
    run = KvWorld("fsync", history=3, **settings)
    run.put("a")
    run.put("a")
    run.put("b")
    run.delete("b")
    run.forward()
    run.world.clock.advance(1)
    assert run.replica.compact(max_age_ms=0) == 1
    assert dict(run.replica.scan()) == {"a": 2}
    return run


def forwarded(engine: Engine, name: str = ROUTER) -> int:
    return engine.router(name).place.forwarded_total


@pytest.mark.parametrize("how", [None, "clean", "kill", "crash"])
@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize("name", [ROUTER, "another"])
def test_a_router_made_anew_goes_on_where_the_replica_is(
    how: Ending | None, is_sealed: bool, name: str
) -> None:
    """Also under another name, after a start, and from a snapshot."""
    run = overwritten()
    run.engine.delete_router(ROUTER)
    if is_sealed:
        run.engine.checkpoint()
    if how is not None:
        run.restart(how, CrashPlan.standard()[0])
    run.put("c")
    run.engine.put_router(name, FROM_START)
    run.forward()
    assert forwarded(run.engine, name) == 1
    assert dict(run.replica.scan()) == {"a": 2, "c": 4}
    assert len(run.replica.history("a")) == 1
    assert run.replica.history("b") == []


def test_a_router_whose_end_is_on_its_way_says_how_far_it_came() -> None:
    """Dropped and made anew in one turn, with maps in front of both."""
    run = overwritten()
    run.put("c")
    run.engine.forward()
    run.engine.submit_unroute(ROUTER)
    run.engine.put_router(ROUTER, FROM_START)
    run.forward()
    assert forwarded(run.engine) == 0
    assert dict(run.replica.scan()) == {"a": 2, "c": 4}


def test_a_router_that_takes_anothers_name_ends_it_as_well() -> None:
    """The replica is fed by the same name from elsewhere in between."""
    run = overwritten()
    run.engine.put_bucket("kv:other", {})
    run.engine.put_router(ROUTER, {"source": "kv:other", "dest": REPLICA, "from_seq": 0})
    run.restart("kill", CrashPlan.standard()[0])
    run.engine.put_router(ROUTER, FROM_START)
    run.forward()
    assert forwarded(run.engine) == 0
    assert dict(run.replica.scan()) == {"a": 2}


def test_a_marker_that_nobody_held_makes_the_router_impossible() -> None:
    """The replica may have keys that were deleted since: it is made anew, or resynchronised."""
    run = overwritten()
    run.engine.delete_router(ROUTER)
    run.delete("a")
    run.world.clock.advance(1)
    assert run.source.compact(max_age_ms=0) == 2
    run.restart("kill", CrashPlan.standard()[0])
    with pytest.raises(Incompatible) as refused:
        run.engine.put_router(ROUTER, FROM_START)
    assert refused.value.detail["reason"] == "router_dest_outdated"
    run.engine.delete_topic(REPLICA)
    run.engine.put_router(ROUTER, FROM_START)
    run.put("c")
    run.forward()
    assert dict(run.replica.scan()) == {"c": 4}


def test_versions_that_were_compacted_meanwhile_are_no_hindrance() -> None:
    """What superseded them is there."""
    run = overwritten()
    run.engine.delete_router(ROUTER)
    for _ in range(5):
        run.put("a")
    run.compact(10_000)
    run.engine.put_router(ROUTER, FROM_START)
    run.check_replica()


def test_what_is_older_does_not_come_after_what_is_newer() -> None:
    """Not by an earlier start, nor by a wider filter; from where the replica is, both may be."""
    run = KvWorld("fsync")
    run.engine.delete_router(ROUTER)
    run.append(["a", "b", "a:1"])
    options = {"source": SOURCE, "dest": REPLICA}
    under_a = ["tag", "Glob", "a*"]
    run.engine.put_router(ROUTER, {**options, "from_seq": 1, "filter": under_a})
    run.forward()
    run.engine.delete_router(ROUTER)
    for given in ({"from_seq": 0, "filter": under_a}, {"from_seq": 1}, {"from_seq": 2}):
        with pytest.raises(Incompatible) as refused:
            run.engine.put_router(ROUTER, {**options, **given})
        assert refused.value.detail["reason"] == "router_dest_ahead"
        assert refused.value.detail["fed_seq"] == 3
    run.engine.put_router(ROUTER, {**options, "from_seq": 2, "filter": "a:1"})
    run.engine.delete_router(ROUTER)
    run.engine.put_router(ROUTER, {**options, "from_seq": 3})
    run.append(["b"])
    run.forward()
    assert dict(run.replica.scan()) == {"a:1": 3, "b": 4}


def test_a_replica_has_one_router() -> None:
    """Two would bring changes out of their order, and a range marker twice."""
    run = KvWorld("fsync")
    for given in ({}, {"filter": "a"}):
        with pytest.raises(Incompatible) as refused:
            run.engine.put_router("second", {**FROM_START, **given})
        assert refused.value.detail["reason"] == "router_dest_fan_in"


def test_a_router_that_comes_while_a_marker_goes_does_not_miss_it() -> None:
    """It is made in the middle of a pass, below what that removes."""
    run = KvWorld("disk")
    run.engine.delete_router(ROUTER)
    run.put("a")
    run.delete("a")
    run.world.clock.advance(1)
    buckets = buckets_of(run.engine)
    bucket = buckets.get(SOURCE[3:])
    for steps in range(1, 40):
        ticket = buckets.compactor.ask(bucket, 0, "")
        for _ in range(steps):
            buckets.compactor.step()
        run.engine.put_router(ROUTER, FROM_START)
        run.engine.forward()
        buckets.compactor.finish(ticket)
        run.check_replica()
        run.engine.delete_topic(REPLICA)
        if run.source.history("a") == []:
            run.put("a")
            run.delete("a")
            run.world.clock.advance(1)
