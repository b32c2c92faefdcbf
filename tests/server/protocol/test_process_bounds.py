"""What all clients together can make the process hold, and that others are served meanwhile."""

from __future__ import annotations

import contextlib
import gzip
import struct
import time
from collections.abc import Iterator

import h2.settings
import pytest

from tests.server.protocol.app import Served, serving
from tests.server.protocol.h2_client import H2Client
from tests.server.protocol.test_websocket import HANDSHAKE, frame
from tests.server.protocol.wire import Wire, eventually, message
from topics.server.http.limits import HttpLimits

KIB, MIB = 1024, 1024 * 1024
BODY = 100 * KIB
LIMITS = HttpLimits(
    body_bytes_max=BODY, message_bytes_max=BODY, inflight_body_bytes_max=4 * BODY,
    unsent_bytes_max=4 * MIB, write_stall_s=20.0, scan_s=0.1,
)  # fmt: skip


@pytest.fixture
def served() -> Iterator[Served]:
    with serving(LIMITS) as served:
        yield served


def unfinished() -> bytes:
    return message("POST", "/echo", b"x" * BODY)[:-1]


def settled(served: Served) -> None:
    """Waits until the server has seen what was sent, and long enough to tell who stands still."""
    time.sleep(1.3)
    assert served.server.bodies.held_bytes <= 4 * BODY


def test_past_the_bound_the_slowest_body_is_refused_and_another_gets_through(
    served: Served,
) -> None:
    with contextlib.ExitStack() as stack:
        still = [stack.enter_context(Wire(served.port)) for _ in range(4)]
        for wire in still:
            wire.send(unfinished())
        settled(served)
        assert served.server.bodies.held_bytes > 3 * BODY
        quick = stack.enter_context(Wire(served.port))
        quick.send(unfinished())
        time.sleep(0.1)
        assert quick.send(b"x").answer().status == 200
        refused = still[0].answer()
        assert (refused.status, refused.code) == (429, "throttled")
        assert refused.json()["error"]["detail"]["limit"] == "max_inflight_body_bytes"
        assert refused.headers["retry-after"] == "1"
        assert still[0].is_closed()
        assert still[1].send(b"x").answer().status == 200, "as many are cut as need be"
        assert served.server.bodies.cuts == 1
    eventually(lambda: served.server.bodies.held_bytes == 0)


def test_a_body_in_one_read_needs_no_room(served: Served) -> None:
    """So that a server whose room is taken goes on to take what most clients send."""
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(Wire(served.port)).send(unfinished())
        with Wire(served.port) as wire:
            for _ in range(20):
                assert wire.request("POST", "/echo", b"x" * 1000).status == 200
        assert served.server.bodies.cuts == 0


def test_streams_of_one_connection_hold_no_more_than_the_bound(served: Served) -> None:
    with H2Client(served.port) as client, Wire(served.port) as wire:
        numbers = [client.begin("POST", "/echo") for _ in range(50)]
        client.socket.settimeout(0.05)
        held = []
        for _ in range(6):
            with contextlib.suppress(TimeoutError):
                while client.read():
                    pass
            for number in numbers:
                stream, room = client.streams[number], client.h2.local_flow_control_window(number)
                if stream.reset is None and not stream.status and room >= 16_000:
                    client.h2.send_data(number, b"x" * 16_000)
            client.flush()
            assert wire.request("GET", "/json").status == 200
            held.append(served.server.bodies.held_bytes)
        assert max(held) <= 4 * BODY
        assert 429 in {client.streams[number].status for number in numbers}
        assert served.server.bodies.cuts >= 20
    eventually(lambda: served.server.bodies.held_bytes == 0)


def test_messages_that_are_not_whole_count_as_bodies(served: Served) -> None:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(Wire(served.port)) for _ in range(5)]
        for wire in sockets:
            assert wire.send(message("GET", "/ws", headers=HANDSHAKE)).answer().status == 101
            wire.send(frame(1, b"x" * (BODY - KIB), fin=False))
        eventually(lambda: served.server.bodies.cuts > 0)
        assert served.server.bodies.held_bytes <= 4 * BODY
        with Wire(served.port) as wire:
            assert wire.request("GET", "/json").status == 200
    eventually(lambda: served.server.bodies.held_bytes == 0)


def test_a_body_that_came_fast_may_not_be_held_for_long() -> None:
    """Its bytes would have allowed it many seconds more."""
    limits = HttpLimits(body_s=0.4, body_bytes_per_s_min=10_000, scan_s=0.1, linger_s=0.2)
    with serving(limits) as served, Wire(served.port) as wire:
        began = time.monotonic()
        wire.send(message("POST", "/echo", b"x" * BODY)[:-1])
        answered = wire.answer()
        assert (answered.status, answered.code) == (408, "request_timeout")
        assert time.monotonic() - began < 3


@pytest.mark.slow
def test_bombs_are_unpacked_a_few_at_a_time() -> None:
    bomb = gzip.compress(b"x" * (8 * MIB))
    with serving() as served, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Wire(served.port)) for _ in range(12)]
        for wire in clients:
            wire.send(message("POST", "/later", bomb, "Content-Encoding: gzip\r\n"))
        most = 0
        for wire in clients:
            most = max(most, served.call(lambda: served.server.decoding.running))
            assert wire.answer().json() == {"later": 8 * MIB}
        assert most <= 2


# -- answers -------------------------------------------------------------------------------------


def blocked(port: int, streams: int, size: int) -> H2Client:
    """A client whose windows are shut and that asks for much."""
    client = H2Client(port)
    client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
    client.flush()
    for _ in range(streams):
        client.open("GET", f"/big?n={size}")
    return client


@pytest.mark.slow
def test_requests_of_a_client_that_takes_nothing_wait_instead_of_being_answered(
    served: Served,
) -> None:
    with blocked(served.port, 95, MIB) as client, Wire(served.port) as wire:
        for _ in range(30):
            assert wire.request("GET", "/big?n=100000").status == 200
            assert served.server.unsent.held_bytes <= 4 * MIB
        assert served.server.unsent.held_bytes > MIB
        assert served.server.unsent.cuts == 0
        # Whoever takes what there is gets all of it in the end.
        client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 16 * MIB})
        client.h2.increment_flow_control_window(1000 * MIB)
        client.flush()
        assert {len(client.answer(number).body) for number in client.streams} == {MIB}
    eventually(lambda: served.server.unsent.held_bytes == 0)


def test_past_the_bound_those_that_take_the_least_are_cut(served: Served) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(12):
            stack.enter_context(blocked(served.port, 10, MIB))
        eventually(lambda: served.server.unsent.cuts >= 5)
        assert served.server.unsent.held_bytes <= 4 * MIB
        with Wire(served.port) as wire:
            assert len(wire.request("GET", "/big?n=3000000").body) == 3_000_000
    eventually(lambda: served.server.unsent.held_bytes == 0)


def test_small_answers_behind_shut_windows_are_bounded_too(served: Served) -> None:
    """None of them is much, and there are a hundred to a connection."""
    with contextlib.ExitStack() as stack:
        # Each may have 256 KiB, however scarce room is.
        for _ in range(20):
            stack.enter_context(blocked(served.port, 90, 30 * KIB))
        eventually(lambda: served.server.unsent.cuts > 0)
        assert MIB < served.server.unsent.held_bytes <= 4 * MIB
        with Wire(served.port) as wire:
            assert wire.request("GET", "/json").status == 200
    eventually(lambda: served.server.unsent.held_bytes == 0)


def test_what_waits_behind_shut_windows_is_counted_once(served: Served) -> None:
    sizes = (100 * KIB, 60 * KIB, 30 * KIB, 200 * KIB)
    with blocked(served.port, 0, 0) as client:
        numbers = [client.open("GET", f"/big?n={size}") for size in sizes]
        held = sum(sizes)
        eventually(lambda: served.server.unsent.held_bytes == held)
        # What is left of the first is little, and goes on to be counted.
        for number, taken in zip(numbers, (70 * KIB, 10 * KIB, 0, 10 * KIB), strict=True):
            if taken:
                client.h2.increment_flow_control_window(taken, number)
                client.h2.increment_flow_control_window(taken)
                client.flush()
                held -= taken
                eventually(lambda left=held: served.server.unsent.held_bytes == left)
        for number in numbers:
            client.h2.increment_flow_control_window(MIB, number)
        client.h2.increment_flow_control_window(MIB)
        client.flush()
        assert [len(client.answer(number).body) for number in numbers] == list(sizes)
        eventually(lambda: served.server.unsent.held_bytes == 0)


def test_connections_that_do_not_read_are_bounded_together(served: Served) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(12):
            wire = stack.enter_context(Wire(served.port, receive_bytes=4096))
            wire.send(message("GET", "/big?n=6000000"))
        eventually(lambda: served.server.unsent.cuts >= 5)
        assert served.server.unsent.held_bytes <= 4 * MIB
        with Wire(served.port) as wire:
            assert wire.request("GET", "/json").status == 200


@pytest.mark.slow
def test_a_client_that_reads_steadily_stays_when_others_come_and_read_nothing(
    served: Served,
) -> None:
    """The system has megabytes of its answer: here it stands still for more than a second."""
    size, pace = 6_000_000, 1_000_000
    with contextlib.ExitStack() as stack:
        steady = stack.enter_context(Wire(served.port, receive_bytes=4096))
        steady.send(message("GET", f"/big?n={size}"))
        began, others = time.monotonic(), 0
        while len(steady.buffer) < size:
            assert steady.more(), "it was cut"
            time.sleep(max(0.0, began + len(steady.buffer) / pace - time.monotonic()))
            if others < 6 and time.monotonic() > began + 2.0 + others / 10:
                other = stack.enter_context(Wire(served.port, receive_bytes=4096))
                other.send(message("GET", f"/big?n={size}"))
                others += 1
        assert served.server.unsent.cuts >= 3


def test_event_streams_that_are_not_read_are_bounded_too(served: Served) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(12):
            wire = stack.enter_context(Wire(served.port, receive_bytes=4096))
            wire.send(message("GET", "/stream"))
        eventually(lambda: len(served.app.streams) == 12)
        closed = served.app.closed
        for stream in served.app.streams:
            served.call(stream.send, b"x" * 5_000_000)
        eventually(lambda: served.app.closed - closed >= 8)
        assert served.server.unsent.held_bytes <= 4 * MIB


@pytest.mark.parametrize("path", ["/slow?0,500000", "/big?n=500000"])
def test_answers_behind_a_slow_one_do_not_pile_up(served: Served, path: str) -> None:
    """They would wait in memory for the first: the requests do instead, if of another kind all."""
    with Wire(served.port) as wire:
        wire.send(message("GET", "/slow?400") + message("GET", path) * 100)
        most = 0
        deadline = time.monotonic() + 0.3
        while time.monotonic() < deadline:
            most = max(most, served.call(lambda: served.server.unsent.held_bytes))
        assert (most > 0) == path.startswith("/slow")
        assert most < 2 * MIB
        sizes = [len(wire.answer().body) for _ in range(101)]
        assert sizes == [12, *[500_000] * 100]
    assert served.server.unsent.cuts == 0


def test_a_client_that_reads_nothing_of_the_connection_is_cut_off() -> None:
    limits = HttpLimits(write_stall_s=0.5, linger_s=0.3, scan_s=0.1, idle_s=60.0)
    with serving(limits) as served:
        client = H2Client(served.port)
        client.h2.increment_flow_control_window(1000 * MIB)
        client.flush()
        # Windows as wide as can be: it is the socket that is full.
        client.socket.sendall(struct.pack(">IBIHI", 6 << 8 | 4, 0, 0, 4, 2**31 - 1))
        for _ in range(8):
            client.open("GET", "/big?n=9000000")
        eventually(lambda: served.server.connection_count == 0)
        client.socket.close()
