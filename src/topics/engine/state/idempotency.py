"""Idempotency keys of one topic: which write a key stood for, while its window lasts.

A key is kept as a 128-bit keyed digest, its answer as one integer, in the order of arrival, so
that expiry looks only at the oldest. A key is never forgotten early: at the bound of the instance
a new one is refused instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from topics.storage.columns import KEY_BYTES, NO_KEY

_COUNT_BITS = 16
_SEQ_BITS = 64
PART_KEYS = 2000


class Keys:
    __slots__ = ("_answers",)

    def __init__(self) -> None:
        self._answers: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def find(self, digest: bytes, *, expired_before: int) -> tuple[int, int, int] | None:
        """The (first seq, count, time) of the write that used this key, while in its window."""
        packed = self._answers.get(digest)
        if packed is None:
            return None
        ts, first, count = _unpack(packed)
        return None if ts < expired_before else (first, count, ts)

    def add(self, digests: bytes, first: int, count: int, ts: int) -> None:
        """The key of a write, or one for each record of a frame of several."""
        if len(digests) == KEY_BYTES:
            self._add(digests, first, count, ts)
            return
        for place in range(len(digests) // KEY_BYTES):
            digest = digests[KEY_BYTES * place : KEY_BYTES * (place + 1)]
            if digest != NO_KEY:
                self._add(digest, first + place, 1, ts)

    def _add(self, digest: bytes, first: int, count: int, ts: int) -> None:
        # Re-inserted at the end: order of arrival is order of expiry.
        self._answers.pop(digest, None)
        self._answers[digest] = ts << (_SEQ_BITS + _COUNT_BITS) | first << _COUNT_BITS | count

    def remove(self, digest: bytes) -> None:
        self._answers.pop(digest, None)

    def expire(self, *, expired_before: int, keys_max: int = 64) -> int:
        """Forgets up to `keys_max` of the oldest keys whose window has passed."""
        gone: list[bytes] = []
        for digest, packed in self._answers.items():
            if len(gone) == keys_max or _unpack(packed)[0] >= expired_before:
                break
            gone.append(digest)
        for digest in gone:
            del self._answers[digest]
        return len(gone)

    def parts(self, head: int) -> Iterator[list[tuple[bytes, int, int, int]]]:
        """Those of writes up to `head`, some at a time: there may be millions, and they change.

        One that came since `head` stood is in the log after it, or was on its way and may never
        arrive; one that went since has left its window.
        """
        digests = list(self._answers)
        for at in range(0, len(digests), PART_KEYS):
            part = []
            for digest in digests[at : at + PART_KEYS]:
                packed = self._answers.get(digest)
                if packed is not None:
                    ts, first, count = _unpack(packed)
                    if first + count - 1 <= head:
                        part.append((digest, first, count, ts))
            yield part

    def dump(self) -> Iterator[tuple[bytes, int, int, int]]:
        for digest, packed in self._answers.items():
            ts, first, count = _unpack(packed)
            yield digest, first, count, ts


def digest_of(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=KEY_BYTES).digest()


def _unpack(packed: int) -> tuple[int, int, int]:
    count = packed & ((1 << _COUNT_BITS) - 1)
    first = (packed >> _COUNT_BITS) & ((1 << _SEQ_BITS) - 1)
    return packed >> (_SEQ_BITS + _COUNT_BITS), first, count
