"""What the sweep crashes: short histories, each about one part of the engine.

Every one is ordinary use. None was written for a bug; the bugs were found by crashing all of them
everywhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from tests.crash.harness.log_harness import COLD, SETTINGS, Run
from topics.settings import Settings
from topics.testing import CrashPlan
from topics.testing.model import Operation
from topics.testing.modelcheck import require

Workflow = Callable[[Run], None]
PLANS = {plan.name: plan for plan in CrashPlan.standard()}
COLD_SETTINGS = msgspec.structs.replace(SETTINGS, cold_dir=COLD, hot_bytes=0)
SLICED_SETTINGS = msgspec.structs.replace(SETTINGS, seal_records=6)
SMALL_SETTINGS = msgspec.structs.replace(SETTINGS, seal_records=6, block_bytes=128)


def append_fsync(run: Run) -> None:
    run.put("a", durability="fsync")
    run.put("b", durability="fsync")
    run.append("a")
    run.append("b", 3, key="k1")
    run.append("a", 2, key="k2")
    run.append("b")
    run.append("a", 1, key="k2")
    run.append("c", 2)


def append_disk(run: Run) -> None:
    run.append("a")
    run.append("b", 3, key="k1")
    run.advance(60)
    run.append("a", 2)
    run.append("b", 1, key="k2")
    run.append("a", 70)
    run.append("b", 2)
    run.sync()
    run.append("a", 2, key="k3")
    run.append("b", 2)


def all_classes(run: Run) -> None:
    for name, durability in zip("abcd", ("fsync", "disk", "memory", "ephemeral"), strict=True):
        run.put(name, durability=durability)
        run.append(name, 2, key="k1")
    for name in "dcba":
        run.append(name, 2)
        run.delete(name, match="x")
    run.advance(60)
    run.reopen("clean")
    for name in "dcba":
        run.append(name, 1)


def rotation(run: Run) -> None:
    run.put("a", durability="fsync")
    for turn in range(9):
        run.append("a", 1, size=900)
        run.append("c", 2, size=300 * (turn % 3))
    run.delete("a", before=3)
    run.append("a", 1, size=6000)
    run.append("c", 1, size=9000)


def delete_before_seal(run: Run) -> None:
    run.put("a", durability="fsync")
    run.append("a", 8)
    run.append("b", 8)
    for name in "ab":
        run.delete(name, match="y:*")
        run.delete(name, before=3)
        run.append(name, 2)
        run.delete(name, match="x", before=20)
    run.delete("a", before=100)
    run.append("a", 1)


def delete_after_seal(run: Run) -> None:
    run.put("a", durability="fsync")
    run.append("a", 10)
    run.append("b", 6)
    run.checkpoint()
    run.delete("a", match="x")
    run.delete("b", before=3)
    run.append("a", 3)
    run.checkpoint()
    run.delete("a", match="y:*")
    run.delete("a", before=6)
    run.checkpoint()
    run.reopen("kill")
    run.delete("a", before=9)
    run.checkpoint()


def caps(run: Run) -> None:
    run.put("a", durability="fsync", cap_records=4)
    run.put("b", cap_bytes=400)
    run.put("c", durability="fsync", cap_records=4, discard="reject")
    for _ in range(4):
        run.append("a", 2)
        run.append("b", 1, size=40)
        run.append("c", 3)
    run.append("a", 7)
    run.delete("a", match="x")
    run.append("a", 1)
    run.put("a", durability="fsync", cap_records=2)
    run.put("b", cap_bytes=200)
    run.put("a", durability="fsync")
    run.append("a", 2)
    run.checkpoint()
    run.append("b", 2)
    run.append("c", 9)


def ttl(run: Run) -> None:
    run.put("a", durability="fsync", ttl_ms=1000)
    run.put("b", ttl_ms=1000, cap_records=5)
    for _ in range(4):
        run.append("a", 2)
        run.append("b", 2)
        run.advance(400)
    run.verify()
    run.delete("a", match="x")
    run.checkpoint()
    run.advance(700)
    run.verify()
    run.append("a", 1)
    run.put("a", durability="fsync")
    run.advance(5000)
    run.append("b", 1)


def checkpoints(run: Run) -> None:
    run.put("a", durability="fsync")
    run.append("a", 5, key="k1")
    run.append("b", 5)
    run.checkpoint()
    run.append("a", 12)
    run.append("b", 2, key="k2")
    run.checkpoint()
    run.append("b", 2)
    run.checkpoint()
    run.append("a", 2)
    run.append("b", 3)


def long_tail(run: Run) -> None:
    """A disk topic goes on over several log files behind a checkpoint, unsynced."""
    run.append("a", 3)
    run.checkpoint()
    run.append("a", 2)
    run.checkpoint()
    run.append("b", 1)
    for _ in range(11):
        run.append("a", 2, size=700)
    run.delete("b", before=2)
    run.append("a", 1)


def relocation(run: Run) -> None:
    run.put("a", durability="fsync")
    run.append("a", 6)
    run.append("b", 6, size=200)
    run.checkpoint()
    run.append("a", 4)
    run.delete("a", match="x")
    run.checkpoint()
    run.delete("b", before=4)
    run.delete("a", match="y:*")
    run.checkpoint()
    run.verify()
    run.reopen("kill")
    run.delete("b", before=7)
    run.checkpoint()
    run.checkpoint()


def configure(run: Run) -> None:
    run.put("a", durability="ephemeral")
    run.append("a", 3)
    run.put("a", durability="disk")
    run.append("a", 2)
    run.put("a", durability="fsync", cap_records=4)
    run.append("a", 2)
    run.put("b", durability="memory")
    run.append("b", 2)
    run.put("b", durability="fsync")
    run.append("b", 2)
    run.put("b", durability="ephemeral")
    run.append("b", 1)
    run.checkpoint()
    run.put("b", durability="disk")
    run.append("b", 1)
    run.reopen("clean")
    run.append("a", 1)
    run.append("b", 1)


def promotion(run: Run) -> None:
    """Capped topics become durable, with records older than their ephemeral time and without."""
    run.put("a", durability="fsync")
    run.append("a", 3)
    run.put("a", durability="ephemeral", cap_records=6)
    run.delete("a", before=2)
    run.put("a", durability="ephemeral", cap_records=2)
    run.put("a", durability="ephemeral", cap_records=6)
    run.append("a", 2, key="k1")
    run.append("a", 3)
    run.delete("a", match="x")
    run.append("a", 1)
    run.put("b", durability="ephemeral", cap_bytes=500)
    run.append("b", 9)
    run.delete("b", before=4)
    run.put("a", durability="fsync", cap_records=5)
    run.put("b", cap_bytes=400)
    run.append("a", 2, key="k1")
    run.append("b", 1)
    run.checkpoint()
    run.put("b", durability="ephemeral", cap_bytes=400)
    run.append("b", 2)
    run.checkpoint()
    run.put("b", durability="disk", cap_bytes=300)
    run.append("b", 1)
    run.reopen("kill")
    run.append("a", 1)
    run.append("b", 1)
    run.checkpoint()
    run.reopen("kill")


def sliced_promotion(run: Run) -> None:
    """A topic too large to be promoted at once, while others write and a checkpoint is due."""
    run.append("b", 2)
    run.put("a", durability="ephemeral", cap_records=10)
    run.append("a", 12, size=500)
    run.submit([Operation("put", "a", config={"durability": "fsync"})], wait=False)
    require(bool(run.model.in_flight), "it was promoted at once")
    run.engine.maintain(0)
    run.submit([Operation("append", name, run.records(2), "k1") for name in "ab"], wait=False)
    run.engine.flush()
    run.engine.maintain(0)
    run.submit([Operation("delete", "a", match="y:*")], wait=False)
    require(len(run.model.in_flight) == 1, "only the promotion is under way")
    while run.engine.maintain(0):
        pass
    require(not run.model.in_flight, "it was not promoted")
    run.sync()
    run.append("a", 1, key="k1")
    run.checkpoint()


def drop_and_recreate(run: Run) -> None:
    run.put("a", durability="fsync")
    run.append("a", 3)
    run.append("b", 2)
    run.drop("a")
    run.append("a", 1)
    run.drop("b")
    run.put("b", durability="fsync")
    run.append("b", 2)
    run.checkpoint()
    run.drop("b")
    run.checkpoint()
    run.append("b", 1)
    run.drop("missing")
    run.reopen("kill")
    run.drop("a")
    run.checkpoint()
    run.put("a", durability="fsync")


def restarts(run: Run) -> None:
    """Recovery itself is crashed: each reopening is part of what the sweep interrupts."""
    run.put("a", durability="fsync")
    run.append("a", 2, key="k1")
    run.append("b", 3)
    run.reopen("kill")
    run.append("a", 1)
    run.append("b", 2)
    run.reopen("crash", PLANS["prefix"])
    run.append("b", 2)
    run.append("a", 1, key="k1")
    run.checkpoint()
    run.delete("a", match="x")
    run.reopen("crash", PLANS["odd-sectors"])
    run.append("b", 1)
    run.reopen("clean")
    run.append("b", 1)
    run.checkpoint()
    run.reopen("kill")


def idle(run: Run) -> None:
    run.append("a", 2)
    run.append("b", 2)
    run.advance(100)
    run.advance(11_000)
    run.advance(100)
    run.append("a", 1)
    run.advance(100)
    run.checkpoint()
    run.append("a", 1)
    run.advance(11_000)


def sliced_checkpoint(run: Run) -> None:
    """A checkpoint under way while others write and delete."""
    run.put("a", durability="fsync")
    run.append("a", 5, key="k1")
    run.append("b", 5)
    run.advance(60)
    for turn in range(8):
        # Now and then a write is still on its way while the checkpoint goes on.
        write = Operation("append", "ba"[turn > 0], run.records(1), f"s{turn}")
        run.submit([write], wait=turn % 2 == 1)
        for _ in range(1 if turn else 40):
            run.engine.maintain(0)
        run.sync()
        run.delete("a", match="x") if turn % 3 == 0 else run.append("b", 1)
        run.engine.maintain(0)
    while run.engine.maintain(0):
        pass
    run.advance(60)
    for turn in range(12):
        if turn == 2:
            run.drop("b")
        if turn == 4:
            run.append("b", 2)
        run.delete("a", before=2 + turn)
        run.engine.maintain(0)
    run.checkpoint()


def overtaken(run: Run) -> None:
    """What a checkpoint is about to seal is evicted meanwhile, deleted records among it."""
    run.put("a", durability="fsync", cap_records=6)
    for _ in range(3):
        run.append("a", 6)
        run.delete("a", match="x")
        run.advance(60)
        for count in (6, 0, 1, 0, 1):
            write = Operation("append", "a", run.records(count))
            run.submit([write] if count else [], wait=count > 0)
            run.engine.maintain(0)
        while run.engine.maintain(0):
            pass


def pipelined(run: Run) -> None:
    def write(topic: str, count: int, key: str | None = None) -> Operation:
        return Operation("append", topic, run.records(count), key)

    run.put("a", durability="fsync")
    run.submit([write("a", 1, "k1"), write("b", 2), write("a", 2), write("b", 1, "k2")])
    run.submit([write("a", 1), write("a", 1, "k1"), write("c", 2), write("c", 1)])
    run.submit([write("b", 2), Operation("delete", "b", before=3), write("b", 1)])
    run.checkpoint()
    run.submit([write("a", 2, "k3"), write("c", 2, "k4")])


def singles(run: Run) -> None:
    """Single records that share a frame, with other operations of their topics in between."""

    def write(topic: str) -> Operation:
        return Operation("append", topic, ({"data": run.records(1)[0]["data"]},))

    for name, durability in zip("abc", ("fsync", "disk", "memory"), strict=True):
        run.put(name, durability=durability)
        run.submit([write(name) for _ in range(4)])
    run.submit([write(name) for name in "abcabcabc"])
    between = Operation("delete", "a", before=3)
    run.submit([write("a"), write("a"), between, write("a"), write("b"), write("a")])
    run.submit([write("b"), Operation("append", "b", run.records(2)), write("b"), write("b")])
    run.checkpoint()
    run.submit([write(name) for name in "aabbcc"])


def ghosts(run: Run) -> None:
    """Whole blocks in the middle are deleted while their segments live on."""
    run.put("a", durability="fsync")
    for _ in range(3):
        run.append("a", 2, size=100)
        run.do(
            Operation("append", "a", tuple({"data": "g" * 500, "tag": "gone"} for _ in range(2)))
        )
    run.append("b", 3)
    run.checkpoint()
    run.delete("a", match="gone")
    run.checkpoint()
    run.reopen("kill")
    run.append("a", 1)
    run.checkpoint()
    run.delete("a", before=4)
    run.delete("a", match="y:*")
    run.reopen("clean")
    run.delete("a", before=100)


def rewriting(run: Run) -> None:
    """Segments lose most of their records in every way, and space comes back by itself."""
    run.put("a", durability="fsync")
    run.put("b", durability="fsync", cap_records=5)
    run.append("a", 12, size=60)
    run.append("b", 4)
    run.append("c", 3)
    run.checkpoint()
    run.append("b", 3)
    run.delete("a", match="x")
    run.delete("a", match="y:*")
    run.drop("c")
    run.tidy()
    run.append("a", 2)
    run.delete("a", before=5)
    run.reopen("kill")
    run.tidy()
    run.verify()
    run.append("a", 1)
    run.append("b", 6)
    run.tidy()


def overtaken_rewriting(run: Run) -> None:
    """Others write, delete and evict at every step while their segments are rewritten."""
    run.put("a", durability="fsync")
    run.put("b", durability="fsync", cap_records=6)
    tags = [f"u{n}" if n % 2 else "gone" for n in range(40)]
    own = tuple({"data": {"own": n, "é": "x" * 20}, "tag": tag} for n, tag in enumerate(tags))
    run.do(Operation("append", "a", own))
    run.append("a", 9, size=90)
    run.append("b", 9, size=90)
    run.checkpoint()
    run.tidy(1)
    for tag in ("x", "y:*", "gone"):
        run.delete("a", match=tag)
    run.append("b", 3)
    run.clock.advance(run.settings.seal_age_ms)
    late = deque(range(1, 40, 4))
    for _ in range(40):
        run.advance(60)
        if late and run.engine.maintenance.is_running and not run.engine.core.is_sealing:
            # A call that waits would take the rewriting to its end.
            write = Operation("append", "b", run.records(1))
            run.submit([Operation("delete", "a", match=f"u{late.popleft()}"), write], wait=False)
            run.sync()
    require(len(late) < 8, "nothing was deleted while a segment was rewritten")
    while run.engine.maintain(0):
        pass
    run.verify()
    run.checkpoint()
    run.checkpoint()
    run.reopen("kill")
    run.tidy()


def erasing(run: Run) -> None:
    """An erasure is asked for, of topics that share their files with others."""
    run.put("a", durability="fsync")
    run.put("b", ttl_ms=1000)
    run.append("a", 8)
    run.append("b", 4)
    run.append("c", 4)
    run.checkpoint()
    run.delete("a", match="x")
    run.delete("c", before=3)
    run.advance(1500)
    run.append("a", 3)
    run.delete("a", match="y:1")
    run.rewrite("a")
    run.rewrite("b")
    run.reopen("kill")
    run.append("a", 2)
    run.delete("a", before=6)
    run.rewrite("a")
    run.rewrite("c")


def disk_full(run: Run) -> None:
    run.put("a", durability="fsync")
    run.append("a", 4)
    run.append("b", 4)
    run.checkpoint()
    run.disk.capacity_bytes = run.disk.used_bytes()
    for turn in range(9):
        for name in "ab":
            run.do(Operation("append", name, run.records(1, size=800), f"{name}{turn}"))
    run.delete("a", match="x")
    run.delete("b", before=3)
    run.verify()
    run.disk.capacity_bytes = None
    for name in "ab":
        run.do(Operation("append", name, run.records(1), f"{name}8"))
    run.append("b", 2)
    run.checkpoint()


WORKFLOWS: dict[str, tuple[Workflow, Settings]] = {
    "append_fsync": (append_fsync, SETTINGS),
    "append_disk": (append_disk, SETTINGS),
    "all_classes": (all_classes, SETTINGS),
    "rotation": (rotation, SETTINGS),
    "delete_before_seal": (delete_before_seal, SETTINGS),
    "delete_after_seal": (delete_after_seal, SETTINGS),
    "caps": (caps, SETTINGS),
    "ttl": (ttl, SETTINGS),
    "checkpoints": (checkpoints, SETTINGS),
    "long_tail": (long_tail, SETTINGS),
    "relocation": (relocation, COLD_SETTINGS),
    "configure": (configure, SETTINGS),
    "promotion": (promotion, SETTINGS),
    "sliced_promotion": (sliced_promotion, SMALL_SETTINGS),
    "drop_and_recreate": (drop_and_recreate, SETTINGS),
    "restarts": (restarts, SETTINGS),
    "idle": (idle, SETTINGS),
    "sliced_checkpoint": (sliced_checkpoint, SLICED_SETTINGS),
    "overtaken": (overtaken, SLICED_SETTINGS),
    "pipelined": (pipelined, SETTINGS),
    "singles": (singles, SETTINGS),
    "ghosts": (ghosts, SETTINGS),
    "disk_full": (disk_full, SETTINGS),
    "rewriting": (rewriting, SETTINGS),
    "cold_rewriting": (rewriting, COLD_SETTINGS),
    "overtaken_rewriting": (overtaken_rewriting, SETTINGS),
    "erasing": (erasing, SETTINGS),
    "cold_erasing": (erasing, COLD_SETTINGS),
}
