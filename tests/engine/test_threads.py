"""An engine belongs to one thread; every other is refused before it can touch anything."""

from __future__ import annotations

import inspect
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.engines import PATH, World
from topics.engine.bucket_calls import BucketCalls
from topics.engine.engine import Engine
from topics.engine.ops.cursors import Given
from topics.engine.reading.ranges import Asked
from topics.engine.serving import Serving
from topics.engine.state.write_request import request_of
from topics.errors import TopicsError, WrongThread
from topics.settings import Settings
from topics.testing import FakeClock, FakeDisk
from topics.types import ConfigPatch

SCHEDULES = 1000
# What may be called before there is an engine, from any thread, or says so of itself.
EXEMPT = {"open", "opening", "on_durable", "on_backlog"}
# An argument for every name that has no default.
ARGUMENTS: dict[str, Any] = {
    "name": "t", "cursor": "c", "node": "w", "seqs": [1], "records": [{"data": 1}],
    "body": b'{"records":[{"data":1}]}',
    "request": request_of([{"data": 1}]), "owner": None, "teller": None, "config": None,
    "given": None, "router": {"source": "t", "dest": "u"}, "claimants": [], "before_seq": 1,
    "match": None, "if_empty": False, "delay_ms": 0, "lease_ms": 1000, "lease_ids": None,
    "held": [], "ts": 1, "asked": Asked(), "topic": "t", "producer": "p", "batch": 1,
    "query": "q", "stages": [], "names": [], "dest": "/backups",
}  # fmt: skip


def calls() -> Iterator[str]:
    """The calls of Engine, but those that servers and buckets make of it, in its own thread."""
    for name, _ in inspect.getmembers(Engine, inspect.isfunction):
        is_inner = name in vars(Serving) or name in vars(BucketCalls)
        if not name.startswith("_") and name not in EXEMPT and not is_inner:
            yield name


def in_a_thread(call: Callable[[], Any]) -> BaseException | None:
    found: list[BaseException | None] = [None]

    def run() -> None:
        try:
            call()
        except BaseException as error:
            found[0] = error

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("name", sorted(calls()))
def test_every_call_is_refused_from_another_thread(world: World, name: str) -> None:
    """And nothing has happened: what this thread sees is what it saw."""
    engine = world.engine
    engine.put_topic("t", type="queue")
    engine.append("t", [{"data": 1}])
    before = (world.look("t"), engine.list_topics(), world.disk.mutations)
    wanted = inspect.signature(getattr(Engine, name)).parameters.values()
    given = {"submit_patch": ConfigPatch(), "submit_put_cursor": Given(seq=1)}.get(name)
    arguments = {**ARGUMENTS, "given": given}
    fields = {
        parameter.name: arguments[parameter.name]
        for parameter in wanted
        if parameter.name != "self"
        and parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    error = in_a_thread(lambda: getattr(engine, name)(**fields))
    assert isinstance(error, WrongThread), error
    assert "docs/embedding.md" in error.message
    assert (world.look("t"), engine.list_topics(), world.disk.mutations) == before


OPERATIONS: tuple[Callable[[Engine, int], Any], ...] = (
    lambda e, n: e.append("t", [{"data": n}]),
    lambda e, n: e.append("t", [{"data": n, "tag": "x"}, {"data": n}]),
    lambda e, _: e.diff("t", from_seq=0, limit=5),
    lambda e, n: e.delete("t", before_seq=max(1, n % 7)),
    lambda e, _: e.state("t"),
    lambda e, n: e.put_topic("t", cap_records=n % 50 + 20),
    lambda e, _: e.flush(),
    lambda e, _: e.maintain(),
    lambda e, _: e.checkpoint(),
    lambda e, n: e.put_cursor("t", "c", seq=0, reset=True),
)


def hammer(engine: Engine, chance: random.Random, count: int, told: list[Any]) -> None:
    """Makes calls in any order, and notes what each came to."""
    for n in range(count):
        operation = chance.choice(OPERATIONS)
        try:
            told.append((operation, operation(engine, n)))
        except TopicsError as error:
            told.append((operation, error))


@pytest.mark.slow
def test_two_threads_on_one_engine_are_told_or_exact_over_many_schedules() -> None:
    """The owner's calls all count, the other's are all refused, and the directory is whole."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    refused = done = 0
    try:
        for seed in range(SCHEDULES):
            chance = random.Random(seed)
            disk = FakeDisk()
            settings = Settings(threads=False, wal_file_bytes=64 * 1024, wal_reserve_bytes=4096)
            engine = Engine.open(PATH, clock=FakeClock(), fs=disk, settings=settings)
            engine.put_topic("t")
            theirs: list[Any] = []
            other = random.Random(seed + 1_000_000)
            thread = threading.Thread(target=hammer, args=(engine, other, 6, theirs))
            ours: list[Any] = []
            thread.start()
            hammer(engine, chance, 6, ours)
            thread.join()
            assert all(isinstance(result, WrongThread) for _, result in theirs)
            assert not any(isinstance(result, WrongThread) for _, result in ours)
            written = sum(
                2 if operation is OPERATIONS[1] else 1
                for operation, _ in ours
                if operation in OPERATIONS[:2]
            )
            seen = engine.state("t"), engine.diff("t").records
            engine.close()
            again = Engine.open(PATH, clock=FakeClock(), fs=disk.kill(), settings=settings)
            assert again.state("t").head_seq == written
            found = again.state("t"), again.diff("t").records
            assert (found[0].count, found[0].config) == (seen[0].count, seen[0].config)
            assert [r.seq for r in found[1]] == [r.seq for r in seen[1]]
            again.close()
            refused += len(theirs)
            done += len(ours)
    finally:
        sys.setswitchinterval(interval_s)
    assert refused == done == 6 * SCHEDULES
