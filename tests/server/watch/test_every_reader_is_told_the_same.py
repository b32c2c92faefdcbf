"""One table of scenarios through diff, ranges, SSE and WebSocket, over real sockets: one answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.watch.conftest import stream, watch
from tests.server.watch.scenarios import SCENARIOS, Scenario, Stage, Told
from tests.support.servers import Client, Inside
from tests.support.streams import EventSource, Socket

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


def as_connecting(found: Told) -> Told:
    """As a stream calls it that has just connected."""
    if not isinstance(found, tuple):
        return found
    first, last, reason = found
    return first, last, CONNECTING.get(reason, reason)


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
    expected = [*map(as_connecting, scenario.told[:1]), *scenario.told[1:]]
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


@pytest.mark.slow
@every_scenario
def test_through_an_event_stream_that_breaks_after_every_event(
    stage: Stage, scenario: Scenario
) -> None:
    """Resuming with the id of what was processed tells the rest, nothing twice and nothing less."""
    scenario.prepare(stage)
    places = {stage.topic: place_of(scenario, stage)}
    url = watch(stage.client, places, **scenario.look)["stream_url"]
    told: list[Told] = []
    last_id = ""
    while True:
        with EventSource(stage.client.port, url, last_id=last_id) as events:
            event = events.next()
            last_id = events.last_id
        if event.name == "caught-up":
            break
        if event.name == "tombstone":
            told.append(gap_of(event.data))
        else:
            told += [record["$seq"] for record in event.data["records"]]
    assert told == [as_connecting(found) for found in scenario.told]


@pytest.mark.slow
@every_scenario
def test_through_a_web_socket_that_breaks_after_every_frame(
    stage: Stage, scenario: Scenario
) -> None:
    scenario.prepare(stage)
    told: list[Told] = []
    place = place_of(scenario, stage)
    while True:
        with Socket(stage.server.port) as socket:
            socket.ask("subscribe", topic=stage.topic, **place, **scenario.look)
            frame = socket.next()
        if frame["op"] == "caught_up":
            break
        if frame["op"] == "tombstone":
            told.append(gap_of(frame))
            is_new = frame["reason"] == "recreated"
            seq = frame["earliest_seq"] - 1 if is_new else frame["gap_to"]
        else:
            told += [record["$seq"] for record in frame["records"]]
            seq = frame["to_seq"]
        place = {"from_seq": seq, "epoch": frame["epoch"]}
    assert told == scenario.told


SEEN_BY_RANGES = [
    scenario
    for scenario in SCENARIOS
    # A range has no filter, and tells another epoch as one gap of what was asked for.
    if "node" not in scenario.look
    and not any(isinstance(found, tuple) and found[2] == "recreated" for found in scenario.told)
]


@pytest.mark.parametrize("scenario", SEEN_BY_RANGES, ids=lambda found: found.name)
def test_through_a_range(stage: Stage, scenario: Scenario) -> None:
    scenario.prepare(stage)
    told: list[Told] = []
    bounds = {"max_records": scenario.look.get("limit", 0)}
    from_seq = scenario.from_seq
    while True:
        body = {"from_seq": from_seq, **bounds}
        page = stage.client.post(f"{stage.path}/range", body).json
        gaps = [gap_of(gap) for gap in page["gaps"]]
        seqs = [record["$seq"] for record in page["records"]]
        told += sorted(
            [*gaps, *seqs], key=lambda found: found[0] if isinstance(found, tuple) else found
        )
        from_seq = page["next_from_seq"]
        if page["complete"]:
            break
    assert told == scenario.told


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
