"""Requests under pressure: they wait for their topic's turn, and what matters more goes first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.protocol.wire import eventually
from tests.server.watch.test_pressure_and_consistency import press
from tests.support.servers import Client, Inside, inside
from topics.server.api.call import Call
from topics.server.loop import parking

BODY = b'{"records":[{"data":1}]}'
HEADERS = {"Content-Type": "application/json"}


@pytest.fixture
def parked(tmp_path: Path) -> Iterator[Inside]:
    """A server under a little pressure, which nothing measures any more."""
    with inside(tmp_path) as served:
        with served.client() as client:
            client.put("/v0/topics/high", {"priority": 900})
            client.put("/v0/topics/low", {"priority": -900})
        served.run(lambda: served.services.delivery.close())
        press(served, 0.3)
        yield served


def ask(client: Client, topic: str) -> None:
    client.connection.request("POST", f"/v0/topics/{topic}", BODY, HEADERS)


def together(served: Inside, topics: list[str]) -> list[Client]:
    """Writes that the server sees in the same turn of its loop."""
    clients = [served.client() for _ in topics]
    for client in clients:
        client.get("/v0/health")
    with served.standing_still():
        for client, topic in zip(clients, topics, strict=True):
            ask(client, topic)
    return clients


def test_a_parked_request_says_how_long_it_waited(parked: Inside) -> None:
    with parked.client() as client:
        for reply in (client.write("low", 1), client.diff("low")):
            assert reply.status == 200
            assert reply.json["performance"]["throttle_wait_ms"] > 0
        press(parked, 0.0)
        assert "throttle_wait_ms" not in client.write("low", 1).json["performance"]
        assert client.diff("low").json["performance"]["throttle_wait_ms"] == 0
    assert len(parked.services.parking) == 0


def test_what_matters_more_is_done_first(parked: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the order in which they came."""
    order: list[str] = []
    go_on = parked.services.go_on

    def note(call: Any, resume: Any) -> None:
        order.append(call.path.rpartition("/")[2])
        go_on(call, resume)

    monkeypatch.setattr(parked.services.parking, "go_on", note)
    clients = together(parked, ["low"] * 5 + ["high"] * 5)
    for client in clients:
        assert client.connection.getresponse().status == 200
        client.close()
    assert order == ["high"] * 5 + ["low"] * 5


def test_nobody_waits_for_ever(parked: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has waited too long is told when to come back; a loader that would rather wait, waits."""
    monkeypatch.setattr(parking, "PARKED_S_MAX", -1.0)
    with parked.client() as client:
        reply = client.write("low", 1)
        assert (reply.status, reply.code) == (429, "throttled")
        assert reply.detail["retry_after_ms"] >= 250
        assert int(reply.headers["retry-after"]) >= 1
        assert client.write("low", 1, disable_backpressure=True).status == 200
        assert client.get("/v0/topics/low").json["count"] == 1


def test_what_is_wrong_is_refused_before_it_waits(parked: Inside) -> None:
    with parked.client() as client:
        assert client.post("/v0/topics/low", {"records": []}).status == 400
        assert client.diff("absent").status == 404
        reply = client.post("/v0/topics/new", {"records": [{"data": 1}], "create": False})
        assert reply.status == 404


def test_a_client_that_left_is_not_waited_for(
    parked: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its write was never begun, so it is not done."""
    with parked.client() as client, monkeypatch.context() as patch:
        looked: list[Call] = []
        patch.setattr(Call, "is_gone", property(lambda call: looked.append(call) is None))
        with parked.client() as other:
            ask(other, "low")
            eventually(lambda: len(looked) == 1)
            assert client.get("/v0/topics/low").json["count"] == 0
        patch.undo()
        assert client.write("low", 1).json["first_seq"] == 1
