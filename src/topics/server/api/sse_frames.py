"""The bytes of an event stream, and the ids that a reader resumes with.

An id is the whole place of a reader: base64url of the JSON map of its topics to seqs. Epochs are in
it (`$epochs`, which no topic can be named) only for topics that were recreated while the session
lived: without them an id of before could not be told from one of after. A stream without a session
has them in every id. A reader of more than
MAP_TOPICS_MAX topics gets the same as msgpack, in the order of their names.
"""

from __future__ import annotations

import binascii
import hashlib
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence

import msgspec

from topics.engine.reading.watch import StreamFrame, Subscription, WatchCursor
from topics.server.api.fields import parse_u64
from topics.server.http.errors import BadRequest, NotAcceptable
from topics.server.http.message import Request
from topics.types import U64_MAX

MAP_TOPICS_MAX = 64
EPOCHS = "$epochs"
ID_CHARS_MAX = 16 * 1024

# A stream is told that its topics are paced at most this often.
ADVICE_S = 5.0
SLOW_CODE = 408
DENIED_CODE = 401
DRAIN_CODE = 503
_ACCEPTED = re.compile(r"(text/event-stream|text/\*|\*/\*)\s*(;.*)?", re.IGNORECASE)
_REFUSED = re.compile(r";\s*q\s*=\s*0(\.0*)?\s*(;|$)")
RETRY = b"retry: 2000\n\n"

_BODY = b"\nevent: %b\ndata: {%b\n\n"
_ERROR = b"event: error\ndata: %b\n\n"
_ENCODER = msgspec.json.Encoder()


class Checkpoint(msgspec.Struct, array_like=True):
    """The compact form: seqs in byte order of the names, which `names` is the digest of."""

    names: bytes
    seqs: list[int]
    epochs: dict[int, int]


_PACK = msgspec.msgpack.Encoder()
_UNPACK = msgspec.msgpack.Decoder(Checkpoint)
_MAP = msgspec.json.Decoder(dict[str, int | dict[str, str]])

# A topic's seq and, where it is known, the epoch it belongs to.
Places = Mapping[str, tuple[int, int | None]]


def heartbeat(wall_ms: int) -> bytes:
    return b": hb %d\n\n" % wall_ms


def error_event(code: int, message: str, **more: object) -> bytes:
    """An `error` event; it has no id, so that a resume is where the last record left it."""
    return _ERROR % _ENCODER.encode({"code": code, "error": message, **more})


def events(cursor: WatchCursor, frames: Sequence[StreamFrame]) -> bytes:
    """The frames of one topic, each with the reader's place after it."""
    if len(frames) == 1:
        return event(cursor, frames[0])
    return b"".join([event(cursor, frame) for frame in frames])


def event(cursor: WatchCursor, frame: StreamFrame) -> bytes:
    subscription = cursor.subscription
    if subscription.says_epochs:
        # Without a session nobody but the id knows the epoch.
        if frame.placed is None:
            name = cursor.name.encode()
            place = b'{"%b":%d,"$epochs":{"%b":"%d"}}' % (name, frame.seq, name, frame.epoch)
            tail = _BODY % (frame.event.encode(), frame.body)
            frame.placed = b"id: " + _base64(place) + tail
        return frame.placed
    if len(subscription.cursors) > 1 or subscription.first_epochs:
        tail = _BODY % (frame.event.encode(), frame.body)
        return b"id: " + id_of(subscription, cursor, frame.seq, frame.epoch) + tail
    # A reader of one topic is sent what every other one at the same place is.
    if frame.sse is None:
        place = b'{"%b":%d}' % (cursor.name.encode(), frame.seq)
        tail = _BODY % (frame.event.encode(), frame.body)
        frame.sse = b"id: " + _base64(place) + tail
    return frame.sse


def id_of(subscription: Subscription, moved: WatchCursor, seq: int, epoch: int) -> bytes:
    """The id when `moved` is at `seq` and every other cursor where it is."""
    cursors, changed = subscription.cursors, subscription.first_epochs or {}
    seqs = [seq if cursor is moved else cursor.seq for cursor in cursors]
    epochs = {
        index: epoch if cursor is moved else cursor.epoch
        for index, cursor in enumerate(cursors)
        if cursor.name in changed
    }
    if len(cursors) > MAP_TOPICS_MAX:
        names = digest([cursor.name for cursor in cursors])
        return _base64(_PACK.encode(Checkpoint(names, seqs, epochs)))
    place: dict[str, object] = {cursor.name: seq for cursor, seq in zip(cursors, seqs, strict=True)}
    if epochs:
        place[EPOCHS] = {cursors[index].name: str(value) for index, value in epochs.items()}
    return _base64(_ENCODER.encode(place))


def digest(names: Sequence[str]) -> bytes:
    return hashlib.sha256("\n".join(names).encode()).digest()[:8]


def parse_id(text: str, names: Sequence[str]) -> Places:
    """The places in an id, for a reader of these topics. Raises BadRequest for what is not one."""
    if len(text) > ID_CHARS_MAX:
        raise BadRequest("the event id is too long to be one of ours")
    try:
        raw = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
        return _places_of_map(raw) if raw[:1] == b"{" else _places_of_pack(raw, names)
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        raise BadRequest("the event id is not one of ours") from None


def _places_of_map(raw: bytes) -> Places:
    found = _MAP.decode(raw)
    epochs = found.pop(EPOCHS, {})
    if not isinstance(epochs, dict):
        raise ValueError("epochs are a map")
    places: dict[str, tuple[int, int | None]] = {}
    for name, seq in found.items():
        epoch = epochs.get(name)
        places[name] = (_u64(seq), None if epoch is None else _u64(parse_u64(epoch)))
    return places


def _places_of_pack(raw: bytes, names: Sequence[str]) -> Places:
    found = _UNPACK.decode(raw)
    ordered = sorted(names)
    if found.names != digest(ordered) or len(found.seqs) != len(ordered):
        raise ValueError("the id is of another set of topics")
    epochs = {index: _u64(epoch) for index, epoch in found.epochs.items()}
    return {
        name: (_u64(seq), epochs.get(index))
        for index, (name, seq) in enumerate(zip(ordered, found.seqs, strict=True))
    }


def _u64(value: object) -> int:
    if type(value) is not int or not 0 <= value <= U64_MAX:
        raise ValueError("seqs and epochs are unsigned integers of 64 bits")
    return value


def rewind(subscription: Subscription, places: Places) -> None:
    """Goes back to where a reader says it is; never forward, because it may not say so."""
    first_epochs = subscription.first_epochs or {}
    for cursor in subscription.cursors:
        if cursor.name not in places:
            continue
        seq, epoch = places[cursor.name]
        if epoch is None:
            epoch = first_epochs.get(cursor.name, cursor.epoch)
        if epoch == cursor.epoch:
            cursor.seq = min(cursor.seq, seq)
        elif epoch < cursor.epoch:
            # It has not seen yet that the topic was recreated: it is told again.
            cursor.seq, cursor.epoch = seq, epoch


def take_up(subscription: Subscription, places: Places) -> None:
    """Goes to where a reader of a server that has ended says it is.

    An id was given out by that server, so it counts, also where it is ahead of what was stored.
    """
    known = subscription.first_epochs or {}
    for cursor in subscription.cursors:
        if cursor.name not in places:
            continue
        seq, epoch = places[cursor.name]
        first = known.get(cursor.name, cursor.epoch)
        if epoch is not None and epoch != first:
            # Ids say so from here on as they did before.
            subscription.first_epochs = known = {**known, cursor.name: first}
        cursor.seq, cursor.epoch = seq, first if epoch is None else epoch


def _base64(raw: bytes) -> bytes:
    return urlsafe_b64encode(raw).rstrip(b"=")


def check_accept(request: Request) -> None:
    """Raises NotAcceptable when the client does not take an event stream."""
    accept = request.header(b"accept")
    if not accept:
        return
    for part in accept.split(","):
        if _ACCEPTED.fullmatch(part.strip()) and not _REFUSED.search(part):
            return
    raise NotAcceptable("this is a stream: send Accept: text/event-stream")
