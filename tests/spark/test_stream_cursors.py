"""Streams with a name on the server: their start stays, their progress shows, they run once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.spark.support import WAIT_S, Log, told
from tests.spark.test_stream_source import failure, wait_for


def test_a_failed_first_batch_with_latest_loses_nothing(log: Log, tmp_path: Path) -> None:
    """Spark forgets where a stream began until its first batch is done; the cursor does not."""
    topic = log.topic(*range(40))
    frame = log.stream(topic, startingOffsets="latest", cursor="c", maxOffsetsPerTrigger=100)
    # It fixes its start, plans its first batch, and fails in it.
    failing = frame.selectExpr("*", "assert_true(seq < 0) as never")
    query = log.start(failing, tmp_path)
    deadline = time.monotonic() + WAIT_S
    while "cursor" not in log.cursor(topic, "c"):
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    log.write(topic, *range(60))
    assert "never" in failure(query) or "assert_true" in failure(query)
    log.write(topic, *range(10))
    rows = log.drain(frame.selectExpr("*", "null as never"), tmp_path)
    assert told(rows) == list(range(41, 111))
    assert log.cursor(topic, "c.start")["seq"] == 40


def test_progress_shows_and_a_new_checkpoint_goes_on_from_it(log: Log, tmp_path: Path) -> None:
    """The last batch of AvailableNow included, which Spark never commits to a source."""
    topic = log.topic(*range(5))
    frame = log.stream(topic, cursor="c", maxOffsetsPerTrigger=2)
    assert told(log.drain(frame, tmp_path / "a")) == [1, 2, 3, 4, 5]
    log.write(topic, 5, 6)
    found = log.cursor(topic, "c")
    assert (found["seq"], found["lag"]) == (5, 2)
    assert told(log.drain(frame, tmp_path / "b")) == [6, 7]
    assert log.cursor(topic, "c.start")["seq"] == 0


def test_two_running_queries_under_one_cursor_are_refused(log: Log, tmp_path: Path) -> None:
    topic = log.topic(1, 2)
    frame = log.stream(topic, cursor="c")
    first = log.start(frame, tmp_path / "a")
    try:
        wait_for(first, log, topic, "c", 2)
        assert "TOPIC_CURSOR_IN_USE" in failure(log.start(frame, tmp_path / "b"))
        log.write(topic, 3)
        wait_for(first, log, topic, "c", 3)
    finally:
        first.stop()
    # Its lease ends with it, and the next one may have the name.
    log.write(topic, 4)
    assert told(log.drain(frame, tmp_path / "c")) == [4]


@pytest.mark.parametrize("hold", [{"cursorHoldBytes": 1_000_000}, {"cursorHoldMs": 600_000}])
def test_a_hold_keeps_what_is_not_read_yet(log: Log, tmp_path: Path, hold: dict[str, int]) -> None:
    topic = log.topic(*range(3))
    frame = log.stream(topic, cursor="c", **hold)
    log.drain(frame, tmp_path)
    log.write(topic, *range(10))
    log.evict(topic, keep=2)
    assert told(log.drain(frame, tmp_path)) == list(range(1, 14))
