"""Bodies with a list of records, decoded no further than there may be records in it.

A decoder of lists makes an object of every item before anybody can count them: millions in one
body, while everybody else waits. One of structs that are written as arrays stops at the first item
too many, and takes no longer for what fits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from topics.errors import BatchTooLarge

_TOO_MANY = "Expected `array` of at most length"


@lru_cache(maxsize=16)
def decoder_of(kind: type[Any], record: type[Any], count_max: int) -> Callable[[bytes], Any]:
    """A decoder of `kind`, a struct with `records`, each of which is a `record`.

    It is slow to make, and made for the first body that needs it. It raises BatchTooLarge besides
    what every decoder does.
    """
    few = msgspec.defstruct(
        "Few", [(f"_{index}", record, None) for index in range(count_max)],
        array_like=True, forbid_unknown_fields=True, gc=False,
    )  # fmt: skip
    bounded = msgspec.defstruct(kind.__name__, [("records", few)], bases=(kind,), kw_only=True)
    decode_bounded: Callable[[bytes], Any] = msgspec.json.Decoder(bounded).decode

    def decode(body: bytes) -> Any:
        try:
            found = decode_bounded(body)
        except msgspec.ValidationError as error:
            if str(error).startswith(_TOO_MANY):
                raise BatchTooLarge(
                    f"more than {count_max} records in one write, which is the limit",
                    limit=count_max,
                ) from None
            raise
        places = msgspec.structs.astuple(found.records)
        count = places.index(None) if places[-1] is None else count_max
        found.records = list(places[:count])
        return found

    return decode
