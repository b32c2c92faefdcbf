"""Bytes that rot: the engine refuses to start, refuses to read, or serves exactly what was written.

One honest limit: after a crash of the machine, damage in the last group of a log that no later mark
covers looks like a torn end. `test_the_window_in_which_rot_looks_torn` measures how much that is.
Files that are emptied, cut, zeroed or gone as a whole are in `test_wholes.py`.
"""

from __future__ import annotations

import functools
import json
import math
import random
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.crash.harness.log_harness import COLD, LOSE_ALL, SETTINGS, Run, deterministic
from tests.crash.harness.workflows import COLD_SETTINGS
from topics.engine.engine import Engine
from topics.errors import CorruptData, TopicsError
from topics.settings import Settings
from topics.storage import cold, columns, frames, segment, snapshot
from topics.storage.frames import SECTOR
from topics.testing import FakeClock, FakeDisk
from topics.testing.model import Model
from topics.testing.modelcheck import Judge, Violation, require

EXAMPLES = settings(
    max_examples=300, deadline=None, derandomize=True, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


def history(run: Run) -> None:
    run.put("a", durability="fsync")
    run.append("a", 6, key="k1")
    run.put("b", durability="fsync")
    run.append("b", 3)
    run.put("c", durability="fsync")
    run.append("c", 8, size=300)
    run.checkpoint()
    run.delete("c", before=9)
    run.delete("a", match="x")
    run.append("a", 3)
    run.checkpoint()
    run.append("a", 2, key="k2")
    run.append("b", 2)
    run.delete("b", before=2)
    run.append("a", 1)
    # Time to fall idle: the marks that shrink the window are written.
    for _ in range(3):
        run.advance(100)


def built(settings_used: Settings) -> tuple[FakeDisk, Model, int]:
    """A disk with every kind of file, everything on it acknowledged as durable."""
    run = Run(settings=settings_used)
    history(run)
    run.verify()
    return run.disk, run.model, run.clock.wall_ms()


def kind_of(path: str) -> str:
    if path.endswith("/FORMAT"):
        return "format"
    if path.startswith(COLD):
        return "object"
    return path.rpartition(".")[2]


def overwrite(disk: FakeDisk, path: str, content: bytes) -> None:
    file = disk.open(path)
    file.truncate(0)
    file.pwrite(content, 0)
    file.close()


def damages(content: bytes, draw: random.Random, count: int) -> Iterator[tuple[str, bytes]]:
    """Flipped bits, cut ends, sectors zeroed and swapped."""
    used = len(content.rstrip(b"\0")) or 1
    for _ in range(count):
        at = draw.randrange(min(used + 8, len(content)))
        flipped = bytearray(content)
        flipped[at] ^= 1 << draw.randrange(8)
        yield f"bit at {at}", bytes(flipped)
    for _ in range(max(count // 4, 1)):
        at = draw.randrange(used)
        yield f"cut at {at}", content[:at]
    sectors = -(-used // SECTOR)
    for _ in range(max(count // 4, 1)):
        one, two = draw.randrange(sectors), draw.randrange(sectors)
        zeroed = bytearray(content)
        zeroed[one * SECTOR : (one + 1) * SECTOR] = bytes(len(zeroed[one * SECTOR :][:SECTOR]))
        yield f"sector {one} zeroed", bytes(zeroed)
        swapped = bytearray(content)
        first = content[one * SECTOR : (one + 1) * SECTOR]
        second = content[two * SECTOR : (two + 1) * SECTOR]
        if len(first) == len(second) == SECTOR:
            swapped[one * SECTOR : (one + 1) * SECTOR] = second
            swapped[two * SECTOR : (two + 1) * SECTOR] = first
            yield f"sectors {one} and {two} swapped", bytes(swapped)


def outcome(disk: FakeDisk, model: Model, wall_ms: int, settings_used: Settings) -> str:
    """refused, exact, or torn when only unmarked ends of the log are missing."""
    known = json.dumps({name: topic.head for name, topic in model.topics.items()})
    try:
        engine = Engine.open("/data", clock=FakeClock(wall_ms), fs=disk, settings=settings_used)
    except TopicsError:
        # It must not start the second time either.
        with pytest.raises(TopicsError):
            Engine.open("/data", clock=FakeClock(wall_ms), fs=disk, settings=settings_used)
        return "refused"
    heads = {name: engine.state(name).head_seq for name in engine.list_topics()}
    try:
        Judge(model, engine, "clean", wall_ms).check()
    except CorruptData:
        return "refused"
    except Violation:
        lost = {name: heads.get(name, 0) for name in json.loads(known)}
        return f"torn {lost}"
    return "exact"


def sweep(
    settings_used: Settings,
    per_file: int,
    tally: Callable[..., None],
    *,
    seed: int = 1,
    until_s: float = math.inf,
) -> None:
    draw = random.Random(seed)
    figures = {"refused": 0, "exact": 0, "torn": 0}
    with deterministic(1):
        disk, model, wall_ms = built(settings_used)
        files = {p: c for p, c in disk.files().items() if not p.endswith("/LOCK")}
        for path, content in sorted(files.items()):
            for what, damaged in damages(content, draw, per_file):
                if damaged == content or time.monotonic() > until_s:
                    continue
                image = disk.crashed(LOSE_ALL)
                # Same boot: this machine did not crash, its disk went bad.
                image._boots = disk._boots
                overwrite(image, path, damaged)
                found = outcome(image, model.copy(), wall_ms, settings_used)
                if found.startswith("torn"):
                    is_end = kind_of(path) == "wal" and _reaches_the_end(content, damaged)
                    require(is_end, f"{path}, {what}: served {found}")
                figures[found.partition(" ")[0]] += 1
    tally(
        corruption_cases=sum(figures.values()), corruption_refused=figures["refused"],
        corruption_exact=figures["exact"], corruption_torn=figures["torn"],
    )  # fmt: skip
    assert figures["refused"] > figures["torn"]


def _reaches_the_end(content: bytes, damaged: bytes) -> bool:
    """Whether no intact group behind the damage could have told of it."""
    header = frames.decode_file_header(content[:SECTOR])
    assert header is not None
    before = frames.scan_groups(content, header.file_id)
    rest = frames.scan_groups(damaged, header.file_id)
    lost = [int(at) for at in before.starts if int(at) >= rest.end]
    return not lost or not (rest.mark.number == header.number and min(lost) < rest.mark.offset)


@pytest.mark.slow
@pytest.mark.parametrize("tier", ["hot", "cold"])
def test_rot_is_refused_or_never_served(tier: str, tally: Callable[..., None]) -> None:
    sweep(COLD_SETTINGS if tier == "cold" else SETTINGS, 40, tally)


@pytest.mark.full(share=4)
@pytest.mark.timeout(0)
@pytest.mark.parametrize("tier", ["hot", "cold"])
def test_much_rot_is_refused_or_never_served(
    tier: str, deadline: float, tally: Callable[..., None]
) -> None:
    """As many rounds over all files as the time allows."""
    seed = 1
    while time.monotonic() < deadline:
        seed += 1
        sweep(COLD_SETTINGS if tier == "cold" else SETTINGS, 40, tally, seed=seed, until_s=deadline)


def check_fallback() -> None:
    """Without its newest snapshot an engine recovers the same from the one before."""
    with deterministic(1):
        disk, model, wall_ms = built(SETTINGS)
        newest = max(path for path in disk.files() if path.endswith(".snap"))
        content = bytearray(disk.files()[newest])
        content[20] ^= 1
        image = disk.crashed(LOSE_ALL)
        image._boots = disk._boots
        overwrite(image, newest, bytes(content))
        engine = Engine.open("/data", clock=FakeClock(wall_ms), fs=image, settings=SETTINGS)
        Judge(model.copy(), engine, "clean", wall_ms).check()


def test_one_unreadable_snapshot_costs_nothing() -> None:
    check_fallback()


def test_the_window_in_which_rot_looks_torn() -> None:
    """After a crash of the machine the last group of a shard, and nothing once the log was idle.

    Without such a crash there is no window at all.
    """
    with deterministic(1):
        run = Run()
        run.put("a", durability="fsync")
        for _ in range(5):
            run.append("a", 1)
        assert _lost_to_one_flip(run, run.disk.clone().kill()) == 0
        assert _lost_to_one_flip(run, run.disk.crashed(LOSE_ALL)) == 1, "one write, the last"
        for _ in range(3):
            run.advance(100)
        assert _lost_to_one_flip(run, run.disk.crashed(LOSE_ALL)) == 0


def _lost_to_one_flip(run: Run, disk: FakeDisk) -> int:
    """The most records that one damaged sector of the log takes without a word."""
    worst = 0
    for path, content in disk.files().items():
        if kind_of(path) != "wal":
            continue
        for at in range(SECTOR, len(content.rstrip(b"\0")), SECTOR):
            damaged = bytearray(content)
            damaged[at + 20] ^= 1
            image = disk.clone()
            overwrite(image, path, bytes(damaged))
            try:
                engine = Engine.open(
                    "/data", clock=FakeClock(run.clock.wall_ms()), fs=image, settings=SETTINGS
                )
            except TopicsError:
                continue
            there = "a" in engine.list_topics()
            head = engine.state("a").head_seq if there else 0
            worst = max(worst, run.model.topics["a"].head - head)
    return worst


# -- decoders ------------------------------------------------------------------------------------


def only_corrupt_data(call: Callable[[], object]) -> None:
    try:
        call()
    except CorruptData:
        pass


@EXAMPLES
@given(
    flags=st.integers(0, 127), count=st.integers(0, 40), raw=st.binary(max_size=400),
    payload=st.binary(max_size=100),
)  # fmt: skip
def test_columns_decode_or_are_corrupt(flags: int, count: int, raw: bytes, payload: bytes) -> None:
    only_corrupt_data(lambda: columns.decode(flags, count, raw, payload, 0))


@functools.cache
def some_log() -> bytes:
    with deterministic(1):
        files = built(SETTINGS)[0].files()
    logs = [content for path, content in files.items() if kind_of(path) == "wal"]
    return max(logs, key=lambda content: len(content.rstrip(b"\0")))


@EXAMPLES
@given(raw=st.binary(max_size=3000), cut=st.integers(0, 10**6), flips=st.integers(1, 255))
def test_groups_are_found_whole_or_not_at_all(raw: bytes, cut: int, flips: int) -> None:
    """Any bytes, and a real log with any byte changed: a prefix of it, or all of it, unchanged."""
    frames.scan_groups(raw, 7)
    log = bytearray(some_log())
    header = frames.decode_file_header(bytes(log[:SECTOR]))
    assert header is not None
    whole = frames.scan_groups(bytes(log), header.file_id)
    log[SECTOR + cut % (whole.end - SECTOR)] ^= flips
    found = frames.scan_groups(bytes(log), header.file_id)
    assert found.frames.tobytes() == whole.frames.tobytes()[: found.frames.nbytes]
    for index in range(len(found.frames)):
        at, size = int(found.payload_at[index]), int(found.frames["size"][index])
        assert found.raw[at : at + size] == whole.raw[at : at + size]


def _file(content: bytes, path: str) -> FakeDisk:
    disk = FakeDisk()
    disk.mkdir("/d")
    file = disk.open(path, create=True)
    if content:
        file.pwrite(content, 0)
    return disk


@EXAMPLES
@given(
    raw=st.binary(max_size=300)
    | st.binary(max_size=300).map(lambda body: segment.SEGMENT_MAGIC + body)
)
def test_a_segment_decodes_or_is_corrupt(raw: bytes) -> None:
    disk = _file(raw, "/d/1.seg")
    only_corrupt_data(lambda: segment.read_info(segment.FileBytes(disk.open("/d/1.seg")), 1))


@EXAMPLES
@given(
    raw=st.binary(max_size=700) | st.binary(max_size=700).map(lambda body: snapshot.MAGIC + body)
)
def test_a_snapshot_decodes_or_is_corrupt(raw: bytes) -> None:
    disk = _file(raw, "/d/" + snapshot.file_name(1))
    only_corrupt_data(lambda: snapshot.read(disk, "/d", 1))


@EXAMPLES
@given(raw=st.binary(max_size=300) | st.binary(max_size=300).map(lambda body: cold.MAGIC + body))
def test_a_cold_table_decodes_or_is_corrupt(raw: bytes) -> None:
    disk = _file(raw, "/d/" + cold.file_name(1))
    only_corrupt_data(lambda: cold.read(disk, "/d", 1))
