"""Whoever comes and goes leaves no memory behind, with the garbage collector kept out of the way.

What lives for long is frozen (topics.engine.upkeep.freezing): a ring of objects that refer to each
other would then stay for ever. So there may be none, of any kind of visit.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.server.soak.visits import VISITS, Visit, prepare, session
from tests.support.servers import Inside, Served, inside
from tests.support.tiers import quick_first

pytestmark = pytest.mark.slow

Tally = Callable[..., None]
SESSION_TTL_MS = 50
OURS = ("topics.", "h2.", "hpack.", "websockets.", "uvloop.")
AT_ONCE = 20
# For the soak: what is enough to say that a kind leaves nothing, and one round of it.
ENOUGH = 1_000_000
ROUND = 500
WARM_ROUNDS = 2
GROWTH_MAX = 1.05


def visit(served: Inside | Served, kind: Visit, numbers: Iterator[int], count: int) -> None:
    """Some visits, a few at a time, all of them over when this returns."""
    for _ in range(0, count, AT_ONCE):
        with contextlib.ExitStack() as peers:
            for number in itertools.islice(numbers, AT_ONCE):
                for peer in kind(served.port, number):
                    peers.enter_context(peer)


def forget_sessions(port: int) -> None:
    """Idle sessions end when the next one is made."""
    time.sleep(2 * SESSION_TTL_MS / 1000)
    session(port, 0)


# -- rings -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    directory = tmp_path_factory.mktemp("visited")
    with inside(directory, TOPICS_SESSION_TTL_MS=str(SESSION_TTL_MS)) as served:
        prepare(served.port)
        # What other tests of this process left: with the collector off it would be found each time.
        gc.unfreeze()
        gc.collect()
        gc.disable()
        yield served
        gc.enable()


def rings(server: Inside) -> Counter[str]:
    """The types of the server's objects that only a collector would find, and how many of each."""

    def look() -> Counter[str]:
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        names = [f"{type(found).__module__}.{type(found).__qualname__}" for found in gc.garbage]
        gc.garbage.clear()
        return Counter(name for name in names if name.startswith(OURS))

    return server.run(look)


@pytest.mark.parametrize("kind", quick_first(VISITS, 3), ids=lambda kind: kind.__name__)
def test_no_visit_leaves_a_ring_behind(server: Inside, kind: Visit) -> None:
    numbers = itertools.count(1)
    # What the first of a kind sets up for all may hold itself: only what comes back each time is of
    # these visits.
    server.run(gc.collect)
    left: set[str] | None = None
    for _ in range(3):
        visit(server, kind, numbers, 2 * AT_ONCE)
        server.wait_until(lambda: server.server.connection_count == 0)
        forget_sessions(server.port)
        found = {name for name, count in rings(server).items() if count >= AT_ONCE}
        left = found if left is None else left & found
    assert not left


# -- memory ----------------------------------------------------------------------------------


def resident_bytes(served: Served) -> int:
    fields = Path(f"/proc/{served.process.pid}/status").read_text().splitlines()
    line = next(line for line in fields if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


@pytest.mark.full(share=10)
@pytest.mark.timeout(0)
def test_a_million_visits_of_each_kind_leave_no_memory_behind(
    tmp_path: Path, deadline: float, tally: Tally
) -> None:
    """In rounds of all kinds, so that whatever the budget is, each had the same share of it."""
    settings = {"TOPICS_SESSION_TTL_MS": str(SESSION_TTL_MS), "TOPICS_LOG_LEVEL": "error"}
    with Served(tmp_path, **settings) as served:
        served.wait_ready()
        prepare(served.port)
        numbers = itertools.count(1)
        sizes: list[int] = []
        while len(sizes) < WARM_ROUNDS + 2 or (
            time.monotonic() < deadline and len(sizes) * ROUND < ENOUGH
        ):
            for kind in VISITS:
                visit(served, kind, numbers, ROUND)
            forget_sessions(served.port)
            sizes.append(resident_bytes(served))
        tally(visits=len(sizes) * ROUND * len(VISITS))
        assert served.stop() == 0
    warm = sizes[WARM_ROUNDS - 1 :]
    assert max(warm) < GROWTH_MAX * warm[0], [size >> 20 for size in sizes]
