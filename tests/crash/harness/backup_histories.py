"""Histories that are backed up while they go on, and what may be restored from them.

Every step is remembered with the moment at which it had ended and with the model of then. A restore
is compared with the model of its moment, and with the one of the backup's end, which says what was
deleted since.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from dataclasses import dataclass, field

from tests.crash.harness.log_harness import Run, deterministic
from tests.crash.harness.random_workload import Habits, settings_of, step
from topics.engine.engine import Engine
from topics.engine.offline import backups
from topics.engine.offline.restore import Restored, restore
from topics.storage.tiers import DirectoryStore
from topics.storage.vault import Manifest
from topics.testing.model import Model, ModelTopic
from topics.testing.modelcheck import look, require

DEST = "/backups"
# Everything but crashes of the machine, which have histories of their own, and ephemeral topics.
HABITS = Habits((40, 14, 5, 3, 8, 14, 8, 8, 0, 3, 0), ("fsync", "fsync", "disk", "memory"))
GONE = ("evicted", "expired")


@dataclass
class History:
    run: Run
    past: list[tuple[int, Model]] = field(default_factory=list)

    @property
    def store(self) -> DirectoryStore:
        return DirectoryStore(self.run.disk, DEST)

    def remember(self) -> None:
        self.past.append((self.run.clock.wall_ms(), self.run.model.copy()))
        self.run.clock.advance(2)

    def go_on(self, draw: random.Random, steps: int) -> None:
        for _ in range(steps):
            if draw.random() < 0.05:
                self.run.reopen(draw.choice(("clean", "kill")))
            else:
                step(self.run, draw, HABITS)
            self.remember()

    def at(self, ms: int) -> Model:
        """The model at a moment."""
        index = bisect_left(self.past, ms, key=lambda entry: entry[0])
        return self.past[min(index, len(self.past) - 1)][1]

    def moments(self, manifest: Manifest) -> list[int]:
        """The ends of steps that a backup has in its span."""
        return [ms for ms, _ in self.past if manifest.from_ms <= ms <= manifest.to_ms]

    def restored(self, name: str, manifest: Manifest, at_ms: int | None = None) -> Engine:
        """A directory of a moment, open; compared with the model."""
        self.restore(name, manifest, at_ms)
        engine = Engine.open(
            name, fs=self.run.disk, clock=self.run.clock, settings=self.run.settings
        )
        moment = manifest.to_ms if at_ms is None else at_ms
        compare(engine, self.at(moment), self.at(manifest.to_ms), self.run.model.epochs)
        return engine

    def restore(self, name: str, manifest: Manifest, at_ms: int | None = None) -> Restored:
        chosen, moment = backups.choose(self.store, manifest.id, at_ms=at_ms)
        return restore(self.run.disk, self.store, name, chosen, moment=moment, clock=self.run.clock)


def live_through(seed: int, steps: int) -> tuple[History, list[Manifest]]:
    """A history with some backups, each begun at one moment and ended at another."""
    draw = random.Random(f"backup {seed}")
    settings = settings_of(seed)
    run = Run(seed=seed, settings=settings)
    history = History(run)
    history.remember()
    for _ in range(draw.choice((1, 2, 3))):
        history.go_on(draw, draw.randrange(steps))
        run.engine.begin_backup(DEST)
        history.go_on(draw, draw.randrange(12))
        while run.engine.maintenance.backups.is_running:
            run.clock.advance(60)
            run.engine.maintain(0)
            history.remember()
        ended = run.engine.backup_status
        # None: it ended with its process.
        require(ended is None or ended.state == "done", f"a backup failed: {ended}")
    status = run.engine.backup_status
    if status is None or status.state != "done":
        run.engine.backup(DEST)
        history.remember()
    history.go_on(draw, draw.randrange(steps))
    return history, list(backups.manifests(history.store))


def compare(engine: Engine, then: Model, end: Model, epochs: set[int]) -> None:
    """Whether an engine says what was so at a moment, without what was deleted by the end."""
    kept = {name for name, topic in then.topics.items() if _is_kept(topic, end)}
    there = set(engine.list_topics(limit=10_000))
    require(there == kept, f"restored are {sorted(there)}, expected {sorted(kept)}")
    for name in sorted(kept):
        _compare_topic(engine, then.topics[name], end.topics[name], epochs)


def _is_kept(topic: ModelTopic, end: Model) -> bool:
    later = end.topics.get(topic.name)
    return later is not None and later.epoch == topic.epoch


def _compare_topic(engine: Engine, then: ModelTopic, end: ModelTopic, epochs: set[int]) -> None:
    name = then.name
    seen = look(engine, name)
    require(seen.state["epoch"] not in epochs, f"{name}: epoch {seen.state['epoch']} came again")
    require(len(seen.states) == then.head, f"{name}: head {len(seen.states)}, was {then.head}")
    require(seen.config == then.config, f"{name}: {seen.config}, was {then.config}")
    for seq, (found, entry, later) in enumerate(
        zip(seen.states, then.entries, end.entries, strict=False), 1
    ):
        require(
            found in allowed(entry.state, later.state, then),
            f"{name}: seq {seq} is {found}, was {entry.state}, then {later.state}",
        )
        if found == "live":
            require(
                seen.records[seq] == entry.content(seq) and seen.tags[seq] == entry.tag,
                f"{name}: seq {seq} is {seen.records[seq]}",
            )


def allowed(then: str, later: str, topic: ModelTopic) -> set[str]:
    if "deleted" in (then, later):
        return {"deleted"}
    states = {then}
    if then == "live" and later in GONE:
        # Below a seq up to which all was deleted, whatever had gone before.
        states.add("deleted")
    if topic.config.ttl_ms:
        states.add("expired")
    return states


def run_history(seed: int, steps: int = 40, restores: int = 3) -> int:
    """One history: its backups are whole, and restore to what was there. How often that was."""
    done = 0
    with deterministic(seed):
        history, manifests = live_through(seed, steps)
        draw = random.Random(f"restore {seed}")
        require(backups.verify(history.store).ok, "a backup is damaged")
        for manifest in manifests:
            history.restored(f"/r{done}", manifest).close()
            done += 1
            for _ in range(restores):
                moments = history.moments(manifest)
                if moments:
                    history.restored(f"/r{done}", manifest, draw.choice(moments)).close()
                    done += 1
        moments = [ms for manifest in manifests for ms in history.moments(manifest)]
        if moments:
            at_ms = draw.choice(moments)
            chosen, _ = backups.choose(history.store, at_ms=at_ms)
            newest = max(each.id for each in manifests if at_ms in history.moments(each))
            require(chosen.id == newest, f"{chosen.id} was chosen, which knows less than {newest}")
    return done
