"""Routers at rest: their copies are the fold of their sources, and none is left behind."""

from __future__ import annotations

from tests.crash.harness.histories import looks
from tests.crash.harness.histories.world import Edge, World
from topics.testing.modelcheck import require

ROUNDS_MAX = 60


def settle(world: World) -> None:
    """Routers finish what they can; then their copies are the fold of their sources."""
    world.plan(None)
    world.memory.fails_at = None
    engine = world.engine
    for _ in range(ROUNDS_MAX):
        world.quiesce()
        if world.is_poisoned:
            return
        more = world.call(engine.forward)
        world.clock.advance(60)
        world.call(lambda: engine.maintain(0))
        behind = [
            router for router in engine.core.routers.by_name.values()
            if router.place.cursor < router.source.head
        ]  # fmt: skip
        if not behind and not more:
            break
        if all(router.blocked for router in behind):
            world.clock.advance(1100)
    world.quiesce()
    looks.look(world)
    for name, router in engine.core.routers.by_name.items():
        edge = world.edges.get(name)
        require(edge is not None, f"nobody made router {name}")
        if router.blocked:
            config = router.dest.config
            full = config.discard == "reject" and (config.cap_records or config.cap_bytes)
            require(bool(full), f"{name} is blocked by {router.blocked}")
        else:
            at, head = router.place.cursor, router.source.head
            require(at == head, f"{name} stands at {at} of {head}")
        assert edge is not None
        if not edge.is_doubtful:
            fold(world, edge, router.place.cursor)


def fold(world: World, edge: Edge, cursor: int) -> None:
    """In source order, each once; what is missing was deleted, or its place is accounted for."""
    source, dest = edge.source, edge.dest
    place = {n: seq for seq, (n, _) in source.held.items()}
    copies = [
        (seq, place[n])
        for seq in dest.live()
        for n, _ in [dest.held[seq]]
        if seq > edge.dest_start and n in place and seq not in dest.written
    ]
    order = [made for _, made in copies if made > edge.start]
    if not dest.may_repeat:
        require(order == sorted(set(order)), f"{edge.name}: copies in the order {order}")
    require(all(made <= cursor for made in order), f"{edge.name}: ahead of its cursor: {order}")
    seen = {n for n, _ in dest.held.values()}
    missing = [
        seq
        for seq in range(edge.start + 1, cursor + 1)
        if source.states[seq - 1] != "deleted"
        and (seq not in source.held or source.held[seq][0] not in seen)
    ]
    unknown = [
        seq
        for seq in range(edge.copied_from + 1, dest.head + 1)
        # A record from before the start was copied from where it stands in the source once more.
        if seq not in dest.held
        or (seq not in dest.written and place.get(dest.held[seq][0], 0) <= edge.start)
    ]
    require(
        len(missing) <= len(unknown),
        f"{edge.name}: {missing} were skipped, {len(unknown)} seqs of {dest.name} are unaccounted",
    )
