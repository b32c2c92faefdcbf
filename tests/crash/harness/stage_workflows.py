"""What the sweep of stages crashes: batches in ordinary use, and random ones."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.crash.harness.log_harness import SETTINGS, deterministic
from tests.crash.harness.stage_harness import QUERY, SLICED, StageRun
from topics.settings import Settings
from topics.testing import CrashPlan
from topics.testing.modelcheck import require

Workflow = Callable[[StageRun], None]
PLANS = CrashPlan.standard()


def batches(run: StageRun) -> None:
    """Stages, commits, repeats, drops and expiry; topics that a commit makes."""
    run.put("a", "fsync")
    run.append("a", 2)
    first, second = run.stage("p", 0, "a"), run.stage("p", 0, "new")
    run.stage("p", 0, "a", 1)
    run.commit("p", 0, first, second)
    run.stage("p", 1, "a")
    run.drop("p", 1)
    run.commit("q", 7, run.stage("q", 7, "a", 3))
    run.append("a")
    run.commit("p", 1, run.stage("p", 1, "a", 1))
    run.stage("q", 8, "a")
    run.expire()
    run.append("new")


def classes(run: StageRun) -> None:
    """One commit to topics of every class."""
    for name, durability in zip("abcd", ("fsync", "disk", "memory", "ephemeral"), strict=True):
        run.put(name, durability)
        run.append(name)
    run.commit("p", 0, *[run.stage("p", 0, name) for name in "abc"])
    run.commit("e", 0, run.stage("e", 0, "d"))
    for name in "abcd":
        run.append(name)
    run.reopen("clean")
    run.commit("p", 1, *[run.stage("p", 1, name, 1) for name in "cab"])


def checkpoints(run: StageRun) -> None:
    """Before, between and after them; what is spent goes when nothing needs it."""
    run.put("a", "fsync")
    run.commit("p", 0, run.stage("p", 0, "a"))
    run.checkpoint()
    kept = run.stage("p", 1, "a")
    run.checkpoint()
    run.commit("p", 1, kept)
    run.reopen("kill")
    run.checkpoint()
    run.commit("p", 2, run.stage("p", 2, "a", 1))
    run.checkpoint()
    run.checkpoint()


def sliced(run: StageRun) -> None:
    """Commits while a checkpoint is under way, a slice at a time."""
    run.put("a", "fsync")
    run.append("a", 4)
    for number in range(4):
        names = [run.stage("p", number, topic) for topic in ("a", "b")]
        if number % 2:
            run.engine.begin_checkpoint()
        run.engine.maintain(0)
        run.commit("p", number, *names)
        for _ in range(6):
            run.engine.maintain(0)
        run.append("a")


def pieces(run: StageRun) -> None:
    """A commit that is applied in pieces, with writes behind it."""
    run.put("a", "fsync")
    run.append("a", 1)
    names = [run.stage("p", 0, "a", 60) for _ in range(3)]
    batch = run.batch("p", 0, names)
    run.step += 1
    run.facts.committing.append(batch)
    ticket = run.engine.submit_commit("p", 0, QUERY, names)
    run.engine.flush()
    before = run.engine.state("a").head_seq
    require(ticket.done or before == 1, "a part of a commit is seen")
    while not ticket.done:
        run.engine.maintain(0)
        seen = run.engine.state("a").head_seq
        require(ticket.done or seen == 1, "a part of a commit is seen")
    batch.answer = ticket.result
    run.facts.committing.remove(batch)
    run.committed(batch)
    run.append("a", 2)
    run.checkpoint()


def recreated(run: StageRun) -> None:
    """A topic that was dropped and made again knows nothing of its batches."""
    run.commit("p", 3, run.stage("p", 3, "a"))
    run.append("a")
    run.drop_topic("a")
    run.commit("p", 3, run.stage("p", 3, "a", 1))
    run.checkpoint()
    run.commit("p", 4, run.stage("p", 4, "a", 1))


def promoted(run: StageRun) -> None:
    """An ephemeral topic becomes durable with the memory of its producers."""
    run.put("a", "ephemeral")
    run.commit("p", 2, run.stage("p", 2, "a"))
    run.step += 1
    run.facts.classes["a"] = "ephemeral"
    run.engine.put_topic("a", {"durability": "fsync"})
    run.facts.classes["a"] = "fsync"
    run.step += 1
    run.append("a")
    run.reopen("crash")
    run.require_promises()
    run.checkpoint()
    run.commit("p", 3, run.stage("p", 3, "a"))


WORKFLOWS: dict[str, tuple[Workflow, Settings]] = {
    "batches": (batches, SETTINGS),
    "classes": (classes, SETTINGS),
    "checkpoints": (checkpoints, SETTINGS),
    "sliced": (sliced, SLICED),
    "pieces": (pieces, SETTINGS),
    "recreated": (recreated, SETTINGS),
    "promoted": (promoted, SETTINGS),
}


def random_history(seed: int, length: int) -> Workflow:
    """Several producers and attempts, drops, expiry, and ends of every kind as often as calls."""

    def workflow(run: StageRun) -> None:
        rng = random.Random(seed)
        topics = ["a", "b", "c"]
        for name, durability in zip("ab", rng.sample(["fsync", "disk", "memory"], 2), strict=True):
            run.put(name, durability)
        numbers = dict.fromkeys("pqr", 0)
        for _ in range(length):
            producer = rng.choice(sorted(numbers))
            number = numbers[producer]
            roll = rng.random()
            if roll < 0.35:
                run.stage(producer, number, rng.choice(topics), rng.randint(1, 4))
            elif roll < 0.6:
                _commit(run, rng, producer, numbers)
            elif roll < 0.68:
                run.append(rng.choice(topics), rng.randint(1, 3))
            elif roll < 0.73:
                run.drop(producer, number)
            elif roll < 0.76:
                run.expire()
            elif roll < 0.84:
                run.checkpoint()
            else:
                ending = rng.choice(("clean", "clean", "kill", "crash"))
                run.reopen(ending, rng.choice(PLANS))  # type: ignore[arg-type]
                run.require_promises()

    return workflow


def _commit(run: StageRun, rng: random.Random, producer: str, numbers: dict[str, int]) -> None:
    number = numbers[producer]
    held = [n for n, each in run.facts.live.items() if each[:2] == (producer, number)]
    chosen = rng.sample(held, rng.randint(0, len(held)))
    if chosen:
        run.commit(producer, number, *chosen)
        numbers[producer] += rng.randint(1, 3)
        if rng.random() < 0.5:
            run.require_promises()


def run_history(seed: int, length: int = 60) -> None:
    """A random history, and what its producers find afterwards."""
    with deterministic(seed):
        run = StageRun(seed=seed)
        random_history(seed, length)(run)
        run.verify()
        run.require_promises()
        run.live_on()
