"""What is done beside writes: upkeep and ranges come behind them, and come."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from tests.server.protocol.wire import Wire, message
from tests.support.servers import inside
from topics.engine.engine import Engine

TURNS = 200
RANGE = b'{"from_seq":0}'
JSON = "Content-Type: application/json\r\n"


def test_maintenance_comes_behind_a_write_of_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    flush, maintain = Engine.flush, Engine.maintain

    def noted_flush(engine: Engine) -> None:
        seen.append("write")
        flush(engine)

    def noted_maintain(engine: Engine, budget_s: float) -> bool:
        seen.append("maintenance")
        return maintain(engine, budget_s)

    monkeypatch.setattr(Engine, "flush", noted_flush)
    monkeypatch.setattr(Engine, "maintain", noted_maintain)
    with inside(tmp_path) as served:
        driver = served.services.driver

        def meet() -> None:
            """Maintenance is next, and then something is written."""
            seen.clear()
            driver.work_soon()
            driver.flush_soon()

        served.run(meet)
        served.wait_until(lambda: len(seen) >= 2)
    assert seen[:2] == ["write", "maintenance"]


def test_maintenance_has_its_share_of_a_loop_that_always_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that comes in every turn comes in front of it, and never in its place."""
    seen: list[str] = []
    monkeypatch.setattr(Engine, "flush", lambda _engine: seen.append("write"))
    with inside(tmp_path) as served:
        services, maintain = served.services, Engine.maintain

        def noted_maintain(engine: Engine, budget_s: float) -> bool:
            seen.append("maintenance")
            maintain(engine, budget_s)
            return True

        def turn() -> None:
            services.driver.flush_soon()
            if seen.count("write") < TURNS:
                services.loop.call_soon(turn)

        def begin() -> None:
            monkeypatch.setattr(Engine, "maintain", noted_maintain)
            services.driver.work_soon()
            turn()

        served.run(begin)
        served.wait_until(lambda: seen.count("write") >= TURNS)
        monkeypatch.undo()
    # With nobody writing any more it has the loop for itself.
    while seen[-1] == "maintenance":
        seen.pop()
    assert seen.count("maintenance") > TURNS / 4


def test_a_small_range_is_answered_beside_writes_to_a_client_that_sends_no_more(
    tmp_path: Path,
) -> None:
    with inside(tmp_path) as served, served.client() as client:
        client.write("t", 1)
        with Wire(served.port) as wire:
            with served.standing_still():
                wire.send(message("POST", "/v0/topics/t/range", RANGE, JSON))
                wire.socket.shutdown(socket.SHUT_WR)
            answer = wire.answer()
    assert (answer.status, json.loads(answer.body)["complete"]) == (200, True)


def test_a_range_does_not_see_what_its_client_sent_behind_it(tmp_path: Path) -> None:
    write = json.dumps({"records": [{"data": 2}]}).encode()
    with inside(tmp_path) as served, served.client() as client:
        client.write("t", 1)
        with Wire(served.port) as wire:
            wire.send(
                message("POST", "/v0/topics/t/range", RANGE, JSON)
                + message("POST", "/v0/topics/t", write, JSON)
            )
            page, written = wire.answer(), wire.answer()
    assert [record["data"] for record in json.loads(page.body)["records"]] == [1]
    assert json.loads(written.body)["last_seq"] == 2
