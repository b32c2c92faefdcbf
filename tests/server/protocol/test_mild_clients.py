"""Clients that mean well are not taken for floods, however many small frames they send.

What they acknowledge was sent to them, what comes late for a stream was on its way when it ended,
and whoever is told much may ask now and then whether we are there.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import pytest

from tests.server.protocol.app import Served, serving
from tests.server.protocol.h2_client import H2Client
from tests.server.protocol.test_intake import PREFACE, h2_frame, pieces_of
from tests.server.protocol.test_websocket import HANDSHAKE, frame, received
from tests.server.protocol.wire import Wire, message
from tests.support.servers import inside
from topics.server.http.h2_frames import OPENED_BYTES_MIN, WINDOW_BYTES, H2Frames
from topics.server.http.h2c import RESETS_MAX, RESETS_PER_S, STREAMS_MAX
from topics.server.http.intake import IDLE_MAX, IDLE_SHARED_MIN
from topics.server.http.limits import HttpLimits

KIB = 1024
PING, PONG = 9, 10


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as served:
        yield served


class Reader(H2Client):
    """As Go's: large windows, opened again by each piece that its program reads, both of them."""

    def __init__(self, port: int, piece_bytes: int) -> None:
        super().__init__(port, acknowledges=False)
        self._piece_bytes = piece_bytes
        self._unread_bytes = 0
        self.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 4 * KIB * KIB})
        self.h2.increment_flow_control_window(1 << 30)
        self.flush()

    def _take(self, event: h2.events.Event) -> None:
        super()._take(event)
        if isinstance(event, h2.events.DataReceived):
            self._unread_bytes += event.flow_controlled_length
            while self._unread_bytes >= self._piece_bytes:
                self._unread_bytes -= self._piece_bytes
                self.h2.increment_flow_control_window(self._piece_bytes)
                with contextlib.suppress(h2.exceptions.StreamClosedError):
                    self.h2.increment_flow_control_window(self._piece_bytes, event.stream_id)


@pytest.mark.parametrize("piece_bytes", [4 * KIB, 16 * KIB])
def test_a_client_may_acknowledge_whatever_it_reads(served: Served, piece_bytes: int) -> None:
    """Late, too: the whole answer is on its way before the first piece is acknowledged."""
    with Reader(served.port, piece_bytes) as client:
        for _ in range(2):
            found = client.request("GET", "/big?n=6000000")
            assert (found.status, len(found.body), found.is_ended) == (200, 6_000_000, True)
        assert not client.is_terminated


def test_what_is_on_its_way_to_a_stream_that_was_refused_ends_that_stream_alone(
    tmp_path: Path,
) -> None:
    """Lines of an upload, a frame each, to a place that is not there."""
    with inside(tmp_path) as server, H2Client(server.port) as client:
        number = client.begin("POST", "/v0/nothing", (("content-type", "application/json"),))
        for _ in range(8 * IDLE_MAX):
            client.h2.send_data(number, b'{"line": 1}\n')
        client.flush()
        assert client.answer(number).status == 404
        assert client.request("GET", "/v0/health").status == 200
        assert not client.is_terminated


def test_who_looks_for_its_answer_last_finds_it(tmp_path: Path) -> None:
    """A body that is refused while it is on its way may come to its end, one after the other."""
    bodies, body_bytes = 12, WINDOW_BYTES
    fields = (("content-type", "application/json"), ("content-length", str(body_bytes)))
    with inside(tmp_path) as server, H2Client(server.port) as client:
        for _ in range(bodies):
            number = client.open("POST", "/v0/nothing", b" " * body_bytes, fields)
            found = client.answer(number)
            assert (found.status, found.reset) == (404, None)
        assert client.request("GET", "/v0/health").status == 200


def test_who_sends_no_more_when_it_was_refused_goes_on_elsewhere(tmp_path: Path) -> None:
    """As Go's: it resets the stream, as often as it is refused."""
    fields = (("content-type", "application/json"), ("content-length", "100000"))
    with inside(tmp_path) as server, H2Client(server.port) as client:
        for _ in range(3 * RESETS_MAX):
            number = client.begin("POST", "/v0/nothing", fields)
            assert client.answer(number).status == 404
            client.h2.reset_stream(number, h2.errors.ErrorCodes.CANCEL)
            client.flush()
        assert client.request("GET", "/v0/health").status == 200


def test_who_leaves_event_streams_goes_on_elsewhere(served: Served) -> None:
    """As Go's context and EventSource do: a reset is how a client ends what does not end."""
    with H2Client(served.port) as client:
        waiting = client.open("GET", "/never")
        for _ in range(3 * RESETS_MAX):
            number = client.open("GET", "/stream")
            client.until(number, b"retry")
            client.h2.reset_stream(number, h2.errors.ErrorCodes.CANCEL)
            client.flush()
        assert client.request("GET", "/json").status == 200
        assert client.streams[waiting].reset is None
    served.app.streams.clear()


def give_up(client: H2Client, count: int) -> None:
    """Takes back requests that were not answered, each at once."""
    for _ in range(count):
        client.h2.reset_stream(client.open("GET", "/never"), h2.errors.ErrorCodes.CANCEL)
        client.flush()
    assert client.request("GET", "/json").status == 200


def test_who_gives_up_now_and_then_goes_on_elsewhere() -> None:
    """Of streams that were not answered, so many more in a second."""
    count = 2 * RESETS_MAX - 20
    with serving(HttpLimits(scan_s=0.1)) as served, H2Client(served.port) as client:
        give_up(client, count)
        time.sleep(1.3 * RESETS_MAX / RESETS_PER_S)
        give_up(client, RESETS_MAX)
        assert not client.is_terminated


def test_who_is_told_much_may_ask_whether_we_are_there(served: Served) -> None:
    with Wire(served.port) as wire:
        assert wire.send(message("GET", "/ws", headers=HANDSHAKE)).answer().status == 101
        socket = served.app.sockets[-1]
        for _ in range(2 * IDLE_MAX):
            served.call(socket.send, b"news")
            wire.send(frame(PING))
            assert sorted(received(wire)[0] for _ in range(2)) == [1, PONG]


def test_a_client_may_say_behind_its_answer_that_its_request_is_whole(tmp_path: Path) -> None:
    """In a frame of its own, which httpx sends: the body was there before, and so is the answer."""
    body, fields = b'{"records":[{"data":1}]}', (("content-type", "application/json"),)
    with inside(tmp_path) as server, H2Client(server.port) as client:
        for seq in range(1, 4):
            length = ("content-length", str(len(body)))
            number = client.begin("POST", "/v0/topics/t", (*fields, length))
            client.h2.send_data(number, body)
            client.flush()
            assert json.loads(client.answer(number).body)["last_seq"] == seq
            client.h2.end_stream(number)
            client.flush()
            assert client.request("GET", "/v0/health").status == 200
            assert client.streams[number].reset is None


def test_answered_streams_that_never_end_are_ended_when_they_are_many(served: Served) -> None:
    with H2Client(served.port) as client:
        client.read()
        client.h2.remote_settings.update({3: 1000})
        client.h2.remote_settings.acknowledge()
        numbers = []
        for _ in range(STREAMS_MAX + 20):
            number = client.begin("POST", "/echo", (("content-length", "1"),))
            client.h2.send_data(number, b"x")
            client.flush()
            assert client.answer(number).body == b"x"
            numbers.append(number)
        assert client.request("GET", "/json").status == 200
        cut = [number for number in numbers if client.streams[number].reset is not None]
        assert cut == numbers[:20]
        assert {client.streams[number].reset for number in cut} == {0}


# -- what is counted ---------------------------------------------------------------------------


def opened(size: int, number: int = 1) -> bytes:
    """A window that is opened by so much."""
    return h2_frame(8, number, 4)[:9] + size.to_bytes(4, "big")


def counted(frames: H2Frames, sent: bytes) -> H2Frames:
    pieces_of(frames, [PREFACE + sent])
    return frames


def test_windows_are_opened_by_what_was_sent_and_no_more() -> None:
    size = 10 * OPENED_BYTES_MIN
    told = H2Frames(1000, {1})
    told.sent(size * IDLE_MAX)
    # Of the stream and of the connection.
    counted(told, (opened(size) + opened(size, 0)) * IDLE_MAX)
    assert not told.is_idle()
    pieces_of(told, [opened(size) * IDLE_SHARED_MIN])
    assert told.is_idle()
    small = H2Frames(1000, {1})
    small.sent(size * IDLE_MAX)
    assert counted(small, opened(OPENED_BYTES_MIN - 1) * IDLE_SHARED_MIN).is_idle()


def test_an_opened_window_is_looked_at_when_all_of_it_is_there() -> None:
    frames, update = H2Frames(1000, {1}), opened(4096)
    frames.sent(4096 * IDLE_SHARED_MIN)
    reads = [
        PREFACE,
        *(part for _ in range(IDLE_SHARED_MIN) for part in (update[:11], update[11:])),
    ]
    assert b"".join(piece for piece, _ in pieces_of(frames, reads)) == b"".join(reads)
    assert not frames.is_idle()


def test_what_comes_late_has_no_share_and_is_no_flood_up_to_a_window() -> None:
    late = H2Frames(1000, set())
    late.stream_cut()
    data = h2_frame(0, 1, WINDOW_BYTES // IDLE_MAX // 4)
    counted(late, data * 4 * IDLE_MAX)
    assert late.is_idle()
    assert late.fault is None
    pieces_of(late, [data * (IDLE_MAX + 2)])
    assert late.fault is not None


def test_the_rest_of_a_body_that_is_dropped_has_no_share_and_is_no_flood() -> None:
    dropped = counted(H2Frames(1000, set(), {1}), h2_frame(0, 1, 16_000) * 4 * IDLE_MAX)
    assert dropped.is_idle()
    assert dropped.fault is None
