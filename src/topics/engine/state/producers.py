"""Producers of one topic: which batch each of them committed last, so that none counts twice.

In bounded space: of the producers that are too many, those that ever wrote one batch go first, the
oldest of them, and leave their mark in a filter of fixed size. Whoever comes with such a mark may
have been here before: nobody can say with which batch, so it is refused, and never believed to be
new. The filter takes some that never were here for such ones; they are told the same, and what
helps is another name.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec
import xxhash

# Marks that a filter takes until about one in a hundred strangers is taken for one of them: a tenth
# of its bits.
FILTER_BITS = 1 << 21
MARK_BITS = 7


class LastBatch(msgspec.Struct, array_like=True, frozen=True):
    """The last batch of a producer in one topic."""

    batch: int
    # A digest of the query that it was committed by.
    query: bytes
    epoch: int
    first: int
    count: int
    # All topics of the commit, this one too, when there were several.
    topics: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[int, int]:
        """Grows with every commit to the topic."""
        return self.epoch, self.first


class ProducersDump(msgspec.Struct, array_like=True):
    """All of it, for a snapshot or a frame."""

    once: list[tuple[str, LastBatch]]
    often: list[tuple[str, LastBatch]]
    forgotten: bytes = b""


encode_dump = msgspec.msgpack.Encoder().encode
decode_dump = msgspec.msgpack.Decoder(ProducersDump).decode


class Producers:
    """Oldest first; `once` has those that committed a single batch."""

    __slots__ = ("_forgotten", "_often", "_once")

    def __init__(self) -> None:
        self._once: OrderedDict[str, LastBatch] = OrderedDict()
        self._often: OrderedDict[str, LastBatch] = OrderedDict()
        self._forgotten = bytearray()

    def __len__(self) -> int:
        return len(self._once) + len(self._often)

    def names(self) -> list[str]:
        return [*self._once, *self._often]

    def last(self, name: str) -> LastBatch | None:
        return self._often.get(name) or self._once.get(name)

    def may_be_forgotten(self, name: str) -> bool:
        """Whether a producer that is not known may have been so once."""
        bits = self._forgotten
        return bool(bits) and all(bits[at >> 3] & 1 << (at & 7) for at in _bits_of(name))

    def note(self, name: str, done: LastBatch, producers_max: int) -> list[str]:
        """Remembers a commit, unless it came by before; who had to be forgotten for it."""
        before = self.last(name)
        if before is None:
            if self.may_be_forgotten(name):
                # It was noted once: no such producer is let in again.
                return []
            self._once[name] = done
        elif done.place > before.place:
            self._once.pop(name, None)
            self._often[name] = done
            self._often.move_to_end(name)
        return self._shrink(producers_max)

    def _shrink(self, producers_max: int) -> list[str]:
        gone = []
        while len(self) > max(producers_max, 1):
            # Not the one that came just now, whatever the others are.
            held = self._once if len(self._once) > 1 or not self._often else self._often
            name, _ = held.popitem(last=False)
            self._mark(name)
            gone.append(name)
        return gone

    def _mark(self, name: str) -> None:
        if not self._forgotten:
            self._forgotten = bytearray(FILTER_BITS // 8)
        for at in _bits_of(name):
            self._forgotten[at >> 3] |= 1 << (at & 7)

    def dump(self) -> ProducersDump:
        return ProducersDump(
            list(self._once.items()), list(self._often.items()), bytes(self._forgotten)
        )

    def load(self, dump: ProducersDump, producers_max: int) -> list[str]:
        """Takes over what was dumped, on top of what is known; who had to be forgotten for it."""
        if dump.forgotten:
            known = int.from_bytes(self._forgotten, "little")
            both = known | int.from_bytes(dump.forgotten, "little")
            self._forgotten = bytearray(both.to_bytes(FILTER_BITS // 8, "little"))
        for held, entries in ((self._once, dump.once), (self._often, dump.often)):
            for name, done in entries:
                before = self.last(name)
                if before is None or done.place > before.place:
                    self._once.pop(name, None)
                    self._often.pop(name, None)
                    held[name] = done
        return self._shrink(producers_max)


def _bits_of(name: str) -> list[int]:
    digest = xxhash.xxh3_128_intdigest(name.encode())
    step, at = digest >> 64 | 1, digest & 0xFFFFFFFFFFFFFFFF
    return [(at + place * step) % FILTER_BITS for place in range(MARK_BITS)]


def query_digest(query: str) -> bytes:
    return xxhash.xxh3_128_digest(query.encode())
