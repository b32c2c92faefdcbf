"""Long work shares the loop: a slice in each turn, behind what others have asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from time import monotonic

import pytest

from topics.server.http import slices
from topics.server.http.giving_way import Company
from topics.server.http.slices import Slices
from topics.server.http.turns import TurnEnd


class World:
    """A loop whose turns are counted, with or without company, and what was done in which turn."""

    def __init__(self, *, has_company: bool) -> None:
        self.turn = 0
        self.done: list[tuple[int, str]] = []
        self.has_company = has_company

    def run(self, scenario: Callable[[Slices, TurnEnd], None], turns: int) -> list[tuple[int, str]]:
        async def body() -> None:
            loop = asyncio.get_running_loop()
            turn_end = TurnEnd(loop)
            found = Slices(loop, turn_end, Companion(self))
            scenario(found, turn_end)
            for _ in range(turns):
                await asyncio.sleep(0)
                self.turn += 1

        asyncio.run(body())
        return self.done

    def note(self, name: str) -> None:
        self.done.append((self.turn, name))


class Companion(Company):
    """There, or not, as a test says."""

    def __init__(self, world: World) -> None:
        super().__init__(lambda: 0)
        self._world = world

    def is_present(self) -> bool:
        return self._world.has_company


def work(world: World, found: Slices, name: str, count: int) -> None:
    world.note(name)
    if count > 1:
        found.add(partial(work, world, found, name, count - 1))


@pytest.mark.parametrize("has_company", [True, False])
def test_one_slice_a_turn_for_all_who_wait(has_company: bool) -> None:
    """In a row: two who have much to do cost others no more than one does."""
    world = World(has_company=has_company)

    def scenario(found: Slices, _turn_end: TurnEnd) -> None:
        for name in "abc":
            found.add(partial(work, world, found, name, 2))

    done = world.run(scenario, 20)
    assert [name for _, name in done] == ["a", "b", "c", "a", "b", "c"]
    turns = [turn for turn, _ in done]
    assert len(set(turns)) == len(turns)


def large(world: World, found: Slices, name: str, count: int) -> None:
    world.note(name)
    if count > 1:
        found.stay(partial(large, world, found, name, count - 1))


def test_one_large_answer_is_in_the_making_at_a_time() -> None:
    """Whatever is ready of an answer takes memory; reads that are under way have turns between."""
    world = World(has_company=True)

    def scenario(found: Slices, _turn_end: TurnEnd) -> None:
        for name in "ab":
            found.line_up(partial(large, world, found, name, 3))
        found.add(partial(work, world, found, "-", 4))

    done = "".join(name for _, name in world.run(scenario, 20))
    assert done == "a-a-a-b-bb"


def frames(world: World, found: Slices, name: str, count: int) -> None:
    world.note(name)
    if count > 1:
        found.add_frames(partial(frames, world, found, name, count - 1))


def test_a_read_need_not_wait_for_a_round_of_all_who_send_too_many_frames() -> None:
    """However many they are. Large answers have a third of the slices then, too."""
    world = World(has_company=True)

    def scenario(found: Slices, _turn_end: TurnEnd) -> None:
        for _ in range(100):
            found.add_frames(partial(frames, world, found, ".", 2))
        found.add(partial(work, world, found, "r", 4))
        found.line_up(partial(large, world, found, "L", 2))

    done = "".join(name for _, name in world.run(scenario, 300))
    assert done == "Lr.Lr.r.r." + "." * 196


def test_a_slice_comes_behind_what_others_have_asked_for() -> None:
    world = World(has_company=True)

    def scenario(found: Slices, turn_end: TurnEnd) -> None:
        found.add(partial(work, world, found, "long", 1))
        turn_end.defer(partial(world.note, "short"))

    assert [name for _, name in world.run(scenario, 5)] == ["short", "long"]


def test_work_that_fails_keeps_nobody_from_a_turn() -> None:
    world = World(has_company=True)

    def fail() -> None:
        raise RuntimeError("as a test")

    def scenario(found: Slices, _turn_end: TurnEnd) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        found.add(fail)
        found.add(partial(work, world, found, "next", 1))

    assert [name for _, name in world.run(scenario, 5)] == ["next"]


def test_a_slice_is_shorter_beside_others() -> None:
    world = World(has_company=True)
    ends: list[float] = []

    def scenario(found: Slices, _turn_end: TurnEnd) -> None:
        for has_company in (True, False):
            world.has_company = has_company
            ends.append(found.stop_s() - monotonic())

    world.run(scenario, 1)
    assert ends[0] <= slices.SHARED_SLICE_S < ends[1] <= slices.SLICE_S
