"""Server-sent events, read: bytes in, whole events out, wherever the bytes were cut."""

from __future__ import annotations

from dataclasses import dataclass

from topics.errors import Unreachable

# Twice what a server puts into one event.
EVENT_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Event:
    """`id` is the place of a reader after it, empty where the event has none."""

    name: str
    data: bytes
    id: str = ""


class EventReader:
    """One stream. An event counts when its empty line has come; half an event is none."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that these bytes complete. Comments and empty events are left out."""
        buffer = self._buffer
        # The end of an event may be cut between its two newlines.
        scan_from = max(len(buffer) - 1, 0)
        buffer += chunk
        events: list[Event] = []
        start = 0
        while (end := buffer.find(b"\n\n", scan_from)) >= 0:
            event = _event(bytes(buffer[start:end]))
            if event is not None:
                events.append(event)
            start = scan_from = end + 2
        del buffer[:start]
        if len(buffer) > EVENT_BYTES_MAX:
            raise Unreachable(f"an event of more than {EVENT_BYTES_MAX} bytes: not one of ours")
        return events


def _event(block: bytes) -> Event | None:
    name, last_id, data = "message", "", []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.decode("utf-8", "replace").strip()
        elif field == b"id":
            last_id = value.decode("utf-8", "replace").strip()
    return Event(name, b"\n".join(data), last_id) if data else None
