"""Backups: a copy of the directory, made beside everything else, that any moment of it can be
restored from.

What a backup promises:

- It has everything that was acknowledged before it ended, in every class that leaves a trace on the
  disk: the two newest snapshots, the segments that they name, the log from the older one on up to a
  place that was synced, and the stages that commits in it name.
- While it runs nothing that it copies leaves the directory (`Core.is_pinned`): checkpoints go on,
  and what they would remove goes with the first one afterwards. Nobody waits for it but erasures,
  which have to show that the old bytes are gone.
- Delete flags are read before any other is set. They may be newer than the snapshots, as after any
  start; the log has the deletes.
- There is a backup when its manifest stands (`storage/vault.py`), and that comes last. One that
  fails, or whose process ends, leaves none.

The engine's thread pins, lets the log be synced and says where it ends; everything that blocks is a
call in a thread (`copying.py`), which rests between its pieces while others are there.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator
from datetime import UTC, datetime
from typing import Literal

import msgspec

from topics.engine.commit.core import Core
from topics.engine.upkeep.copying import Copying
from topics.errors import Conflicting, Poisoned, TopicsError
from topics.storage.disk_errors import typed
from topics.storage.tiers import Store
from topics.storage.vault import Manifest

State = Literal["running", "done", "failed"]


class BackupStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The backup that runs, or the last one that did."""

    id: str
    dest: str
    state: State
    began_ts: int
    ended_ts: int | None = None
    # The moments that can be restored from it.
    from_ts: int | None = None
    to_ts: int | None = None
    topics: int | None = None
    # Bytes of everything in it; those that are stored by now; those that had to be stored.
    bytes: int = 0
    bytes_done: int = 0
    bytes_copied: int = 0
    error: str = ""


class Backups:
    """One at a time."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._steps: Generator[None, None, Manifest] | None = None
        self._copying: Copying
        self._status: BackupStatus | None = None

    @property
    def is_running(self) -> bool:
        return self._steps is not None

    @property
    def status(self) -> BackupStatus | None:
        status = self._status
        if status is None or self._steps is None:
            return status
        amounts = self._copying.amounts
        return msgspec.structs.replace(
            status, bytes=amounts.bytes_all, bytes_done=amounts.bytes_done,
            bytes_copied=amounts.bytes_copied,
        )  # fmt: skip

    def begin(self, dest: str, store: Store) -> BackupStatus:
        """Raises Conflicting while another one runs."""
        if self._status is not None and self._steps is not None:
            raise Conflicting(f"backup {self._status.id} is still running; ask again later")
        core = self._core
        began_ms = core.clock.wall_ms()
        self._copying = Copying(
            core.data,
            core.segments.store,
            store,
            _new_id(began_ms),
            core.background.rest,
            core.clock,
        )
        self._status = BackupStatus(
            id=self._copying.id, dest=dest, state="running", began_ts=began_ms
        )
        self._steps = self._run(began_ms)
        return self._status

    def advance(self, *, is_free: bool) -> None:
        """A step, if there is one to make. It pins only while nothing is being removed."""
        steps = self._steps
        if steps is None or not (is_free or self._core.is_pinned):
            return
        try:
            next(steps)
        except StopIteration as ended:
            self._end_well(ended.value)
        except Exception as error:
            # Whatever it was, it is none of the log, unless that says so.
            self._end_badly(error)
            if isinstance(error, Poisoned):
                raise

    def close(self) -> None:
        """Gives up what is under way; waits for the call that is being made."""
        steps = self._steps
        if steps is not None:
            self._copying.is_given_up = True
            steps.close()
            self._fail("the engine closed before it was whole")

    def _end_well(self, manifest: Manifest) -> None:
        assert self._status is not None
        self._steps = None
        self._status = msgspec.structs.replace(
            self._status, state="done", ended_ts=self._core.clock.wall_ms(),
            from_ts=manifest.from_ms, to_ts=manifest.to_ms, topics=manifest.topics,
            bytes=manifest.bytes, bytes_done=manifest.bytes, bytes_copied=manifest.bytes_copied,
        )  # fmt: skip

    def _end_badly(self, error: Exception) -> None:
        if isinstance(error, OSError):
            error = typed(error, "nothing was backed up")
        self._fail(str(error) if isinstance(error, TopicsError) else repr(error))

    def _fail(self, why: str) -> None:
        status = self.status
        assert status is not None
        self._steps = None
        self._status = msgspec.structs.replace(
            status, state="failed", ended_ts=self._core.clock.wall_ms(), error=why
        )

    def _run(self, began_ms: int) -> Generator[None, None, Manifest]:
        core, copying = self._core, self._copying
        core.is_pinned = True
        try:
            yield from self._beside(copying.look)
            generation, spent = core.generation, sorted(core.stages.spent)
            marks = [shard.synced for shard in core.log.shards]
            yield from self._beside(lambda: copying.copy(generation, marks, spent))
            core.committer.flush()
            # Whatever is acknowledged by now stands in front of these places.
            marks, to_ms = core.log.positions, core.clock.wall_ms()
            topics = len(core.by_id)
            yield from self._until_durable()
            spent = sorted(core.stages.spent)
            taken = [id for id, stage in core.stages.live.items() if stage.is_taken]
            made: list[Manifest] = []
            yield from self._beside(lambda: made.append(copying.finish(
                generation=generation, marks=marks, stages=spent, taken=taken, began_ms=began_ms,
                to_ms=to_ms, topics=topics,
            )))  # fmt: skip
            return made[0]
        finally:
            core.is_pinned = False

    def _beside(self, call: Callable[[], None]) -> Generator[None, None, None]:
        """A call in a thread; raises what it raised."""
        core = self._core
        job = core.background.jobs.start(call, lambda: core.notify())
        try:
            while not job.done:
                yield
        finally:
            while not job.done:
                core.background.jobs.pause()
        job.result()
        # Others come first before there is more to do.
        yield

    def _until_durable(self) -> Generator[None, None, None]:
        """Not by `Core.until_durable`: other work of maintenance goes on meanwhile."""
        log = self._core.log
        for shard, mark in zip(log.shards, log.positions, strict=True):
            if shard.synced < mark:
                log.syncer.kick(shard)
            while shard.synced < mark:
                if shard.poison is not None:
                    raise Poisoned(f"sync of the write-ahead log failed: {shard.poison}")
                yield


def _new_id(now_ms: int) -> str:
    """Names sort as the moments do that they are from."""
    moment = datetime.fromtimestamp(max(now_ms, 0) / 1000, UTC)
    return f"{moment:%Y%m%dT%H%M%S}{max(now_ms, 0) % 1000:03d}Z-{secrets.token_hex(3)}"
