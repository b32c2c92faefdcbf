"""How what was asked ended: what that tells, and what it promises from then on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.crash.harness.histories.facts import Asked, Instance
from topics.errors import OutcomeUnknown
from topics.testing.modelcheck import require

if TYPE_CHECKING:
    from tests.crash.harness.histories.world import World


def settle(world: World, asked: Asked) -> None:
    ticket = asked.ticket
    if ticket is None or not ticket.done or asked.outcome:
        return
    if ticket.error is None:
        asked.outcome = "acked"
        acknowledge(world, asked, ticket.result)
    elif isinstance(ticket.error, OutcomeUnknown):
        asked.outcome = "unknown"
    else:
        asked.outcome = "refused"
        refuse(world, asked)
    if asked.outcome == "unknown":
        doubt(world, asked)


def doubt(world: World, asked: Asked) -> None:
    for n in asked.numbers:
        world.born[n].is_doubtful = True
    if asked.kind == "append" and asked.key:
        world.retries.append(asked)
    known = world.by_epoch.get(asked.epoch)
    if known is not None and asked.kind == "claim":
        # Any of them may count as delivered.
        known.claimed.update(range(1, asked.last_seq + 1))


def refuse(world: World, asked: Asked) -> None:
    for n in asked.numbers:
        world.born[n].is_refused = not world.born[n].is_doubtful
    known = world.by_epoch.get(asked.epoch)
    if known is not None and asked.kind == "drop":
        known.is_dropping = False
    for edge in [edge for edge in world.edges.values() if edge.asked is asked]:
        del world.edges[edge.name]
    for edge in [edge for edge in world.past_edges if edge.ended is asked]:
        world.past_edges.remove(edge)
        edge.ended = None
        if edge.asked.outcome != "refused":
            world.edges.setdefault(edge.name, edge)


def acknowledge(world: World, asked: Asked, result: Any) -> None:
    known = world.by_epoch.get(asked.epoch)
    if known is None:
        return
    if asked.kind == "append":
        written(world, known, asked, result)
    known.was_busy = True
    left_a_frame = (asked.kind == "delete" and result.deleted) or (
        asked.kind == "put" and asked.config not in (None, known.config)
    )
    if left_a_frame or asked.kind in ("append", "put", "route", "cursor"):
        known.is_new = False
        world.epochs.add(known.epoch)
    if left_a_frame and not (asked.kind == "delete" and "memory" in known.classes()):
        # It was synced, and with it everything in front of it.
        known.durable_upto = max(known.durable_upto, asked.last_seq)
    if asked.kind == "put" and asked.config is not None:
        known.stood.append(known.config)
        known.config = asked.config
    elif asked.kind == "drop":
        world.by_epoch.pop(known.epoch, None)
    elif asked.kind == "cursor":
        known.cursors[asked.key or ""] = asked.before or 0
    elif asked.kind == "uncursor":
        known.cursors.pop(asked.key or "", None)
    if asked.kind == "claim":
        claimed(world, known, asked, result)


def written(world: World, known: Instance, asked: Asked, result: Any) -> None:
    name = known.name
    require(result.epoch == known.epoch, f"{name}: written to epoch {result.epoch}")
    span = range(result.first_seq, result.last_seq + 1)
    earlier = known.keys.get(asked.key) if asked.key is not None else None
    if result.deduped:
        require(asked.key is not None, f"{name}: {result} without a key")
    if earlier is not None and key_stands(known, earlier):
        first, last, ts = earlier
        if world.clock.wall_ms() - ts <= known.config.idempotency_window_ms:
            same = result.deduped and (result.first_seq, result.last_seq) == (first, last)
            require(same, f"{name}: key {asked.key} of {earlier} was answered {result}")
    if result.deduped:
        return
    require(len(span) == len(asked.numbers), f"{name}: {asked.numbers} became {result}")
    for seq, n in zip(span, asked.numbers, strict=True):
        there = known.held.get(seq)
        require(there is None or there[0] == n, f"{name}: seq {seq} is {there} and written as {n}")
        require(seq not in known.written, f"{name}: seq {seq} was acknowledged twice")
        known.held[seq] = (n, result.ts)
        known.written.add(seq)
    if asked.key is not None:
        known.keys[asked.key] = (result.first_seq, result.last_seq, result.ts)


def key_stands(known: Instance, key: tuple[int, int, int]) -> bool:
    """Whether a key is remembered: it goes with records that were never in the log."""
    if known.was_ephemeral:
        return known.states[key[0] - 1 : key[1]] == ["live"] * (key[1] - key[0] + 1)
    return all(
        seq > known.head or known.states[seq - 1] not in ("crash", "restart", "corruption")
        for seq in range(key[0], key[1] + 1)
    )


def claimed(world: World, known: Instance, asked: Asked, result: Any) -> None:
    # A lease counts from when it was asked for, however late the answer is, by the config of then.
    now = asked.asked_ms
    lease_ms = min(asked.lease_ms, known.lease_ms())
    for claimed in result:
        for seq in claimed.seqs:
            require(seq not in asked.gone, f"{known.name}: job {seq} is gone and handed out")
            until = known.leases.get(seq, -1)
            require(until < now, f"{known.name}: job {seq} is held and handed out again")
            known.leases[seq] = now + lease_ms
            known.claimed.add(seq)
