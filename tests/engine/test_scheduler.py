"""Who is served next: higher before lower, nobody never, and pressure costs latency first."""

from __future__ import annotations

import pytest

from topics.engine.reading.scheduler import (
    ALL_REFUSED_FROM,
    BANDS,
    LAG_MS_MAX,
    PACE_MS,
    QUANTUM_FRAMES,
    READY_MAX,
    TURN_FRAMES_MAX,
    WAITED_MS_MAX,
    WAL_FRAMES_MAX,
    Pressure,
    Scheduler,
    Served,
    band_of,
)
from topics.errors import Throttled
from topics.testing import FakeClock


class Work:
    """A task with `left` frames to send; `log` has who was served, in order."""

    def __init__(self, name: str, log: list[str], *, base: int = 0, left: int = 1) -> None:
        self.name = name
        self.log = log
        self.base = base
        self.left = left
        self.paced_ms = 0

    def priority(self, wall_ms: int, waited_ms: int) -> int:
        return self.base + min(waited_ms // 10, 1000)

    def serve(self, frames_max: int, bytes_max: int) -> Served:
        count = min(frames_max, self.left)
        self.left -= count
        self.log.append(self.name)
        return Served(count, count * 100, self.left > 0)

    def paced(self, retry_after_ms: int) -> None:
        self.paced_ms = retry_after_ms


class Bench:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.wakes = 0
        self.log: list[str] = []
        self.scheduler = Scheduler(self.clock, self._wake)

    def _wake(self) -> None:
        self.wakes += 1

    def work(self, name: str, *, base: int = 0, left: int = 1) -> Work:
        task = Work(name, self.log, base=base, left=left)
        self.scheduler.mark(task)
        return task


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_higher_comes_first_whatever_was_marked_first(bench: Bench) -> None:
    """Higher effective priority is served first."""
    for name, base in (("low", -1000), ("middle", 0), ("high", 1000), ("auto", 500)):
        bench.work(name, base=base)
    assert not bench.scheduler.turn()
    assert bench.log == ["high", "auto", "middle", "low"]


def test_equals_are_served_in_turn(bench: Bench) -> None:
    """Tasks of one band share it by turns."""
    for name in ("a", "b"):
        bench.work(name, left=2 * QUANTUM_FRAMES)
    while bench.scheduler.turn():
        pass
    assert bench.log == ["a", "b", "a", "b"]


def test_marking_twice_is_marking_once(bench: Bench) -> None:
    """A task waits once however often it is marked, and can be marked again when served."""
    task = bench.work("a")
    bench.scheduler.mark(task)
    assert (bench.wakes, len(bench.scheduler)) == (1, 1)
    bench.scheduler.turn()
    assert bench.log == ["a"]
    bench.scheduler.mark(task)
    assert bench.wakes == 2


def test_a_turn_is_bounded(bench: Bench) -> None:
    """In frames, however many tasks there are: the caller has sockets to look after."""
    task = bench.work("a", left=10 * TURN_FRAMES_MAX)
    assert bench.scheduler.turn()
    assert task.left == 9 * TURN_FRAMES_MAX
    # While turns are due there is no need to wake.
    bench.work("b")
    assert bench.wakes == 1


def test_a_task_without_work_left_is_forgotten(bench: Bench) -> None:
    """A forgotten task is not served."""
    task = bench.work("a")
    bench.scheduler.forget(task)
    assert not bench.scheduler.turn()
    assert bench.log == []


def test_the_lowest_is_served_while_the_highest_never_ends(bench: Bench) -> None:
    """Each band has its share: nothing starves, even before it has aged."""
    bench.work("high", base=1000, left=10**9)
    bench.work("low", base=-1000)
    for _ in range(100):
        bench.scheduler.turn()
        if "low" in bench.log:
            break
    assert "low" in bench.log
    assert bench.log.count("high") > 30


def test_shares_follow_the_bands(bench: Bench) -> None:
    """Under constant load each band gets twice the share of the one below it."""
    for name, base in (("high", 1000), ("low", -1000)):
        bench.work(name, base=base, left=10**9)
    for _ in range(500):
        bench.scheduler.turn()
    ratio = bench.log.count("high") / bench.log.count("low")
    assert ratio == pytest.approx(2 ** (band_of(1000) - band_of(-1000)), rel=0.3)


def test_waiting_raises_a_task_above_what_comes_later(bench: Bench) -> None:
    """Priority grows while a task waits, until it comes first."""
    old = bench.work("old", base=-400)
    bench.clock.advance(9000)
    bench.scheduler.tick()
    bench.work("new", base=0)
    bench.scheduler.turn()
    assert bench.log == ["old", "new"]
    assert old.left == 0


def test_every_priority_has_a_band() -> None:
    """Bands are ordered like priorities and cover all of them."""
    bands = [band_of(p) for p in range(-1100, 2101)]
    assert bands == sorted(bands)
    assert (bands[0], bands[-1]) == (0, BANDS - 1)


# -- pressure --------------------------------------------------------------------------------------


def measure(pressure: Pressure, **measured: int) -> None:
    pressure.measure(**{"lag_ms": 0, "wal_frames": 0, "ready": 0, "waited_ms": 0, **measured})


def press(pressure: Pressure, level: float, ticks: int = 1) -> None:
    for _ in range(ticks):
        measure(pressure, wal_frames=int(level * WAL_FRAMES_MAX))


@pytest.mark.parametrize(
    "measured",
    [
        {"lag_ms": 2 * LAG_MS_MAX},
        {"wal_frames": 2 * WAL_FRAMES_MAX},
        {"ready": 2 * READY_MAX},
        {"waited_ms": 2 * WAITED_MS_MAX},
    ],
)
def test_each_measure_alone_is_enough(measured: dict[str, int]) -> None:
    """Loop lag, log queue, ready set and the longest wait each raise pressure by themselves."""
    pressure = Pressure()
    for _ in range(100):
        measure(pressure, **measured)
    assert pressure.is_refusing


def test_one_late_turn_is_no_pressure() -> None:
    """A single pause refuses nobody and is forgotten."""
    pressure = Pressure()
    measure(pressure, lag_ms=3 * LAG_MS_MAX)
    assert not pressure.is_pacing
    for _ in range(50):
        measure(pressure)
    assert pressure.level < 0.01


def test_latency_then_pacing_then_refusal() -> None:
    """Pressure costs latency first, then coalescing, then refusals."""
    pressure = Pressure()
    steps = []
    for level in (0.3, 0.7, 1.2):
        press(pressure, level)
        steps.append((pressure.is_pacing, pressure.is_refusing))
    assert steps == [(False, False), (True, False), (True, True)]


def test_what_has_priority_is_refused_last() -> None:
    """Below twice the limit only topics without priority are refused, with a time to retry."""
    pressure = Pressure()
    pressure.refuse("write", -5)
    press(pressure, 1.2)
    pressure.refuse("write", 500)
    with pytest.raises(Throttled) as refused:
        pressure.refuse("write", 0)
    assert refused.value.detail["retry_after_ms"] >= 250
    press(pressure, ALL_REFUSED_FROM + 0.1)
    with pytest.raises(Throttled):
        pressure.refuse("write", 1000)


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000, 10**12])
def test_a_jump_of_the_wall_clock_is_no_wait(bench: Bench, jump_ms: int) -> None:
    """Nobody has waited longer because somebody has set the clock: no pressure, no other order."""
    first, second = bench.work("a"), bench.work("b", base=500)
    bench.scheduler.mark(first)
    bench.clock.jump_wall(jump_ms)
    bench.scheduler.mark(second)
    bench.scheduler.tick()
    assert bench.scheduler.waited_ms == 0
    bench.clock.advance(30)
    assert bench.scheduler.waited_ms == 30
    bench.scheduler.turn()
    assert bench.log == ["b", "a"]


def test_low_bands_are_paced_and_told_so(bench: Bench) -> None:
    """What waits is not lost: it comes in fewer, larger frames."""
    press(bench.scheduler.pressure, 0.7)
    low = bench.work("low", base=-1000, left=10**9)
    bench.work("high", base=1000, left=10**9)
    for _ in range(100):
        bench.scheduler.turn()
    assert bench.log.count("low") == 1
    assert low.paced_ms == PACE_MS
    bench.clock.advance(PACE_MS + 1)
    for _ in range(100):
        bench.scheduler.turn()
    assert bench.log.count("low") == 2


def test_who_is_alone_is_not_paced(bench: Bench) -> None:
    """Pacing gives way to higher bands; without any it takes nothing from the lower."""
    press(bench.scheduler.pressure, 0.7)
    bench.work("low", base=-1000, left=10**9)
    for _ in range(20):
        bench.scheduler.turn()
    assert len(bench.log) > 30
