"""One table of scenarios through diff, SSE and WebSocket, over real sockets: one answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.watch.conftest import stream
from tests.server.watch.scenarios import SCENARIOS, Scenario, Stage, Told
from tests.support.servers import Client, Inside
from tests.support.streams import Socket

# What a stream calls loss to cap or TTL that a reader brings along when it connects.
CONNECTING = {"cap": "from_seq_too_old", "ttl": "from_seq_too_old", "mixed": "from_seq_too_old"}

every_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda found: found.name)


@pytest.fixture
def stage(server: Inside, client: Client, topic: str) -> Stage:
    return Stage(server, client, topic)


def of_page(page: Any) -> Iterator[Told]:
    if page.get("tombstone") is not None:
        yield gap_of(page["tombstone"])
    yield from (record["$seq"] for record in page["records"])


def gap_of(told: Any) -> tuple[int, int, str]:
    return told["gap_from"], told["gap_to"], told["reason"]


def place_of(scenario: Scenario, stage: Stage) -> dict[str, Any]:
    place: dict[str, Any] = {"from_seq": scenario.from_seq}
    if scenario.has_old_epoch:
        place["epoch"] = stage.epoch
    return place


@every_scenario
def test_through_diff(stage: Stage, scenario: Scenario) -> None:
    scenario.prepare(stage)
    told: list[Told] = []
    place = place_of(scenario, stage)
    while True:
        page = stage.client.diff(stage.topic, **place, **scenario.look).json
        told += of_page(page)
        if page["caught_up"]:
            break
        assert page["next_from_seq"] != place["from_seq"] or page["tombstone"] is not None
        place = {"from_seq": page["next_from_seq"], "epoch": page["epoch"]}
    assert told == scenario.told


@every_scenario
def test_through_an_event_stream(stage: Stage, scenario: Scenario) -> None:
    scenario.prepare(stage)
    expected = list(scenario.told)
    if expected and isinstance(expected[0], tuple):
        first, last, reason = expected[0]
        expected[0] = (first, last, CONNECTING.get(reason, reason))
    told: list[Told] = []
    places = {stage.topic: place_of(scenario, stage)}
    with stream(stage.client, places, **scenario.look) as events:
        cursor = None
        for event in events.until("caught-up"):
            assert event.data["topic"] == stage.topic
            if event.name == "tombstone":
                told.append(gap_of(event.data))
                is_new = event.data["reason"] == "recreated"
                cursor = event.data["earliest_seq"] - 1 if is_new else event.data["gap_to"]
            elif event.name == "record":
                told += [record["$seq"] for record in event.data["records"]]
                assert cursor in (None, event.data["from_seq"])
                cursor = event.data["to_seq"]
            else:
                assert event.data["head_seq"] == event.place[stage.topic]
                continue
            assert event.place == {stage.topic: cursor}
    assert told == expected


@every_scenario
def test_through_a_web_socket(stage: Stage, scenario: Scenario) -> None:
    scenario.prepare(stage)
    told: list[Told] = []
    with Socket(stage.server.port) as socket:
        answer = socket.ask(
            "subscribe", topic=stage.topic, **place_of(scenario, stage), **scenario.look
        )
        assert answer["op"] == "subscribed"
        for frame in socket.until("caught_up"):
            if frame["op"] == "tombstone":
                told.append(gap_of(frame))
            elif frame["op"] == "record":
                told += [record["$seq"] for record in frame["records"]]
    assert told == scenario.told
