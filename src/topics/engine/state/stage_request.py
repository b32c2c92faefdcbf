"""The bodies of stages and commits: decoded, and held to their limits.

The records of a stage are those of a write, by the same code and with the same limits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from topics.engine.state.batch import utf8
from topics.engine.state.few_records import decoder_of
from topics.engine.state.write_request import (
    CR,
    LARGE_BYTES_MIN,
    LF,
    PLAIN_BYTES_MIN,
    PlainRecord,
    RecordInput,
    body_too_large,
    check_bytes,
    check_text,
    decode_write,
    invalid_json,
    request_of,
)
from topics.errors import BatchTooLarge, InvalidRequest
from topics.integers import is_float_refused, respelt
from topics.loose import Ignoring, Loose
from topics.settings import Settings
from topics.surrogates import decode_around, has_surrogates
from topics.types import I64_MAX, check_name, convert

# Of a producer, a query, a part, an attempt.
TEXT_CHARS_MAX = 256
# Of one commit: they are looked up while everybody waits.
STAGES_MAX = 100_000
Label = int | str


class StageOptions(msgspec.Struct, kw_only=True):
    producer: str
    batch: int
    topic: str
    part: Label = 0
    attempt: Label = 0


class _Body(StageOptions, kw_only=True):
    records: msgspec.Raw

    @property
    def data(self) -> msgspec.Raw:
        return self.records


class _PlainBody(StageOptions, forbid_unknown_fields=True, kw_only=True):
    """A body as most large ones are: its records have nothing but data."""

    records: list[PlainRecord]


class _UnreadBody(msgspec.Struct, kw_only=True):
    """A body whose numbers have not been looked at yet."""

    records: msgspec.Raw
    producer: str
    batch: msgspec.Raw
    topic: str
    part: msgspec.Raw = msgspec.Raw(b"0")
    attempt: msgspec.Raw = msgspec.Raw(b"0")


_PLAIN = msgspec.json.Decoder(_PlainBody)
_BODY = Loose(_Body)
_UNREAD = Loose(_UnreadBody)
_BATCH = msgspec.json.Decoder(int)
_LABEL = msgspec.json.Decoder(Label)


class _Ignored:
    """Unknown fields of a stage and of its records, to be told together."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def ignored(self, names: list[str]) -> None:
        self.names.extend(name for name in names if name not in self.names)


class StageRequest:
    """A stage as it was asked for, checked but for its records."""

    __slots__ = ("attempt", "batch", "part", "producer", "records", "topic")

    def __init__(
        self, options: StageOptions, records: list[RecordInput] | list[PlainRecord]
    ) -> None:
        self.producer = check_word(options.producer, "producer")
        self.batch = check_batch(options.batch)
        self.topic = check_name(options.topic)
        self.part = _check_label(options.part, "part")
        self.attempt = _check_label(options.attempt, "attempt")
        self.records = records


def decode_stage(body: bytes, settings: Settings, ignoring: Ignoring | None = None) -> StageRequest:
    """The request in a JSON body. Raises InvalidRequest or PayloadTooLarge.

    Unknown fields are refused, or where somebody can say so, ignored.
    """
    if len(body) > settings.max_body_bytes:
        raise body_too_large(body, settings)
    check_text(body)
    if len(body) >= PLAIN_BYTES_MIN and LF not in body and CR not in body:
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            plain = _decode_plain(body, settings)
            return StageRequest(plain, plain.records)
    unknown = None if ignoring is None else _Ignored()
    try:
        options, records = _decode(body, unknown)
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid_json(error, _Body) from None
    # What is around the records of a write is shorter than what was around these.
    write = decode_write(b'{"records":%b}' % records, settings, unknown)
    if ignoring is not None and unknown is not None and unknown.names:
        ignoring.ignored(unknown.names)
    return StageRequest(options, write.records)


def _decode_plain(body: bytes, settings: Settings) -> _PlainBody:
    if len(body) < LARGE_BYTES_MIN:
        return _PLAIN.decode(body)
    found: _PlainBody = decoder_of(_PlainBody, PlainRecord, settings.max_batch_records)(body)
    return found


def _decode(body: bytes, unknown: _Ignored | None) -> tuple[StageOptions, bytes]:
    try:
        return _decode_as(body, _BODY.decode_known, _UNREAD.decode_known)
    except msgspec.DecodeError:
        if unknown is None:
            raise
    found = _decode_as(body, _BODY.decode_loosely, _UNREAD.decode_loosely)
    _BODY.name_unknown(body, unknown)
    return found


def _decode_as(
    body: bytes, decode: Callable[[bytes], _Body], decode_unread: Callable[[bytes], _UnreadBody]
) -> tuple[StageOptions, bytes]:
    try:
        found = decode(body)
    except msgspec.DecodeError as error:
        if is_float_refused(error):
            return _respelt(decode_unread(body))
        if not has_surrogates(body):
            raise
        found, (records,) = decode_around(decode, body, lambda found: [found])
        return found, bytes(records)
    return found, bytes(found.records)


def _respelt(found: _UnreadBody) -> tuple[StageOptions, bytes]:
    """Numbers that are only spelt in another way."""
    options = StageOptions(
        producer=found.producer, topic=found.topic,
        batch=_BATCH.decode(respelt(bytes(found.batch))),
        part=_LABEL.decode(respelt(bytes(found.part))),
        attempt=_LABEL.decode(respelt(bytes(found.attempt))),
    )  # fmt: skip
    return options, bytes(found.records)


def stage_request_of(
    records: Sequence[Mapping[str, Any]], settings: Settings, **options: Any
) -> StageRequest:
    """The same request from Python values."""
    write = request_of(records)
    check_bytes(write, settings.max_body_bytes)
    return StageRequest(convert(options, StageOptions, "stage"), write.records)


def check_word(text: object, what: str) -> str:
    """A name that a client made up. Raises InvalidRequest."""
    if not isinstance(text, str) or not 1 <= len(text) <= TEXT_CHARS_MAX:
        raise InvalidRequest(f"{what} must be a text of 1 to {TEXT_CHARS_MAX} characters")
    utf8(text, what)
    return text


def check_batch(batch: object) -> int:
    if type(batch) is not int or not 0 <= batch <= I64_MAX:
        raise InvalidRequest("batch must be an integer from 0 to 2^63 - 1")
    return batch


def check_stages(names: Sequence[str]) -> None:
    """Raises BatchTooLarge for more stages than a commit may name."""
    if len(names) > STAGES_MAX:
        raise BatchTooLarge(
            f"{len(names)} stages in one commit; the limit is {STAGES_MAX}",
            limit="max_commit_stages", max=STAGES_MAX,
        )  # fmt: skip


def _check_label(label: Label, what: str) -> Label:
    if isinstance(label, str):
        return check_word(label, what)
    if not 0 <= label <= I64_MAX:
        raise InvalidRequest(f"{what} must be from 0 to 2^63 - 1, or a text")
    return label
