"""Drives one engine from one event loop: recovery, flushes, syncs that ended, maintenance, the end.

The engine is touched by the loop's thread only. What every turn of the loop submitted is written
as one group at the turn's end. A storage failure ends the process: `failed` then has the error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from concurrent.futures import Future
from math import inf
from time import perf_counter

from topics.engine.engine import Engine
from topics.engine.state.segments import ColdMiss
from topics.errors import Closed, Poisoned, TopicsError
from topics.server.http.beside import Beside
from topics.server.http.turns import TurnEnd
from topics.storage.columns import Columns

LOG = logging.getLogger("topics.server")
RECOVERY_SLICE_S = 0.01
# How long one slice of maintenance is while nobody writes, and at least and at most while somebody
# does: no longer than what was done for others since the last one.
SLICE_S = 0.002
SHARED_SLICE_S_MIN, SHARED_SLICE_S_MAX = 0.0002, 0.001
# How long whoever wrote is taken to be there still.
PRESENT_S = 1.0
# How long a thread is waited for that maintenance goes on with.
WAIT_S = 0.001
IDLE_S = 0.01
COLD_THREADS = 4
NOTED_S = 1.0


class Driver:
    """`engine` is there once `is_ready`; `progress` goes from 0 to 1 until then."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.engine: Engine
        self.is_ready = False
        self.progress = 0.0
        self.failed: asyncio.Future[BaseException] = loop.create_future()
        self.loop = loop
        self._turn_end: TurnEnd
        self._steps: Generator[float, None, Engine] | None = None
        self._ready: Callable[[Engine], None]
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None
        self._poll_is_due = False
        # Whether this turn ends in a flush anyway.
        self.is_flush_due = False
        self._forward_is_due = False
        # When something was last written, and when a slice of maintenance ended after which only
        # others had their turn.
        self._written_s, self._maintained_s = 0.0, inf
        # When something was last said in the log that may happen many times a second.
        self._noted_s: dict[str, float] = {}
        # Other sliced work beside the loop: given a budget, whether there is more at once.
        self.chores: list[Callable[[float], bool]] = []
        self._cold = Beside(loop, COLD_THREADS, "topics-cold")

    def start(
        self,
        turn_end: TurnEnd,
        steps: Generator[float, None, Engine],
        on_ready: Callable[[Engine], None],
    ) -> None:
        """Recovers in slices; `on_ready` is called when the engine can be used."""
        self._turn_end = turn_end
        self._cold.attach(turn_end)
        self._steps = steps
        self._ready = on_ready
        self.loop.call_soon(self._recover)

    def flush_soon(self) -> None:
        """What was submitted is written at the end of this turn."""
        if not self.is_flush_due:
            self.is_flush_due = True
            self._turn_end.defer(self._flush)

    def fetch(self, miss: ColdMiss, done: Callable[[BaseException | None], None]) -> None:
        """Gets what a read missed from the cold store; `done` is called on the loop."""
        engine = self.engine
        request = engine.ask(miss)

        def arrived(work: Future[list[Columns]]) -> None:
            error = None if work.cancelled() else work.exception()
            if error is not None and request.is_outdated:
                # The read is repeated, and finds where they are now.
                error = None
            elif error is not None:
                # A store that is away is away for every read of it.
                self._note("the cold store can not be read", error.__cause__ or error)
            elif not work.cancelled():
                engine.admit(request, work.result())
            done(error)

        self._cold.do(request.read, arrived)

    def _note(self, what: str, error: BaseException) -> None:
        """Says in the log what goes on and on, now and then."""
        now_s = self.loop.time()
        if now_s >= self._noted_s.get(what, -NOTED_S) + NOTED_S:
            self._noted_s[what] = now_s
            LOG.error("%s: %s", what, error)

    def fail(self, error: BaseException) -> None:
        """The engine can not go on. Its tickets have ended; the process has to."""
        if not self.failed.done():
            LOG.critical("storage failed, the server ends: %s", error)
            self.failed.set_result(error)

    def close(self) -> None:
        """Makes everything durable and lets go of the directory."""
        if self._timer is not None:
            self._timer.cancel()
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.close()
        if self.is_ready:
            self.is_ready = False
            self.engine.close()
        self._cold.close()

    # -- recovery ----------------------------------------------------------------------------

    def _recover(self) -> None:
        steps = self._steps
        if steps is None:
            return
        stop_s = self.loop.time() + RECOVERY_SLICE_S
        try:
            while self.loop.time() < stop_s:
                self.progress = next(steps)
        except StopIteration as opened:
            self._steps = None
            self._open(opened.value)
        except Exception as error:
            self._steps = None
            if not self.failed.done():
                self.failed.set_result(error)
        else:
            self.loop.call_soon(self._recover)

    def _open(self, engine: Engine) -> None:
        self.engine = engine
        engine.on_durable(self._durable)
        engine.on_backlog(self._forward_soon)
        self.progress = 1.0
        self.is_ready = True
        self._ready(engine)
        self._recover_rest()

    def _recover_rest(self) -> None:
        """Topics of class memory, one at a time, while requests are served."""
        if not self.is_ready:
            return
        if self.engine.is_recovering:
            try:
                self.engine.recover_one()
            except Exception as error:
                # What is missing can not be told from what never was: the next start tries again.
                self.fail(error)
                return
            self.loop.call_soon(self._recover_rest)
            return
        self.engine.finish_recovery()
        self._maintain()

    # -- the running engine ------------------------------------------------------------------

    def _flush(self) -> None:
        self.is_flush_due = False
        self._written_s = perf_counter()
        try:
            self.engine.flush()
        except Poisoned as error:
            self.fail(error)

    def _forward_soon(self) -> None:
        """Routers come behind the answers and in front of the next requests.

        So whoever has the answer to a write finds its copies, and nobody's answer waits for them.
        """
        if self.is_ready and not self._forward_is_due:
            self._forward_is_due = True
            self._turn_end.defer_behind(self._forward)

    def _forward(self) -> None:
        self._forward_is_due = False
        if not self.is_ready:
            return
        try:
            if self.engine.forward_now():
                self._forward_soon()
        except ColdMiss:
            # Maintenance fetches it, beside the loop.
            pass
        except Poisoned as error:
            self.fail(error)
        except Exception as error:
            LOG.error("forwarding failed and will be tried again", exc_info=error)

    def _durable(self) -> None:
        # From a sync thread. Several syncs before the loop comes round are one poll.
        if not self._poll_is_due:
            self._poll_is_due = True
            try:
                self.loop.call_soon_threadsafe(self._poll)
            except RuntimeError:
                # The loop has ended; closing the engine waits for the syncs itself.
                pass

    def _poll(self) -> None:
        self._poll_is_due = False
        if not self.is_ready:
            return
        try:
            self.engine.poll()
        except Poisoned as error:
            self.fail(error)
        if self.engine.has_backlog:
            # What waited for the sync. Now: those who were told may ask before this turn ends.
            self._forward()

    def work_soon(self) -> None:
        """Somebody waits for what is done beside the loop."""
        if self._timer is not None and self.is_ready:
            # Without a timer it is next anyway.
            self._timer.cancel()
            self._timer = self.loop.call_soon(self._maintain)

    def _maintain(self) -> None:
        if not self.is_ready:
            return
        if self._timer is not None:
            # It may be that of another call, which this one takes the place of.
            self._timer.cancel()
            self._timer = None
        if self.is_flush_due:
            # Somebody waits for the end of this turn. Behind it in the same one: sockets are read
            # before the next, and may always bring something.
            self._turn_end.defer_behind(self._maintain)
            return
        more = False
        budget_s = self._slice_s()
        try:
            more = self.engine.maintain(budget_s)
            for chore in self.chores:
                more = chore(budget_s) or more
        except Poisoned as error:
            self.fail(error)
        except Closed:
            return
        except TopicsError as error:
            self._note("maintenance failed and will be tried again", error)
        except Exception as error:
            LOG.error("maintenance failed and will be tried again", exc_info=error)
        poison = self.engine.poison
        if poison is not None:
            self.fail(poison)
        if more and not self.engine.is_waiting:
            # Sockets are looked at in between.
            self._maintained_s = perf_counter()
            self._timer = self.loop.call_soon(self._maintain)
        else:
            self._maintained_s = inf
            self._timer = self.loop.call_later(WAIT_S if more else IDLE_S, self._maintain)

    def _slice_s(self) -> float:
        """How long maintenance may go on: short beside others, and yet half of a busy loop."""
        now_s = perf_counter()
        if now_s - self._written_s >= PRESENT_S:
            return SLICE_S
        return min(max(now_s - self._maintained_s, SHARED_SLICE_S_MIN), SHARED_SLICE_S_MAX)
