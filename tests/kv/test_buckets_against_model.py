"""Buckets on a disk that forgets: no live key is lost, no deleted one comes back."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable

import hypothesis
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.kv.kv_world import KEYS, PREFIXES, KvWorld, history
from topics.testing import CrashPlan

PLANS = st.sampled_from(CrashPlan.standard())
# Histories of the long tier.
LONG = 2000


class BucketsAgainstModel(RuleBasedStateMachine):
    run: KvWorld

    @initialize(
        durability=st.sampled_from(("disk", "fsync")),
        history=st.integers(1, 3),
        seed=st.integers(0, 1000),
    )
    def begin(self, durability: str, history: int, seed: int) -> None:
        self.run = KvWorld(durability, history=history)
        self.chance = random.Random(seed)

    @rule(key=st.sampled_from(KEYS))
    def put(self, key: str) -> None:
        self.run.put(key)

    @rule(key=st.sampled_from(KEYS), data=st.data())
    def put_if(self, key: str, data: st.DataObject) -> None:
        live = self.run.live()
        stands = live[key][1] if key in live else 0
        self.run.put(key, data.draw(st.sampled_from((stands, 0, stands + 1))))

    @rule(key=st.sampled_from(KEYS))
    def delete(self, key: str) -> None:
        self.run.delete(key)

    @rule(prefix=st.sampled_from(PREFIXES))
    def delete_range(self, prefix: str) -> None:
        self.run.delete_range(prefix)

    @rule(names=st.lists(st.sampled_from(KEYS), min_size=1, max_size=5))
    def append(self, names: list[str]) -> None:
        self.run.append(names)

    @rule(max_age_ms=st.sampled_from((0, 0, 500)))
    def compact(self, max_age_ms: int) -> None:
        self.run.compact(max_age_ms)

    @rule(slices=st.integers(1, 12))
    def work(self, slices: int) -> None:
        self.run.work(slices)

    @rule()
    def forward(self) -> None:
        self.run.forward()

    @rule()
    def unroute(self) -> None:
        self.run.unroute()

    @rule(from_seq=st.integers(0, 5))
    def route(self, from_seq: int) -> None:
        self.run.route(from_seq)

    @rule()
    def checkpoint(self) -> None:
        self.run.engine.checkpoint()

    @rule(ms=st.sampled_from((1, 600, 2000)))
    def time_passes(self, ms: int) -> None:
        self.run.world.clock.advance(ms)

    @rule()
    def open_snapshot(self) -> None:
        self.run.open_snapshot()

    @rule()
    def close_snapshot(self) -> None:
        self.run.close_snapshot()

    @rule()
    def restart(self) -> None:
        self.run.restart("clean", CrashPlan.standard()[0])

    @rule()
    def kill(self) -> None:
        self.run.restart("kill", CrashPlan.standard()[0])

    @rule(plan=PLANS)
    def crash(self, plan: CrashPlan) -> None:
        self.run.restart("crash", plan)

    @rule()
    def look_back(self) -> None:
        self.run.check_past(self.chance)

    @rule()
    def compare_replica(self) -> None:
        self.run.check_replica()

    @invariant()
    def nothing_is_lost_and_nothing_comes_back(self) -> None:
        if hasattr(self, "run"):
            self.run.check()
            self.run.check_order()

    def teardown(self) -> None:
        if hasattr(self, "run"):
            self.run.check_replica()


def run(seed: int, examples: int, steps: int) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        hypothesis.seed(seed)(BucketsAgainstModel),
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, database=None,
            suppress_health_check=list(HealthCheck), print_blob=True,
        ),
    )  # fmt: skip


@pytest.mark.slow
def test_a_bucket_holds_what_was_written_whatever_happens() -> None:
    """Puts, deletes, range deletes, compaction, snapshots, a replica and every kind of end."""
    run(1, 100, 20)


def test_histories_from_seeds() -> None:
    """Weighted towards what compaction has to get right: snapshots, late replicas, crashes."""
    for seed in range(40):
        history(seed)


@pytest.mark.full(share=1)
@pytest.mark.timeout(0)
def test_many_histories_from_seeds(deadline: float, tally: Callable[..., None]) -> None:
    """As many as there is time for, and never fewer than `LONG`."""
    for seed in itertools.count(1000):
        if seed >= 1000 + LONG and time.monotonic() > deadline:
            break
        history(seed)
        tally(bucket_histories=1)
