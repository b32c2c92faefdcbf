"""The one policy for trying again: what may be repeated, when, and what is told in the end.

Nothing is sent twice unless that is safe. A request that certainly did not arrive may be sent
again, and so may one that the server refused without doing anything (429, most 503), after the time
it asked for. When an answer was lost, only a request that does no harm twice is repeated: reads,
and appends, whose idempotency key makes the server answer what it did the first time. Anything else
ends as OutcomeUnknown, which is the truth.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any

from topics.client.request import Request
from topics.errors import OutcomeUnknown, Refused, TopicsError, Unreachable

# Something between us and the server gave up on it.
GATEWAY_STATUSES = frozenset({502, 504})
# Refusals with these statuses leave everything as it was, but for outcome_unknown.
TRANSIENT_STATUSES = frozenset({429, 503})


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to go on trying. No new try begins after `give_up_after_s`.

    It must be shorter than the idempotency window of the topics that are written (120 s unless
    configured): after that a repeated append would be a new one.
    """

    give_up_after_s: float = 30.0
    pause_s_min: float = 0.05
    pause_s_max: float = 2.0


DEFAULT_RETRIES = RetryPolicy()


class Attempts:
    """The tries of one request."""

    def __init__(self, request: Request[Any], policy: RetryPolicy) -> None:
        self._request = request
        self._policy = policy
        self._deadline_s = time.monotonic() + policy.give_up_after_s
        self._pause_s = policy.pause_s_min
        # Whether some try may have been carried out without our hearing of it.
        self._is_unknown = False

    def pause_s_after(self, error: TopicsError) -> float:
        """How long to wait before the next try. Raises what the caller is told if there is none."""
        is_unknown = may_have_happened(error)
        self._is_unknown = self._is_unknown or is_unknown
        if not is_transient(error):
            # An answer counts whatever was before it; that the client is closed is none.
            raise self._told(error) if isinstance(error, Unreachable) else error
        if is_unknown and not self._request.is_repeatable:
            raise self._told(error)
        pause_s = max(retry_after_s(error), self._pause_s) * random.uniform(1.0, 1.5)
        self._pause_s = min(self._pause_s * 2, self._policy.pause_s_max)
        if time.monotonic() + pause_s > self._deadline_s:
            raise self._told(error)
        return pause_s

    def _told(self, error: TopicsError) -> TopicsError:
        if not (self._is_unknown and self._request.is_write):
            return error
        if isinstance(error, OutcomeUnknown):
            return error
        unknown = OutcomeUnknown(
            f"it may or may not have been done: {error.message}", **error.detail
        )
        unknown.__cause__ = error
        return unknown


def is_transient(error: TopicsError) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, Refused):
        return error.status in TRANSIENT_STATUSES | GATEWAY_STATUSES
    return error.status in TRANSIENT_STATUSES and not error.detail.get("closed")


def may_have_happened(error: TopicsError) -> bool:
    """Whether the server may have done what was asked although it did not say so."""
    if isinstance(error, Unreachable):
        return bool(error.detail.get("sent", True))
    if isinstance(error, Refused):
        return error.status in GATEWAY_STATUSES
    return isinstance(error, OutcomeUnknown)


def retry_after_s(error: TopicsError) -> float:
    """What the server asked for; 0 when it did not."""
    after_ms = error.detail.get("retry_after_ms", 0)
    return after_ms / 1000 if isinstance(after_ms, int | float) and after_ms > 0 else 0.0
