"""The records every benchmark writes: 256 bytes of data, as a client would send them."""

from __future__ import annotations

DATA = '{"k":"' + "x" * 248 + '"}'
RECORD_BYTES = 256
assert len(DATA) == RECORD_BYTES


def batch(count: int, tags: list[str] | None = None) -> bytes:
    """A write body of `count` records."""
    if tags is None:
        records = [f'{{"data":{DATA}}}'] * count
    else:
        records = [f'{{"data":{DATA},"tag":"{tag}"}}' for tag in tags]
    return ('{"records":[' + ",".join(records) + "]}").encode()
