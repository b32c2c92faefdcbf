"""Starting again: cut short, failing, and at last in peace; and what was promised before that.

`restart` opens the disk as it was left. `judge` holds what is there against what was promised, and
makes it what is known.
"""

from __future__ import annotations

import errno
import json
import random

from tests.crash.harness.histories import looks
from tests.crash.harness.histories.facts import Ending, Instance
from tests.crash.harness.histories.world import World
from topics.engine.state.explaining import explain
from topics.errors import TopicsError
from topics.testing import CrashPlan, DiskCrashed, Fault
from topics.testing.modelcheck import Violation, require
from topics.types import TopicConfig

LOST_CLASSES: dict[Ending, set[str]] = {
    "clean": set(), "kill": {"ephemeral"}, "crash": {"memory", "ephemeral"},
}  # fmt: skip


def restart(world: World, draw: random.Random) -> None:
    """Opens the disk as it was left; some starts are cut short or fail, the last one may not."""
    world.memory.fails_at = None
    for _ in range(draw.choice((0, 0, 0, 1, 1, 2))):
        if start_badly(world, draw):
            _meet(world)
            break
    else:
        start(world)
    if draw.random() < 0.3:
        for known in list(world.by_epoch.values()):
            if world.instance(known.name) is known and not world.is_poisoned:
                looks.tombstones(world, known, draw)


def start(world: World) -> None:
    """A start that nothing is in the way of."""
    try:
        world.open()
    except Exception as error:
        raise Violation(
            f"refused to start after {world.ending}: {type(error).__name__}: {error}"
        ) from error
    world.tallies["starts"] += 1
    _meet(world)


def _meet(world: World) -> None:
    world.is_spoil_met = world.spoilt_at >= 0
    judge(world)


def start_badly(world: World, draw: random.Random) -> bool:
    """A start that something may go wrong with; True when it became ready all the same."""
    kind = draw.choice(("crash", "kill", "fault", "memory", "flip"))
    world.tallies["bad_starts"] += 1
    planned: Fault | None = None
    if kind in ("crash", "kill"):
        left = draw.randint(0, 25)
        plan = draw.choice(CrashPlan.standard())

        def cut(index: int, operation: str, path: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                disk = world.disk
                disk.on_mutation = None
                world.disk = disk.crash(plan) if kind == "crash" else disk.kill()
                raise DiskCrashed("planned")

        world.disk.on_mutation = cut
    elif kind == "fault":
        operation = draw.choice(("pread", "open", "create", "pwrite", "allocate", "listdir"))
        number = draw.choice((errno.EIO, errno.EMFILE, errno.ENOSPC))
        planned = Fault(operation, draw.randint(1, 12), number)
    elif kind == "flip":
        # Rot at the very end of an unmarked log looks torn: only an orderly stop closes that.
        paths = (".snap", ".seg", ".cold", ".wal") if world.ending == "clean" else (".snap", ".seg")
        planned = Fault(
            "pread", draw.randint(1, 6), path_contains=draw.choice(paths), read_effect="bit-flip",
            damage_at=draw.randrange(700),
        )  # fmt: skip
    else:
        world.memory.fails_at = draw.randint(1, 8)
    is_open = _start(world, planned)
    world.disk.on_mutation = None
    world.memory.fails_at = None
    if not is_open and kind in ("crash", "kill"):
        world.worse(kind)  # type: ignore[arg-type]
    elif not is_open:
        world.disk = world.disk.kill()
        world.worse("kill" if world.ending != "clean" else "clean")
    return is_open


def _start(world: World, planned: Fault | None) -> bool:
    disk = world.disk
    try:
        world.open(planned)
    except (DiskCrashed, TopicsError, OSError, MemoryError) as error:
        world.tallies["refused_starts"] += 1
        world.log.append(f"  start failed: {error!r}")
        if not isinstance(error, DiskCrashed):
            require(not disk.open_paths(), f"a failed start leaves open: {disk.open_paths()}")
        return False
    return True


def judge(world: World) -> None:
    """Holds what a start found against what was promised before, and makes it what is known."""
    ending = world.ending
    there = set(world.engine.list_topics(limit=1000))
    names = there | {known.name for known in world.by_epoch.values()}
    for name in sorted(names):
        older = [known for known in world.by_epoch.values() if known.name == name]
        if name not in there:
            gone = all(known.is_new or known.is_dropping for known in older)
            require(gone, f"{name}: the topic is gone after {ending}")
            for known in older:
                del world.by_epoch[known.epoch]
            continue
        found = _identify(world, name, older, ending)
        for known in older:
            if known is not found:
                del world.by_epoch[known.epoch]
    _judge_routers(world)
    world.ending = "clean"
    looks.look(world)
    for known in world.by_epoch.values():
        _adopt(world, known)


def _identify(world: World, name: str, older: list[Instance], ending: Ending) -> Instance:
    """Which of the topics that had this name it is now; it may have begun a new epoch."""
    topic = world.engine.core.by_name[name]
    # What has expired does so when it is looked at.
    world.call(lambda: world.engine.state(name))
    for known in older:
        if known.epoch == topic.epoch:
            world.see(known, ending)
            _check_config(known, topic.config)
            _check_cursors(world, known)
            _check_open_writes(world, known)
            return known
    require(topic.epoch not in world.epochs, f"{name}: epoch {topic.epoch} was used before")
    forgot = [known for known in older if known.classes() & LOST_CLASSES[ending]]
    made = any(o.topic == name and o.outcome == "unknown" for k in older for o in k.asked)
    require(
        bool(forgot) or made or name == "dead" or not older,
        f"{name}: new epoch after {ending}: was {older}",
    )
    fresh = world.by_epoch[topic.epoch] = Instance(name, topic.epoch, topic.config)
    for edge in [*world.edges.values(), *world.past_edges]:
        for known in forgot:
            if edge.source is known:
                edge.source, edge.is_doubtful = fresh, True
            if edge.dest is known:
                edge.dest, edge.is_doubtful = fresh, True
    fresh.may_repeat = True
    fresh.claimed = {seq for known in forgot for seq in known.claimed}
    fresh.cursors = {c.cursor: c.seq for c in world.engine.cursors(name)}
    world.epochs.add(topic.epoch)
    for part in explain(topic, 1, topic.head) if topic.head else ():
        fresh.states += [part.state] * (part.last - part.first + 1)
    if topic.config.durability == "ephemeral" and forgot:
        require(not topic.live_count, f"{name}: ephemeral records came back")
    return fresh


def _check_config(known: Instance, config: TopicConfig) -> None:
    puts = [o.config for o in known.asked if o.config is not None and o.outcome == "unknown"]
    require(
        config in [known.config, *puts], f"{known.name}: config is {config}, was {known.config}"
    )
    known.config = config


def _check_cursors(world: World, known: Instance) -> None:
    """Every place of a reader is where its reader was told it is."""
    there = {c.cursor: c.seq for c in world.engine.cursors(known.name)}
    open_keys = {
        o.key for o in known.asked if o.kind in ("cursor", "uncursor") and o.outcome == "unknown"
    }
    for key in known.cursors.keys() | there.keys():
        was, now = known.cursors.get(key), there.get(key)
        require(
            key in open_keys or was == now, f"{known.name}: cursor {key} is at {now}, was at {was}"
        )
    known.cursors = dict(there)


def _check_open_writes(world: World, known: Instance) -> None:
    """What nobody knows the end of is there as a whole, or not at all."""
    page = world.call(lambda: world.engine.diff(known.name, from_seq=0, limit=1000))
    if page is None or isinstance(page, BaseException):
        return
    at = {int(record["data"]["n"]): record["$seq"] for record in json.loads(page.records_json)}
    for asked in known.open_writes():
        seqs = [at[n] - index for index, n in enumerate(asked.numbers) if n in at]
        if not seqs or known.may_repeat:
            continue
        first, count = seqs[0], len(asked.numbers)
        require(len(set(seqs)) == 1, f"{known.name}: a write is scattered: {asked.numbers} {seqs}")
        whole = known.states[first - 1 : first - 1 + count]
        is_whole = len(whole) == count and not set(whole) & {"crash", "restart", "source_trim"}
        require(is_whole, f"{known.name}: half of the write at {first}: {whole}")


def _adopt(world: World, known: Instance) -> None:
    topic = world.engine.core.by_name[known.name]
    for asked in known.asked:
        if asked.kind == "append" and asked.outcome == "unknown" and asked.key:
            continue
    known.asked.clear()
    known.stood.clear()
    known.is_new = known.is_dropping = False
    world.epochs.add(known.epoch)
    known.durable_upto = known.head
    if known.config.durability == "ephemeral":
        known.keys.clear()
    if not known.config.leases_durable:
        known.leases.clear()
    known.written = {seq for seq in known.written if seq <= topic.head}


def _judge_routers(world: World) -> None:
    routers = world.engine.core.routers.by_name
    for name in routers:
        again = [
            edge for edge in world.past_edges
            if edge.name == name and edge.ended is not None and edge.ended.outcome == "unknown"
        ]  # fmt: skip
        if name in world.edges:
            # It may be the one before, whose end and whose follower were lost together.
            edge = world.edges[name]
            edge.is_doubtful |= bool(again) and edge.asked.outcome == "unknown"
            continue
        require(bool(again), f"router {name} came back")
        world.edges[name] = again[-1]
        world.past_edges.remove(again[-1])
    for name in [name for name in world.edges if name not in routers]:
        edge = world.edges.pop(name)
        require(edge.asked.outcome == "unknown", f"router {name} is gone")
    for name, edge in world.edges.items():
        source, dest = (world.instance(part) for part in name.split("-"))
        if source is not edge.source or dest is not edge.dest:
            assert source is not None
            assert dest is not None
            edge.source, edge.dest, edge.is_doubtful = source, dest, True
    for edge in world.edges.values():
        # What a topic that begins anew is given again goes on from there.
        if edge.source.may_repeat:
            world.may_repeat(edge.dest)
