"""Threads beside the loop: each piece of work ends once, on the loop, behind the turn's answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from concurrent.futures import Future
from typing import TypeAlias

import pytest

from topics.server.http.beside import Beside
from topics.server.http.turns import TurnEnd

Ends: TypeAlias = "asyncio.Queue[Future[int]]"
PATIENCE_S = 20


def beside() -> tuple[Beside, TurnEnd, Ends]:
    """One thread, whose turns count for it, and where the ends of its work may go."""
    loop = asyncio.get_running_loop()
    found, turn_end = Beside(loop, 1, "test"), TurnEnd(loop)
    found.attach(turn_end)
    return found, turn_end, asyncio.Queue()


async def soon(ends: Ends) -> Future[int]:
    return await asyncio.wait_for(ends.get(), PATIENCE_S)


def test_work_is_done_in_a_thread_and_ends_on_the_loop() -> None:
    async def main() -> None:
        thread, _, ends = beside()
        home, told = threading.get_ident(), []

        def note(future: Future[int]) -> None:
            told.append(threading.get_ident())
            ends.put_nowait(future)

        thread.do(threading.get_ident, note)
        thread.do(lambda: 1 // 0, note)
        assert (await soon(ends)).result() != home
        assert isinstance((await soon(ends)).exception(), ZeroDivisionError)
        assert told == [home, home]
        thread.close()

    asyncio.run(main())


def test_no_thread_is_woken_before_the_end_of_the_turn() -> None:
    async def main() -> None:
        thread, turn_end, ends = beside()
        seen: list[str] = []

        def work() -> int:
            seen.append("work")
            return 0

        thread.do(work, ends.put_nowait)
        turn_end.defer(lambda: seen.append("answers"))
        turn_end.defer_behind(lambda: seen.append("behind"))
        await soon(ends)
        assert seen == ["answers", "behind", "work"]
        thread.close()

    asyncio.run(main())


def test_what_has_not_begun_when_it_closes_is_cancelled() -> None:
    async def main() -> None:
        thread, _, ends = beside()
        loop = asyncio.get_running_loop()
        begun, may_end = asyncio.Event(), threading.Event()

        def work() -> int:
            loop.call_soon_threadsafe(begun.set)
            may_end.wait(PATIENCE_S)
            return 1

        thread.do(work, ends.put_nowait)
        thread.do(lambda: 2, ends.put_nowait)
        waiting: Awaitable[bool] = begun.wait()
        await asyncio.wait_for(waiting, PATIENCE_S)
        # One is with the threads by now, one is not yet.
        thread.do(lambda: 3, ends.put_nowait)
        thread.close()
        assert (await soon(ends)).cancelled()
        assert (await soon(ends)).cancelled()
        may_end.set()
        assert (await soon(ends)).result() == 1

    asyncio.run(main())


def test_an_end_that_nobody_waits_for_any_more_is_dropped() -> None:
    begun, may_end = threading.Event(), threading.Event()
    seen: list[str] = []
    workers: list[threading.Thread] = []

    def work() -> None:
        workers.append(threading.current_thread())
        begun.set()
        may_end.wait(PATIENCE_S)
        seen.append("worked")

    async def main() -> Beside:
        thread, _, _ = beside()
        thread.do(work, lambda _: seen.append("told"))
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        return thread

    thread = asyncio.run(main())
    may_end.set()
    thread.close()
    workers[0].join(PATIENCE_S)
    assert seen == ["worked"]


def test_where_the_system_has_no_thread_the_work_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        thread, _, ends = beside()
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            thread.do(lambda: 1, ends.put_nowait)
            assert isinstance((await soon(ends)).exception(), RuntimeError)
        thread.do(lambda: 2, ends.put_nowait)
        assert (await soon(ends)).result() == 2
        thread.close()

    asyncio.run(main())
