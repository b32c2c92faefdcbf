"""A history is a seed: its mood, and a list of steps. A failing one is shrunk step by step.

python -m tests.crash.harness.histories.history FIRST COUNT     # runs seeds, prints what breaks
python -m tests.crash.harness.histories.history SEED            # one, with its shrunk steps
"""

from __future__ import annotations

import contextlib
import random
import re
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence

from tests.crash.harness.histories import actions
from tests.crash.harness.histories.draws import Mood, mood_of
from tests.crash.harness.histories.ends import finish
from tests.crash.harness.histories.world import World
from tests.crash.harness.log_harness import deterministic
from topics.engine.routing import planning
from topics.engine.state import ceiling
from topics.testing import OrderViolation
from topics.testing.modelcheck import Violation

HANGS_S = 60.0
SHRINK_S = 60.0
Steps = Sequence[tuple[str, int]]


def steps_of(seed: int, mood: Mood) -> list[tuple[str, int]]:
    draw = random.Random(f"steps {seed}")
    kinds, weights = list(mood.weights), list(mood.weights.values())
    begin = ["put", "put", "put", *(["route"] * len(mood.edges))]
    drawn = draw.choices(kinds, weights, k=mood.length)
    return [(kind, draw.getrandbits(32)) for kind in begin + drawn]


@contextlib.contextmanager
def small_bounds(mood: Mood) -> Iterator[None]:
    """Pieces of routers and ceilings are small enough for a short history to go beyond them."""
    bounds = mood.bounds
    before = planning.RECORDS_MAX, ceiling.ALLOWANCE_MIN, ceiling.BUSY_S
    planning.RECORDS_MAX = bounds["RECORDS_MAX"]
    ceiling.ALLOWANCE_MIN, ceiling.BUSY_S = bounds["ALLOWANCE_MIN"], bounds["BUSY_S"]
    try:
        yield
    finally:
        planning.RECORDS_MAX, ceiling.ALLOWANCE_MIN, ceiling.BUSY_S = before


def run(seed: int, steps: Steps | None = None) -> World:
    """Runs a history to its end; raises what is broken, with the log in `notes`."""
    mood = mood_of(seed)
    with deterministic(seed), small_bounds(mood):
        world = World(seed, mood)
        with world.memory.watched():
            try:
                for kind, number in steps_of(seed, mood) if steps is None else steps:
                    actions.step(world, kind, number)
                finish(world, seed)
            except BaseException as error:
                error.world = world  # type: ignore[attr-defined]
                raise
    return world


def shrink(seed: int, steps: Steps, word: str, until_s: float) -> list[tuple[str, int]]:
    """Leaves out step after step as long as the same kind of thing breaks."""
    kept = list(steps)
    index = len(kept) - 1
    while index >= 0 and time.monotonic() < until_s:
        tried = kept[:index] + kept[index + 1 :]
        if kind_of(failure(seed, tried)) == word:
            kept = tried
        index -= 1
        index = min(index, len(kept) - 1)
    return kept


class Hangs(BaseException):
    """A call that does not return. Not an Exception: what is tested may handle those."""


@contextlib.contextmanager
def watchdog() -> Iterator[None]:
    def bark(*_: object) -> None:
        raise Hangs(f"a call does not return within {HANGS_S} s")

    before = signal.signal(signal.SIGALRM, bark)
    signal.setitimer(signal.ITIMER_REAL, HANGS_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def failure(
    seed: int, steps: Steps | None = None, totals: Counter[str] | None = None
) -> BaseException | None:
    """What breaks in a history, or None; adds to `totals` what it went through."""
    try:
        with watchdog():
            world = run(seed, steps)
    except (Exception, OrderViolation, Hangs) as error:
        return error
    if totals is not None:
        totals["histories"] += 1
        totals.update(world.tallies)
    return None


def kept_as(seed: int, broken: BaseException) -> tuple[dict[str, object], str]:
    """A failing history as it is kept and as it is told: with as few steps as break it."""
    until_s = time.monotonic() + SHRINK_S
    steps = shrink(seed, steps_of(seed, mood_of(seed)), kind_of(broken), until_s)
    text = f"seed {seed}: {type(broken).__name__}: {broken}\n  steps: {steps}"
    return {"seed": seed, "steps": steps}, text


def kind_of(error: BaseException | None) -> str:
    """Failures that are alike: what they say, without names and numbers, and where."""
    if error is None:
        return ""
    text = re.sub(r"\d+|\b[a-e]\b|/data/[^']*|\(kind=.*|\[.*", "#", str(error))
    text = re.sub(r"[#,'() ]{3,}", " # ", text)[:70]
    if isinstance(error, Violation):
        return text
    frames = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__} in {frames[-1].name}: {text}"


def main(first: int, count: int) -> None:
    kinds: dict[str, list[int]] = {}
    totals: Counter[str] = Counter()
    began = time.monotonic()
    for seed in range(first, first + count):
        broken = failure(seed, totals=totals)
        if broken is not None:
            kinds.setdefault(kind_of(broken), []).append(seed)
    print(f"{count / (time.monotonic() - began) * 60:.0f} histories a minute: {dict(totals)}")
    for kind, seeds in sorted(kinds.items(), key=lambda item: -len(item[1])):
        print(f"{len(seeds):5} {kind}   {seeds[:8]}")


def show(seed: int) -> None:
    broken = failure(seed)
    if broken is None:
        print("nothing is broken")
        return
    kept, text = kept_as(seed, broken)
    again = failure(seed, kept["steps"]) or broken  # type: ignore[arg-type]
    traceback.print_exception(again)
    print(text, *getattr(again, "world").log, sep="\n")  # noqa: B009


if __name__ == "__main__":
    if len(sys.argv) > 2:
        main(int(sys.argv[1]), int(sys.argv[2]))
    else:
        show(int(sys.argv[1]))
