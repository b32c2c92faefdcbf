"""What the server says of a topic: where it stands, and what became of every seq.

`Account` folds the ranges of `explain` into what a reader will be told, in order: runs of live
records, and gaps. A gap below the floor is one, up to the floor, however much of it was deleted
rather than lost; above the floor each hole is one. What was deleted is silence and leaves no item.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pyspark_topics.errors import Refused, TopicNotFound
from pyspark_topics.http import Server, topic_path
from pyspark_topics.options import SourceOptions

_SILENT = frozenset(("live", "deleted", "unassigned"))
_BELOW_THE_FLOOR = frozenset(("evicted", "expired"))
_PAGE_SIZE = 1000


@dataclass(frozen=True)
class State:
    """Where a topic stands: `floor` is its earliest seq."""

    epoch: str
    head: int
    floor: int


@dataclass(frozen=True)
class Item:
    """A run of live records, or a gap and why it is one; both ends inclusive."""

    first: int
    last: int
    why: str = ""

    @property
    def is_gap(self) -> bool:
        return bool(self.why)

    @property
    def count(self) -> int:
        """Rows it becomes."""
        return 1 if self.is_gap else self.last - self.first + 1


@dataclass
class Account:
    """What (start, end] will tell, of which epoch."""

    epoch: str
    start: int
    end: int
    items: list[Item] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(item.count for item in self.items)

    @property
    def losses(self) -> list[Item]:
        return [item for item in self.items if item.is_gap]

    @property
    def gaps(self) -> list[tuple[int, int]]:
        return [(item.first, item.last) for item in self.losses]

    def cut(self, end: int) -> Account:
        """The same up to `end`, which is no place inside a gap."""
        kept = [
            Item(item.first, min(item.last, end), item.why)
            for item in self.items
            if item.first <= end
        ]
        return Account(self.epoch, self.start, end, kept)

    def place_after(self, count: int) -> int:
        """The seq at which `count` rows are told; never inside a gap. The end when there are fewer.

        What is deleted at the end goes along with the last row.
        """
        for item in self.items:
            if count < item.count or (count == item.count and item is not self.items[-1]):
                return item.last if item.is_gap else item.first + count - 1
            count -= item.count
        return self.end


def states(server: Server, options: SourceOptions) -> dict[str, State]:
    """The subscribed topics that are there."""
    if options.pattern is None:
        found = {}
        for name in options.topics:
            state = state_of(server, name)
            if state is not None:
                found[name] = state
        return found
    whole = re.compile(options.pattern)
    return {
        entry["topic"]: _state(entry)
        for entry in _listed(server)
        if whole.fullmatch(entry["topic"]) is not None
    }


def state_of(server: Server, topic: str) -> State | None:
    try:
        return _state(server.get(topic_path(topic), touch=False))
    except Refused as error:
        if error.status != 404:
            raise
        return None


def existing(server: Server, options: SourceOptions) -> dict[str, State]:
    """The subscribed topics, all of them. Raises TopicNotFound."""
    found = states(server, options)
    for name in options.topics:
        if name not in found:
            raise TopicNotFound(f"topic {name!r} of the option subscribe is not there")
    return found


def _state(entry: dict[str, Any]) -> State:
    return State(entry["epoch"], entry["head_seq"], entry["earliest_seq"])


def _listed(server: Server) -> Iterator[dict[str, Any]]:
    query: dict[str, object] = {"page_size": _PAGE_SIZE, "touch": False}
    while True:
        page = server.get("/v0/topics", **query)
        yield from page["topics"]
        if "next_cursor" not in page:
            return
        query["cursor"] = page["next_cursor"]


def account(
    server: Server, topic: str, state: State, start: int, end: int, *, rows_max: int | None = None
) -> Account:
    """What (start, end] of a topic will tell.

    With `rows_max` it may end earlier, as soon as it has so many. Its epoch is another one when the
    topic was created anew in the meantime.
    """
    found = Account(state.epoch, start, start)
    ranges: list[tuple[int, int, str]] = []
    asked = start + 1
    while asked <= end:
        page = server.get(topic_path(topic, "explain"), **{"from": asked, "to": end})
        found.epoch = page["epoch"]
        ranges.extend((part["from"], part["to"], part["state"]) for part in page["ranges"])
        asked = page["next_from"] or end + 1
        found.items = _items(ranges, start, min(state.floor, end + 1))
        # Below the floor an end could lie inside a gap.
        if rows_max is not None and asked >= state.floor and found.count >= rows_max:
            break
    found.end = max(start, min(end, asked - 1))
    return found


def _items(ranges: list[tuple[int, int, str]], start: int, floor: int) -> list[Item]:
    # What was evicted since the floor was read has moved it.
    floor = max([floor, *(last + 1 for _, last, state in ranges if state in _BELOW_THE_FLOOR)])
    items = []
    why = {state for first, _, state in ranges if first < floor and state not in _SILENT}
    if why:
        items.append(Item(start + 1, floor - 1, " and ".join(sorted(why))))
    for first, last, state in ranges:
        if last >= floor and state not in ("deleted", "unassigned"):
            items.append(Item(max(first, floor), last, "" if state == "live" else state))
    return items
