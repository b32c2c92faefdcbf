"""Where a follower is, and what it has been told: no sockets, no clocks.

Events and pages go in, batches of records and gaps come out, each once and in order. A place only
moves by what was handed out as a batch, so whoever asks the server again from the places misses
nothing and is told nothing twice.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from topics.client import values
from topics.client.reader_calls import WatchFrom, diff
from topics.client.request import Request, reading_records
from topics.client.stream_values import (
    CaughtUp,
    Lost,
    Received,
    Records,
    StreamEvent,
    TopicEnded,
    name_topic,
)
from topics.client.values import Gap
from topics.errors import Unreachable
from topics.types import Tombstone

# Records in one frame or page.
LIMIT = 1000
RECREATED = "recreated"
# No topic was ever of this one.
NO_EPOCH = "0"
# What proxies let through in one header; the server takes twice as much.
ID_CHARS_MAX = 8 * 1024 - 256


Item = Received | Gap


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one topic, or one gap, and the place after them."""

    topic: str
    epoch: str
    items: list[Received] | list[Gap]
    seq_after: int


class PolledPage(msgspec.Struct):
    topic: str
    epoch: str
    records: list[Received]
    next_from_seq: int
    tombstone: Tombstone | None


_POLLED = reading_records(PolledPage, "records", lambda page: page.records)


class Following:
    """The places of one follower."""

    def __init__(self, places: Mapping[str, WatchFrom]) -> None:
        self.places = dict(places)

    def began(self, session: values.Watching) -> None:
        """A session has begun: topics that are gone leave, and a tail is somewhere now."""
        for name in list(self.places):
            told = session.topics.get(name)
            if told is None:
                del self.places[name]
            elif self.places[name].tail or self.places[name].epoch is None:
                # A place above the head is of an instance that is gone, whichever that was: it is
                # told again should the first word of it be lost.
                is_gone = told.from_seq > told.head_seq
                epoch = NO_EPOCH if is_gone else told.epoch
                self.places[name] = WatchFrom(from_seq=told.from_seq, epoch=epoch)

    def take(self, told: StreamEvent) -> Batch | None:
        """What an event means here. Raises Unreachable when the stream can not be gone on with."""
        if isinstance(told, Records):
            return self._records(told)
        if isinstance(told, Lost):
            return self._lost(told)
        if isinstance(told, CaughtUp):
            place = self.places.get(told.topic)
            # Whatever is still below the head was removed in silence.
            if place is not None and place.epoch == told.epoch:
                self._move(told.topic, told.epoch, max(place.from_seq, told.head_seq))
        elif isinstance(told, TopicEnded):
            self.places.pop(told.topic, None)
        return None

    def event_id(self) -> str:
        """The places as the id of an event says them; empty when it is too long for a header."""
        epochs = {name: place.epoch for name, place in self.places.items()}
        seqs = {name: place.from_seq for name, place in self.places.items()}
        raw = msgspec.json.encode({**seqs, "$epochs": epochs})
        found = urlsafe_b64encode(raw).rstrip(b"=").decode()
        return found if len(found) <= ID_CHARS_MAX else ""

    def poll(self, topic: str, wait_ms: int, limit: int, **look: Any) -> Request[PolledPage]:
        """The long-poll for what comes after a place."""
        place = self.places[topic]
        asked = diff(
            topic, from_seq=place.from_seq, epoch=place.epoch, wait_ms=wait_ms, limit=limit, **look
        )
        return Request(asked.method, asked.path, _POLLED, asked.body, wait_s=asked.wait_s)

    def take_page(self, page: PolledPage) -> list[Batch]:
        """What a page tells: first the loss, then the records."""
        batches = []
        gap = page.tombstone
        if gap is not None:
            after = gap.earliest_seq - 1 if gap.reason == RECREATED else gap.gap_to
            batches.append(
                self._gap(page.topic, page.epoch, gap.gap_from, gap.gap_to, gap.reason, after)
            )
        if page.records:
            name_topic(page.records, page.topic, page.epoch)
            batches.append(Batch(page.topic, page.epoch, page.records, page.next_from_seq))
        self._move(page.topic, page.epoch, page.next_from_seq)
        return batches

    def _records(self, frame: Records) -> Batch | None:
        place = self.places.get(frame.topic)
        if place is None:
            return None
        if place.epoch != frame.epoch or frame.from_seq > place.from_seq:
            raise Unreachable(
                f"the stream of {frame.topic!r} went on at {frame.from_seq} instead of "
                f"{place.from_seq}",
                astray=True,
            )
        new = frame.records
        if new and new[0].seq <= place.from_seq:
            new = [record for record in new if record.seq > place.from_seq]
        self._move(frame.topic, frame.epoch, max(frame.to_seq, place.from_seq))
        return Batch(frame.topic, frame.epoch, new, frame.to_seq) if new else None

    def _lost(self, frame: Lost) -> Batch | None:
        place = self.places.get(frame.topic)
        if place is None:
            return None
        if frame.reason == RECREATED:
            after = frame.earliest_seq - 1
        elif frame.epoch == place.epoch and frame.gap_to <= place.from_seq:
            return None
        else:
            after = frame.gap_to
        self._move(frame.topic, frame.epoch, after)
        return self._gap(
            frame.topic, frame.epoch, frame.gap_from, frame.gap_to, frame.reason, after
        )

    def _gap(self, topic: str, epoch: str, first: int, last: int, reason: str, after: int) -> Batch:
        gap = Gap(gap_from=first, gap_to=last, reason=reason, epoch=epoch, topic=topic)
        return Batch(topic, epoch, [gap], after)

    def _move(self, topic: str, epoch: str, seq: int) -> None:
        self.places[topic] = WatchFrom(from_seq=seq, epoch=epoch)
