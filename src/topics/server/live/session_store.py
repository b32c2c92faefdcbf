"""Watch sessions on disk, so that they outlive the server.

What is kept of a session is what it was made with: whose it is, its options, and where its cursors
began. Nothing is written for an event: the place of a reader is in the id of the last one that it
got. A clean end writes where the cursors are, for those who come back without an id.

A session is with the kernel before its wid is told, and durable about a second later: the end of
the process takes none, a crash of the machine those of the last second, whose readers get 404.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterator

import msgspec

from topics.engine.engine import Engine
from topics.engine.reading.pages import View
from topics.engine.reading.watch import Subscription, WatchOptions
from topics.errors import TopicsError
from topics.server.api.auth import Key
from topics.storage.register import Register

LOG = logging.getLogger("topics.server")
NAME = "SESSIONS"
# How soon what was put is made durable.
SYNC_S = 1.0
MARK_BYTES = 16


class Kept(msgspec.Struct, array_like=True):
    """A session as it is stored. `first_epochs`: those that an id stands for without saying so."""

    mark: bytes
    heartbeat_s: float
    nodes: list[str]
    include_tags: bool
    include_meta: bool
    include_data: bool
    limit: int
    bytes_max: int
    is_strong: bool
    places: dict[str, tuple[int, int]]
    first_epochs: dict[str, int] | None = None

    def subscription(self) -> Subscription:
        """A reader that goes on from here. Ids may have been given out already."""
        view = View(frozenset(self.nodes), self.include_tags, self.include_meta, self.include_data)
        options = WatchOptions.of(
            view, limit=self.limit, bytes_max=self.bytes_max, is_strong=self.is_strong
        )
        found = Subscription(options, tells_too_old=True)
        found.add(self.places)
        found.first_epochs, found.has_told = self.first_epochs, True
        return found


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Kept)


def mark_of(wid: str, key: Key | None) -> bytes:
    """What tells the key that made a session from others, and is of no use elsewhere."""
    if key is None:
        return b""
    return hashlib.sha256(wid.encode() + key.digest).digest()[:MARK_BYTES]


def kept_of(mark: bytes, heartbeat_s: float, subscription: Subscription) -> Kept:
    options, view = subscription.options, subscription.options.view
    return Kept(
        mark=mark, heartbeat_s=heartbeat_s, nodes=sorted(view.nodes),
        include_tags=view.include_tags, include_meta=view.include_meta,
        include_data=view.include_data, limit=options.limit, bytes_max=options.bytes_max,
        is_strong=options.is_strong,
        places={cursor.name: (cursor.seq, cursor.epoch) for cursor in subscription.cursors},
        first_epochs=subscription.first_epochs,
    )  # fmt: skip


class SessionStore:
    """Opened with the engine; closed before it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._register: Register | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_tidying = False

    def open(self, engine: Engine) -> Iterator[tuple[str, Kept]]:
        """Every session that can be read."""
        self._register = engine.open_register(NAME)
        for wid, raw in self._register.load().items():
            try:
                yield wid, _DECODER.decode(raw)
            except msgspec.DecodeError as error:
                LOG.warning("a stored watch session can not be read: %s", error)

    def put(self, wid: str, kept: Kept) -> None:
        """Raises DiskFull or StorageError."""
        assert self._register is not None
        self._register.put(wid, _ENCODER.encode(kept))
        self._tidy_soon()

    def remove(self, wid: str) -> None:
        assert self._register is not None
        try:
            self._register.remove(wid)
        except TopicsError as error:
            LOG.warning("an ended watch session may come back: %s", error)
        self._tidy_soon()

    def close(self) -> None:
        """Makes the rest durable. What that takes too long for is with the kernel already."""
        if self._timer is not None:
            self._timer.cancel()
        register, self._register = self._register, None
        if register is None:
            return
        try:
            register.sync()
        except OSError as error:
            LOG.warning("watch sessions may not survive a crash of the machine: %s", error)
        register.close()

    # -- upkeep ------------------------------------------------------------------------------

    def _tidy_soon(self) -> None:
        if self._timer is None and not self._is_tidying:
            self._timer = self._loop.call_later(SYNC_S, self._tidy)

    def _tidy(self) -> None:
        self._timer = None
        register = self._register
        if register is None:
            return
        self._is_tidying = True
        if register.is_wasteful:
            job = self._loop.run_in_executor(None, register.write_anew, register.begin_anew())
            job.add_done_callback(self._written_anew)
        else:
            self._sync(register)

    def _written_anew(self, job: asyncio.Future[None]) -> None:
        register = self._register
        if register is None:
            return
        late = register.take_late()
        try:
            job.result()
            if not late:
                register.take_over()
        except OSError as error:
            LOG.warning("watch sessions could not be written anew: %s", error)
            register.give_up_anew()
            self._is_tidying = False
            return
        if late:
            more = self._loop.run_in_executor(None, register.write_late, late)
            more.add_done_callback(self._written_anew)
        else:
            self._sync(register)

    def _sync(self, register: Register) -> None:
        job = self._loop.run_in_executor(None, register.sync)
        job.add_done_callback(self._synced)

    def _synced(self, job: asyncio.Future[None]) -> None:
        self._is_tidying = False
        error = job.exception()
        if error is not None and self._register is not None:
            LOG.warning("watch sessions could not be synced: %s", error)
            self._tidy_soon()
