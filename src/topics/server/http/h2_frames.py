"""The frames of an HTTP/2 connection: which belong to one turn, and which are too many or too much.

Seen before the h2 library sees them, which would gather a frame of any size before it refuses it.
"""

from __future__ import annotations

from collections.abc import Container

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
from h2.frame_buffer import FrameBuffer
from hyperframe.frame import DataFrame, Frame, GoAwayFrame, HeadersFrame, PriorityFrame

from topics.server.http.arrival import PREFACE
from topics.server.http.intake import Frames

HEAD_BYTES = 9
DATA, HEADERS, PRIORITY, WINDOW_UPDATE, CONTINUATION = 0, 1, 2, 8, 9
END_HEADERS = 4
FRAME_BYTES_MAX = 16 * 1024
# What a client may send of a request before it hears from us.
WINDOW_BYTES = 1024 * 1024
# A window that is opened by less than this says nothing of use.
OPENED_BYTES_MIN = 1024


class H2Frames(Frames):
    """`fault` is why the connection has to end, once there is a reason.

    `streams` are those that take data, `answered` those whose data is dropped as it comes.
    """

    __slots__ = (
        "_answered", "_block_bytes", "_head_bytes_max", "_late_bytes", "_streams", "_untold_bytes",
        "fault",
    )  # fmt: skip

    def __init__(
        self, head_bytes_max: int, streams: Container[int], answered: Container[int] = ()
    ) -> None:
        # The preface is as a frame without a head.
        super().__init__(len(PREFACE))
        self._head_bytes_max = head_bytes_max
        self._streams = streams
        self._answered = answered
        self._block_bytes = 0
        # What may still come for a stream that we have ended; and what was sent, in the windows of
        # both stream and connection, and has not been acknowledged.
        self._late_bytes = self._untold_bytes = 0
        self.fault: h2.errors.ErrorCodes | None = None

    def sent(self, size: int) -> None:
        """So much of an answer is on its way; clients open their windows again as they take it."""
        self._untold_bytes += 2 * size

    def stream_cut(self) -> None:
        """We have ended a stream; its client does not know, and may send on for a while."""
        self._late_bytes = WINDOW_BYTES

    def _begin(self, data: bytes, at: int) -> int:
        head = data[at : at + HEAD_BYTES]
        if len(head) < HEAD_BYTES:
            return 0
        size, kind = int.from_bytes(head[:3], "big"), head[3]
        number = int.from_bytes(head[5:], "big") & 0x7FFFFFFF
        if size > FRAME_BYTES_MAX:
            self.fault = h2.errors.ErrorCodes.FRAME_SIZE_ERROR
        if kind in (HEADERS, CONTINUATION):
            self._block_bytes += size
            if self._block_bytes > self._head_bytes_max:
                self.fault = h2.errors.ErrorCodes.ENHANCE_YOUR_CALM
            if head[4] & END_HEADERS:
                self._block_bytes = 0
        if kind == WINDOW_UPDATE and size == 4:
            increment = data[at + HEAD_BYTES : at + HEAD_BYTES + size]
            if len(increment) < size:
                return 0
            if self._is_told(int.from_bytes(increment, "big")):
                return HEAD_BYTES + size
        is_work = kind == HEADERS or (kind == DATA and size > 0 and number in self._streams)
        self.count(is_work=is_work, is_excused=not is_work and self._is_late(kind, number, size))
        if self.is_flood:
            self.fault = h2.errors.ErrorCodes.ENHANCE_YOUR_CALM
        return HEAD_BYTES + size

    def _is_late(self, kind: int, number: int, size: int) -> bool:
        """Whether it is of a body that its client sends on though its answer is there."""
        if kind != DATA or not size:
            return False
        if number in self._answered:
            return True
        is_on_its_way = size <= self._late_bytes
        if is_on_its_way:
            self._late_bytes -= size
        return is_on_its_way

    def _is_told(self, opened_bytes: int) -> bool:
        """Whether a window was opened again by what its client was sent."""
        if not OPENED_BYTES_MIN <= opened_bytes <= self._untold_bytes:
            return False
        self._untold_bytes -= opened_bytes
        return True


class Settings(h2.settings.Settings):
    """What we announce. How many streams there may be is looked at here, not by the library.

    To it one too many is the end of the connection; to RFC 9113 it is that of the stream.
    """

    @property
    def max_concurrent_streams(self) -> int:
        return 2**31 - 1

    @max_concurrent_streams.setter
    def max_concurrent_streams(self, value: int) -> None:
        self[h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS] = value


class _BadPriority(PriorityFrame):
    """One of a length that no such frame has."""


class _Buffer(FrameBuffer):
    """The library's, which gives up where a frame can not be read: not so where it says nothing."""

    def __next__(self) -> Frame:
        try:
            return super().__next__()
        except h2.exceptions.FrameDataMissingError:
            if self._data[3] != PRIORITY or self._headers_buffer:
                raise
        frame = _BadPriority(int.from_bytes(self._data[5:HEAD_BYTES], "big") & 0x7FFFFFFF)
        del self._data[: HEAD_BYTES + int.from_bytes(self._data[:3], "big")]
        return frame


class H2Connection(h2.connection.H2Connection):
    """A connection in which a request that is malformed ends its own stream and no other.

    The library ends the connection for whatever is wrong in a frame. RFC 9113 asks for that where
    the state of the connection is in doubt: for compression, numbers of streams, frames that can
    not be read. Fields that may not be, and a body of another length than announced, are not that.
    Nor is what is wrong in a priority: they are deprecated, and all the same to us.
    """

    def __init__(self, config: h2.config.H2Configuration) -> None:
        super().__init__(config)
        self.incoming_buffer = _Buffer(server=True)

    def is_open(self, number: int) -> bool:
        """Whether the window of a stream is; that of the connection may be shut."""
        stream = self.streams.get(number)
        return stream is not None and stream.outbound_flow_control_window > 0

    def _receive_frame(self, frame: Frame) -> list[h2.events.Event]:
        if isinstance(frame, GoAwayFrame):
            # To the library the connection is over. But its client only opens no more streams, and
            # waits for the answers of those there are.
            return [h2.events.ConnectionTerminated()]
        if isinstance(frame, PriorityFrame):
            stream = self.streams.get(frame.stream_id)
            if not isinstance(frame, _BadPriority) or stream is None or stream.closed:
                return []
            return self._cut(frame.stream_id, h2.errors.ErrorCodes.FRAME_SIZE_ERROR)
        try:
            return super()._receive_frame(frame)
        except h2.exceptions.ProtocolError as error:
            if frame.stream_id not in self.streams or not _is_of_stream(frame, error):
                raise
        if isinstance(frame, DataFrame) and frame.flow_controlled_length:
            self.acknowledge_received_data(frame.flow_controlled_length, frame.stream_id)
        return self._cut(frame.stream_id, h2.errors.ErrorCodes.PROTOCOL_ERROR)

    def _cut(self, number: int, code: h2.errors.ErrorCodes) -> list[h2.events.Event]:
        self.reset_stream(number, code)
        return [h2.events.StreamReset(stream_id=number, error_code=code, remote_reset=False)]


def _is_of_stream(frame: Frame, error: h2.exceptions.ProtocolError) -> bool:
    if isinstance(frame, DataFrame):
        return isinstance(error, h2.exceptions.InvalidBodyLengthError)
    # What has a cause is a head that could not be decompressed.
    return (
        isinstance(frame, HeadersFrame)
        and type(error) in (h2.exceptions.ProtocolError, h2.exceptions.InvalidBodyLengthError)
        and error.__cause__ is None
    )
