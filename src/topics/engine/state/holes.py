"""Holes: ranges of seqs between a topic's floor and its head that can never be read, and why.

Holes of one reason that adjoin are one: a reader is told of one gap, however many losses made it.
"""

from __future__ import annotations

from collections.abc import Iterable

# First seq, last seq, what became of them.
Hole = tuple[int, int, int]


def add_last(holes: list[Hole], first: int, last: int, state: int) -> None:
    """Adds a hole after all others."""
    if holes and holes[-1][1] + 1 == first and holes[-1][2] == state:
        first = holes.pop()[0]
    holes.append((first, last, state))


def joined(holes: Iterable[Hole]) -> list[Hole]:
    found: list[Hole] = []
    for hole in sorted(holes):
        add_last(found, *hole)
    return found
