"""Delete flags: one byte for each record behind a segment's table, set in place, never cleared.

They stand outside the segment's checksums, because a delete changes one byte of a sealed file. What
vouches for them is the next snapshot: the flags of a block are exactly those it summed up, or more,
where a checkpoint that set some was cut short. A third value, fewer flags, or as many and others
are rot. Set and clear differ in five bits: a byte with one or two wrong ones can be told.
"""

from __future__ import annotations

from collections.abc import Sequence

from topics.storage.frames import checksum
from topics.storage.segment import DEAD, Row

# The set flags and the checksum of the flags of a block with set ones, by the block's place.
Sum = tuple[int, int, int]
_VALUES = bytes((0, DEAD))


def sums(rows: Sequence[Row], flags: bytes) -> list[Sum]:
    if DEAD not in flags:
        return []
    found = []
    for place, row in enumerate(rows):
        own = flags[row.flag_at : row.flag_at + row.count]
        if DEAD in own:
            found.append((place, own.count(DEAD), checksum(own)))
    return found


def doubtful(rows: Sequence[Row], flags: bytes, expected: Sequence[Sum]) -> list[Row]:
    """The blocks whose flags are not those that were written."""
    found = []
    if flags.translate(None, _VALUES):
        own = ((row, flags[row.flag_at : row.flag_at + row.count]) for row in rows)
        found = [row for row, values in own if values.translate(None, _VALUES)]
    for place, count, stored in expected:
        row = rows[place]
        values = flags[row.flag_at : row.flag_at + row.count]
        now = values.count(DEAD)
        if row not in found and (now < count or (now == count and checksum(values) != stored)):
            found.append(row)
    return found


def renewed(rows: Sequence[Row], flags: bytes, before: Sequence[Sum]) -> list[Sum]:
    """The sums after more flags were set. Those of doubtful blocks stay: rot is not vouched for."""
    damaged = {row.flag_at for row in doubtful(rows, flags, before)}
    kept = [each for each in before if rows[each[0]].flag_at in damaged]
    return [*kept, *(each for each in sums(rows, flags) if rows[each[0]].flag_at not in damaged)]


def restored(rows: Sequence[Row], flags: bytes, expected: Sequence[Sum]) -> bytes:
    """The flags with no third values: as they were summed up, else what is nearest."""
    by_place = {place: (count, stored) for place, count, stored in expected}
    found = []
    for place, row in enumerate(rows):
        own = flags[row.flag_at : row.flag_at + row.count]
        if own.translate(None, _VALUES):
            bare = bytes(flag if flag == DEAD else 0 for flag in own)
            known = by_place.get(place, (0, checksum(bytes(row.count))))
            is_known = (bare.count(DEAD), checksum(bare)) == known
            own = bare if is_known else bytes(map(_nearest, own))
        found.append(own)
    return b"".join(found)


def _nearest(flag: int) -> int:
    """The value that a flag with a third one had, if few of its bits are wrong."""
    return DEAD if (flag ^ DEAD).bit_count() <= flag.bit_count() else 0
