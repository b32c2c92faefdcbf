"""Planted bugs that need a history: a topology, threads, a fault in the middle, or a gentle end.

Each is a defect that an engine like this one has had. `first` is the theme of the histories that
are looked through first; none was written for any of them.
"""

from __future__ import annotations

from tests.crash.harness.mutant import Mutant

HISTORY_MUTANTS = (
    Mutant(
        "topic that rejects evicts", "engine/state/retention.py",
        '    if topic.config.discard == "reject":\n        return False\n    now_ms =',
        "    now_ms =", area="whole", first="tiers",
    ),
    Mutant(
        "durable records given up for lost ones", "engine/recovery/recovery.py",
        "        if topic.ceiling.seq > topic.head:\n"
        "            self._hole(topic, topic.ceiling.seq, CRASH)\n",
        "        missing = topic.ceiling.seq - topic.head\n"
        "        if missing > 0:\n"
        "            from topics.engine import retention\n"
        "            from topics.types import EVICTED\n"
        "            load = self.core.segments.spans\n"
        "            if retention.evict(topic, load, spare_records=missing):\n"
        "                self.core.committer.stage(Op(\n"
        "                    topic, frames.FLOOR, nothing, gated=False, floor=topic.floor,\n"
        "                    flags=EVICTED))\n"
        "            self._hole(topic, topic.ceiling.seq, CRASH)\n",
        area="whole", first="stalled",
    ),
    Mutant(
        "failure of the cold store taken for the log's", "engine/commit/tiering.py",
        "                self._wanted = None\n                self.failed(error)\n",
        "                self._wanted = None\n                self.failed(error)\n"
        "                from topics.errors import Poisoned\n"
        "                self._core.committer.fail(Poisoned(str(error)))\n",
        area="whole", first="tiers",
    ),
    Mutant(
        "bytes of a refused group left behind a shorter one", "storage/wal.py",
        "            current.file.truncate(self.offset)\n            current.file.sync()\n"
        "            current.capacity = self.offset\n",
        "            current.file.pwrite(bytes(SECTOR), self.offset)\n"
        "            return\n",
        area="whole", first="full",
    ),
    Mutant(
        "snapshot kept that only looks readable", "engine/upkeep/trimming.py",
        "snapshot.verify(data.fs", "snapshot.read_summary(data.fs",
        is_quick=False, area="whole", first="reading",
    ),
    Mutant(
        "segments set aside for one bad read of a snapshot", "engine/recovery/inventory.py",
        "        if number in known or not (chosen.is_newest or taken is None):\n",
        "        if number in known:\n",
        is_quick=False, area="whole",
        also=(("storage/snapshot.py", "for _ in range(READS_MAX - 1):", "for _ in range(0):"),),
    ),
    Mutant(
        "floor that overtook others forgets what it was about", "engine/commit/core.py",
        "        if (overtakes or topic.gated) and topic.account is not None:\n",
        "        if False:\n",
        area="whole", first="stalled",
    ),
    Mutant(
        "idle topic closed below a ceiling on its way", "engine/ops/ceilings.py",
        "        moves = topic.gated or topic.ceiling.moving\n",
        "        moves = topic.gated\n",
        is_quick=False, area="whole", first="idle",
        also=(("engine/state/ceiling.py", "        assert not self.moving\n", ""),),
    ),
    Mutant(
        "log of short lives never sealed", "engine/upkeep/maintenance.py",
        "            or unsealed.replayed_generations >= GENERATIONS_MAX\n", "",
        is_quick=False, area="whole",
        also=(
            ("engine/upkeep/maintenance.py",
             "bool(unsealed.records or unsealed.is_untrimmed or unsealed.is_held)", "False"),
        ),
    ),
    Mutant(
        "PUT of a router waits for the backlog of all", "engine/engine.py",
        "        return definitions.put(self.core, name, asked)\n",
        "        while self.maintain(1.0):\n            self.core.jobs.pause()\n"
        "        return definitions.put(self.core, name, asked)\n",
        area="whole", first="chains",
    ),
    Mutant(
        "router acknowledged before its source is durable", "engine/routing/definitions.py",
        "_lasting(core, _topic(core, options.source))", "_topic(core, options.source)",
        is_quick=False, area="whole", first="chains",
    ),
    Mutant(
        "flags moved to the cold store as they were read", "engine/upkeep/relocation.py",
        "    if doubtful(held.info.rows, flags, held.flag_sums):\n", "    if False:\n",
        is_quick=False, area="whole", first="reading",
    ),
    Mutant(
        "failed start lets go of nothing", "engine/recovery/recovery.py",
        "        self._opened.close()\n", "        pass\n",
        area="whole",
    ),
    Mutant(
        "failed sync leaves no note", "engine/commit/committer.py",
        "            self.on_poison(error)\n", "",
        area="whole", first="failing",
    ),
    Mutant(
        "read error met in the middle of a group", "engine/state/segments.py",
        "            return self._spans_again(block)\n        except (MemoryError, Overloaded):\n"
        "            if self._is_replaying:\n                raise\n"
        "        except TopicsError:\n            pass\n",
        "            return self.exact_spans(block)\n        except ZeroDivisionError:\n"
        "            raise\n",
        area="whole", first="reading",
        also=(
            ("engine/commit/committer.py",
             ("            result = op.apply()\n        except Exception as error:\n"
             "            self._broken(op, error)\n        if result is UNFINISHED:\n"
             "            return False\n"),
             ("            result = op.apply()\n        except ZeroDivisionError as error:\n"
             "            self._broken(op, error)\n        if result is UNFINISHED:\n"
             "            return False\n")),
        ),
    ),
    Mutant(
        "seqs taken before the frame is made", "engine/ops/append.py",
        "        if topic.durability != \"ephemeral\":\n            self.flags, self.cols",
        "        self.assign(self.count, len(payload))\n"
        "        if topic.durability != \"ephemeral\":\n            self.flags, self.cols",
        area="whole",
        also=(("engine/ops/append.py", "    frame.assign(count, len(payload))\n", ""),),
    ),
    Mutant(
        "copies for a topic that is gone thrown away", "engine/routing/forwarding.py",
        "        if self._plan is not None:\n            put_pieces(",
        "        if self._plan is not None and not self.topic.dropped:\n            put_pieces(",
        is_quick=False, area="whole", first="chains",
    ),
    Mutant(
        "account of an ephemeral topic before what is on its way", "engine/lifecycle.py",
        "        # What is on its way first: an account says what became of every seq that was "
        "acknowledged.\n        core.committer.sync()\n", "",
        is_quick=False, area="whole", first="gentle",
    ),
    Mutant(
        "what was staged beside a failure never answered", "engine/commit/committer.py",
        "        self._fail([*held, *pending, *ops], unknown(error))\n"
        "        self._refuse_staged()\n",
        "        self._fail([*held, *pending, *ops], unknown(error))\n",
        is_quick=False, area="whole", first="failing",
        also=(
            ("engine/commit/committer.py",
             ("        if self.poison is not None:\n            self._refuse_staged()\n"
             "            return\n"),
             "        if self.poison is not None:\n            return\n"),
        ),
    ),
    Mutant(
        "captured while what is durable is not all applied", "engine/commit/core.py",
        "        while self.committer.poll():\n            yield\n",
        "        self.committer.poll()\n        yield\n",
        is_quick=False, area="whole", first="stalled",
    ),
)  # fmt: skip
