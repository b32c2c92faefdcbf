"""Calls of workers: claim jobs under a lease, finish them, give them back, keep them."""

from __future__ import annotations

from collections.abc import Sequence

from topics.client import values
from topics.client.request import Request, body, path, reading, reading_records

_CLAIMED = reading_records(values.Claimed, "claimed", lambda answer: answer.claimed)
_ACKED = reading(values.Acked)
_NACKED = reading(values.Nacked)
_EXTENDED = reading(values.Extended)
_LEASES = reading(values.LeasePage)


def claim(
    topic: str,
    node: str,
    max: int = 1,
    *,
    lease_ms: int | None = None,
    wait_ms: int | None = None,
) -> Request[values.Claimed]:
    """Leases up to `max` jobs to `node`. `wait_ms` waits for one where there is none yet.

    When the answer is lost the jobs in it are claimable again after their lease, so it is repeated.
    """
    text = body(node=node, max=max, lease_ms=lease_ms, wait_ms=wait_ms)
    wait_s = (wait_ms or 0) / 1000
    return Request("POST", path("topics", topic, "claim"), _CLAIMED, text, wait_s=wait_s)


def ack(
    topic: str, node: str, seqs: Sequence[int], *, lease_ids: Sequence[str] | None = None
) -> Request[values.Acked]:
    """Completes jobs: they are deleted, as durably as the queue is durable.

    With `lease_ids` only the very deliveries they name. A repeated ack skips what is done already.
    """
    text = body(node=node, seqs=seqs, lease_ids=lease_ids)
    return Request("POST", path("topics", topic, "ack"), _ACKED, text, is_write=True)


def nack(
    topic: str,
    node: str,
    seqs: Sequence[int],
    *,
    delay_ms: int | None = None,
    lease_ids: Sequence[str] | None = None,
) -> Request[values.Nacked]:
    """Gives jobs back, to be claimed again after `delay_ms`."""
    text = body(node=node, seqs=seqs, delay_ms=delay_ms, lease_ids=lease_ids)
    return Request("POST", path("topics", topic, "nack"), _NACKED, text, is_write=True)


def extend(
    topic: str,
    node: str,
    seqs: Sequence[int],
    lease_ms: int,
    *,
    lease_ids: Sequence[str] | None = None,
) -> Request[values.Extended]:
    """Sets how long jobs are still held, counted from now."""
    text = body(node=node, seqs=seqs, lease_ms=lease_ms, lease_ids=lease_ids)
    return Request("POST", path("topics", topic, "extend"), _EXTENDED, text, is_write=True)


def leases(
    topic: str, *, page_size: int = 1000, cursor: str | None = None
) -> Request[values.LeasePage]:
    """One page of the jobs that are held, by whom, until when."""
    place = path("topics", topic, "leases", page_size=page_size, cursor=cursor)
    return Request("GET", place, _LEASES)
