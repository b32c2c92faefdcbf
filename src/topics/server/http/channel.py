"""The socket's side of an HTTP connection: gathered writing, back-pressure, and an orderly end."""

from __future__ import annotations

import asyncio

from topics.server.http.carrying import Carry, behind, front
from topics.server.http.ending import Ending
from topics.server.http.errors import response_to
from topics.server.http.giving_way import give_way
from topics.server.http.hub import Hub
from topics.server.http.message import COPY_BYTES_MAX, Request, Response
from topics.server.http.sockets import unacknowledged_bytes
from topics.types import Payload


class Channel(Ending):
    """Collects what is to be written, and ends a connection without losing what was."""

    __slots__ = (
        "_carry", "_has_body_entered", "_is_lingering", "_is_portioned", "_is_reading", "_out",
        "_out_bytes", "_queued", "_queued_bytes", "_turns", "server",
    )  # fmt: skip

    def __init__(self, server: Hub) -> None:
        super().__init__(server.limits)
        self.server = server
        self._out: list[Payload] = []
        self._out_bytes = 0
        # A portion of it was written, and the next one is due when others have had their turn.
        self._is_portioned = False
        # All of it is being carried: what has gone out is taken off when that has ended.
        self._carry: Carry | None = None
        # How many turns of the loop had something to do before that portion.
        self._turns = 0
        # Answers that wait for one of an earlier request, and their bytes.
        self._queued: dict[Request, int] = {}
        self._queued_bytes = 0
        # The ledger of bodies on their way knows of this connection.
        self._has_body_entered = False
        self._is_reading = True
        # The client may still be sending: reading what it sends saves our answer from a reset.
        self._is_lingering = False

    @property
    def is_gone(self) -> bool:
        """Whether nobody is there any more to answer to."""
        return self._transport is None

    def _refused(self, request: Request, error: BaseException) -> Response:
        """The answer to a request that came to nothing, which the application is told of."""
        response = response_to(error)
        self.server.refused(request, error, response.status)
        return response

    # -- writing -----------------------------------------------------------------------------

    def _emit(self, output: tuple[Payload, ...]) -> None:
        self._out.extend(output)
        for part in output:
            self._out_bytes += len(part)
        if self._out_bytes > self._limits.out_bytes_max:
            self._flush()

    def _flush(self) -> None:
        out, transport = self._out, self._transport
        if not out or transport is None:
            return
        if self._out_bytes > 2 * self._limits.out_bytes_max:
            self._write_portion(transport)
            return
        # From here on the transport has it: whoever adds up counts it there.
        size, self._out_bytes = self._out_bytes, 0
        if len(out) == 1:
            transport.write(out[0])
            out.clear()
        elif size <= COPY_BYTES_MAX:
            transport.write(b"".join(out))
            out.clear()
        else:
            transport.writelines(out)
            self._out = []
        if self._is_paused:
            self._weigh()

    def _write_portion(self, transport: asyncio.Transport) -> None:
        """Writes a part of what is much: all of it in one call would keep everybody waiting."""
        if self._is_portioned or self._is_paused:
            self._weigh()
            return
        self._carry = self.server.carrier.carry(transport, self._out, self._carried)
        if self._carry is not None:
            self._is_portioned = True
            return
        self._write_some(transport)

    def _carried(self, carry: Carry) -> None:
        """As much has gone out as the client took at once."""
        if carry is not self._carry:
            return
        self._recall()
        if self._transport is not None and self._out_bytes > 2 * self._limits.out_bytes_max:
            # Not carried again at once: the loop hears when the client goes on.
            self._write_some(self._transport)
        else:
            self.resume_writing()

    def _recall(self) -> None:
        """Takes off what was carried; nothing is carried any more."""
        carry, self._carry = self._carry, None
        if carry is not None:
            self._is_portioned = False
            self._take_off(carry.recall())

    def _take_off(self, size: int) -> None:
        self._out = behind(self._out, size)
        self._out_bytes -= size

    def _write_some(self, transport: asyncio.Transport) -> None:
        portion = front(self._out, self._limits.out_bytes_max)
        self._take_off(sum(map(len, portion)))
        self._write_later()
        transport.writelines(portion)

    def _write_later(self) -> None:
        """Goes on when others have had their turn."""
        if not self._is_portioned:
            self._is_portioned = True
            self._turns = self.server.turn_end.count
            self.server.loop.call_soon(self._portion_written)

    def _portion_written(self) -> None:
        self._is_portioned = False
        if self.server.turn_end.count != self._turns:
            # Somebody was answered meanwhile, and may be waiting for just this core.
            give_way()
        if self._transport is not None and not self._is_paused:
            self.resume_writing()

    def _flush_whole(self) -> None:
        """Writes all there is: nobody comes back for the rest."""
        is_entered = self._is_paused or self._carry is not None
        self._recall()
        out, self._out, self._out_bytes = self._out, [], 0
        if out and self._transport is not None:
            self._transport.writelines(out)
        if is_entered:
            self._weigh()

    def _pause_reading(self) -> None:
        if self._is_reading and self._transport is not None:
            self._is_reading = False
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if not self._is_reading and self._transport is not None:
            self._is_reading = True
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self._is_paused = True
        self._weigh()

    def _resumes_later(self) -> bool:
        """The client reads again; True when what is left follows in turns of its own."""
        was_paused, self._is_paused = self._is_paused, False
        self._weigh()
        if not was_paused or not self._out:
            return False
        # It is the transport that calls, and asyncio's is not to be ended meanwhile.
        self._write_later()
        return True

    # -- what the process holds for it -------------------------------------------------------

    def _is_full(self) -> bool:
        """Whether as much waits for the client as may: nothing more is to be answered."""
        bytes_max = self._limits.out_bytes_max
        is_much = self._queued_bytes > bytes_max or self._out_bytes > 2 * bytes_max
        return is_much or self._is_paused or self._is_portioned

    def _wait_in_line(self, request: Request, output: tuple[Payload, ...] | None) -> None:
        """An answer has to wait for those of earlier requests."""
        request.output = output
        if output is not None:
            self._queued[request] = size = sum(map(len, output))
            self._count_queued(size)

    def _count_queued(self, change_bytes: int) -> None:
        self._queued_bytes += change_bytes
        self._weigh()

    def _weigh(self) -> None:
        """Enters what waits for the client, where that is much."""
        size = self._queued_bytes + self.buffered_bytes
        if self._carry is not None:
            # What is carried is on its way; what has come behind it waits.
            size += self._out_bytes - self._carry.size_bytes
        elif self._is_paused:
            size += self._out_bytes
        if size > COPY_BYTES_MAX:
            self.server.unsent.enter(self, size, unacknowledged_bytes(self._transport))
        else:
            self.server.unsent.leave(self)

    def _leave_body(self) -> None:
        """Bodies that were entered in the ledger have been given to their handlers."""
        self._has_body_entered = False
        self.server.bodies.leave(self)

    def cut_body(self) -> None:
        """Bodies on their way are too much, and this one moves the least."""
        self.abort()

    # -- ending ------------------------------------------------------------------------------

    def _end(self) -> None:
        """Closes after everything that was written has gone out."""
        self._flush_whole()
        transport = self._transport
        if transport is None or self._ended_at:
            return
        self._ended_at = self.server.now
        if self._is_lingering:
            self._resume_reading()
            self._send_no_more(transport)
        else:
            transport.close()

    def scan(self, now: float) -> None:
        """Cuts off a client that does not read, or that does not go away when it is over."""
        if self._is_paused:
            self._weigh()
        if self._keeps_us_waiting(now):
            self.abort()
