"""Input in shares: everything is taken, in order, and others have their turn in between."""

from __future__ import annotations

import asyncio
import random
import time

from topics.server.http.giving_way import Company
from topics.server.http.h2_frames import H2Frames
from topics.server.http.intake import (
    IDLE_MAX,
    IDLE_SHARED_MIN,
    SHARE_S,
    TOGETHER_MAX,
    Frames,
    Intake,
)
from topics.server.http.slices import Slices
from topics.server.http.turns import TurnEnd
from topics.server.http.websocket import WsFrames

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Tens(Frames):
    """Frames of ten bytes whose head is their first."""

    def _begin(self, data: bytes, at: int) -> int:
        return 10 if at < len(data) else 0


def slices_of(loop: asyncio.AbstractEventLoop) -> Slices:
    turn_end = TurnEnd(loop)
    return Slices(loop, turn_end, Company(lambda: turn_end.count))


class Taker:
    """Takes pieces, each of which costs as much as the test says."""

    def __init__(self, cost_s: float = 0.0, slices: Slices | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.is_idle = False
        self.taken = b""
        self.steps: list[bool] = []
        self.is_held = False
        self.cost_s = cost_s
        self.intake = Intake(
            loop, slices or slices_of(loop), end_of=Tens().end_of, take=self.take,
            is_held=lambda: self.is_held, behind=self.steps.append, is_idle=lambda: self.is_idle,
        )  # fmt: skip

    def take(self, piece: bytes) -> None:
        self.taken += piece
        time.sleep(self.cost_s)


def test_a_long_read_is_spread_over_turns_and_reading_stops_meanwhile() -> None:
    async def run() -> None:
        taker, data = Taker(SHARE_S / 2), bytes(range(256)) * 10
        taker.intake.feed(data)
        assert taker.steps == [True]
        before = len(taker.taken)
        assert before < 1000
        turns = 0
        while taker.intake.is_behind:
            await asyncio.sleep(0)
            turns += 1
            # What arrives although nobody asked for it waits for its turn, too.
            if turns == 1:
                taker.intake.feed(b"more")
        assert turns > 5
        assert (taker.taken, taker.steps) == (data + b"more", [True, False])

    asyncio.run(run())


def test_what_is_held_waits_until_it_may_go_on() -> None:
    async def run() -> None:
        taker = Taker()
        taker.is_held = True
        taker.intake.feed(b"x" * 100)
        await asyncio.sleep(0.01)
        assert (taker.taken, taker.steps) == (b"", [True])
        taker.is_held = False
        taker.intake.go_on()
        await asyncio.sleep(0.01)
        assert (taker.taken, taker.steps) == (b"x" * 100, [True, False])

    asyncio.run(run())


def test_whoever_takes_over_gets_the_rest() -> None:
    async def run() -> None:
        taker = Taker()
        taker.is_held = True
        taker.intake.feed(b"abc")
        assert taker.intake.rest() == b"abc"
        taker.is_held = False
        taker.intake.go_on()
        await asyncio.sleep(0.01)
        assert taker.taken == b""

    asyncio.run(run())


def test_connections_of_idle_frames_have_one_piece_of_a_turn_together() -> None:
    """From where it turns out that a connection is one; all of it is taken, by turns, in order."""

    async def run() -> None:
        slices = slices_of(asyncio.get_running_loop())
        takers, data = [Taker(slices=slices) for _ in range(3)], bytes(range(240)) * 2
        for taker in takers:
            taker.is_idle = True
            taker.intake.feed(data)
            assert (taker.taken, taker.steps) == (b"", [True])
        others = 0
        while any(taker.intake.is_behind for taker in takers):
            before = sum(len(taker.taken) for taker in takers)
            await asyncio.sleep(0)
            others += 1
            assert sum(len(taker.taken) for taker in takers) - before <= 10 * TOGETHER_MAX
            sizes = [len(taker.taken) for taker in takers]
            assert max(sizes) - min(sizes) <= 10 * TOGETHER_MAX
        assert others >= 3 * len(data) // (10 * TOGETHER_MAX)
        assert [taker.taken for taker in takers] == [data] * 3
        assert [taker.steps for taker in takers] == [[True, False]] * 3

    asyncio.run(run())


def test_a_connection_that_ends_leaves_its_slice_to_the_others() -> None:
    async def run() -> None:
        slices = slices_of(asyncio.get_running_loop())
        gone, there = Taker(slices=slices), Taker(slices=slices)
        for taker in (gone, there):
            taker.is_idle = True
            taker.intake.feed(b"x" * 100)
        assert gone.intake.rest() == b"x" * 100
        await asyncio.sleep(0.01)
        assert (gone.taken, there.taken) == (b"", b"x" * 100)

    asyncio.run(run())


def h2_frame(kind: int, number: int, size: int) -> bytes:
    return size.to_bytes(3, "big") + bytes([kind, 4]) + number.to_bytes(4, "big") + b"x" * size


def ws_frame(opcode: int, size: int, *, is_final: bool = True) -> bytes:
    first = bytes([(0x80 if is_final else 0) | opcode])
    if size < 126:
        head = first + bytes([0x80 | size])
    elif size < 65536:
        head = first + bytes([0x80 | 126]) + size.to_bytes(2, "big")
    else:
        head = first + bytes([0x80 | 127]) + size.to_bytes(8, "big")
    return head + b"mask" + b"x" * size


def pieces_of(frames: Frames, reads: list[bytes]) -> list[tuple[bytes, bool]]:
    """What is taken of these reads, each with whether a frame ends with it."""
    found, data = [], b""
    for read in reads:
        data, at = data + read, 0
        while (end := frames.end_of(data, at)) != at:
            found.append((data[at:end], frames.is_between))
            at = end
        data = data[at:]
    assert data == b""
    return found


def test_frames_are_found_wherever_the_reads_split() -> None:
    """A piece ends with a frame, or with the read; never is the head of a frame torn apart."""
    for seed in range(200):
        chance = random.Random(seed)
        sizes = [chance.choice((0, 1, 125, 126, 5000, 70_000)) for _ in range(30)]
        for make, parse in (
            (lambda size: h2_frame(0, 1, min(size, 16384)), H2Frames(1000, {1})),
            (lambda size: ws_frame(1, size), WsFrames()),
        ):
            whole = [make(size) for size in sizes]
            data = b"".join(whole)
            if isinstance(parse, H2Frames):
                data = PREFACE + data
            cuts = sorted(chance.randrange(len(data)) for _ in range(chance.randrange(20)))
            reads = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
            pieces = pieces_of(parse, reads)
            assert b"".join(piece for piece, _ in pieces) == data
            assert pieces[-1][1]
            assert not parse.is_flood


def test_frames_without_work_are_a_flood_unless_work_explains_them() -> None:
    ping, data = h2_frame(6, 0, 8), h2_frame(0, 1, 10)
    idle = H2Frames(1000, {1})
    pieces_of(idle, [PREFACE + ping * IDLE_MAX])
    assert idle.fault is None
    assert idle.is_idle()
    pieces_of(idle, [ping])
    assert idle.fault is not None
    busy = H2Frames(1000, {1})
    pieces_of(busy, [PREFACE + (data + ping * 4) * IDLE_MAX])
    assert busy.fault is None
    assert not busy.is_idle()
    few = H2Frames(1000, {1})
    pieces_of(few, [PREFACE + ping * (IDLE_SHARED_MIN - 1)])
    assert not few.is_idle()
    # Data for a stream that is over is no work.
    late = H2Frames(1000, set())
    pieces_of(late, [PREFACE + data * (IDLE_MAX + 1)])
    assert late.fault is not None


def test_a_frame_larger_than_it_may_be_is_known_by_its_head() -> None:
    frames = H2Frames(1000, {1})
    pieces_of(frames, [PREFACE + h2_frame(0, 1, 16385)[:9]])
    assert frames.fault is not None


def test_a_head_of_many_frames_is_bounded_like_any_other() -> None:
    frames = H2Frames(1000, {1})
    opened = h2_frame(1, 1, 600)
    unfinished = opened[:4] + b"\0" + opened[5:]
    pieces_of(frames, [PREFACE + opened + unfinished])
    assert frames.fault is None
    pieces_of(frames, [h2_frame(9, 1, 600)])
    assert frames.fault is not None
