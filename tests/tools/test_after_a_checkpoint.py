"""Promises that have to hold on both sides of a checkpoint; each of them was broken once."""

from __future__ import annotations

import pytest

from tests.support.engines import PATH, World
from topics.engine.offline import invariants
from topics.engine.offline.check import check
from topics.testing import CrashPlan


@pytest.mark.parametrize("takes_checkpoint", [False, True])
def test_a_machine_crash_is_told_also_when_the_log_was_trimmed_before(
    takes_checkpoint: bool,
) -> None:
    """The note that the session was ready may be in a file that the checkpoint made idle."""
    world = World()
    world.fill("a", 5)
    if takes_checkpoint:
        world.engine.checkpoint()
    world.engine.sync()
    world.fill("a", 5)
    head = world.look("a").head
    world.restart("crash")
    after = world.look("a")
    assert after.head >= head
    assert after.ranges[-1][2] == "crash"


def test_a_clean_stop_leaves_nothing_for_a_later_crash_to_tell() -> None:
    world = World()
    world.engine.put_topic("a", {"cap_records": 4})
    world.fill("a", 5)
    before = world.look("a")
    world.restart("clean")
    world.restart("crash")
    assert world.look("a") == before


def test_checkpoints_go_on_beside_a_snapshot_that_can_not_be_read() -> None:
    """It is set aside once two newer ones stand; until then all that the older one needs stays."""
    world = World()
    for _ in range(2):
        world.fill("a", 3)
        world.engine.checkpoint()
    world.end("clean")
    newest = max(name for name in world.disk.files() if name.startswith(f"{PATH}/snap/"))
    file = world.disk.open(newest)
    file.pwrite(b"\xff", 20)
    file.close()
    world.engine = world.open()
    for _ in range(3):
        world.fill("a", 3)
        world.engine.checkpoint()
    before = world.look("a")
    assert world.disk.listdir(f"{PATH}/quarantine")
    world.restart("clean")
    assert world.look("a") == before
    assert check(world.disk, PATH, clock=world.clock).problems == []


def test_a_deleted_run_in_a_segment_that_others_keep_is_entered_once() -> None:
    world = World(block_bytes=256)
    world.fill("a", 20)
    world.fill("a", 20, tag="x")
    world.fill("a", 20)
    world.engine.checkpoint()
    world.engine.delete("a", match="x")
    world.fill("a", 5)
    world.engine.checkpoint()
    world.restart("clean")
    topic = world.engine.core.topic("a")
    assert list(invariants.examine(world.engine.core, topic)) == []


@pytest.mark.parametrize("plan", ["odd-sectors", "even-sectors", "lose", "keep"])
def test_a_torn_end_that_only_the_older_snapshot_knows_of_is_no_problem(plan: str) -> None:
    """It was never durable, and the next start had copied it before it was ready."""
    world = World()
    world.engine.put_topic("a", {"durability": "memory"})
    world.engine.checkpoint()
    world.fill("a", 2, meta={"x": "x" * 5000})
    engine = world.restart("kill")
    engine.checkpoint()
    world.end("crash", CrashPlan(plan, plan, "keep"))
    report = check(world.disk, PATH, clock=world.clock)
    assert report.ok, report.problems
    if plan == "odd-sectors":
        assert "torn_end" in {item["problem"] for item in report.warnings}
