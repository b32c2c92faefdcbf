"""A stream's place: for each topic its epoch and the last seq read, as the dict that Spark keeps.

Spark compares places as text: the same fields in the same order, names sorted, whole numbers, and
when nothing is new the place that was given, untouched.

- `seq`: the last seq read. `head`: the last one known, which bounds what a recreated topic had.
- `lost`: how many seqs were told as lost so far; it shows in the progress of a query.
- `known`: gaps that were there before the first position was fixed; they are told, never a failure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pyspark_topics.errors import TopicsSparkError

VERSION = 1

Gaps = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Place:
    """Where a stream stands in one topic."""

    epoch: str
    seq: int
    head: int
    lost: int = 0
    known: Gaps = ()

    def moved(self, seq: int, head: int, lost: int) -> Place:
        """Further on in the same epoch; gaps that lie behind the place it left are forgotten."""
        ahead = tuple(gap for gap in self.known if gap[1] > self.seq)
        return replace(self, seq=seq, head=head, lost=self.lost + lost, known=ahead)

    @property
    def growing(self) -> int | None:
        """The first seq of a gap that was there at this very place, and may have grown since.

        A topic at its cap evicts all the time: what goes before the first batch has read it was
        never counted on.
        """
        return next((low for low, _ in self.known if low == self.seq + 1), None)


def is_known(known: Gaps, first: int, last: int) -> bool:
    return any(low <= first and last <= high for low, high in known)


Places = dict[str, Place]


def encode(places: Places) -> dict[str, Any]:
    topics = {
        name: {
            "epoch": place.epoch, "seq": place.seq, "head": place.head, "lost": place.lost,
            "known": [list(gap) for gap in place.known],
        }
        for name, place in sorted(places.items())
    }  # fmt: skip
    return {"v": VERSION, "topics": topics}


def decode(offset: dict[str, Any]) -> Places:
    if offset.get("v") != VERSION:
        raise TopicsSparkError(
            f"the checkpoint has offsets of version {offset.get('v')!r}; this is {VERSION}"
        )
    return {
        name: Place(
            entry["epoch"], entry["seq"], entry["head"], entry["lost"],
            tuple((first, last) for first, last in entry["known"]),
        )
        for name, entry in offset["topics"].items()
    }  # fmt: skip
