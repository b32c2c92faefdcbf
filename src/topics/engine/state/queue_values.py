"""What the calls of a queue take and give."""

from __future__ import annotations

from typing import Any

import msgspec

from topics.types import Record, records_of


class Claimant(msgspec.Struct, frozen=True):
    """A worker that asks for up to `max` jobs; without `lease_ms` for as long as the queue says."""

    node: str
    max: int = 1
    lease_ms: int | None = None


class Job(msgspec.Struct, frozen=True):
    """One leased job; `json` is its wire object, with the comma behind it."""

    seq: int
    lease_id: str
    deadline: int
    json: bytes

    @property
    def record(self) -> Record:
        """The job as the record that it is."""
        return records_of(b"[" + self.json[:-1] + b"]")[0]

    @property
    def value(self) -> Any:
        """The data, decoded."""
        return self.record.value

    def __repr__(self) -> str:
        return f"Job({self.json[:-1].decode('utf-8', 'replace')})"


class Claimed(msgspec.Struct, frozen=True):
    """The jobs that one claimant got, ascending by seq, as parallel lists.

    `pieces` are the wire objects, each with the comma behind it. The lease of the job at an index
    has the number `first_lease` + index.
    """

    seqs: list[int]
    pieces: list[bytes]
    first_lease: int
    deadline: int
    ready: int
    in_flight: int

    @property
    def json(self) -> bytes:
        """The wire array."""
        return b"[" + b"".join(self.pieces)[:-1] + b"]"

    @property
    def jobs(self) -> list[Job]:
        return [
            Job(seq, lease_id(number), self.deadline, piece)
            for number, (seq, piece) in enumerate(
                zip(self.seqs, self.pieces, strict=True), self.first_lease
            )
        ]


class Held(msgspec.Struct, frozen=True):
    """A job under lease: by whom, until when, and how often it was delivered."""

    seq: int
    node: str
    expires_ts: int
    deliveries: int


class Acked(msgspec.Struct, frozen=True):
    acked: int
    skipped: list[int]
    ready: int
    in_flight: int


class Nacked(msgspec.Struct, frozen=True):
    nacked: int
    skipped: list[int]
    ready: int
    in_flight: int


class Extended(msgspec.Struct, frozen=True):
    extended: int
    skipped: list[int]
    deadlines: dict[int, int]


def lease_id(number: int) -> str:
    return f"lease_{number:x}"
