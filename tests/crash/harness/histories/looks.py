"""What must be true of a running engine whenever somebody looks.

`look` reads everything in the ways a client can, and holds it against what was written.
"""

from __future__ import annotations

import json
import random
from functools import partial
from typing import Any

from tests.crash.harness.histories.facts import Instance
from tests.crash.harness.histories.world import ROOT, World
from topics.engine.offline import invariants
from topics.errors import TopicsError
from topics.storage import snapshot
from topics.testing.model import Entry, ModelTopic
from topics.testing.modelcheck import Violation, require, verify_read

STEPS_MAX = 6


def look(world: World) -> None:
    """Reads every topic from end to end."""
    two_snapshots(world)
    for name in world.engine.list_topics(limit=1000):
        if world.is_poisoned:
            return
        known = world.instance(name)
        if known is not None:
            read(world, known)


def read(world: World, known: Instance) -> None:
    """Every live record is one that was written, as it was written, under its seq."""
    name, engine = known.name, world.engine
    state = world.call(lambda: engine.state(name))
    found: dict[int, dict[str, Any]] = {}
    cursor = 0
    head = getattr(state, "head_seq", -1)
    while cursor < head:
        page = world.call(partial(engine.diff, name, from_seq=cursor, limit=50, include_tags=True))
        if page is None or isinstance(page, BaseException):
            # A fault was met on the way.
            require(world.is_faulty or world.is_poisoned, f"{name} can not be read: {page!r}")
            return
        for record in json.loads(page.records_json):
            found[record["$seq"]] = record
        require(page.next_from_seq > cursor, f"{name}: the cursor stands still at {cursor}")
        cursor = page.next_from_seq
    if world.is_poisoned or head < 0 or world.instance(name) is not known:
        return
    world.see(known, "live")
    live = known.live()
    require(sorted(found) == live, f"{name}: reads give {sorted(found)}, explain says {live}")
    count = engine.core.by_name[name].live_count
    require(count == len(live), f"{name}: count {count}, live {len(live)}")
    world.tallies["records"] += len(found)
    numbers: dict[int, int] = {}
    for seq, record in found.items():
        n = same(world, known, seq, record)
        require(
            n not in numbers or known.may_repeat,
            f"{name}: record {n} stands at {numbers.get(n)} and at {seq}",
        )
        numbers[n] = seq
    core = engine.core
    topic = core.by_name[name]
    wrong = world.call(lambda: list(invariants.examine(core, topic)))
    for word, text in wrong if isinstance(wrong, list) else ():
        # What could not be read is counted by share.
        is_excused = word == "block_damaged" or not core.segments.is_exact
        if not (world.is_faulty and is_excused):
            raise Violation(f"{name}: {word}: {text}")


def same(world: World, known: Instance, seq: int, record: dict[str, Any]) -> int:
    name, n = known.name, int(record["data"]["n"])
    born = world.born.get(n)
    require(born is not None, f"{name}: {seq} is {record}, which nobody wrote")
    assert born is not None
    require(not born.is_refused, f"{name}: {seq} is {n}, whose write was refused")
    there = known.held.setdefault(seq, (n, record["$ts"]))
    require(there == (n, record["$ts"]), f"{name}: {seq} was {there}, reads {record}")
    asked = born.record
    for shown, given in (("data", "data"), ("$tag", "tag"), ("$node", "node")):
        require(record.get(shown) == asked.get(given), f"{name}: {seq} reads {record}, was {asked}")
    if born.topic == name:
        require(record.get("meta") == asked.get("meta"), f"{name}: {seq} reads {record}")
    return n


def tombstones(world: World, known: Instance, draw: random.Random) -> None:
    """Whoever stands in front of a loss is told of it, and of nothing else."""
    topic = ModelTopic(known.name, known.epoch, known.config)
    for seq, state in enumerate(known.states, 1):
        n, ts = known.held.get(seq, (0, 0))
        record = world.born[n].record if n else {"data": None}
        data = json.dumps(record["data"], separators=(",", ":"), ensure_ascii=False)
        topic.entries.append(
            Entry(state, ts, data, record.get("tag"), record.get("node"), record.get("meta"))
        )
    fed = any(edge.dest.name == known.name for edge in [*world.edges.values(), *world.past_edges])
    if fed or known.name == "dead":
        # Copies have meta of their own.
        return
    for cursor in {0, draw.randrange(known.head + 2), max(known.head - 1, 0)}:
        verify_read(topic, world.engine, cursor)


def readable(world: World) -> list[int]:
    """The snapshots that can be read from end to end."""
    found = []
    for number in snapshot.numbers(world.disk, f"{ROOT}/snap"):
        try:
            snapshot.read(world.disk, f"{ROOT}/snap", number)
        except (TopicsError, OSError):
            continue
        found.append(number)
    return found


def two_snapshots(world: World) -> None:
    """Once a start has met a damaged snapshot, the next one taken makes two good ones again."""
    if world.is_spoil_met and world.engine.core.numbers.snapshot > world.spoilt_at:
        found = readable(world)
        require(len(found) >= 2, f"of the snapshots only {found} can be read")


def steps_taken(world: World) -> int:
    return sum(router.ahead.step for router in world.engine.core.routers.by_name.values())


def waited_for(world: World, before: int) -> None:
    """What one client asks for does not wait until the routers of others have caught up."""
    steps = steps_taken(world) - before
    require(steps <= STEPS_MAX, f"a router's PUT forwarded {steps} pieces of others")
