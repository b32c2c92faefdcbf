"""How a history ends: at rest, stopped, started again; and what else its disk is asked then."""

from __future__ import annotations

import random

from tests.crash.harness.histories import folds, starts
from tests.crash.harness.histories.world import ROOT, World
from topics.engine.engine import Engine
from topics.engine.state.explaining import explain
from topics.errors import TopicsError
from topics.storage import wal_files
from topics.testing import FakeClock, FakeDisk
from topics.testing.modelcheck import require

DAMAGES = ("empty", "nine bytes", "one sector", "zero behind the header", "zero", "gone")
STARTS = 24
GENERATIONS_MAX = 20


def finish(world: World, seed: int) -> None:
    """Everything comes to rest, stops in an orderly way and starts once more."""
    draw = random.Random(f"end {seed}")
    folds.settle(world)
    if world.is_poisoned:
        world.give_up()
    else:
        world.peek()
        world.end("clean")
        if draw.random() < 0.3:
            damage_whole(world, draw)
    starts.start(world)
    folds.settle(world)
    if draw.random() < 0.02:
        live_briefly(world)
    world.engine.close()


def damage_whole(world: World, draw: random.Random) -> None:
    """A file emptied, cut, zeroed or gone after an orderly stop is refused, or costs nothing."""
    image = world.disk.clone()
    paths = [path for path in image.files() if path.startswith(f"{ROOT}/") and "LOCK" not in path]
    path, how = draw.choice(paths), draw.choice(DAMAGES)
    _damage(image, path, how)
    world.tallies["wholes"] += 1
    settings, clock = world.mood.settings, FakeClock(world.clock.wall_ms())
    try:
        engine = Engine.open(ROOT, clock=clock, fs=image, settings=settings)
    except TopicsError:
        return
    where = f"{path.rpartition('.')[2]} file {how}"
    there = {topic.name: topic for topic in engine.core.by_name.values()}
    for known in [k for k in world.by_epoch.values() if world.instance(k.name) is k]:
        topic = there.get(known.name)
        require(topic is not None, f"{where}: topic {known.name} is gone in silence")
        assert topic is not None
        same = (topic.epoch, topic.head) == (known.epoch, known.head)
        was = (known.epoch, known.head)
        require(same, f"{where}: {known.name} is at {topic.epoch}, {topic.head}, was at {was}")
        # What has expired does so when it is looked at; that it had need not be in the log.
        engine.state(known.name)
        for part in explain(topic, 1, topic.head) if topic.head else ():
            for seq in range(part.first, part.last + 1):
                was_state = known.states[seq - 1]
                is_same = part.state == was_state or was_state == "live" != part.state == "restart"
                require(is_same, f"{where}: {known.name} {seq} is {part.state}, was {was_state}")
    engine.close()


def _damage(image: FakeDisk, path: str, how: str) -> None:
    if how == "gone":
        image.unlink(path)
        return
    file = image.open(path)
    size = file.size()
    if how == "zero":
        file.pwrite(bytes(size), 0)
    elif how == "zero behind the header":
        file.pwrite(bytes(max(size - 512, 0)), 512)
    else:
        file.truncate({"empty": 0, "nine bytes": 9, "one sector": 512}[how])
    file.sync()
    file.close()


def live_briefly(world: World) -> None:
    """However often it is started, with some time to itself, the log does not grow without end."""
    settings = world.mood.settings
    for _ in range(STARTS):
        world.end("kill")
        starts.start(world)
        for _ in range(3):
            world.clock.advance(settings.seal_age_ms + 1000)
            while world.engine.maintain(0.001) and not world.is_poisoned:
                world.late.drain()
    names = [wal_files.parse_file_name(path.rpartition("/")[2]) for path in world.disk.files()]
    found = {name[0] for name in names if name is not None}
    require(
        len(found) <= GENERATIONS_MAX,
        f"after {STARTS} starts the log has parts of {len(found)}, and of {len(names)} files",
    )
