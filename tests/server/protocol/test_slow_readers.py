"""Who takes an answer slowly gets all of it; who takes nothing is cut.

Slow is slower than anything that we do in large steps: the windows of HTTP/2, the buffers of the
system. `write_stall_s` is how long it may be that nothing moves at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import h2.settings
import pytest

from tests.server.protocol.app import Served, serving
from tests.server.protocol.h2_client import H2Client
from tests.server.protocol.wire import Wire, eventually, message, parse_one
from tests.support.tiers import quick_first
from topics.server.http.limits import HttpLimits

STALL_S = 1.0
# Long enough for several of them.
SLOW_S = 2.5 * STALL_S
STEP_S = 0.04
LIMITS = HttpLimits(write_stall_s=STALL_S, linger_s=0.3, scan_s=0.05)


@pytest.fixture(scope="module", params=quick_first(["uvloop", "asyncio"], 1))
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    with serving(LIMITS, loop=request.param) as served:
        yield served


def slowly(take: Callable[[], None]) -> None:
    end = time.monotonic() + SLOW_S
    while time.monotonic() < end:
        take()
        time.sleep(STEP_S)


class Shut(H2Client):
    """Opens its windows as it is told to, and no further."""

    def __init__(self, port: int, window_bytes: int) -> None:
        super().__init__(port, acknowledges=False)
        self.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window_bytes})
        self.flush()

    def take(self, size: int, number: int | None = None) -> None:
        """Opens a window, and reads what comes of it."""
        self.h2.increment_flow_control_window(size, number)
        self.flush()
        self.look()

    def look(self) -> None:
        self.socket.settimeout(STEP_S / 4)
        try:
            self.read()
        except TimeoutError:
            pass
        self.socket.settimeout(10)


@pytest.mark.parametrize("size", quick_first([60_000, 500_000], 1))
def test_an_answer_of_http_2_may_be_taken_as_slowly_as_its_client_likes(
    served: Served, size: int
) -> None:
    with Shut(served.port, 0) as client:
        number = client.open("GET", f"/big?n={size}")
        slowly(lambda: client.take(500, number))
        client.h2.increment_flow_control_window(size, number)
        client.h2.increment_flow_control_window(size)
        client.flush()
        found = client.answer(number)
        assert (len(found.body), found.is_ended, found.reset) == (size, True, None)


@pytest.mark.parametrize("size", quick_first([60_000, 500_000], 1))
def test_a_stream_that_takes_nothing_is_cut_while_others_go_on(served: Served, size: int) -> None:
    with Shut(served.port, 0) as client:
        still, slow = client.open("GET", f"/big?n={size}"), client.open("GET", "/big?n=60000")
        slowly(lambda: client.take(500, slow))
        assert client.streams[still].reset is not None
        assert client.streams[slow].reset is None
        assert client.request("GET", "/empty").status == 204


def test_a_stream_may_wait_for_the_window_that_it_shares(served: Served) -> None:
    with Shut(served.port, 1 << 20) as client:
        first, second = (client.open("GET", "/big?n=900000") for _ in range(2))
        slowly(lambda: client.take(500))
        assert len(client.streams[first].body) > 65_535
        client.h2.increment_flow_control_window(2_000_000)
        client.flush()
        assert [len(client.answer(number).body) for number in (first, second)] == [900_000] * 2


def test_streams_may_wait_for_the_socket_that_they_share(served: Served) -> None:
    with Shut(served.port, 1 << 24) as client:
        client.h2.increment_flow_control_window(1 << 30)
        numbers = [client.open("GET", "/big?n=9000000") for _ in range(2)]
        slowly(client.look)
        assert [len(client.answer(number).body) for number in numbers] == [9_000_000] * 2


@pytest.mark.parametrize("ending", quick_first(["", "Connection: close\r\n"], 1))
def test_an_answer_of_http_1_may_be_taken_as_slowly_as_its_client_likes(
    served: Served, ending: str
) -> None:
    with Wire(served.port, receive_bytes=16_384) as wire:
        wire.send(message("GET", "/big?n=20000000", headers=ending))
        got = bytearray()
        slowly(lambda: got.extend(wire.socket.recv(4096)))
        assert 0 < len(got) < 1_000_000
        while len(got) < 20_000_000:
            data = wire.socket.recv(1 << 20)
            assert data, f"it was cut after {len(got)} bytes"
            got += data
        assert len(parse_one(bytes(got), 0)[0].body) == 20_000_000


@pytest.mark.parametrize("ending", quick_first(["", "Connection: close\r\n"], 1))
def test_who_takes_nothing_is_cut(served: Served, ending: str) -> None:
    with Wire(served.port, receive_bytes=16_384) as wire:
        began = time.monotonic()
        wire.send(message("GET", "/big?n=20000000", headers=ending))
        eventually(lambda: served.server.connection_count > 0)
        eventually(lambda: served.server.connection_count == 0)
        assert STALL_S < time.monotonic() - began < 5 * STALL_S
