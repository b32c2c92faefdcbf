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
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.server.bad_input.table import Target, cells_of
from tests.server.bad_input.test_bad_input import ENDING, by_route, send
from tests.server.soak.visits import (
    AT_ONCE,
    PASSING,
    VISITS,
    Visit,
    prepare,
    session,
    visit,
)
from tests.support.servers import Inside, Served, inside
from tests.support.tiers import quick_first

pytestmark = pytest.mark.slow

Tally = Callable[..., None]
SESSION_TTL_MS = 50
OURS = ("topics.", "h2.", "hpack.", "websockets.", "uvloop.")
# For the soak: what is enough to say that a kind leaves nothing, one round of it by each of the
# visitors, and how many times fewer of those that are many calls.
ENOUGH = 1_000_000
ROUND = 2_500
VISITORS = 2
RARER = 50
WARM_ROUNDS = 2
GROWTH_MAX = 1.05


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
        visit(server.port, kind, numbers, 2 * AT_ONCE)
        server.wait_until(lambda: server.server.connection_count == 0)
        forget_sessions(server.port)
        found = {name for name, count in rings(server).items() if count >= AT_ONCE}
        left = found if left is None else left & found
    assert not left


@by_route(ENDING)
def test_no_refusal_leaves_a_ring_behind(server: Inside, target: Target) -> None:
    """An error knows the frames it came through, and they know the request and its connection."""
    with server.client() as client:
        # The first of a kind may set up something for all.
        send(client, next(cells_of(target)))
        server.run(gc.collect)
        for cell in cells_of(target):
            with contextlib.suppress(OSError):
                send(client, cell)
    server.wait_until(lambda: server.server.connection_count == 0)
    assert not rings(server)


# -- memory ----------------------------------------------------------------------------------


def resident_bytes(served: Served) -> int:
    fields = Path(f"/proc/{served.process.pid}/status").read_text().splitlines()
    line = next(line for line in fields if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def make_a_round(port: int, visitor: int, number: int) -> None:
    """In a process of its own, so that the server is the one that is busy."""
    numbers = itertools.count((number * VISITORS + visitor) * ROUND * len(VISITS))
    for kind in VISITS:
        visit(port, kind, numbers, ROUND if kind in PASSING else ROUND // RARER)


@pytest.mark.full
@pytest.mark.alone
@pytest.mark.timeout(0)
def test_a_million_visits_of_each_kind_leave_no_memory_behind(
    tmp_path: Path, deadline: float, tally: Tally
) -> None:
    """In rounds of all kinds, so that whatever the budget is, each had the same share of it."""
    settings = {"TOPICS_SESSION_TTL_MS": str(SESSION_TTL_MS), "TOPICS_LOG_LEVEL": "error"}
    sizes: list[int] = []
    visitors = get_context("spawn").Pool(VISITORS)
    with Served(tmp_path, **settings) as served, visitors:
        served.wait_ready()
        prepare(served.port)
        while len(sizes) < WARM_ROUNDS + 2 or (
            time.monotonic() < deadline and len(sizes) * ROUND * VISITORS < ENOUGH
        ):
            rounds = [(served.port, visitor, len(sizes)) for visitor in range(VISITORS)]
            visitors.starmap(make_a_round, rounds, 1)
            forget_sessions(served.port)
            sizes.append(resident_bytes(served))
        tally(visits_of_a_kind=len(sizes) * ROUND * VISITORS)
        assert served.stop() == 0
    warm = sizes[WARM_ROUNDS - 1 :]
    assert max(warm) < GROWTH_MAX * warm[0], [size >> 20 for size in sizes]
