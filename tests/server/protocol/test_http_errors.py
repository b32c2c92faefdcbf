"""What goes wrong in a handler: one shape for all errors, and nothing of ours leaks."""

from __future__ import annotations

import pytest

from tests.server.protocol.app import Served
from tests.server.protocol.wire import Wire
from topics.errors import NotReady, Throttled, TopicNotFound
from topics.server.http.errors import error_response, response_to


def test_an_error_of_ours_keeps_its_code_and_detail(wire: Wire) -> None:
    answered = wire.request("GET", "/fail/full")
    assert answered.status == 422
    assert answered.json() == {
        "error": {"code": "topic_full", "message": "the topic is full", "detail": {"topic": "t"}}
    }


def test_throttling_says_when_to_come_back(wire: Wire) -> None:
    answered = wire.request("GET", "/fail/throttled")
    assert (answered.status, answered.headers["retry-after"]) == (429, "3")
    assert answered.json()["error"]["detail"] == {"retry_after_ms": 2500}


@pytest.mark.parametrize("how", ["bug", "storage", "header", "type", "stream"])
def test_a_bug_is_500_and_tells_nothing(wire: Wire, how: str) -> None:
    answered = wire.request("GET", f"/fail/{how}")
    assert (answered.status, answered.code) == (500, "internal")
    assert b"secret" not in answered.body
    assert "set-cookie" not in answered.headers
    assert wire.request("GET", "/json").status == 200


def test_a_failure_after_the_answer_does_not_answer_again(wire: Wire) -> None:
    assert wire.request("GET", "/fail/late").body == b'"answered"'
    assert wire.request("GET", "/json").body == b'{"ok":true}'


def test_an_error_without_detail_has_none() -> None:
    assert error_response(TopicNotFound("no such topic")).body == (
        b'{"error":{"code":"topic_not_found","message":"no such topic"}}'
    )


@pytest.mark.parametrize(
    ("detail", "seconds"),
    [({}, "1"), ({"retry_after_ms": 1}, "1"), ({"retry_after_ms": 1001}, "2"),
     ({"retry_after_ms": "soon"}, "1"), ({"limit": "max_topics", "max": 1}, "1")],
)  # fmt: skip
def test_retry_after_is_whole_seconds_rounded_up(detail: dict[str, object], seconds: str) -> None:
    for kind in (Throttled, NotReady):
        assert error_response(kind("busy", **detail)).headers == (("Retry-After", seconds),)


def test_text_that_is_not_unicode_does_not_break_the_error() -> None:
    response = response_to(TopicNotFound("no topic \ud800", topic="\ud800"))
    assert response.body == b'{"error":{"code":"topic_not_found","message":"no topic ?"}}'


def test_a_detail_that_json_does_not_know_is_shown() -> None:
    assert b'"near":"(1+2j)"' in response_to(TopicNotFound("x", near=1 + 2j)).body


def test_errors_keep_the_connection(served: Served) -> None:
    with Wire(served.port) as wire:
        for _ in range(3):
            assert wire.request("GET", "/nothing").status == 404
