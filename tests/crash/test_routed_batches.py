"""Batches committed to a topic that a router reads, cut before every call of the disk.

A commit leaves no records in the log, and neither do copies: recovery makes the records of a batch
again from its stages, and the copies from those. Promises: a batch is there whole or not at all,
and whole once it was answered; and the destination has what the source has, in its order, each
record once, as soon as it has caught up.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from tests.support.engines import World, read_all
from topics.testing import CrashPlan, FakeClock, FakeDisk

SOURCE, DEST, PRODUCER = "s", "d", "p"
PLANS = {plan.name: plan for plan in CrashPlan.standard()}
QUICK = ("lose-all",)
NAMES = ("lose-all", "keep-all", "prefix", "odd-sectors", "dirs-lost-data-kept", "last-write-only")
Step = Callable[["Batches"], object]


class Batches:
    """A source that is written in batches and otherwise, its copy, and what was answered."""

    def __init__(self, source: str, dest: str) -> None:
        self.world = World(block_bytes=512, own_segment_bytes=2048, resident_bytes=2048)
        self.values = self.number = 0
        # Values of each batch, and how many batches were answered; the last may be under way.
        self.batches: list[list[int]] = []
        self.answered = 0
        engine = self.world.engine
        engine.put_topic(SOURCE, {"durability": source})
        engine.put_topic(DEST, {"durability": dest})
        router = {"source": SOURCE, "dest": DEST, "guarantee": "exactly_once", "from_seq": 0}
        engine.put_router("s-d", router)

    def _records(self, count: int) -> list[dict[str, int]]:
        self.values += count
        return [{"data": value} for value in range(self.values - count + 1, self.values + 1)]

    def commit(self, *counts: int) -> None:
        engine, self.number = self.world.engine, self.number + 1
        first, stages = self.values + 1, []
        for part, count in enumerate(counts):
            made = engine.stage(
                SOURCE, self._records(count), producer=PRODUCER, batch=self.number, part=part
            )
            stages.append(made.stage)
        self.batches.append(list(range(first, self.values + 1)))
        engine.commit(PRODUCER, self.number, query="q", stages=stages)
        self.answered = len(self.batches)

    def append(self) -> None:
        self.world.engine.append(SOURCE, self._records(2))

    def forward(self) -> None:
        while self.world.engine.forward():
            pass

    def delete(self) -> None:
        self.world.engine.delete(SOURCE, before_seq=3)

    def recovered(self, image: FakeDisk) -> Batches:
        found = copy.copy(self)
        found.world = copy.copy(self.world)
        found.world.disk, found.world.clock = image, FakeClock(self.world.clock.wall_ms())
        found.world.engine = found.world.open()
        return found

    def read(self, topic: str) -> list[int]:
        pages = read_all(self.world.engine, topic)
        return [int(record.value) for page in pages for record in page.records]

    def check(self) -> None:
        there = self.read(SOURCE)
        assert len(set(there)) == len(there), "twice in the source"
        for number, batch in enumerate(self.batches):
            # Those before seq 3 may have been deleted.
            held = [value for value in batch if value in there]
            assert held in ([], batch, batch[len(batch) - len(held) :])
            if number and number < self.answered:
                assert held == batch, "an answered batch is gone"
        engine = self.world.engine
        for _ in range(5):
            self.forward()
            engine.sync()
        copied = self.read(DEST)
        assert len(set(copied)) == len(copied), "twice in the destination"
        assert [value for value in copied if value in there] == there
        # What was deleted in the source stays where it was copied to.
        assert not set(copied) - set(there) - set(self.batches[0] if self.batches else ()), "more"


def steps() -> list[Step]:
    return [
        lambda run: run.commit(3),
        lambda run: run.forward(),
        lambda run: run.commit(2, 2),
        lambda run: run.append(),
        lambda run: run.forward(),
        lambda run: run.world.engine.checkpoint(),
        lambda run: run.commit(4),
        lambda run: run.forward(),
        lambda run: run.delete(),
        lambda run: run.commit(1, 3),
        lambda run: run.world.engine.checkpoint(),
        lambda run: run.forward(),
        lambda run: run.commit(2),
        lambda run: run.forward(),
        lambda run: run.world.engine.checkpoint(),
    ]


def sweep(source: str, dest: str, names: tuple[str, ...]) -> int:
    run, checks = Batches(source, dest), 0
    for number, step in enumerate(steps()):
        images: list[tuple[str, Batches, FakeDisk]] = []

        def cut(
            _index: int,
            call: str,
            path: str,
            images: list[tuple[str, Batches, FakeDisk]] = images,
        ) -> None:
            known = copy.copy(run)
            known.batches = [list(batch) for batch in run.batches]
            disk = run.world.disk
            for name in names:
                images.append((f"{name} before {call} of {path}", known, disk.crashed(PLANS[name])))
            images.append((f"kill before {call} of {path}", known, disk.clone().kill()))

        run.world.disk.on_mutation = cut
        step(run)
        run.world.disk.on_mutation = None
        cut(0, "the next step", "")
        for where, known, image in images:
            checks += 1
            found = known.recovered(image)
            try:
                found.check()
            except AssertionError as error:
                raise AssertionError(f"step {number}, {where}: {error}") from error
            found.world.engine.close()
    return checks


@pytest.mark.slow
@pytest.mark.parametrize("source", ["disk", "fsync"])
def test_a_crash_anywhere_leaves_whole_batches_and_whole_copies(source: str) -> None:
    """Only what is lost as a whole."""
    assert sweep(source, "disk", QUICK) > 100


@pytest.mark.full(share=1)
@pytest.mark.timeout(0)
@pytest.mark.parametrize("source", ["disk", "fsync"])
@pytest.mark.parametrize("dest", ["disk", "fsync"])
def test_a_crash_anywhere_in_any_way_leaves_whole_batches_and_whole_copies(
    source: str, dest: str, tally: Callable[..., None]
) -> None:
    """Also what is torn, and a destination in which nothing may be lost."""
    checks = sweep(source, dest, NAMES)
    assert checks > 300
    tally(states=checks)
