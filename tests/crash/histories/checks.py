"""What must be true of an engine whenever somebody looks, and after each kind of end.

`look` reads everything in the ways a client can. `restart` opens the disk again, perhaps through
starts that fail on the way, and holds what is there against what was promised. `settle` lets the
routers finish and compares their copies with their sources.
"""

from __future__ import annotations

import errno
import json
import random
from typing import Any

from tests.crash.histories.facts import Ending, Instance
from tests.crash.histories.world import ROOT, Edge, World
from topics.engine import invariants
from topics.errors import TopicsError
from topics.storage import snapshot
from topics.testing import CrashPlan, DiskCrashed, Fault
from topics.testing.model import Entry, ModelTopic
from topics.testing.modelcheck import Violation, _verify_read, require
from topics.types import TopicConfig

ROUNDS_MAX = 60
STEPS_MAX = 6
LOST_CLASSES: dict[Ending, set[str]] = {
    "clean": set(), "kill": {"ephemeral"}, "crash": {"memory", "ephemeral"},
}  # fmt: skip


def look(world: World) -> None:
    """Reads every topic from end to end."""
    two_snapshots(world)
    for name in world.engine.list_topics(limit=1000):
        if world.is_poisoned:
            return
        known = world.instance(name)
        if known is not None:
            read(world, known)


def read(world: World, known: Instance) -> None:
    """Every live record is one that was written, as it was written, under its seq."""
    name, engine = known.name, world.engine
    state = world.call(lambda: engine.state(name))
    found: dict[int, dict[str, Any]] = {}
    cursor = 0
    while cursor < state.head_seq if hasattr(state, "head_seq") else False:
        at = cursor
        page = world.call(lambda: engine.diff(name, from_seq=at, limit=50, include_tags=True))
        if page is None or isinstance(page, BaseException):
            # A fault was met on the way.
            require(world.is_faulty or world.is_poisoned, f"{name} can not be read: {page!r}")
            return
        for record in json.loads(page.records_json):
            found[record["$seq"]] = record
        require(page.next_from_seq > cursor, f"{name}: the cursor stands still at {cursor}")
        cursor = page.next_from_seq
    if world.is_poisoned or not hasattr(state, "head_seq"):
        return
    world.see(known, "live")
    live = known.live()
    require(sorted(found) == live, f"{name}: reads give {sorted(found)}, explain says {live}")
    count = engine.core.by_name[name].live_count
    require(count == len(live), f"{name}: count {count}, live {len(live)}")
    world.tallies["records"] += len(found)
    numbers: dict[int, int] = {}
    for seq, record in found.items():
        n = same(world, known, seq, record)
        require(
            n not in numbers or known.may_repeat,
            f"{name}: record {n} stands at {numbers.get(n)} and at {seq}",
        )
        numbers[n] = seq
    core = engine.core
    for word, text in invariants.examine(core, core.by_name[name]):
        world.note_fault()
        if not (world.is_faulty and word == "block_damaged"):
            raise Violation(f"{name}: {word}: {text}")


def same(world: World, known: Instance, seq: int, record: dict[str, Any]) -> int:
    name, n = known.name, int(record["data"]["n"])
    born = world.born.get(n)
    require(born is not None, f"{name}: {seq} is {record}, which nobody wrote")
    assert born is not None
    require(not born.is_refused, f"{name}: {seq} is {n}, whose write was refused")
    there = known.held.setdefault(seq, (n, record["$ts"]))
    require(there == (n, record["$ts"]), f"{name}: {seq} was {there}, reads {record}")
    asked = born.record
    for shown, given in (("data", "data"), ("$tag", "tag"), ("$node", "node")):
        require(record.get(shown) == asked.get(given), f"{name}: {seq} reads {record}, was {asked}")
    if born.topic == name:
        require(record.get("meta") == asked.get("meta"), f"{name}: {seq} reads {record}")
    return n


def tombstones(world: World, known: Instance, draw: random.Random) -> None:
    """Whoever stands in front of a loss is told of it, and of nothing else."""
    topic = ModelTopic(known.name, known.epoch, known.config)
    for seq, state in enumerate(known.states, 1):
        n, ts = known.held.get(seq, (0, 0))
        record = world.born[n].record if n else {"data": None}
        data = json.dumps(record["data"], separators=(",", ":"), ensure_ascii=False)
        topic.entries.append(
            Entry(state, ts, data, record.get("tag"), record.get("node"), record.get("meta"))
        )
    fed = any(edge.dest.name == known.name for edge in [*world.edges.values(), *world.past_edges])
    if fed or known.name == "dead":
        # Copies have meta of their own.
        return
    for cursor in {0, draw.randrange(known.head + 2), max(known.head - 1, 0)}:
        _verify_read(topic, world.engine, cursor)


def readable(world: World) -> list[int]:
    """The snapshots that can be read from end to end."""
    found = []
    for number in snapshot.numbers(world.disk, f"{ROOT}/snap"):
        try:
            snapshot.read(world.disk, f"{ROOT}/snap", number)
        except (TopicsError, OSError):
            continue
        found.append(number)
    return found


def two_snapshots(world: World) -> None:
    """Once a start has met a damaged snapshot, the next one taken makes two good ones again."""
    if world.is_spoil_met and world.engine.core.snapshot_number > world.spoilt_at:
        found = readable(world)
        require(len(found) >= 2, f"of the snapshots only {found} can be read")


def steps_taken(world: World) -> int:
    return sum(router.ahead.step for router in world.engine.core.routers.by_name.values())


def waited_for(world: World, before: int) -> None:
    """What one client asks for does not wait until the routers of others have caught up."""
    steps = steps_taken(world) - before
    require(steps <= STEPS_MAX, f"a router's PUT forwarded {steps} pieces of others")


# -- starting again ------------------------------------------------------------------------------


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
                tombstones(world, known, draw)


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
    from topics.testing import FaultFs, Lateness, MonitorFs
    from topics.engine.engine import Engine

    world.faults = FaultFs(world.disk, planned)
    world.monitor = MonitorFs(world.faults, assume_durable=world.ending != "kill")
    world.late = Lateness(world.faults)
    disk = world.disk
    try:
        world.engine = Engine.open(
            ROOT, clock=world.clock, fs=world.monitor, settings=world.mood.settings
        )
    except (DiskCrashed, TopicsError, OSError, MemoryError) as error:
        world.tallies["refused_starts"] += 1
        world.log.append(f"  start failed: {error!r}")
        if not isinstance(error, DiskCrashed):
            require(not disk.open_paths(), f"a failed start leaves open: {disk.open_paths()}")
        return False
    world.late.attach(world.engine)
    world.faults.fault = None
    world.is_poisoned = False
    world.is_faulty = False
    world.faulty_places = set()
    world.memory.fired = 0
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
    look(world)
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
    fresh.cursors = {c.cursor: c.seq for c in world.engine.cursors(name)}
    world.epochs.add(topic.epoch)
    for part in topic.explain(1, topic.head) if topic.head else ():
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
        if name in world.edges:
            continue
        again = [
            edge for edge in world.past_edges
            if edge.name == name and edge.ended is not None and edge.ended.outcome == "unknown"
        ]  # fmt: skip
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


# -- routers -------------------------------------------------------------------------------------


def settle(world: World) -> None:
    """Routers finish what they can; then their copies are the fold of their sources."""
    world.faults.fault = None
    world.memory.fails_at = None
    engine = world.engine
    for _ in range(ROUNDS_MAX):
        world.quiesce()
        if world.is_poisoned:
            return
        more = world.call(engine.forward)
        world.clock.advance(60)
        world.call(lambda: engine.maintain(0))
        behind = [
            router for router in engine.core.routers.by_name.values()
            if router.place.cursor < router.source.head
        ]  # fmt: skip
        if not behind and not more:
            break
        if all(router.blocked for router in behind):
            world.clock.advance(1100)
    world.quiesce()
    look(world)
    for name, router in engine.core.routers.by_name.items():
        edge = world.edges.get(name)
        require(edge is not None, f"nobody made router {name}")
        if router.blocked:
            config = router.dest.config
            full = config.discard == "reject" and (config.cap_records or config.cap_bytes)
            require(bool(full), f"{name} is blocked by {router.blocked}")
        else:
            at, head = router.place.cursor, router.source.head
            require(at == head, f"{name} stands at {at} of {head}")
        assert edge is not None
        if not edge.is_doubtful:
            fold(world, edge, router.place.cursor)


def fold(world: World, edge: Edge, cursor: int) -> None:
    """In source order, each once; what is missing was deleted, or its place is accounted for."""
    source, dest = edge.source, edge.dest
    place = {n: seq for seq, (n, _) in source.held.items()}
    copies = [
        (seq, place[n])
        for seq in dest.live()
        for n, _ in [dest.held[seq]]
        if seq > edge.dest_start and n in place and seq not in dest.written
    ]
    order = [made for _, made in copies if made > edge.start]
    if not dest.may_repeat:
        require(order == sorted(set(order)), f"{edge.name}: copies in the order {order}")
    require(all(made <= cursor for made in order), f"{edge.name}: ahead of its cursor: {order}")
    seen = {n for n, _ in dest.held.values()}
    missing = [
        seq
        for seq in range(edge.start + 1, cursor + 1)
        if source.states[seq - 1] != "deleted"
        and (seq not in source.held or source.held[seq][0] not in seen)
    ]
    unknown = [
        seq
        for seq in range(edge.dest_start + 1, dest.head + 1)
        if seq not in dest.held or (seq not in dest.written and dest.held[seq][0] not in place)
    ]
    require(
        len(missing) <= len(unknown),
        f"{edge.name}: {missing} were skipped, {len(unknown)} seqs of {dest.name} are unaccounted",
    )
