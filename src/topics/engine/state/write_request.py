"""A write request: decoded from what a client sent, or made of Python values.

`data` is never parsed. It is checked to be JSON and kept as it came: number spelling, key order
and duplicate keys survive; line breaks between tokens become spaces, because one inside an SSE
`data:` line would end it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import msgspec

from topics.configs import check_config
from topics.engine.state.few_records import decoder_of
from topics.errors import BatchTooLarge, InvalidRequest, PayloadTooLarge
from topics.integers import is_float_refused, respelt
from topics.loose import Ignoring, Loose, name_first_unknown, refusing
from topics.nearest import in_words
from topics.settings import Settings
from topics.surrogates import decode_around, has_surrogates, masked
from topics.types import ConfigInput, convert

LF, CR = b"\n\r"
# From here on a body is looked at as one of plain records first.
PLAIN_BYTES_MIN = 4 * 1024
# From here on limits hold while a body is decoded: what breaks them may be a million objects.
LARGE_BYTES_MIN = 256 * 1024
_UNBROKEN = bytes.maketrans(b"\r\n", b"  ")


class RecordInput(msgspec.Struct, gc=False):
    data: msgspec.Raw
    tag: str | None = None
    node: str | None = None
    meta: dict[str, str] | None = None


class PlainRecord(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A record of nothing but data, as most are: half the work to look at where there are many."""

    data: msgspec.Raw
    tag: ClassVar[None] = None
    node: ClassVar[None] = None
    meta: ClassVar[None] = None


class WriteOptions(msgspec.Struct, kw_only=True, gc=False):
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    config: ConfigInput | None = None
    disable_backpressure: bool = False
    return_seqs: bool = True


class WriteRequest(WriteOptions, kw_only=True, gc=False):
    """The body of a write, as the contract has it."""

    records: list[RecordInput]


class UnreadConfigRequest(WriteOptions, kw_only=True, gc=False):
    """A write whose config has not been looked at yet."""

    records: list[RecordInput]
    config: msgspec.Raw = msgspec.Raw(b"null")  # type: ignore[assignment]


class PlainWriteRequest(WriteOptions, forbid_unknown_fields=True, kw_only=True, gc=False):
    records: list[PlainRecord]


class LargeRecord(RecordInput, gc=False):
    """A record whose meta has not been looked at yet, nor its keys been made a dictionary."""

    meta: msgspec.Raw = msgspec.Raw(b"null")  # type: ignore[assignment]


class LargeWriteRequest(UnreadConfigRequest, kw_only=True, gc=False):
    pass


_FULL = Loose(WriteRequest)
_PLAIN = msgspec.json.Decoder(PlainWriteRequest)
_UNREAD_CONFIG = Loose(UnreadConfigRequest)
_CONFIG = msgspec.json.Decoder(ConfigInput | None)
_META = msgspec.json.Decoder(dict[str, str] | None)
_KNOWN_LARGE_RECORD, _KNOWN_LARGE = refusing(LargeRecord), refusing(LargeWriteRequest)
# Refuses what JSON has no word for: bytes, sets, dates, NaN.
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


Request = WriteRequest | PlainWriteRequest
R = TypeVar("R", WriteRequest, UnreadConfigRequest)


def decode_write(body: bytes, settings: Settings, ignoring: Ignoring | None = None) -> Request:
    """The request in a JSON body. Raises InvalidRequest or PayloadTooLarge.

    Unknown fields are refused, or where somebody can say so, ignored.
    """
    if len(body) > settings.max_body_bytes:
        raise body_too_large(body, settings)
    if not body.isascii():
        check_text(body)
    request: Request
    if len(body) >= LARGE_BYTES_MIN:
        request = _decode_large(body, settings, ignoring)
    else:
        try:
            request = _FULL.decode_known(body) if len(body) < PLAIN_BYTES_MIN else _decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            request = _decode_again(body, settings, error, ignoring)
    if request.config is not None:
        # Also where the topic exists and it is not used: whether a write is one does not depend
        # on what is there.
        check_config(request.config)
    # As numbers: a tenth of the cost of looking for strings.
    if LF in body or CR in body:
        check_count(len(request.records), settings)
        for record in request.records:
            record.data = msgspec.Raw(bytes(record.data).translate(_UNBROKEN))
    return request


def _decode(body: bytes) -> Request:
    try:
        return _PLAIN.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return _FULL.decode_known(body)


def _decode_large(body: bytes, settings: Settings, ignoring: Ignoring | None) -> Request:
    """The request in a large body. Raises BatchTooLarge before there is one record too many."""
    count_max = settings.max_batch_records
    try:
        plain: Request = decoder_of(PlainWriteRequest, PlainRecord, count_max)(body)
        return plain
    except (msgspec.DecodeError, RecursionError):
        pass
    known = decoder_of(_KNOWN_LARGE, _KNOWN_LARGE_RECORD, count_max)
    try:
        found = known(body)
    except (msgspec.DecodeError, RecursionError) as error:
        if ignoring is None:
            found = _decode_surrogates(body, settings, error, known)
        else:
            found = _decode_large_loosely(body, settings)
            name_first_unknown(known, body, ignoring)
    _read_metas(found.records, settings)
    return _with_config(found)


def _decode_large_loosely(body: bytes, settings: Settings) -> UnreadConfigRequest:
    found: UnreadConfigRequest
    decode = decoder_of(LargeWriteRequest, LargeRecord, settings.max_batch_records)
    try:
        found = decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        found = _decode_surrogates(body, settings, error, decode)
    return found


def _read_metas(records: Sequence[Any], settings: Settings) -> None:
    """Makes dictionaries of metas that were left as they came. Raises InvalidRequest."""
    keys, size = settings.max_meta_keys, settings.max_meta_bytes
    for index, record in enumerate(records):
        text = bytes(record.meta)
        if text == b"null":
            record.meta = None
            continue
        # Each key has one: so many are too many keys, or too many bytes, whatever they are.
        if len(text) > keys + size and text.count(b":") > keys + size:
            raise InvalidRequest(
                f"records[{index}].meta is too large; the limits are {keys} keys and {size} bytes",
                index=index,
            )
        try:
            record.meta = _META.decode(text)
        except msgspec.DecodeError as error:
            raise InvalidRequest(
                f"body does not fit: {error} in `$.records[{index}].meta`"
            ) from None


def _decode_again(
    body: bytes, settings: Settings, error: Exception, ignoring: Ignoring | None
) -> WriteRequest:
    """The request, if all that is wrong with it is one of the things that may be."""
    decode, decode_unread = _FULL.decode_known, _UNREAD_CONFIG.decode_known
    request = None
    if ignoring is not None:
        decode, decode_unread = _FULL.decode_loosely, _UNREAD_CONFIG.decode_loosely
        try:
            request = decode(body)
        except (msgspec.DecodeError, RecursionError) as still:
            # Its traceback holds this frame, which would hold it.
            error = still.with_traceback(None)
    if request is None and is_float_refused(error):
        request = _decode_integers(body, decode_unread)
    elif request is None:
        request = _decode_surrogates(body, settings, error, decode)
    check_count(len(request.records), settings)
    if ignoring is not None:
        _FULL.name_unknown(body, ignoring)
    return request


def _decode_integers(
    body: bytes, decode_unread: Callable[[bytes], UnreadConfigRequest]
) -> WriteRequest:
    """The request, if integers of its config are only spelt in another way."""
    try:
        found = decode_unread(body)
    except msgspec.DecodeError as error:
        raise invalid_json(error, WriteRequest) from None
    return _with_config(found)


def _with_config(found: UnreadConfigRequest) -> WriteRequest:
    try:
        config = _CONFIG.decode(respelt(bytes(found.config)))
    except msgspec.DecodeError as error:
        raise invalid_json(error, ConfigInput) from None
    return WriteRequest(
        records=found.records, node=found.node, idempotency_key=found.idempotency_key,
        create=found.create, config=config, disable_backpressure=found.disable_backpressure,
        return_seqs=found.return_seqs,
    )  # fmt: skip


def _decode_surrogates(
    body: bytes, settings: Settings, error: Exception, decode: Callable[[bytes], R]
) -> R:
    """The request, if lone surrogates in its data are all that was wrong with it."""
    if isinstance(error, RecursionError) or not has_surrogates(body):
        raise invalid_json(error, WriteRequest)
    try:
        request, data = decode_around(decode, body, lambda found: _few(found, settings))
    except (msgspec.DecodeError, RecursionError) as still:
        raise invalid_json(still, WriteRequest) from None
    for record, raw in zip(request.records, data, strict=True):
        record.data = raw
    return request


def _few(request: WriteRequest | UnreadConfigRequest, settings: Settings) -> list[RecordInput]:
    check_count(len(request.records), settings)
    return request.records


def check_count(count: int, settings: Settings) -> None:
    limit = settings.max_batch_records
    if count > limit:
        raise BatchTooLarge(f"{count} records in one write; the limit is {limit}", limit=limit)


def body_too_large(body: bytes, settings: Settings) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"body has {len(body)} bytes; the limit is {settings.max_body_bytes}",
        limit=settings.max_body_bytes,
    )


def check_text(body: bytes) -> None:
    """Raises InvalidRequest for what is not UTF-8: msgspec skips over raw values unseen."""
    if body.isascii():
        return
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"body is not UTF-8: {error.reason} at byte {error.start}") from None


def invalid_json(error: Exception, kind: Any) -> InvalidRequest:
    """What is wrong with a body that should be of this type, in words."""
    if isinstance(error, RecursionError):
        return InvalidRequest("JSON is nested too deeply")
    return InvalidRequest(f"body does not fit: {in_words(error, kind)}")


def request_of(records: Sequence[Mapping[str, Any]], **fields: Any) -> WriteRequest:
    """The same request from Python values."""
    for name, kind in (
        ("node", str | None),
        ("idempotency_key", str | None),
        ("create", bool | None),
    ):
        convert(fields.get(name), kind, name)
    inputs = []
    for index, record in enumerate(records):
        if not isinstance(record, Mapping):
            raise InvalidRequest(f"records[{index}] must be a mapping")
        unknown = record.keys() - {"data", "tag", "node", "meta"}
        if unknown or "data" not in record:
            raise InvalidRequest(
                f"records[{index}] needs data, and may have tag, node and meta"
                + (f"; not {', '.join(sorted(map(str, unknown)))}" if unknown else "")
            )
        data = json_of(record["data"], f"records[{index}].data")
        inputs.append(RecordInput(data, *(record.get(key) for key in ("tag", "node", "meta"))))
        convert(inputs[-1].tag, str | None, f"records[{index}].tag")
        convert(inputs[-1].node, str | None, f"records[{index}].node")
        convert(inputs[-1].meta, dict[str, str] | None, f"records[{index}].meta")
    return WriteRequest(records=inputs, **fields)


def check_bytes(request: WriteRequest, bytes_max: int) -> None:
    """Holds a request that was no JSON body to the size of one: a frame can not hold more."""
    size = sum(
        len(record.data)
        + len(record.tag or "")
        + len(record.node or "")
        + sum(len(key) + len(value) for key, value in (record.meta or {}).items())
        for record in request.records
    )
    if size > bytes_max:
        raise PayloadTooLarge(
            f"the records have {size} bytes; the limit is {bytes_max}", limit=bytes_max
        )


def json_of(value: Any, what: str = "value") -> msgspec.Raw:
    """A Python value as JSON; raw JSON is checked and kept as it is. Raises InvalidRequest."""
    try:
        return _json_of(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidRequest(f"{what} is not JSON: {error}") from None


def _json_of(value: Any) -> msgspec.Raw:
    if isinstance(value, msgspec.Raw):
        text = bytes(value)
        text.decode()
        msgspec.json.decode(masked(text), type=msgspec.Raw)
        return msgspec.Raw(text.translate(_UNBROKEN))
    return msgspec.Raw(_JSON.encode(value).encode())
