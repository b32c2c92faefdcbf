"""What happens in a history of changes of class: one call each, which may end late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.crash.harness.class_draws import (
    BUCKET,
    HOLDS,
    KEYS,
    MATCHES,
    config_of,
    patch_of,
    records_of,
)
from tests.crash.harness.class_world import ClassWorld
from topics.configs import BucketInput
from topics.engine.commit.ticket import Ticket
from topics.engine.ops import catalog
from topics.engine.ops.cursors import Given
from topics.engine.queues.claims import claimant_of
from topics.engine.state.stage_request import stage_request_of
from topics.engine.state.write_request import request_of
from topics.kv.embedded import open_bucket
from topics.types import Appended, Committed, ConfigPatch

Step = Callable[[ClassWorld], None]


def append(world: ClassWorld) -> None:
    rng, facts, name = world.rng, world.facts, world.any_name()
    values = facts.values(rng.choice((1, 1, 2, 5)))
    request = records_of(rng, values)
    key = rng.choice((None, None, "k1", "k2", "k3"))
    known = None if key is None else facts.answers.get((name, key))
    made = world.making(name)

    def ended(ticket: Ticket[Appended]) -> None:
        if ticket.error is not None:
            world.refused(ticket.error, values)
            return
        answer = ticket.result
        if key is not None:
            facts.answered(name, key, answer, known, world.clock.wall_ms())
        if not answer.deduped:
            facts.written(name, answer.epoch, answer.first_seq, values)
            made(ticket)

    world.ask(
        f"append {name} {values} {key}",
        lambda: world.engine.submit_append(name, request_of(request, idempotency_key=key)),
        ended,
    )


# -- topics --------------------------------------------------------------------------------------


def put(world: ClassWorld) -> None:
    name = world.any_name()
    config = config_of(world.rng, world.mood, name)
    world.facts.configured(name, config)
    world.ask(
        f"put {name} {config}",
        lambda: world.engine.submit_put(name, config).ticket,
        world.making(name),
    )


def patch(world: ClassWorld) -> None:
    name, fields = world.any_name(), patch_of(world.rng, world.mood)
    world.facts.configured(name, fields)
    world.ask(
        f"patch {name} {fields}",
        lambda: world.engine.submit_patch(name, ConfigPatch(**fields)).ticket,
    )


def change_class(world: ClassWorld) -> None:
    names = [*world.mood.names, *([BUCKET, BUCKET] if world.mood.has_bucket else [])]
    name = world.rng.choice(names)
    durability = world.rng.choice(("ephemeral", *world.mood.classes))
    if name != BUCKET:
        change = ConfigPatch(durability=durability)
        world.ask(
            f"class {name} {durability}", lambda: world.engine.submit_patch(name, change).ticket
        )
        return
    given = BucketInput(durability=durability, history=world.history)
    world.ask(
        f"class {name} {durability}",
        lambda: catalog.put(world.engine.core, BUCKET, given).ticket,
        world.making(name),
    )


def drop(world: ClassWorld) -> None:
    name = world.any_name()
    world.facts.dropped(name)
    world.ask(f"drop {name}", lambda: world.engine.submit_drop(name, if_empty=False)[1])


def delete(world: ClassWorld) -> None:
    rng, name = world.rng, world.any_name()
    before = rng.choice((None, rng.randrange(20)))
    match = rng.choice(MATCHES) if before is None else rng.choice((None, "x"))
    world.ask(
        f"delete {name} {before} {match}",
        lambda: world.engine.submit_delete(name, before_seq=before, match=match),
    )


# -- batches -------------------------------------------------------------------------------------


def stage(world: ClassWorld) -> None:
    """Sometimes for a topic that its commit has to make."""
    rng, producer = world.rng, world.rng.choice("pq")
    name = world.any_name() if rng.random() >= world.mood.making else f"new{rng.randrange(100)}"
    number = world.numbers[producer] + rng.choice((0, 0, 0, 1))
    values = world.facts.values(rng.choice((1, 2, 9)))
    request = stage_request_of(
        records_of(rng, values), world.mood.settings, topic=name, producer=producer, batch=number
    )

    def ended(ticket: Ticket[Any]) -> None:
        if ticket.error is None:
            world.staged[ticket.result.stage] = (producer, number, name, values)

    world.ask(
        f"stage {producer} {number} {name} {values}",
        lambda: world.engine.submit_stage(request),
        ended,
    )


def commit(world: ClassWorld) -> None:
    """The batch at hand; or one that was committed before, whatever became of it since."""
    rng, producer = world.rng, world.rng.choice("pq")
    number = world.numbers[producer] - (rng.random() < 0.2)
    ids = [id_ for id_, each in world.staged.items() if each[:2] == (producer, number)]
    if not ids:
        return
    names = {world.staged[id_][2] for id_ in ids}
    made = {name: world.making(name) for name in names}
    drops = {name: world.facts.drops[name] for name in names}

    def ended(ticket: Ticket[Committed]) -> None:
        if ticket.error is not None:
            return
        world.numbers[producer] = max(world.numbers[producer], number + 1)
        for name, part in ticket.result.topics.items():
            # One that was dropped meanwhile may be there anew: what was committed went with it.
            if not ticket.result.repeated and drops[name] == world.facts.drops[name]:
                values = [n for id_ in ids if world.staged[id_][2] == name
                          for n in world.staged[id_][3]]  # fmt: skip
                # One that was cut short is healed: this part may be of a first attempt, which
                # had fewer stages.
                if len(values) == part.count:
                    world.facts.written(name, world.epoch_of(name), part.first_seq, values)
                made[name](ticket)

    world.ask(
        f"commit {producer} {number} {ids}",
        lambda: world.engine.submit_commit(producer, number, "q", ids),
        ended,
    )


def drop_stages(world: ClassWorld) -> None:
    producer = world.rng.choice("pq")
    number = world.numbers[producer]
    world.ask(
        f"drop stages {producer} {number}",
        lambda: world.engine.submit_drop_stages(producer, number),
    )


# -- readers and workers -------------------------------------------------------------------------


def put_cursor(world: ClassWorld) -> None:
    rng, name = world.rng, world.any_name()
    topic = world.engine.core.by_name.get(name)
    if topic is not None:
        cursor, hold = rng.choice(("r1", "r2")), rng.choice(HOLDS)
        given = Given(seq=rng.randrange(1 + topic.head), reset=True, hold=hold)
        world.ask(
            f"cursor {name} {cursor} {given}",
            lambda: world.engine.submit_put_cursor(name, cursor, given),
        )


def drop_cursor(world: ClassWorld) -> None:
    name, cursor = world.any_name(), world.rng.choice(("r1", "r2"))
    world.ask(
        f"drop cursor {name} {cursor}", lambda: world.engine.submit_delete_cursor(name, cursor)
    )


def claim(world: ClassWorld) -> None:
    rng, name = world.rng, world.any_name()
    if world.mood.types[name] == "queue":
        settings = world.mood.settings
        claimants = [claimant_of(rng.choice(("w1", "w2")), rng.choice((1, 3)), None, settings)]
        world.ask(
            f"claim {name}",
            lambda: world.engine.fetching(lambda: world.engine.submit_claims(name, claimants)),
        )


def end_lease(world: ClassWorld) -> None:
    rng, engine, name = world.rng, world.engine, world.any_name()
    topic = engine.core.by_name.get(name)
    if topic is None or topic.queue is None or not topic.queue.leases:
        return
    seq = rng.choice(sorted(topic.queue.leases))
    node, how = topic.queue.leases[seq][0], rng.choice(("ack", "ack", "nack", "extend"))
    calls: dict[str, Callable[[], Ticket[Any]]] = {
        "ack": lambda: engine.submit_ack(name, node, [seq]),
        "nack": lambda: engine.submit_nack(name, node, [seq], 0),
        "extend": lambda: engine.submit_extend(name, node, [seq], 3000),
    }
    world.ask(f"{how} {name} {seq}", calls[how])


def route(world: ClassWorld) -> None:
    rng = world.rng
    source, dest = sorted(rng.sample(world.mood.names, 2))
    router: dict[str, Any] = {
        "source": source, "dest": dest,
        "guarantee": rng.choice(("at_least_once", "exactly_once")),
    }  # fmt: skip
    if rng.random() < 0.5:
        router["from_seq"] = 0
    name = f"{source}-{dest}"
    world.ask(f"route {router}", lambda: world.engine.submit_router(name, router)[2])


def unroute(world: ClassWorld) -> None:
    source, dest = sorted(world.rng.sample(world.mood.names, 2))
    name = f"{source}-{dest}"
    world.ask(f"unroute {name}", lambda: world.engine.submit_unroute(name)[1])


# -- the bucket ----------------------------------------------------------------------------------


def write_key(world: ClassWorld) -> None:
    rng = world.rng
    if not world.mood.has_bucket:
        return
    key, value = rng.choice(KEYS), rng.randrange(1000)
    is_delete = rng.random() < 0.3

    def write() -> None:
        bucket = open_bucket(world.engine, BUCKET.partition(":")[2])
        if is_delete:
            bucket.delete(key)
        else:
            bucket.put(key, value)

    world.trace.append(f"{'delete' if is_delete else 'set'} key {key} {value}")
    world.call(write)


def compact(world: ClassWorld) -> None:
    world.trace.append("compact")
    if BUCKET in world.engine.core.by_name:
        world.call(lambda: open_bucket(world.engine, BUCKET.partition(":")[2]).compaction(0))


# -- beside them ---------------------------------------------------------------------------------


def forward(world: ClassWorld) -> None:
    world.trace.append("forward")
    world.call(world.engine.forward)


def checkpoint(world: ClassWorld) -> None:
    world.trace.append("checkpoint")
    world.call(world.engine.begin_checkpoint)


def rewrite(world: ClassWorld) -> None:
    name = world.any_name()
    world.ask(f"rewrite {name}", lambda: world.engine.submit_rewrite(name))


def time(world: ClassWorld) -> None:
    ms = world.rng.choice((10, 60, 600, 3000, 12000))
    world.trace.append(f"time {ms}")
    world.clock.advance(ms)
    world.call(lambda: world.engine.maintain(0))


def slices(world: ClassWorld) -> None:
    world.trace.append("slices")
    for _ in range(world.rng.choice((1, 1, 2, 8))):
        world.call(lambda: world.engine.maintain(0))


STEPS: dict[str, Step] = {
    step.__name__: step
    for step in (
        append, put, patch, change_class, drop, delete, stage, commit, drop_stages, put_cursor,
        drop_cursor, claim, end_lease, route, unroute, write_key, compact, forward, checkpoint,
        rewrite, time, slices,
    )
}  # fmt: skip
