"""The commands of a WebSocket, decoded. `data` of a publish is kept as it was sent."""

from __future__ import annotations

from typing import Any

import msgspec

from topics.engine.state.write_request import invalid_json
from topics.loose import Ignoring, Loose
from topics.server.live.watch_routes import WatchOptionsBody, WatchTopic
from topics.surrogates import decode_around, has_surrogates
from topics.types import U64

RequestId = str | int | None
_WRITE_FIELDS = ("node", "idempotency_key", "create", "config", "disable_backpressure")


class Head(msgspec.Struct):
    """What every command has; the rest of it is decoded when it is known what it is.

    `op` may be anything here, so that whoever sent nonsense learns to which request.
    """

    op: Any = None
    request_id: RequestId = None


class Subscribe(WatchOptionsBody, kw_only=True):
    op: str
    request_id: RequestId = None
    topic: str | None = None
    from_seq: U64 = 0
    tail: bool = False
    epoch: str | None = None
    topics: dict[str, WatchTopic | None] | None = None


class Unsubscribe(msgspec.Struct, kw_only=True):
    op: str
    request_id: RequestId = None
    topic: str | None = None
    topics: list[str] | None = None


class Ping(msgspec.Struct, kw_only=True):
    op: str
    request_id: RequestId = None


class Publish(msgspec.Struct, kw_only=True):
    """An envelope: the write in it is decoded by what decodes every other write."""

    op: str
    request_id: RequestId = None
    topic: str
    return_seqs: bool = True
    data: msgspec.Raw = msgspec.field(name="records")
    node: msgspec.Raw = msgspec.Raw(b"")
    idempotency_key: msgspec.Raw = msgspec.Raw(b"")
    create: msgspec.Raw = msgspec.Raw(b"")
    config: msgspec.Raw = msgspec.Raw(b"")
    disable_backpressure: msgspec.Raw = msgspec.Raw(b"")


_HEAD = msgspec.json.Decoder(Head)
SUBSCRIBE = Loose(Subscribe)
UNSUBSCRIBE = Loose(Unsubscribe)
PING = Loose(Ping)
_PUBLISH = Loose(Publish)


def head_of(text: bytes) -> Head:
    try:
        return _HEAD.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        if isinstance(error, RecursionError) or not has_surrogates(text):
            raise invalid_json(error, Head) from None
    # Only a publish may carry what text can not: see `publish_of`.
    body = _decode_surrogates(text)
    return Head(body.op, body.request_id)


def publish_of(text: bytes, ignoring: Ignoring) -> Publish:
    try:
        return _PUBLISH.decode_known(text)
    except (msgspec.DecodeError, RecursionError):
        body = _decode_again(text)
    _PUBLISH.name_unknown(text, ignoring)
    return body


def _decode_again(text: bytes) -> Publish:
    try:
        return _PUBLISH.decode_loosely(text)
    except (msgspec.DecodeError, RecursionError) as error:
        if isinstance(error, RecursionError) or not has_surrogates(text):
            raise invalid_json(error, Publish) from None
    return _decode_surrogates(text)


def _decode_surrogates(text: bytes) -> Publish:
    try:
        body, (records,) = decode_around(_PUBLISH.decode_loosely, text, lambda found: [found])
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid_json(error, Publish) from None
    body.data = records
    return body


def write_body(body: Publish) -> bytes:
    """The body that the same write would have over HTTP."""
    parts = [b'{"records":', body.data]
    for field in _WRITE_FIELDS:
        raw: msgspec.Raw = getattr(body, field)
        if len(memoryview(raw)):
            parts += [b',"%b":' % field.encode(), raw]
    return b"".join([*map(bytes, parts), b"}"])
