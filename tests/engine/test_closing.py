"""An orderly stop: what was acknowledged stays acknowledged, whatever was on its way."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.engines import World
from topics.engine.state.write_request import request_of
from topics.testing import Lateness


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
@pytest.mark.parametrize("steps", range(4))
def test_what_is_acknowledged_while_closing_is_never_assigned_again(
    durability: str, steps: int
) -> None:
    """A write waits behind a change of config, behind a sync; then the engine is closed."""
    world = World(wal_shards=1)
    engine = world.engine
    engine.put_topic("t", {"durability": durability})
    engine.append("t", [{"data": 0}])
    late = Lateness()
    late.attach(engine)
    engine.submit_put("t", {"durability": durability, "ttl_ms": 1_000_000})
    tickets = [engine.submit_append("t", request_of([{"data": n}] * 2)) for n in (1, 2)]
    if steps:
        engine.flush()
    deleted = engine.submit_delete("t", before_seq=2, match=None) if steps > 1 else None
    tickets += [engine.submit_append("t", request_of([{"data": 3}]))]
    if steps > 2:
        engine.flush()
    epoch = engine.state("t").epoch
    engine.close()
    assert all(ticket.done and ticket.error is None for ticket in tickets)
    last = max(ticket.result.last_seq for ticket in tickets)
    engine = world.engine = world.open()
    state: Any = engine.state("t")
    assert (state.epoch, state.head_seq) == (epoch, last)
    assert engine.append("t", [{"data": 4}]).first_seq == last + 1
    if deleted is not None:
        assert engine.explain("t")[0].state == "deleted"
