"""Damage to the files of a disk whose every record is known, and what a start makes of it."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Iterator

import pytest

from tests.crash.harness.log_harness import COLD, SETTINGS, Run, deterministic
from topics.engine.engine import Engine
from topics.errors import CorruptData, TopicsError
from topics.settings import Settings
from topics.storage import frames
from topics.storage.frames import SECTOR
from topics.testing import FakeClock, FakeDisk
from topics.testing.model import Model
from topics.testing.modelcheck import Judge, Violation, require


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
                # Same boot: this machine did not crash, its disk went bad.
                image = disk.clone().kill()
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


def check_fallback() -> None:
    """Without its newest snapshot an engine recovers the same from the one before."""
    with deterministic(1):
        disk, model, wall_ms = built(SETTINGS)
        newest = max(path for path in disk.files() if path.endswith(".snap"))
        content = bytearray(disk.files()[newest])
        content[20] ^= 1
        image = disk.clone().kill()
        overwrite(image, newest, bytes(content))
        engine = Engine.open("/data", clock=FakeClock(wall_ms), fs=image, settings=SETTINGS)
        Judge(model.copy(), engine, "clean", wall_ms).check()
