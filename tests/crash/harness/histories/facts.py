"""What somebody outside knows of a topic, and what it may turn into: in a moment, or in a restart.

Nothing is predicted here. Every seq has the state in which it was last seen; each later sight is
held against it, and the change must be one that somebody asked for, that the config allows, or
that the end of a process explains. What was seen becomes what is known.

A record is known by its number `n`, which no other record of the history has: so a copy, a repeat
and a record that should not be there are told apart wherever they turn up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from topics.engine.commit.ticket import Ticket
from topics.testing.model import HOLES
from topics.testing.modelcheck import require
from topics.types import TopicConfig

Ending = Literal["live", "clean", "kill", "crash"]
LIVE, DELETED, EVICTED, EXPIRED = "live", "deleted", "evicted", "expired"


@dataclass(slots=True)
class Born:
    """One record as it was written, by its number."""

    n: int
    topic: str
    record: dict[str, Any]
    # Whether the write was refused: then nobody may ever see it.
    is_refused: bool = False
    # Whether a write of it ended without an answer.
    is_doubtful: bool = False


@dataclass(slots=True, eq=False)
class Asked:
    """Something asked of the engine; `outcome` is acked, refused or unknown once it has ended."""

    kind: str
    topic: str
    ticket: Ticket | None = None
    epoch: int = 0
    numbers: tuple[int, ...] = ()
    key: str | None = None
    before: int | None = None
    match: str | None = None
    seqs: tuple[int, ...] = ()
    config: TopicConfig | None = None
    # The last seq that was assigned when it was asked, and what was gone then.
    last_seq: int = 0
    gone: frozenset[int] = frozenset()
    # The shortest lease that it could be given then.
    lease_ms: int = 0
    asked_ms: int = 0
    outcome: str = ""

    def removes(self, seq: int, tag: str | None) -> bool:
        if self.kind == "ack":
            return seq in self.seqs
        if self.kind != "delete" or (self.before is not None and seq >= self.before):
            return False
        if self.match is None:
            return True
        if tag is None:
            return False
        if self.match.endswith("*"):
            return tag.startswith(self.match[:-1])
        return tag == self.match


@dataclass(slots=True, eq=False)
class Instance:
    """One topic from its creation to its end, in one epoch."""

    name: str
    epoch: int
    config: TopicConfig
    # Nobody was told yet that it is there; somebody asked to drop it.
    is_new: bool = True
    is_dropping: bool = False
    states: list[str] = field(default_factory=list)
    # Number and time of what a seq holds, where that is known.
    held: dict[int, tuple[int, int]] = field(default_factory=dict)
    # Seqs that were acknowledged to a writer of this topic.
    written: set[int] = field(default_factory=set)
    # Up to here everything was promised to survive the machine.
    durable_upto: int = 0
    floor: int = 1
    evict_floor: int = 1
    # What was asked and may have happened since this process began, in order.
    asked: list[Asked] = field(default_factory=list)
    # Configs that stood at some moment since the last sight.
    stood: list[TopicConfig] = field(default_factory=list)
    # Deletes ever asked: what they name may be gone.
    removals: list[Asked] = field(default_factory=list)
    keys: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    # Jobs that were handed out at least once, and held until when.
    claimed: set[int] = field(default_factory=set)
    leases: dict[int, int] = field(default_factory=dict)
    cursors: dict[str, int] = field(default_factory=dict)
    # Whether anything may have happened to it since it was last seen.
    was_busy: bool = False
    was_ephemeral: bool = False
    # Whether something of its shard was still to be written when the last process was killed.
    was_unwritten: bool = False
    # Whether others than its writers bring it records: routers, or a queue its dead letters.
    is_fed: bool = False
    # Whether a reader may have held records that its hold has become too old for.
    is_held: bool = False
    # Whether records may legally stand in it twice: a router began again in front of its place.
    may_repeat: bool = False

    @property
    def head(self) -> int:
        return len(self.states)

    def configs(self) -> list[TopicConfig]:
        """Everything that may be its config now, or was since it was last seen."""
        puts = [o.config for o in self.asked if o.config is not None and o.outcome != "refused"]
        return [self.config, *self.stood, *puts]

    def lease_ms(self) -> int:
        """The shortest lease that a claim may be given."""
        return min(config.lease_ms for config in self.configs())

    def classes(self) -> set[str]:
        return {config.durability for config in self.configs()}

    def live(self) -> list[int]:
        return [seq for seq, state in enumerate(self.states, 1) if state == LIVE]

    def open_writes(self) -> Iterator[Asked]:
        """Writes of which nobody knows how they end."""
        return (o for o in self.asked if o.kind == "append" and o.outcome in ("", "unknown"))


class Sight:
    """A topic as it is seen now, held against what was known of it."""

    def __init__(self, known: Instance, ending: Ending, now_ms: int, born: dict[int, Born]) -> None:
        self.known = known
        self.ending = ending
        self.now_ms = now_ms
        self.born = born
        self.configs = known.configs()
        self.classes = known.classes()
        # A machine crash may take what class disk had not synced, and nothing else.
        self.loses = ending == "crash" and "disk" in self.classes
        # How many it took.
        self._lost = 0

    def states(self, states: list[str], floor: int, evict_floor: int) -> None:
        """Every known seq may have become what it is; nothing goes back."""
        known, name = self.known, f"{self.known.name} ({'/'.join(sorted(self.classes))})"
        head = max([known.head, *known.written])
        require(len(states) >= head, f"{name}: the head fell to {len(states)}, was {head}")
        self._lost = states.count("crash") - known.states.count("crash")
        for seq, (was, now) in enumerate(zip(known.states, states, strict=False), 1):
            if was != now:
                require(
                    self._may_become(seq, was, now),
                    f"{name}: seq {seq} was {was}, is now {now} ({self.ending})",
                )
        for seq in range(known.head + 1, len(states) + 1):
            state = states[seq - 1]
            require(
                state not in HOLES or self._may_be_hole(seq, state),
                f"{name}: new seq {seq} is {state} ({self.ending})",
            )
        self._check_came_back(states)
        self._check_floors_stay(states, floor, evict_floor)
        self._check_floors(states, floor, evict_floor)
        if self.ending != "live":
            self._check_crash_is_the_end(states)
        known.states, known.floor, known.evict_floor = states, floor, evict_floor

    def _check_came_back(self, states: list[str]) -> None:
        """Of what only lost writes had pushed out never more is there again than those were."""
        pairs = list(zip(self.known.states, states, strict=False))
        back = sum(was == EVICTED and now == LIVE for was, now in pairs)
        lost = sum(was != "crash" and now == "crash" for was, now in pairs)
        is_counted = not any(c.cap_bytes for c in self.configs)
        require(
            back <= lost or not is_counted,
            f"{self.known.name}: {back} came back for {lost} that were lost",
        )

    def _check_floors_stay(self, states: list[str], floor: int, evict_floor: int) -> None:
        """No floor falls, but to a record that may be there again, by `_may_become`.

        Of these an acknowledged job was deleted: only `earliest_seq` had moved over it.
        """
        known, name = self.known, f"{self.known.name} ({'/'.join(sorted(self.classes))})"
        back = [
            (seq, was)
            for seq, (was, now) in enumerate(zip(known.states, states, strict=False), 1)
            if was != LIVE == now
        ]
        least = min([known.floor, *(seq for seq, _ in back)])
        require(floor >= least, f"{name}: earliest_seq fell to {floor}, was {known.floor}")
        if all(was == DELETED for _, was in back):
            # What had expired first and is deleted now, by `_may_become`, is lost no longer.
            deleted = (
                seq
                for seq, (was, now) in enumerate(zip(known.states, states, strict=False), 1)
                if was == EXPIRED and now == DELETED
            )
            was_at = min([known.evict_floor, *deleted])
            require(
                evict_floor >= was_at, f"{name}: evict_floor fell to {evict_floor}, was {was_at}"
            )

    def _may_become(self, seq: int, was: str, now: str) -> bool:
        known = self.known
        if was == EVICTED and now == LIVE and self.loses:
            # Counted in `_check_came_back`.
            return any(c.discard == "old" for c in self.configs)
        if was == EXPIRED and now == LIVE and self.ending == "crash":
            # The end of the TTL was durable, that it had expired before was not; or a hold had too
            # many bytes after it, and some of them are lost.
            return (known.is_held and self._lost > 0) or any(not c.ttl_ms for c in self.configs)
        if was == EXPIRED and now == EVICTED and (self.ending == "crash" or known.was_unwritten):
            # It is seen before it is durable, and writes on their way, answered by now, may have
            # evicted it instead. Before it is written nobody but this model sees it: a read writes
            # it first.
            return self._makes_room()
        if was == EXPIRED and now == DELETED and self.loses:
            # Likewise: a delete that was on its way is there, answered or not, and that it had
            # expired first is not.
            return any(
                o.outcome != "refused" and o.removes(seq, self._tag(seq)) for o in known.asked
            )
        if was == DELETED and now in (LIVE, "crash") and self.loses:
            # An acknowledged job is as durable as its class: only that, or the job went with it.
            is_taken = now == LIVE or seq > known.durable_upto
            return is_taken and any(o.kind == "ack" and seq in o.seqs for o in known.removals)
        if was != LIVE:
            is_durable = seq <= known.durable_upto
            causes = {EVICTED, EXPIRED} if is_durable else {EVICTED, EXPIRED, "crash"}
            swaps = self.loses and was in (EVICTED, EXPIRED) and now in causes
            unfelt = self.loses and was in HOLES and now == "crash" and not is_durable
            return swaps or unfelt or self._may_restart(now)
        if now == DELETED:
            n, _ = known.held.get(seq, (0, 0))
            tag = self._tag(seq)
            named = any(o.removes(seq, tag) or (not n and o.match) for o in known.removals)
            is_dead = any(c.max_deliveries for c in self.configs) and seq in known.claimed
            return named or is_dead
        if now == EXPIRED:
            _, ts = known.held.get(seq, (0, 0))
            return any(c.ttl_ms and self.now_ms - ts > c.ttl_ms for c in self.configs)
        if now == EVICTED:
            return self._may_be_evicted()
        if now == "crash":
            return self.loses and seq > known.durable_upto
        return self._may_restart(now)

    def _tag(self, seq: int) -> str | None:
        n, _ = self.known.held.get(seq, (0, 0))
        tag: str | None = self.born[n].record.get("tag") if n else None
        return tag

    def _may_restart(self, now: str) -> bool:
        return now == "restart" and self.ending != "live" and "ephemeral" in self.classes

    def _may_be_evicted(self) -> bool:
        """Only a cap evicts, and in an end of the process only where something was under way."""
        if self.ending != "live" and not self.known.was_busy and not self.known.is_held:
            return False
        return self._makes_room()

    def _makes_room(self) -> bool:
        """Whether there is a cap that makes room instead of refusing, or one that was lowered."""
        caps = [c for c in self.configs if c.cap_records or c.cap_bytes]
        return any(c.discard == "old" for c in caps) or (bool(caps) and len(set(self.configs)) > 1)

    def _may_be_hole(self, seq: int, state: str) -> bool:
        if state == "source_trim":
            return True
        if state == "crash":
            return self.loses
        if self.ending == "clean" and not self.known.is_fed:
            # An orderly stop keeps the head: nothing is told as gone that nobody was given.
            return self._may_restart(state) and seq in self.known.written
        return self._may_restart(state)

    def _check_floors(self, states: list[str], floor: int, evict_floor: int) -> None:
        """Both floors follow from what became of each seq."""
        name = self.known.name
        first = next((seq for seq, s in enumerate(states, 1) if s == LIVE), len(states) + 1)
        require(floor == first, f"{name}: earliest_seq is {floor}, the first live record {first}")
        lost = [s for s, state in enumerate(states[: first - 1], 1) if state not in (DELETED,)]
        told = max(lost, default=0) + 1
        require(evict_floor == told, f"{name}: evict_floor is {evict_floor}, lost up to {told - 1}")

    def _check_crash_is_the_end(self, states: list[str]) -> None:
        """What a crash took is the end of what there was; copies go with their source."""
        was = self.known.states
        lost = [
            seq
            for seq, state in enumerate(states, 1)
            if state == "crash" and (seq > len(was) or was[seq - 1] != "crash")
        ]
        end = len(states)
        while lost and lost[-1] == end:
            end = lost.pop() - 1
        wrong = [seq for seq in lost if not self._is_copy(seq)]
        require(not wrong, f"{self.known.name}: a crash took {wrong} of {len(states)}")

    def _is_copy(self, seq: int) -> bool:
        """Whether a router may have put it there."""
        n, _ = self.known.held.get(seq, (0, 0))
        return self.born[n].topic != self.known.name if n else seq not in self.known.written
