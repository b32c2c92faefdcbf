"""HTTP/2 on the same port, for clients that begin with its preface."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import socket
import subprocess
import time

import pytest

from tests.server.protocol.app import LOOPS, Served, count_of, serving
from tests.server.protocol.h2_client import H2Client
from tests.server.protocol.wire import Wire, eventually
from topics.server.http.limits import HttpLimits

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def test_requests_are_answered_as_over_http_1(served: Served) -> None:
    with H2Client(served.port) as client:
        answered = client.request("GET", "/json")
        assert (answered.status, json.loads(answered.body)) == (200, {"ok": True})
        assert answered.headers["content-type"] == "application/json"
        assert "connection" not in answered.headers
        assert client.request("POST", "/echo", b"abc").body == b"abc"
        assert client.request("HEAD", "/json").body == b""
        assert client.request("GET", "/empty").status == 204
        assert client.request("GET", "/nothing").status == 404


def test_a_slow_answer_holds_nobody_back(served: Served) -> None:
    """Streams of one connection are answered as they are done."""
    with H2Client(served.port) as client:
        slow = client.open("GET", "/slow?300")
        quick = client.open("POST", "/later", b"abc")
        assert json.loads(client.answer(quick).body) == {"later": 3}
        assert not client.streams[slow].is_ended
        assert json.loads(client.answer(slow).body) == {"slow": 300}


@pytest.mark.parametrize("size", [1, 70_000, 3_000_000])
def test_bodies_of_any_size_pass_the_windows(served: Served, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"z" * (size % 256)
    with H2Client(served.port) as client:
        assert client.request("PUT", "/echo", body).body == body


def test_a_client_that_takes_nothing_is_sent_a_window_and_no_more(served: Served) -> None:
    with H2Client(served.port, acknowledges=False) as client:
        number = client.open("GET", "/big?n=5000000")
        client.until(number, b"x" * 65_534)
        other = client.open("GET", "/empty")
        assert client.answer(other).status == 204
        assert len(client.streams[number].body) == 65_535
        client.h2.increment_flow_control_window(10_000_000)
        client.h2.increment_flow_control_window(10_000_000, number)
        client.flush()
        assert len(client.answer(number).body) == 5_000_000


def test_an_event_stream_goes_on_beside_other_requests(served: Served) -> None:
    with H2Client(served.port) as client:
        number = client.open("GET", "/stream")
        eventually(lambda: len(served.app.streams) == 1)
        served.call(served.app.streams[0].send, b"data: 1\n\n")
        assert client.until(number, b"data: 1\n\n").endswith(b"data: 1\n\n")
        assert client.streams[number].headers["content-type"].startswith("text/event-stream")
        assert client.request("GET", "/json").status == 200
        closed = served.app.closed
        client.h2.reset_stream(number)
        client.flush()
        eventually(lambda: served.app.closed == closed + 1)
        assert client.request("GET", "/json").status == 200
    served.app.streams.clear()


def test_a_request_that_is_given_up_is_abandoned(served: Served) -> None:
    with H2Client(served.port) as client:
        number = client.open("GET", "/never")
        assert client.request("GET", "/json").status == 200
        before = served.app.abandoned
        client.h2.reset_stream(number)
        client.flush()
        eventually(lambda: served.app.abandoned == before + 1)


def test_the_limits_are_those_of_every_connection() -> None:
    with serving(HttpLimits(body_bytes_max=1000)) as served, H2Client(served.port) as client:
        refused = client.request("POST", "/echo", b"x" * 1001)
        assert (refused.status, json.loads(refused.body)["error"]["code"]) == (
            413, "payload_too_large",
        )  # fmt: skip
        assert client.request("POST", "/echo", b"x" * 1000).status == 200


def test_a_header_can_not_smuggle_another(served: Served) -> None:
    """What is one field in HTTP/2 is one field here, or the stream is refused."""
    with H2Client(served.port) as client:
        client.h2.config.validate_outbound_headers = False
        client.h2.config.normalize_outbound_headers = False
        number = client.open("GET", "/headers", headers=(("x-a", "1\r\nx-b: 2"),))
        stream = client.answer(number)
        assert stream.status == 0
    with H2Client(served.port) as client:
        assert client.answer(client.open("GET", "/json HTTP/1.1\r\nx: y")).status == 0
    with Wire(served.port) as wire:
        assert wire.request("GET", "/json").status == 200


def test_a_client_that_only_opens_and_resets_is_sent_away(served: Served) -> None:
    with H2Client(served.port) as client:
        for _ in range(2000):
            number = client.h2.get_next_available_stream_id()
            client.h2.send_headers(
                number,
                [(":method", "GET"), (":path", "/never"), (":scheme", "http"), (":authority", "x")],
                end_stream=True,
            )
            client.h2.reset_stream(number)
        try:
            client.flush()
            while client.read():
                pass
        except OSError:
            pass
        assert client.is_terminated


GOAWAY = b"\0\0\x08\x07\0" + bytes(12)


@pytest.mark.parametrize("path", ["/slow?200", "/slow?200,500000", "/big?n=500000"])
def test_a_goodbye_leaves_a_client_its_answers(served: Served, path: str) -> None:
    """It opens no more streams: that is all it says."""
    with H2Client(served.port) as client:
        number = client.open("GET", path)
        client.socket.sendall(GOAWAY)
        body = client.answer(number).body
        assert (len(body) >= 12, client.streams[number].is_ended) == (True, True)
        while client.read():
            pass
        assert client.is_terminated


def test_a_client_that_has_nothing_to_wait_for_is_let_go(served: Served) -> None:
    with H2Client(served.port) as client:
        assert client.request("GET", "/json").status == 200
        client.socket.sendall(GOAWAY)
        while client.read():
            pass
        assert client.is_terminated


def sends_no_more(client: H2Client) -> None:
    client.socket.shutdown(socket.SHUT_WR)
    # What would be acknowledged can not be any more.
    client.flush = lambda: client.h2.data_to_send()  # type: ignore[assignment,method-assign]


@pytest.mark.parametrize("path", ["/slow?200", "/slow?200,60000", "/big?n=60000"])
def test_a_client_that_sends_no_more_is_answered(served: Served, path: str) -> None:
    with H2Client(served.port) as client:
        numbers = [client.open("GET", path) for _ in range(2)]
        client.h2.increment_flow_control_window(1 << 20)
        client.flush()
        sends_no_more(client)
        for number in numbers:
            body = client.answer(number).body
            assert (len(body) >= 12, client.streams[number].is_ended) == (True, True)
        while client.read():
            pass
        assert client.is_terminated


def test_who_sends_no_more_has_left_what_wants_to_know_of_it(served: Served) -> None:
    """A long poll or an event stream, and a body that never comes to its end; no other stream."""
    with H2Client(served.port) as client:
        abandoned, closed = served.app.abandoned, served.app.closed
        waiting, events = client.open("GET", "/never"), client.open("GET", "/stream")
        half = client.begin("POST", "/echo", (("content-length", "10"),))
        slow = client.open("GET", "/slow?200")
        client.until(events, b"retry")
        sends_no_more(client)
        assert client.answer(slow).status == 200
        assert client.streams[waiting].reset == client.streams[half].reset is not None
        assert client.streams[events].is_ended
        while client.read():
            pass
        assert (served.app.abandoned, served.app.closed) == (abandoned + 1, closed + 1)
    served.app.streams.clear()


@pytest.mark.parametrize("path", ["/slow?200,60000", "/big?n=60000", "/big?n=600000"])
def test_what_passes_no_window_is_not_kept_for_who_sends_no_more(served: Served, path: str) -> None:
    """It opens none any more: it may have left as well."""
    with H2Client(served.port, acknowledges=False) as client:
        numbers = [client.open("GET", path) for _ in range(2)]
        sends_no_more(client)
        began = time.monotonic()
        while client.read():
            pass
        assert time.monotonic() - began < 2
        assert client.is_terminated
        assert client.streams[numbers[-1]].reset is not None
        assert sum(len(client.streams[number].body) for number in numbers) == 65_535
    eventually(lambda: served.server.unsent.held_bytes == 0)


def test_behind_its_goodbye_a_client_opens_no_stream(served: Served) -> None:
    with H2Client(served.port) as client:
        waiting = client.open("GET", "/slow?200")
        client.socket.sendall(GOAWAY)
        assert client.answer(client.open("GET", "/json")).reset is not None
        assert client.answer(waiting).status == 200


def test_a_shutdown_answers_what_is_in_flight() -> None:
    with serving() as served, H2Client(served.port) as client:
        slow = client.open("GET", "/slow?200")
        assert client.request("GET", "/json").status == 200
        shutdown = asyncio.run_coroutine_threadsafe(served.server.shutdown(5), served.loop)
        assert client.answer(slow).status == 200
        while client.read():
            pass
        assert client.is_terminated
        assert shutdown.result(10)


def test_noise_behind_the_preface_hurts_nobody(served: Served) -> None:
    """Whatever follows, the connection ends or waits, and the server answers the next one."""
    for seed in range(150):
        noise = random.Random(seed)
        with Wire(served.port) as wire:
            wire.send(PREFACE + noise.randbytes(noise.randrange(1, 400)))
            if seed % 3 == 0:
                wire.send(noise.randbytes(50))
    with H2Client(served.port) as client:
        assert client.request("GET", "/json").status == 200


def test_curl_speaks_it(served: Served) -> None:
    curl = shutil.which("curl")
    if (
        curl is None
        or "HTTP2"
        not in subprocess.run(
            [curl, "--version"], capture_output=True, text=True, check=True
        ).stdout
    ):
        pytest.skip("there is no curl with HTTP/2")
    done = subprocess.run(
        [curl, "-sS", "--http2-prior-knowledge", "-w", " %{http_version}", "-d", "x" * 100_000,
         f"http://127.0.0.1:{served.port}/echo"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "x" * 100_000 + " 2"


@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_streams_are_no_connections(loop: str) -> None:
    """A few connections full of them would shut the door for everybody else."""
    with serving(HttpLimits(connections_max=3, scan_s=0.1), loop) as served:
        with H2Client(served.port) as client:
            for path in ("/never", "/stream"):
                for _ in range(20):
                    client.open("GET", path)
            eventually(lambda: served.server.stream_count == 40)
            with Wire(served.port) as wire:
                assert wire.request("GET", "/json").status == 200
                assert served.server.connection_count == 2
        eventually(lambda: count_of(served.server) == 0)
        assert (served.app.abandoned, served.app.closed) == (20, 20)
        assert served.server.refused_total == 0
