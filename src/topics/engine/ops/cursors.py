"""Cursors: durable, named places of readers in a topic, and what they hold.

A cursor is the last seq that a reader has consumed, in one epoch of its topic. Promises:

- It is durable before it is acknowledged, in every class of topic, and goes with the topic.
- It goes back only when that is asked for. A cursor of an earlier epoch stays as it was, visible
  as such, until its reader sets it in the new one, where the old seq is nothing to go back from.
- A hold keeps records from cap and TTL until its cursor has passed them (see retention).

Every change is one frame with a version, counted for each topic; a frame whose version is not
above the one that stands was applied before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from topics.engine.commit.core import Core
from topics.engine.commit.frame import Op
from topics.engine.commit.ticket import Ticket
from topics.engine.state import retention
from topics.engine.state.cursors import CursorFrame, Cursors
from topics.engine.state.topic import Topic
from topics.errors import Conflicting, CursorRegressed, InvalidRequest, NotFound, Throttled
from topics.storage import frames
from topics.types import U64_MAX, Cursor, CursorState, Hold, check_name

CURSORS_MAX = 1000

_ENCODER = msgspec.msgpack.Encoder()


_FRAME = msgspec.msgpack.Decoder(CursorFrame)


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What a put asks for. Without `seq` or `hold` those of the cursor stay."""

    seq: int | None = None
    epoch: int | None = None
    if_absent: bool = False
    reset: bool = False
    hold: Hold | UnsetType | None = UNSET


def enter(topic: Topic, cursors: list[Cursor], version: int) -> None:
    """Gives a topic the cursors of a snapshot."""
    if version:
        topic.cursors = Cursors(cursors, version)
        topic.holds = topic.cursors.holds()


# -- looking -------------------------------------------------------------------------------------


def state_of(topic: Topic, cursor: Cursor, *, created: bool = False) -> CursorState:
    return CursorState(
        topic=topic.name, cursor=cursor.name, seq=cursor.seq, epoch=cursor.epoch,
        lag=topic.head - topic.place(cursor), hold=cursor.hold, updated_ts=cursor.updated_ts,
        created=created,
    )  # fmt: skip


def find(topic: Topic, name: str) -> CursorState:
    """One cursor as it stands. Raises NotFound."""
    check_name(name, "cursor")
    cursor = None if topic.cursors is None else topic.cursors.standing.get(name)
    if cursor is None:
        raise NotFound(f'topic "{topic.name}" has no cursor "{name}"', cursor=name)
    return state_of(topic, cursor)


def page(topic: Topic) -> list[CursorState]:
    """All cursors in byte order of their names; there are at most CURSORS_MAX."""
    if topic.cursors is None:
        return []
    standing = topic.cursors.standing
    return [state_of(topic, standing[name]) for name in sorted(standing)]


# -- changing ------------------------------------------------------------------------------------


def put(core: Core, topic: Topic, name: str, given: Given, ticket: Ticket[CursorState]) -> None:
    """Stages a cursor's new place; the ticket ends in a CursorState.

    Raises InvalidRequest, Conflicting for another epoch, CursorRegressed, Throttled.
    """
    check_name(name, "cursor")
    if given.epoch is not None and given.epoch != topic.epoch:
        raise Conflicting(
            f'topic "{topic.name}" has epoch {topic.epoch}, not {given.epoch}: it was created '
            "anew. The cursor stands as it was; start again from the beginning of the new one.",
            topic=topic.name, epoch=str(topic.epoch),
        )  # fmt: skip
    _check_hold(given.hold)
    before = _latest(core, topic, name)
    if before is not None and given.if_absent:
        core.committer.answer(topic, lambda: state_of(topic, before), ticket)
        return
    now_ms = core.clock.wall_ms()
    after = Cursor(name, *_moved(topic, before, given, name), now_ms, _hold_of(before, given))
    if (
        before is not None
        and msgspec.structs.replace(after, updated_ts=before.updated_ts) == before
    ):
        core.committer.answer(topic, lambda: state_of(topic, before), ticket)
        return
    if before is None:
        _check_count(topic)
    _stage(
        core, topic, name, after, now_ms, ticket,
        lambda: state_of(topic, after, created=before is None),
    )  # fmt: skip


def delete(core: Core, topic: Topic, name: str, ticket: Ticket[bool]) -> None:
    """Stages the end of a cursor; the ticket ends in whether there was one."""
    check_name(name, "cursor")
    if _latest(core, topic, name) is None:
        core.committer.answer(topic, lambda: False, ticket)
        return
    _stage(core, topic, name, None, core.clock.wall_ms(), ticket, lambda: True)


def _check_hold(hold: Hold | UnsetType | None) -> None:
    if not isinstance(hold, Hold):
        return
    bounds = [bound for bound in (hold.max_bytes, hold.max_age_ms) if bound is not None]
    if not bounds:
        raise InvalidRequest("a hold needs max_bytes or max_age_ms or both: it is never unbounded")
    if not all(type(bound) is int and 1 <= bound <= U64_MAX for bound in bounds):
        raise InvalidRequest("max_bytes and max_age_ms must be from 1 to 2^64 - 1")


def _hold_of(before: Cursor | None, given: Given) -> Hold | None:
    if not isinstance(given.hold, UnsetType):
        return given.hold
    return None if before is None else before.hold


def _latest(core: Core, topic: Topic, name: str) -> Cursor | None:
    """A cursor as it stands after everything staged, which is written by then."""
    cursors = topic.cursors
    if cursors is None:
        return None
    if cursors.latest.get(name) is not cursors.standing.get(name):
        # What is staged may still be refused by a full disk; what is written may not.
        core.committer.flush()
    return cursors.latest.get(name)


def _moved(topic: Topic, before: Cursor | None, given: Given, name: str) -> tuple[int, int]:
    """The seq and the epoch that a put leads to."""
    seq = given.seq
    if seq is None:
        if before is None:
            raise InvalidRequest(f'cursor "{name}" is new: it needs a seq', cursor=name)
        return before.seq, before.epoch
    if type(seq) is not int or not 0 <= seq <= U64_MAX:
        raise InvalidRequest("seq must be from 0 to 2^64 - 1")
    if seq > topic.head:
        raise InvalidRequest(
            f"seq {seq} is above the head of the topic, {topic.head}: nobody can have read it",
            seq=seq, head_seq=topic.head,
        )  # fmt: skip
    is_back = before is not None and before.epoch == topic.epoch and seq < before.seq
    if is_back and before is not None and not given.reset:
        raise CursorRegressed(
            f'cursor "{name}" stands at {before.seq} and goes back to {seq} only with reset',
            cursor=name, seq=before.seq,
        )  # fmt: skip
    return seq, topic.epoch


def _check_count(topic: Topic) -> None:
    if topic.cursors is not None and len(topic.cursors.latest) >= CURSORS_MAX:
        raise Throttled(
            f'topic "{topic.name}" has {CURSORS_MAX} cursors, the most there may be; delete one',
            limit="cursors", max=CURSORS_MAX,
        )  # fmt: skip


def _stage(
    core: Core,
    topic: Topic,
    name: str,
    after: Cursor | None,
    now_ms: int,
    ticket: Ticket[Any],
    answer: Callable[[], Any],
) -> None:
    cursors = topic.cursors = topic.cursors or Cursors()
    before = cursors.latest.get(name)
    frame = cursors.assign(name, after)

    def apply() -> Any:
        if _fold(topic, frame) and not topic.dropped:
            core.expire_at(topic, now_ms)
            core.evict(topic)
        return answer()

    op = Op(
        topic, frames.CURSOR, apply, gated=True, ticket=ticket, payload=_ENCODER.encode(frame),
        undo=lambda: cursors.expect(name, before),
    )  # fmt: skip
    # So that replay expires and evicts the same.
    op.ts = now_ms
    core.committer.stage(op)


def _fold(topic: Topic, frame: CursorFrame) -> bool:
    """Applies a frame; True when it may have let go of records."""
    cursors = topic.cursors = topic.cursors or Cursors()
    before = topic.holds
    if not cursors.fold(frame):
        return False
    if before or (frame.cursor is not None and frame.cursor.hold is not None):
        topic.holds = cursors.holds()
    return bool(before)


def replay(core: Core, topic: Topic, payload: memoryview, ts: int) -> None:
    """Applies a CURSOR frame of the log. Idempotent."""
    if _fold(topic, _FRAME.decode(payload)):
        load = core.segments.spans
        retention.expire(topic, ts, load)
        retention.evict(topic, load)
        core.recount(topic)
