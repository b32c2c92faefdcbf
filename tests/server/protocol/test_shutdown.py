"""A graceful end: what is in flight is answered, what comes later is sent away, nothing hangs."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.server.protocol.app import LOOPS, Served, numbers, serving
from tests.server.protocol.wire import Wire, eventually, message
from topics.server.http.limits import HttpLimits


@pytest.fixture(params=sorted(LOOPS))
def served(request: pytest.FixtureRequest) -> Any:
    with serving(HttpLimits(linger_s=0.3, scan_s=0.1), request.param) as served:
        yield served


class Ending:
    """A shutdown under way in the background."""

    def __init__(self, served: Served, grace_s: float = 5.0) -> None:
        self.is_clean: bool | None = None
        self._thread = threading.Thread(target=self._run, args=(served, grace_s))
        self._thread.start()
        eventually(lambda: served.server.is_draining)

    def _run(self, served: Served, grace_s: float) -> None:
        self.is_clean = served.call(served.server.shutdown, grace_s)

    def wait(self) -> bool | None:
        self._thread.join(10)
        return self.is_clean


def test_idle_connections_are_closed(served: Served, wire: Wire) -> None:
    assert wire.request("GET", "/json").status == 200
    ending = Ending(served)
    assert wire.is_closed()
    assert ending.wait()


def test_a_request_in_flight_is_answered(served: Served, wire: Wire) -> None:
    wire.send(message("GET", "/slow?100") + message("GET", "/slow?200"))
    eventually(lambda: served.server.connection_count == 1)
    wire.send(b"")
    served.call(lambda: None)
    ending = Ending(served)
    answers = [wire.answer(), wire.answer()]
    assert [a.json() for a in answers] == [{"slow": 100}, {"slow": 200}]
    assert "connection" not in answers[0].headers
    assert answers[1].headers["connection"] == "close"
    assert wire.is_closed()
    assert ending.wait()


def test_an_answer_that_has_begun_is_sent_whole(served: Served, wire: Wire) -> None:
    wire.send(message("GET", "/numbers?n=3000000"))
    eventually(lambda: served.server.connection_count == 1)
    assert wire.more()
    ending = Ending(served)
    assert wire.answer().body == b"".join(numbers(3_000_000))
    assert wire.is_closed()
    assert ending.wait()


def test_a_request_that_comes_later_is_sent_away(served: Served, wire: Wire) -> None:
    whole = message("POST", "/echo", b"abc")
    wire.send(whole[:-2])
    eventually(lambda: served.server.connection_count == 1)
    wire.send(whole[-2:-1])
    served.call(lambda: None)
    ending = Ending(served)
    answered = wire.send(whole[-1:]).answer()
    assert (answered.status, answered.code) == (503, "shutting_down")
    assert answered.headers["retry-after"] == "1"
    assert answered.headers["connection"] == "close"
    assert wire.is_closed()
    assert ending.wait()


def test_requests_that_were_not_started_are_sent_away_in_order() -> None:
    with serving(HttpLimits(pending_max=1)) as served, Wire(served.port) as wire:
        wire.send(message("GET", "/slow?150") + message("GET", "/json") * 2)
        eventually(lambda: served.server.connection_count == 1)
        served.call(lambda: None)
        ending = Ending(served)
        answers = [wire.answer(), wire.answer(), wire.answer()]
        assert [a.status for a in answers] == [200, 503, 503]
        assert ["connection" in a.headers for a in answers] == [False, False, True]
        assert wire.is_closed()
        assert ending.wait()


def test_new_connections_are_refused(served: Served) -> None:
    assert Ending(served).wait()
    with pytest.raises(ConnectionRefusedError):
        Wire(served.port)


def test_streams_are_told_and_do_not_hold_up_the_end(served: Served) -> None:
    with Wire(served.port) as told, Wire(served.port) as untold:
        told.send(message("GET", "/stream?drain")).until(b"retry: 2000\n\n")
        untold.send(message("GET", "/stream")).until(b"retry: 2000\n\n")
        ending = Ending(served)
        assert b"shutting_down" in told.rest()
        assert untold.rest().endswith(b"0\r\n\r\n")
        assert served.app.drained == 1
    assert ending.wait()


@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_a_reader_that_keeps_its_end_open_does_not_hold_up_the_end(loop: str) -> None:
    """It gets all of the stream all the same, whenever it reads on."""
    with serving(HttpLimits(linger_s=60.0, scan_s=0.1), loop) as served, Wire(served.port) as wire:
        wire.send(message("GET", "/stream?drain")).until(b"retry: 2000\n\n")
        ending = Ending(served, grace_s=2.0)
        assert ending.wait()
        rest = wire.rest()
        assert b"shutting_down" in rest
        assert rest.endswith(b"0\r\n\r\n")


def test_what_does_not_end_in_time_is_cut_off(served: Served, wire: Wire) -> None:
    wire.send(message("GET", "/never"))
    eventually(lambda: served.server.connection_count == 1)
    served.call(lambda: None)
    assert Ending(served, 0.2).wait() is False
    assert wire.is_closed()
    assert served.app.abandoned == 1


def test_a_peer_that_does_not_go_away_is_cut_off(served: Served, wire: Wire) -> None:
    """We have ended the stream; the client neither reads nor closes."""
    wire.send(message("GET", "/stream?end"))
    wire.until(b"0\r\n\r\n")
    eventually(lambda: served.server.connection_count == 0)
