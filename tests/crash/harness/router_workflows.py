"""What the sweep of routers crashes: short histories, each about one thing copies may meet."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tests.crash.harness.log_harness import SETTINGS
from tests.crash.harness.router_harness import RouterRun
from topics.settings import Settings

SLICED = msgspec.structs.replace(SETTINGS, seal_records=6)


def appends(run: RouterRun) -> None:
    """A disk and an fsync destination, in two shards, and a chain."""
    run.put("a", durability="disk")
    run.put("b", durability="fsync")
    run.route("a", "b")
    run.route("a", "c")
    run.route("b", "d")
    for turn in range(5):
        run.write("a", 1 + turn % 3)
        run.settle()
    run.write("c", 0 + 1)
    run.settle()


def checkpoints(run: RouterRun) -> None:
    run.put("a", durability="fsync")
    run.put("b", durability="fsync")
    run.route("a", "b")
    run.route("a", "c")
    for _ in range(4):
        run.write("a", 3)
        run.settle()
        run.checkpoint()
        run.write("a", 2)
        run.settle()


def deletes_on_the_source(run: RouterRun) -> None:
    """What was forwarded stays when its source is deleted, sealed or not."""
    run.put("b", durability="fsync")
    run.route("a", "b")
    run.route("b", "c")
    for turn in range(4):
        run.write("a", 4)
        run.settle()
        run.delete("a", match="x")
        if turn % 2:
            run.checkpoint()
        run.delete("a", before=3 * turn)
    run.checkpoint()
    run.write("a", 2)
    run.settle()


def capped_source(run: RouterRun) -> None:
    run.put("a", durability="disk", cap_records=3)
    run.put("b", durability="fsync")
    run.route("a", "b")
    for turn in range(8):
        run.write("a", 2)
        run.settle()
        if turn % 3 == 2:
            run.checkpoint()


def dropped_source(run: RouterRun) -> None:
    run.put("b", durability="fsync")
    run.route("a", "b")
    run.write("a", 3)
    run.settle()
    run.checkpoint()
    run.write("a", 2)
    run.settle()
    run.drop("a")
    run.write("e", 1)
    run.checkpoint()
    run.write("e", 1)
    run.checkpoint()


def sliced(run: RouterRun) -> None:
    """Checkpoints under way while records arrive and go."""
    run.put("a", durability="disk", cap_records=4)
    run.put("b", durability="fsync")
    run.route("a", "b")
    run.route("b", "c")
    for turn in range(14):
        run.write("a", 1)
        run.advance(60)
        if turn % 4 == 3:
            run.delete("a", match="x")
    run.settle()


def sliced_disk(run: RouterRun) -> None:
    """A destination whose maps nobody syncs is captured before they are durable."""
    run.route("a", "b")
    for _ in range(16):
        run.write("a", 1)
        run.advance(2)
        run.settle()
        run.clock.advance(50)
    run.settle()


def deletes_of_copies(run: RouterRun) -> None:
    """Their shard is synced for the deletes, when nobody has synced their source's yet."""
    run.put("a", durability="disk")
    run.put("b", durability="disk")
    run.route("a", "b")
    run.route("b", "c")
    for turn in range(4):
        run.write("a", 3)
        run.settle()
        run.delete("b", match="x")
        run.write("b", 1)
        run.delete("c", before=2 * turn)


def chain(run: RouterRun) -> None:
    """Four topics in two shards, written in the middle, one of them made again under its name."""
    run.put("b", durability="fsync")
    run.put("d", durability="fsync")
    for source, dest in ("ab", "bc", "cd"):
        run.route(source, dest)
    for turn in range(3):
        run.write("a", 2)
        run.forward()
        run.write("b", 1)
        run.write("c", 1)
        run.settle()
        if turn == 1:
            run.checkpoint()
    run.drop("c")
    run.put("c", durability="fsync")
    run.write("c", 2)
    run.settle()


def changes(run: RouterRun) -> None:
    run.put("b", durability="fsync")
    run.route("a", "b")
    run.write("a", 2)
    run.route("a", "b", preserve_tag=False)
    run.write("a", 2)
    run.settle()
    run.unroute("a", "b")
    run.write("a", 1)
    run.settle()


def made_ahead(run: RouterRun) -> None:
    """The first router comes when each shard's next log file is made, and knows of none."""
    for name in "ab":
        run.put(name, durability="fsync")
    while any(shard.ready is None for shard in run.engine.core.log.shards):
        for name in "ab":
            run.write(name, 1, size=2500)
    run.route("a", "b")
    run.route("b", "c")
    for name in "ab":
        run.write(name, 2)
        run.settle()
    run.checkpoint()
    run.write("a", 1)
    run.settle()


WORKFLOWS: dict[str, tuple[Callable[[RouterRun], None], Settings]] = {
    "appends": (appends, SETTINGS),
    "checkpoints": (checkpoints, SETTINGS),
    "deletes_on_the_source": (deletes_on_the_source, SETTINGS),
    "capped_source": (capped_source, SETTINGS),
    "dropped_source": (dropped_source, SETTINGS),
    "sliced": (sliced, SLICED),
    "sliced_disk": (sliced_disk, SLICED),
    "deletes_of_copies": (deletes_of_copies, SETTINGS),
    "chain": (chain, SETTINGS),
    "changes": (changes, SETTINGS),
    "made_ahead": (made_ahead, SETTINGS),
}
