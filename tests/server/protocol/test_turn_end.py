"""The end of a turn: each deferred callback runs once, in order, and none stops another."""

from __future__ import annotations

import asyncio
from typing import Any

from topics.server.http.turns import PASSED_MAX, TurnEnd


def run(scenario: Any) -> list[str]:
    seen: list[str] = []
    errors: list[dict[str, Any]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context))
        scenario(TurnEnd(loop), seen)
        for _ in range(10):
            await asyncio.sleep(0)

    asyncio.run(main())
    return seen + [type(context["exception"]).__name__ for context in errors]


def test_a_callback_deferred_often_runs_once() -> None:
    def scenario(turn_end: TurnEnd, seen: list[str]) -> None:
        def flush() -> None:
            seen.append("flush")

        def other() -> None:
            seen.append("other")

        for _ in range(3):
            turn_end.defer(flush)
            turn_end.defer(other)
        seen.append("later")

    assert run(scenario) == ["later", "flush", "other"]


def test_it_can_be_deferred_again_afterwards() -> None:
    def scenario(turn_end: TurnEnd, seen: list[str]) -> None:
        def again() -> None:
            seen.append("again")
            if len(seen) < 5:
                turn_end.defer(again)

        turn_end.defer(again)

    assert run(scenario) == ["again"] * 5


def test_a_failure_is_reported_and_stops_nobody() -> None:
    def scenario(turn_end: TurnEnd, seen: list[str]) -> None:
        turn_end.defer(lambda: seen.remove("nothing"))
        turn_end.defer(lambda: seen.append("after"))

    assert run(scenario) == ["after", "ValueError"]


def test_what_comes_last_lets_others_go_first_and_gets_its_turn() -> None:
    def scenario(turn_end: TurnEnd, seen: list[str]) -> None:
        def busy() -> None:
            if seen.count("turn") < 20:
                seen.append("turn")
                asyncio.get_running_loop().call_soon(turn_end.defer, busy)

        turn_end.defer_last(lambda: seen.append("last"))
        turn_end.defer_last(lambda: seen.append("behind it"))
        turn_end.defer(busy)

    seen = run(scenario)
    assert seen.index("last") + 1 == seen.index("behind it")
    assert 1 <= seen.index("last") <= PASSED_MAX + 1


def test_what_comes_last_comes_without_a_turn_and_again() -> None:
    def scenario(turn_end: TurnEnd, seen: list[str]) -> None:
        def last() -> None:
            seen.append("last")
            if len(seen) < 3:
                turn_end.defer_last(last)

        turn_end.defer_last(last)

    assert run(scenario) == ["last"] * 3
