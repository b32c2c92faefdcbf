"""Holes: ranges of seqs between a topic's floor and its head that can never be read, and why.

Holes of one reason that adjoin are one: a reader is told of one gap, however many losses made it.
"""

from __future__ import annotations

from collections.abc import Iterable

# First seq, last seq, what became of them.
Hole = tuple[int, int, int]


def joined(holes: Iterable[Hole]) -> list[Hole]:
    found: list[Hole] = []
    for first, last, state in sorted(holes):
        if found and found[-1][1] + 1 == first and found[-1][2] == state:
            found[-1] = (found[-1][0], last, state)
        else:
            found.append((first, last, state))
    return found
