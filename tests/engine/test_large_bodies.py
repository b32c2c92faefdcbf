"""Large bodies are held to their limits while they are decoded, and mean what small ones do.

A decoder makes an object of each record and each key. Of a body of 64 MiB, those that will be
refused are millions, and everybody waits for them.
"""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import pytest

from topics.engine.state.stage_request import decode_stage
from topics.engine.state.write_request import LARGE_BYTES_MIN, Request, decode_write
from topics.errors import BatchTooLarge, InvalidRequest, TopicsError
from topics.settings import Settings

SETTINGS = Settings(max_batch_records=1000)
MANY = 200_000


class Told:
    def __init__(self) -> None:
        self.names: list[str] = []

    def ignored(self, names: list[str]) -> None:
        self.names += names


def records(one: bytes, count: int = MANY) -> bytes:
    return b'{"records":[%b]}' % b",".join([one] * count)


def keys(count: int = MANY) -> bytes:
    return b",".join(b'"key%d":"x"' % number for number in range(count))


TOO_MANY = {
    "plain": records(b'{"data":1}'),
    "tags": records(b'{"data":1,"tag":"a"}'),
    "unknown fields": records(b'{"data":1,"x":1}'),
    "line breaks": records(b'{"data":1,\n"tag":"a"}'),
    "surrogates": records(b'{"data":"\\ud800"}'),
    "a config with a float": records(b'{"data":1}')[:-1] + b',"config":{"cap_records":5.0}}',
    "a config that is wrong": records(b'{"data":1}')[:-1] + b',"config":{"cap_records":"x"}}',
    "twice": b'{"records":[],' + records(b'{"data":1}')[1:],
    "told as data before": records(b'{"data":{"data":[1,2,3]}}'),
}


@pytest.mark.parametrize("body", TOO_MANY.values(), ids=TOO_MANY)
def test_records_are_made_up_to_the_first_one_too_many(body: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(BatchTooLarge) as refused:
        decode_write(body, SETTINGS, Told())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refused.value.detail == {"limit": 1000}
    assert peak < 4 * len(body)


def test_so_are_those_of_a_stage() -> None:
    for record in (b'{"data":1}', b'{"data":1,"x":1}', b'{"data":\n1}'):
        body = b'{"producer":"p","batch":1,"topic":"t",' + records(record)[1:]
        with pytest.raises(BatchTooLarge):
            decode_stage(body, SETTINGS, Told())


MANY_KEYS = {
    "meta": (b'{"records":[{"data":1,"meta":{%b}}]}' % keys(), "invalid_request"),
    "meta, twice": (b'{"records":[{"data":1,"meta":{%b},"meta":{"a":"b"}}]}' % keys(), []),
    "unknown fields": (b'{"records":[{"data":1}],%b}' % keys(), ["key0"]),
    "unknown fields of a record": (b'{"records":[{"data":1,%b}]}' % keys(), ["key0"]),
    "config": (b'{"records":[{"data":1}],"config":{%b}}' % keys(), "invalid_request"),
}


@pytest.mark.parametrize(("body", "expected"), MANY_KEYS.values(), ids=MANY_KEYS)
def test_no_dictionary_is_made_of_keys_beyond_all_limits(body: bytes, expected: Any) -> None:
    tracemalloc.start()
    found = outcome(body, Told())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (found if isinstance(found, str) else found[-1]) == expected
    assert peak < 3 * len(body)


ANY = (
    b'{"records":[{"data":1}]}',
    b'{"records":[]}',
    b'{"records":[{"data":{"a":[1, 2]},"tag":"t","node":"n","meta":{"a":"b","c":"d"}},{"data":2}]}',
    b'{"records":[{"data":1,"meta":null,"tag":null,"node":null}]}',
    b'{"records":[{"data":1,"meta":{}}],"node":"n","create":true,"return_seqs":false}',
    b'{"records":[{"data":1}],"config":{"cap_records":5,"type":"log"},"idempotency_key":"k"}',
    b'{"records":[{"data":1}],"config":{"cap_records":5.0}}',
    b'{"records":[{"data":1}],"config":null}',
    b'{"records":[{"data":"\\ud800 \\uD83D\\uDE00 \\\\ud800 \\ud7a3"},{"data":1}]}',
    b'{"records":[{"data":"\\ud800","meta":{"a":"b"}}],"x":1}',
    b'{"records":[{"data":"\\ud8zz"}]}',
    b'{"records":[{"data":"\\ud"}]}',
    b'{"records":[{"data":1,"tag":"\\ud800"}]}',
    b'{"records":[{"data":1,"meta":{"a":"\\ud800"}}]}',
    b'{"records":[{"data":1,"x":1}]}',
    b'{"records":[{"data":1}],"x":[{"y":1}]}',
    b'{"records":[{"tag":"t"}]}',
    b'{"records":[{"data":1},null]}',
    b'{"records":[{"data":1},5]}',
    b'{"records":{}}',
    b'{"records":null}',
    b"{}",
    b"[]",
    b'{"records":[{"data":1,"tag":5}]}',
    b'{"records":[{"data":1,"meta":[]}]}',
    b'{"records":[{"data":1,"meta":{"a":1}}]}',
    b'{"records":[{"data":1,"meta":{"a":{"b":"c"}}}]}',
    b'{"records":[{"data":1}],"config":{"cap_record":5}}',
    b'{"records":[{"data":1}],"config":{"cap_records":1.5}}',
    b'{"records":[{"data":1}],"config":5}',
    b'{"records":[{"data":1}],"create":1}',
    b'{"records":[{"data":1}',
    b'{"records":[{"data":01}]}',
    b'{"records":[{"data":%b1%b}]}' % (b"[" * 2000, b"]" * 2000),
    b'{"records":[{"data":\xff}]}',
    records(b'{"data":1}', 1000),
    records(b'{"data":1,"tag":"a"}', 1000),
    b'{"records":[{"data":1,\n"meta":{"a":\r"b"}}]}',
)


def outcome(body: bytes, told: Told | None) -> Any:
    """What a body means; of one that is refused the code."""
    try:
        request: Request = decode_write(body, SETTINGS, told)
    except TopicsError as error:
        return error.code
    found = [(bytes(r.data).strip(), r.tag, r.node, r.meta) for r in request.records]
    options = (
        request.node, request.idempotency_key, request.create, request.config,
        request.disable_backpressure, request.return_seqs,
    )  # fmt: skip
    return (found, options, told and told.names)


@pytest.mark.parametrize("body", ANY, ids=lambda body: body[:60].decode("latin-1"))
@pytest.mark.parametrize("is_told", [True, False])
def test_a_large_body_means_what_the_same_one_means_small(body: bytes, is_told: bool) -> None:
    wide = body.replace(b"{", b"{" + b" " * LARGE_BYTES_MIN, 1) if b"{" in body else body
    small, large = (outcome(each, Told() if is_told else None) for each in (body, wide))
    assert small == large


def test_a_stage_of_a_large_body_is_what_a_small_one_is() -> None:
    body = b'{"producer":"p","batch":1,"topic":"t",' + records(b'{"data":1}', 500)[1:]
    small, large = (decode_stage(each, SETTINGS) for each in (body, body + b" " * LARGE_BYTES_MIN))
    assert [bytes(r.data) for r in large.records] == [bytes(r.data) for r in small.records]
    assert (large.producer, large.batch, large.topic) == ("p", 1, "t")


def test_what_is_said_of_a_body_is_no_body() -> None:
    body = b'{"records":[{"data":1}],"config":{"%b":1}}' % (b"x" * 1_000_000)
    with pytest.raises(InvalidRequest) as refused:
        decode_write(body, SETTINGS)
    assert len(str(refused.value)) < 2000


def test_raw_data_is_kept_to_the_byte() -> None:
    body = b'{"records":[{"data":"\\ud800%b"}]}' % (b"x" * LARGE_BYTES_MIN)
    (record,) = decode_write(body, Settings()).records
    assert record.data == msgspec.Raw(b'"\\ud800%b"' % (b"x" * LARGE_BYTES_MIN))
