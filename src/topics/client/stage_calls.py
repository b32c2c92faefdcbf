"""Calls of producers that write in batches: stage, commit, drop."""

from __future__ import annotations

from collections.abc import Sequence

from topics.client import values
from topics.client.request import Request, body, path, reading
from topics.client.values import RecordFields
from topics.types import Committed, Staged

_STAGED = reading(Staged)
_COMMITTED = reading(Committed)
_DROPPED = reading(values.StagesDropped)


def stage(
    topic: str,
    records: Sequence[RecordFields],
    *,
    producer: str,
    batch: int,
    part: int | str = 0,
    attempt: int | str = 0,
) -> Request[Staged]:
    """Hands in records for a batch: durable, and seen by nobody before its commit.

    Repeated where its answer is lost: a stage that the commit does not name goes with it.
    """
    text = body(
        producer=producer, batch=batch, part=part, attempt=attempt, topic=topic, records=records
    )
    return Request("POST", path("stages"), _STAGED, text, is_write=True)


def commit(producer: str, batch: int, *, query: str, stages: Sequence[str]) -> Request[Committed]:
    """Publishes the stages of a batch, for each topic all at once, and only once.

    The same batch of the same query again is answered as it was. Raises Conflicting for another
    query or a batch before the last one, StageExpired where a stage is gone.
    """
    text = body(producer=producer, batch=batch, query=query, stages=list(stages))
    return Request("POST", path("stages", "commit"), _COMMITTED, text, is_write=True)


def drop_stages(producer: str, batch: int) -> Request[values.StagesDropped]:
    """Drops the stages of a batch that were not committed."""
    query = {"producer": producer, "batch": batch}
    return Request("DELETE", path("stages", **query), _DROPPED, is_write=True)
