"""What the sweep of queues crashes: short histories of leases, each about one part of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from tests.crash.harness.log_harness import SETTINGS
from tests.crash.harness.queue_harness import QueueRun
from tests.crash.harness.queue_sweep import Step
from topics.engine.state.queue_values import Claimant

SLICED = msgspec.structs.replace(SETTINGS, seal_records=6)


def produce(count: int) -> Step:
    return lambda run: run.produce(count)


def claim(node: str, most: int) -> Step:
    return lambda run: run.claim([Claimant(node, most)])


def ack(node: str, *seqs: int) -> Step:
    return lambda run: run.ack([(node, seq, "") for seq in seqs], fenced=False)


def nack(node: str, *seqs: int, delay_ms: int = 0) -> Step:
    return lambda run: run.nack([(node, seq, "") for seq in seqs], delay_ms, fenced=False)


def extend(node: str, *seqs: int) -> Step:
    return lambda run: run.extend([(node, seq, "") for seq in seqs], 2000, fenced=False)


def advance(ms: int) -> Step:
    def step(run: QueueRun) -> None:
        run.clock.advance(ms)
        run.engine.maintain(0)

    return step


def checkpoint(run: QueueRun) -> None:
    run.engine.checkpoint()


def keep(is_durable: bool) -> Step:
    def step(run: QueueRun) -> None:
        run.model.is_durable = is_durable
        run.configure()

    return step


LIFE: list[Step] = [
    produce(6), claim("a", 4), ack("a", 1), nack("a", 2), nack("a", 3, delay_ms=300),
    extend("a", 4), claim("b", 2), produce(2), advance(400), claim("c", 1), checkpoint,
    ack("b", 2, 5), advance(600), claim("a", 9), nack("a", 3, 6), ack("a", 7, 8), claim("b", 1),
    ack("b", 3, 6),
]  # fmt: skip
FAILING: list[Step] = [
    produce(4), claim("a", 3), nack("a", 1, 2, 3), claim("a", 3), nack("a", 1, 2), claim("b", 1),
    advance(600), claim("b", 2), checkpoint, produce(2), nack("b", 4, 5), claim("b", 2), checkpoint,
    nack("b", 4, 5), claim("c", 9), ack("c", 6), checkpoint, produce(1), claim("c", 1),
]  # fmt: skip
CHANGING: list[Step] = [
    produce(5), claim("a", 3), keep(True), ack("a", 1), nack("a", 2), claim("b", 1), keep(False),
    claim("b", 2), checkpoint, keep(True), ack("b", 4), checkpoint, advance(600), claim("c", 9),
]  # fmt: skip
BESIDE: list[Step] = [
    step
    for turn in range(6)
    for step in (
        produce(3), claim("a", 2), advance(60), nack("a", *range(1, 30)), claim("b", 1),
        advance(60 + 500 * (turn % 2)), ack("b", *range(1, 30)),
    )
]  # fmt: skip

# How the queue is made, and what is done with it.
WORKFLOWS: dict[str, tuple[Callable[[], QueueRun], list[Step]]] = {
    "life": (partial(QueueRun), LIFE),
    "life_not_durable": (partial(QueueRun, is_durable=False), LIFE),
    "life_on_disk": (partial(QueueRun, durability="disk"), LIFE),
    "failing": (partial(QueueRun, max_deliveries=2), FAILING),
    "failing_in_one_shard": (partial(QueueRun, max_deliveries=2, seed=1), FAILING),
    "failing_not_durable": (
        partial(QueueRun, max_deliveries=2, is_durable=False, dest="disk"), FAILING,
    ),
    "failing_into_nothing": (partial(QueueRun, max_deliveries=2, dest=None), FAILING),
    "failing_on_disk": (partial(QueueRun, max_deliveries=2, durability="disk"), FAILING),
    "failing_while_full": (partial(QueueRun, max_deliveries=2, cap_records=3), FAILING),
    "changing": (partial(QueueRun, is_durable=False), CHANGING),
    "beside_checkpoints": (partial(QueueRun, max_deliveries=2, settings=SLICED), BESIDE),
}  # fmt: skip
