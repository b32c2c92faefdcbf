"""What is sent again, when, and what a caller is told in the end."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.scripted import Line, Scripted, answer, refusal
from topics import AsyncClient, Client, RetryPolicy, errors

APPENDED = answer(
    200,
    b'{"topic":"t","first_seq":1,"last_seq":1,"head_seq":1,"count":1,"created":false,'
    b'"deduped":false}',
)
HEALTHY = answer(200, b'{"status":"ok","version":"0","uptime_ms":1}')
DROPPED = answer(200, b'{"topic":"t","deleted":true,"routers_removed":[]}')
LOST = b""
CUT = APPENDED[: len(APPENDED) // 2]
QUICK = RetryPolicy(give_up_after_s=5.0, pause_s_min=0.001, pause_s_max=0.002)


def tried(*script: Line, call: Callable[[Client], Any]) -> Scripted:
    """The server after a call that succeeded."""
    with Scripted(script) as server, Client(server.url, retries=QUICK) as client:
        call(client)
        return server


def append(client: Client) -> Any:
    return client.append("t", [{"data": 1}])


def test_a_lost_append_is_repeated_with_its_key() -> None:
    """The server may have done it: the key makes it answer the same instead of doing it again."""
    server = tried(LOST, LOST, APPENDED, call=append)
    keys = server.keys()
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert keys[0]
    assert len({body for _, body in server.requests}) == 1


def test_each_append_has_a_key_of_its_own() -> None:
    """Two appends of the same records are two appends."""
    server = tried(APPENDED, APPENDED, call=lambda client: (append(client), append(client)))
    first, second = server.keys()
    assert first != second


def test_an_unknown_outcome_is_repeated_with_its_key() -> None:
    """503 outcome_unknown is not a failure, and not a success."""
    server = tried(refusal(503, "outcome_unknown"), APPENDED, call=append)
    assert len(set(server.keys())) == 1


@pytest.mark.parametrize("code", ["throttled", "not_ready", "shutting_down", "store_unreachable"])
def test_a_refusal_that_passes_is_waited_out(code: str) -> None:
    """429 and 503 say when to come back, and are obeyed, for every call."""
    status = 429 if code == "throttled" else 503
    began = time.monotonic()
    tried(
        refusal(status, code, Retry_After="0.2"), DROPPED,
        call=lambda client: client.delete_topic("t"),
    )  # fmt: skip
    assert time.monotonic() - began >= 0.2


def test_what_does_harm_twice_is_not_repeated() -> None:
    """A topic of the same name may have been made since: the caller is told that nobody knows."""
    calls: list[Callable[[Client], Any]] = [
        lambda client: client.delete_topic("t"),
        lambda client: client.delete("t", match="x"),
        lambda client: client.append("t", [{"data": 1}], idempotency_key=""),
    ]
    for call in calls:
        with Scripted([LOST, DROPPED]) as server, Client(server.url, retries=QUICK) as client:
            with pytest.raises(errors.OutcomeUnknown):
                call(client)
            assert len(server.requests) == 1


def test_a_read_whose_answer_is_cut_is_repeated() -> None:
    """In the middle of its body, too."""
    tried(LOST, HEALTHY[:-3], HEALTHY, call=lambda client: client.health())


@pytest.mark.parametrize("code", ["topic_full", "disk_full", "internal", "invalid_request"])
def test_a_refusal_that_stays_is_told_at_once(code: str) -> None:
    """Trying again would change nothing."""
    status = {"topic_full": 422, "disk_full": 507, "internal": 500, "invalid_request": 400}[code]
    with Scripted([refusal(status, code)]) as server, Client(server.url, retries=QUICK) as client:
        with pytest.raises(errors.TopicsError) as told:
            append(client)
        assert told.value.code == code
        assert len(server.requests) == 1


def test_giving_up_tells_what_is_known() -> None:
    """Never sent is Unreachable; sent without an answer is OutcomeUnknown for a write only."""
    brief = RetryPolicy(give_up_after_s=0.1, pause_s_min=0.02)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    with Client(url, retries=brief) as client, pytest.raises(errors.Unreachable, match="refused"):
        append(client)
    with Scripted([LOST] * 50) as server, Client(server.url, retries=brief) as client:
        with pytest.raises(errors.OutcomeUnknown):
            append(client)
        with pytest.raises(errors.Unreachable):
            client.health()


def test_a_refusal_after_a_lost_answer_leaves_the_outcome_unknown() -> None:
    """The first try may have been carried out, whatever the second one met."""
    brief = RetryPolicy(give_up_after_s=0.1, pause_s_min=0.001)
    script = [LOST, refusal(429, "throttled", Retry_After="9")]
    with (
        Scripted(script) as server,
        Client(server.url, retries=brief) as client,
        pytest.raises(errors.OutcomeUnknown),
    ):
        append(client)


def test_something_in_between_that_gave_up_is_taken_for_a_lost_answer() -> None:
    """502 and 504 come from proxies, and say nothing about what the server did."""
    server = tried(answer(502, b"<html>"), answer(504, b""), APPENDED, call=append)
    assert len(set(server.keys())) == 1


def test_the_asyncio_client_retries_alike() -> None:
    """One policy for both."""

    async def use(url: str) -> None:
        async with AsyncClient(url, retries=QUICK) as client:
            await client.append("t", [{"data": 1}])
            with pytest.raises(errors.OutcomeUnknown):
                await client.delete_topic("t")

    with Scripted([LOST, refusal(503, "outcome_unknown"), CUT, APPENDED, LOST]) as server:
        asyncio.run(use(server.url))
        assert len(set(server.keys()[:4])) == 1


def test_a_task_that_is_cancelled_ends(url: str) -> None:
    """Also when the answer comes in at the same moment: nobody waits for it any more."""

    async def cancelled(client: AsyncClient, after_s: float) -> bool:
        task = asyncio.create_task(client.health())
        await asyncio.sleep(after_s)
        was_done = task.done()
        task.cancel()
        outcome = (await asyncio.gather(task, return_exceptions=True))[0]
        return was_done or isinstance(outcome, asyncio.CancelledError)

    async def use() -> None:
        async with AsyncClient(url) as client:
            for number in range(200):
                pauses = [(number * 7 + one) % 40 / 10_000 for one in range(10)]
                assert all(await asyncio.gather(*(cancelled(client, p) for p in pauses)))

    asyncio.run(use())


def test_a_key_is_never_in_what_is_shown() -> None:
    """Options are printed in tracebacks and logs."""
    with Client("http://127.0.0.1:1", "secret-token") as client:
        assert "secret-token" not in repr(client.options)
