"""An engine on a disk and a clock that a test owns, and the three ways in which it can end."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from topics.engine.engine import Engine
from topics.settings import KIB, Settings
from topics.testing import CrashPlan, DiskCrashed, FakeClock, FakeDisk
from topics.types import Page, Tombstone

PATH = "/data"
Ending = Literal["clean", "kill", "crash"]
ENDINGS: tuple[Ending, ...] = ("clean", "kill", "crash")
SURVIVABLE: tuple[Ending, ...] = ("clean", "kill")
LOSE_ALL = CrashPlan("lose-all", "lose", "lose")


class World:
    """One data directory through many lives of its process. Syncs happen when asked for."""

    def __init__(self, *, disk: FakeDisk | None = None, **settings: Any) -> None:
        self.disk = disk or FakeDisk()
        self.clock = FakeClock()
        small = {"wal_shards": 2, "wal_file_bytes": 64 * KIB, "wal_reserve_bytes": 4 * KIB}
        self.settings = Settings(**{"threads": False, **small, **settings})
        self.engine = self.open()

    def open(self) -> Engine:
        return Engine.open(PATH, clock=self.clock, fs=self.disk, settings=self.settings)

    def set(self, **settings: Any) -> None:
        """Other settings from the next start on."""
        self.settings = msgspec.structs.replace(self.settings, **settings)

    def end(self, how: Ending, plan: CrashPlan = LOSE_ALL) -> None:
        if how == "clean":
            self.engine.close()
            return
        self.disk = self.disk.kill() if how == "kill" else self.disk.crash(plan)
        # What was under way has died with the process; it must not wake up to find its disk gone.
        with contextlib.suppress(DiskCrashed):
            self.engine.maintenance.give_up()

    def restart(self, how: Ending = "clean", plan: CrashPlan = LOSE_ALL) -> Engine:
        self.end(how, plan)
        self.engine = self.open()
        return self.engine

    def fill(self, topic: str, count: int, **fields: Any) -> None:
        """`count` records, one write each, `data` their own number."""
        for _ in range(count):
            self.engine.append(topic, [{"data": 0, **fields}])

    def look(self, topic: str, cursor: int = 0) -> Look:
        return Look.at(self.engine, topic, cursor)


@dataclasses.dataclass(frozen=True)
class Look:
    """Everything a reader and an auditor can see of a topic."""

    head: int
    earliest: int
    evict_floor: int
    count: int
    bytes: int
    seqs: tuple[int, ...]
    tombstones: tuple[Tombstone, ...]
    ranges: tuple[tuple[int, int, str], ...]

    @classmethod
    def at(cls, engine: Engine, topic: str, cursor: int = 0) -> Look:
        state = engine.state(topic)
        pages = list(read_all(engine, topic, cursor))
        return cls(
            head=state.head_seq,
            earliest=state.earliest_seq,
            evict_floor=state.evict_floor,
            count=state.count,
            bytes=state.bytes,
            seqs=tuple(seq for page in pages for seq in seqs(page)),
            tombstones=tuple(page.tombstone for page in pages if page.tombstone is not None),
            ranges=explained(engine, topic),
        )


def seqs(page: Page) -> list[int]:
    return [record.seq for record in page.records]


def values(page: Page) -> list[Any]:
    return [record.value for record in page.records]


def read_all(engine: Engine, topic: str, cursor: int = 0, **options: Any) -> Iterable[Page]:
    """Pages until caught up; fails when a read does not move the cursor."""
    while True:
        page = engine.diff(topic, from_seq=cursor, **options)
        yield page
        if page.caught_up:
            return
        assert page.next_from_seq > cursor
        cursor = page.next_from_seq


def explained(engine: Engine, topic: str) -> tuple[tuple[int, int, str], ...]:
    return tuple((part.first, part.last, part.state) for part in engine.explain(topic))


def tagged(*tags: str | None) -> list[Mapping[str, Any]]:
    """One record for each tag; None for a record without one."""
    return [{"data": 0} if tag is None else {"data": 0, "tag": tag} for tag in tags]


def gap(tombstone: Tombstone | None) -> tuple[int, int, str] | None:
    return tombstone and (tombstone.gap_from, tombstone.gap_to, tombstone.reason)
