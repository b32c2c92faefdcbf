"""Stages: records are handed in for a batch, durable at once and seen by nobody until its commit.

A stage is as durable as anything here gets before its id is told, whatever the class of its topic:
the commit only names it. It goes when it is committed, dropped, or older than `stage_ttl_ms`, and
its bytes leave the disk with it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from topics.engine.commit.core import Core
from topics.engine.commit.ticket import Ticket
from topics.engine.state.batch import Batch
from topics.engine.state.reblocking import reblock
from topics.engine.state.stage_request import StageRequest
from topics.engine.state.stages import Stage, disk_bytes
from topics.errors import InvalidRequest, Throttled, TopicsError
from topics.settings import MIB
from topics.storage import stage_file
from topics.storage.stage_file import StageInfo, id_text
from topics.types import Staged, bucket_of

LOG = logging.getLogger("topics.engine")

# Bytes on their way to the disk, which are in memory until then.
ARRIVING_BYTES_MAX = 256 * MIB


def stage(core: Core, request: StageRequest, ticket: Ticket[Staged]) -> None:
    """Begins to make a stage durable. Nothing has happened when it raises."""
    if bucket_of(request.topic) is not None:
        # Whether a key may be put depends on what is on its way, which nobody looks for in stages.
        raise InvalidRequest(
            f'topic "{request.topic}" is a bucket: its keys are put, not staged',
            topic=request.topic,
        )
    columns = Batch(request.records, None, core.settings).rests()
    stage_id = core.stages.new_id(core.generation)
    info = StageInfo(
        stage_id, request.producer, request.batch, request.part, request.attempt, request.topic,
        core.clock.wall_ms(), len(columns), len(columns.payload), [],
    )  # fmt: skip
    blocks = [block for _, block in reblock([(0, columns)], core.settings.block_bytes)]
    info, parts = stage_file.encode(info, blocks)
    size = disk_bytes(sum(map(len, parts)))
    _check_room(core, size)
    core.stages.arriving_bytes += size
    core.preparing.beside.add(ticket)

    def ended(error: TopicsError | None) -> None:
        core.stages.arriving_bytes -= size
        core.preparing.beside.discard(ticket)
        if error is None:
            deadline_s = core.clock.monotonic_s() + core.settings.stage_ttl_ms / 1000
            core.stages.enter(Stage(info, size, deadline_s))
        if ticket.done:
            # The log has failed meanwhile, and everybody was told.
            return
        if error is None:
            ticket.resolve(Staged(id_text(stage_id), info.count))
        else:
            ticket.fail(error)

    core.stage_files.write(stage_id, parts, ended)


def _check_room(core: Core, size: int) -> None:
    """Raises Throttled where there may be no more staged bytes."""
    settings, arriving = core.settings, core.stages.arriving_bytes
    held = core.stages.bytes + arriving
    if arriving and arriving + size > ARRIVING_BYTES_MAX:
        raise Throttled(
            f"{arriving} bytes of stages are on their way to the disk, and no more than "
            f"{ARRIVING_BYTES_MAX} may be; nothing was staged. Try again soon.",
            limit="arriving_stage_bytes", max=ARRIVING_BYTES_MAX,
        )  # fmt: skip
    if settings.max_staged_bytes and held + size > settings.max_staged_bytes:
        raise Throttled(
            f"{held} bytes are staged of at most {settings.max_staged_bytes}; nothing was staged. "
            "Commit or drop some.",
            limit="max_staged_bytes", max=settings.max_staged_bytes,
        )  # fmt: skip
    quota = settings.max_total_bytes
    if quota and core.taken_bytes + size > quota:
        raise Throttled(
            f"the server holds {core.taken_bytes} bytes of at most {quota}; nothing was staged",
            limit="max_total_bytes", max=quota,
        )  # fmt: skip


def drop(core: Core, producer: str, batch: int, ticket: Ticket[int]) -> None:
    """Drops the stages of a batch that nobody is committing; the ticket ends in how many."""
    found = core.stages.of(producer, batch)
    core.preparing.beside.add(ticket)

    def ended(error: TopicsError | None) -> None:
        core.preparing.beside.discard(ticket)
        if ticket.done:
            return
        if error is None:
            ticket.resolve(len(found))
        else:
            ticket.fail(error)

    for each in found:
        core.stages.leave(each)
    # Also when there are none: others may be on their way out, and a crash would bring them back.
    core.stage_files.remove([each.info.id for each in found], ended)


def expire(core: Core) -> None:
    """Drops some of the stages whose time is over."""
    found = core.stages.expired(core.clock.monotonic_s())
    core.stages.expired_total += len(found)
    discard(core, found)


def discard(core: Core, stages: Sequence[Stage]) -> None:
    """Drops stages that nobody asked for to be dropped."""
    for each in stages:
        core.stages.leave(each)
    if stages:
        core.stage_files.remove([each.info.id for each in stages], _told)


def _told(error: TopicsError | None) -> None:
    if error is not None:
        LOG.error("stages were dropped and stay on the disk until the next start: %s", error)
