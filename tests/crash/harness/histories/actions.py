"""The steps of a history. Each draws what it does from a number of its own and from what is there.

So a step does the same in every run of the same history, and most often still does something
like it when other steps are left out.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

from tests.crash.harness.histories import looks, starts
from tests.crash.harness.histories.draws import config_of
from tests.crash.harness.histories.facts import Asked, Born
from tests.crash.harness.histories.world import ROOT, Edge, World
from topics.configs import resolve_config
from topics.engine.ops.cursors import Given
from topics.engine.queues.claims import claimant_of
from topics.engine.reading import ranges
from topics.engine.state.write_request import request_of
from topics.storage import snapshot
from topics.testing import CrashPlan, Fault
from topics.types import U64_MAX, Hold

TAGS = (None, None, "x", "y:1", "y:2")
NODES = (None, None, None, "n1")
WORKERS = ("w1", "w2")
Step = Callable[[World, random.Random], None]


def step(world: World, kind: str, number: int) -> None:
    """One step, and the turns of the engine behind it."""
    draw = random.Random(f"{kind} {number}")
    world.log.append(f"{kind} {number}")
    world.tallies["steps"] += 1
    STEPS[kind](world, draw)
    if world.is_poisoned:
        world.give_up()
        starts.restart(world, draw)
    world.drive(draw, draw.choice(world.mood.turns))
    if world.is_poisoned:
        world.give_up()
        starts.restart(world, draw)
    world.peek()
    if draw.random() < world.mood.looks:
        looks.look(world)


# -- writing -----------------------------------------------------------------------------------


def records(world: World, draw: random.Random, count: int) -> list[int]:
    numbers = []
    is_plain = draw.random() < 0.5
    for _ in range(count):
        n = len(world.born) + 1
        record: dict[str, object] = {"data": {"n": n, "pad": "é" * draw.choice(world.mood.sizes)}}
        tag, node = draw.choice(TAGS), draw.choice(NODES)
        if not is_plain and tag is not None:
            record["tag"] = tag
        if not is_plain and node is not None:
            record["node"] = node
        if not is_plain and draw.random() < 0.1:
            record["meta"] = {"k": str(n)}
        world.born[n] = Born(n, "", record)
        numbers.append(n)
    return numbers


def write(world: World, draw: random.Random, name: str) -> None:
    numbers = records(world, draw, draw.choice((1, 1, 1, 2, 3, 8)))
    for n in numbers:
        world.born[n].topic = name
    key = draw.choice((None, None, None, f"k{draw.randrange(4)}"))
    submit(world, Asked("append", name, numbers=tuple(numbers), key=key))


def submit(world: World, asked: Asked) -> None:
    request = request_of([world.born[n].record for n in asked.numbers], idempotency_key=asked.key)
    world.ask(asked, lambda: world.engine.submit_append(asked.topic, request))


def append(world: World, draw: random.Random) -> None:
    write(world, draw, draw.choice(world.mood.names))


def burst(world: World, draw: random.Random) -> None:
    """Several at once, as many clients have them: one group, several shards."""
    for _ in range(draw.randint(2, 6)):
        kind = draw.choice((append, append, append, delete, ack, read, put))
        kind(world, draw)
        if world.is_poisoned:
            return


def retry(world: World, draw: random.Random) -> None:
    """Whoever does not know how a write ended asks again: then it is there once."""
    if world.retries:
        before = world.retries.pop(draw.randrange(len(world.retries)))
        submit(world, Asked("append", before.topic, numbers=before.numbers, key=before.key))


def delete(world: World, draw: random.Random) -> None:
    name = draw.choice(world.mood.names)
    known = world.instance(name)
    if known is None:
        return
    before = draw.choice((None, draw.randrange(known.head + 3)))
    match = draw.choice(("x", "y:1", "y:*", "*")) if before is None or draw.random() < 0.2 else None
    predicate: object = ["tag", "Glob", match] if match is not None and "*" in match else match
    world.ask(
        Asked("delete", name, before=before, match=match),
        lambda: world.engine.submit_delete(name, before_seq=before, match=predicate),
    )


# -- topics and routers ------------------------------------------------------------------------


def put(world: World, draw: random.Random) -> None:
    name = draw.choice(world.mood.names)
    config = config_of(draw, world.mood, name)
    known = world.config_of(name)
    asked = Asked("put", name)
    asked.config = resolve_config(config, topic=name, type_now=known.type if known else None)
    world.ask(asked, lambda: world.engine.submit_put(name, config).ticket)
    if asked.config is not None and asked.config.dead_letter and draw.random() < 0.5:
        world.ask(Asked("put", "dead"), lambda: world.engine.submit_put("dead", {}).ticket)


def drop(world: World, draw: random.Random) -> None:
    name = draw.choice(world.mood.names)
    known = world.instance(name)
    if known is None:
        return
    asked = Asked("drop", name)
    world.ask(asked, lambda: world.engine.submit_drop(name, if_empty=False))
    for edge in list(world.edges.values()):
        if known in (edge.source, edge.dest):
            leave(world, edge, asked)


def leave(world: World, edge: Edge, asked: Asked) -> None:
    if asked.outcome != "refused":
        edge.ended = asked
        world.past_edges.append(world.edges.pop(edge.name))


def recreate(world: World, draw: random.Random) -> None:
    number = draw.random()
    drop(world, random.Random(number))
    if not world.is_poisoned:
        put(world, random.Random(number))


def route(world: World, draw: random.Random) -> None:
    if not world.mood.edges:
        return
    source, dest = draw.choice(world.mood.edges)
    name = f"{source}-{dest}"
    guarantee = draw.choice(("at_least_once", "exactly_once"))
    given: dict[str, object] = {"source": source, "dest": dest, "guarantee": guarantee}
    start = U64_MAX
    if draw.random() < 0.5:
        given["from_seq"] = start = draw.choice((0, 0, 2))
    asked = Asked("route", dest)
    steps = looks.steps_taken(world)
    answer = world.ask(asked, lambda: world.engine.submit_router(name, given))
    looks.waited_for(world, steps)
    router = world.engine.core.routers.by_name.get(name)
    if not isinstance(answer, tuple) or router is None or asked.outcome == "refused":
        return
    before = world.edges.get(name)
    if before is not None:
        if before.guarantee != guarantee:
            before.guarantee = "mixed"
            if before.begins_again:
                # What it has still to copy again, it no longer looks for.
                world.may_repeat(before.dest)
        return
    found = world.instance(source), world.instance(dest)
    assert found[0] is not None
    assert found[1] is not None
    # It may have come further already.
    start = min(start, router.place.cursor)
    edge = Edge(name, found[0], found[1], start, guarantee, asked)
    world.edges[name] = edge
    for old in world.past_edges:
        begins_again = (old.source, old.dest) == found and edge.start < old.cursor
        if begins_again:
            edge.begins_again = True
            edge.copied_from = min(edge.copied_from, old.copied_from)
        # Another instance of its source is another source: what it was given anew comes anew.
        is_another = old.dest is found[1] and old.source is not found[0]
        if is_another or (begins_again and {old.guarantee, guarantee} != {"exactly_once"}):
            world.may_repeat(found[1])
    if found[0].may_repeat:
        world.may_repeat(found[1])


def unroute(world: World, draw: random.Random) -> None:
    if world.edges:
        name = draw.choice(sorted(world.edges))
        asked = Asked("unroute", name.split("-")[1])
        router = world.engine.core.routers.by_name[name]
        edge = world.edges[name]
        edge.cursor = router.ahead.cursor
        world.ask(asked, lambda: world.engine.submit_unroute(name))
        leave(world, edge, asked)


# -- readers and workers -----------------------------------------------------------------------


def claim(world: World, draw: random.Random) -> None:
    names = [name for name in world.mood.names if name in world.mood.queues]
    if not names:
        return
    name = draw.choice(names)
    config = world.config_of(name)
    if config is None or config.type != "queue":
        return
    claimants = [
        claimant_of(draw.choice(WORKERS), draw.randint(1, 4), None, world.mood.settings)
        for _ in range(draw.choice((1, 1, 2)))
    ]
    known = world.instance(name)
    assert known is not None
    gone = frozenset(seq for seq, state in enumerate(known.states, 1) if state != "live")
    asked = Asked("claim", name, gone=gone, lease_ms=known.lease_ms())
    world.ask(asked, lambda: world.engine.submit_claims(name, claimants))


def ack(world: World, draw: random.Random) -> None:
    _hand_back(world, draw, "ack")


def nack(world: World, draw: random.Random) -> None:
    _hand_back(world, draw, "nack")


def _hand_back(world: World, draw: random.Random, kind: str) -> None:
    found = [known for name in world.mood.names if (known := world.instance(name)) is not None]
    names = [known.name for known in found if known.leases and known.config.type == "queue"]
    if not names:
        return
    name = draw.choice(names)
    known = world.instance(name)
    assert known is not None
    seqs = sorted(draw.sample(sorted(known.leases), draw.randint(1, len(known.leases))))
    node = draw.choice(WORKERS)
    asked = Asked(kind, name, seqs=tuple(seqs))
    if kind == "ack":
        world.ask(asked, lambda: world.engine.submit_ack(name, node, seqs))
    else:
        world.ask(asked, lambda: world.engine.submit_nack(name, node, seqs, 0))
        for seq in seqs:
            known.leases[seq] = -1


def cursor(world: World, draw: random.Random) -> None:
    name = draw.choice(world.mood.names)
    topic = world.engine.core.by_name.get(name)
    if topic is None:
        return
    which = draw.choice(("r1", "r2"))
    seq = draw.randint(0, topic.head)
    hold = draw.choice((None, None, Hold(max_bytes=500), Hold(max_age_ms=1000)))
    given = Given(seq=seq, reset=True, hold=hold)
    known = world.instance(name)
    assert known is not None
    known.is_held |= hold is not None
    world.ask(
        Asked("cursor", name, key=which, before=seq),
        lambda: world.engine.submit_put_cursor(name, which, given),
    )


def uncursor(world: World, draw: random.Random) -> None:
    name, which = draw.choice(world.mood.names), draw.choice(("r1", "r2"))
    if name in world.engine.core.by_name:
        world.ask(
            Asked("uncursor", name, key=which),
            lambda: world.engine.submit_delete_cursor(name, which),
        )


def read(world: World, draw: random.Random) -> None:
    name = draw.choice(world.mood.names)
    if name not in world.engine.core.by_name:
        return
    engine, call = world.engine, draw.randrange(4)
    if call == 0:
        world.call(lambda: engine.state(name))
    elif call == 1:
        world.call(lambda: engine.explain(name))
    elif call == 2:
        world.call(lambda: engine.diff_now(name, from_seq=draw.randrange(5), limit=3))
    else:
        world.call(lambda: engine.range_now(name, ranges.Asked()))


# -- time and work beside the work ---------------------------------------------------------------


def checkpoint(world: World, draw: random.Random) -> None:
    if draw.random() < 0.3:
        world.call(world.engine.checkpoint)
        return
    world.engine.maintenance.begin_checkpoint()
    slices(world, draw)


def slices(world: World, draw: random.Random) -> None:
    world.clock.advance(draw.choice((0, 60)))
    for _ in range(draw.randrange(1, 8)):
        world.call(lambda: world.engine.maintain(0))
        if world.is_poisoned:
            return
        if draw.random() < 0.5 and not world.is_stalled:
            world.late.step(draw)


def rewrite(world: World, draw: random.Random) -> None:
    """An erasure, to its end or as long as it takes beside everything else."""
    name = draw.choice(world.mood.names)
    if world.instance(name) is None:
        return
    if draw.random() < 0.3:
        world.call(lambda: world.engine.rewrite(name))
        return
    world.call(lambda: world.engine.submit_rewrite(name))
    slices(world, draw)


def forward(world: World, draw: random.Random) -> None:
    for _ in range(draw.randint(1, 3)):
        world.call(world.forward)
        if world.is_poisoned:
            return


def time(world: World, draw: random.Random) -> None:
    world.clock.advance(draw.choice((10, 60, 400, 1200, 6000, 12_000)))
    world.call(lambda: world.engine.maintain(0))


def stall(world: World, draw: random.Random) -> None:
    """No sync and no job ends any more; the next time all of them do."""
    world.is_stalled = not world.is_stalled
    if not world.is_stalled:
        world.late.drain()
        world.call(world.engine.poll)


def quiesce(world: World, draw: random.Random) -> None:
    world.quiesce()
    if not world.is_poisoned:
        for known in world.by_epoch.values():
            if known.name in world.engine.core.by_name:
                known.durable_upto = max(known.durable_upto, known.head)


# -- bad luck ------------------------------------------------------------------------------------


def fault(world: World, draw: random.Random) -> None:
    """One call of the disk will fail, some time soon."""
    operation = draw.choice(world.mood.operations)
    number = draw.choice((errno.EIO, errno.ENOSPC, errno.EMFILE))
    path = draw.choice(world.mood.paths)
    planned = Fault(
        operation,  # type: ignore[arg-type]
        draw.randint(1, world.mood.nth_max),
        number,
        path_contains=path,
    )
    if operation == "pwrite" and draw.random() < 0.6:
        planned.errno, planned.short_bytes = errno.ENOSPC, draw.choice(world.mood.shorts)
    if operation == "pread" and draw.random() < world.mood.flips:
        planned.read_effect, planned.damage_at = "bit-flip", draw.randrange(600)
    world.plan(planned)


def memory(world: World, draw: random.Random) -> None:
    world.memory.fails_at = draw.randint(1, 4)


def cold(world: World, draw: random.Random) -> None:
    """The cold store does not answer."""
    operation = draw.choice(("pread", "pwrite", "create", "open", "rename", "unlink", "sync"))
    is_long = draw.random() < 0.3
    world.plan(Fault(operation, draw.randint(1, 2), path_contains="/cold/", forever=is_long))


def spoil(world: World, draw: random.Random) -> None:
    """One snapshot rots. There are two of them, so that costs nothing."""
    if world.engine.core.numbers.snapshot <= world.spoilt_at:
        return
    numbers = looks.readable(world)
    if len(numbers) < 2:
        return
    # The newest may stand on the disk before the engine has heard of it.
    world.spoilt_at, world.is_spoil_met = max(numbers), False
    path = f"{ROOT}/snap/{snapshot.file_name(draw.choice(numbers))}"
    file = world.disk.open(path)
    at = draw.randrange(file.size())
    file.pwrite(bytes([file.pread(1, at)[0] ^ 1]), at)
    file.sync()
    file.close()


def restart(world: World, draw: random.Random) -> None:
    world.memory.fails_at = None
    world.plan(None)
    ending = draw.choice(world.mood.endings)
    plan = CrashPlan.random(draw.randrange(1 << 30))
    if draw.random() < 0.5:
        plan = draw.choice(CrashPlan.standard())
    world.end(ending, plan)  # type: ignore[arg-type]
    starts.restart(world, draw)


STEPS: dict[str, Step] = {
    "append": append, "burst": burst, "put": put, "delete": delete, "drop": drop,
    "recreate": recreate, "route": route, "reroute": route, "unroute": unroute, "claim": claim,
    "ack": ack, "nack": nack, "cursor": cursor, "uncursor": uncursor, "read": read,
    "checkpoint": checkpoint, "slices": slices, "forward": forward, "time": time,
    "quiesce": quiesce, "retry": retry, "fault": fault, "memory": memory, "cold": cold,
    "restart": restart, "spoil": spoil, "stall": stall, "rewrite": rewrite,
}  # fmt: skip
