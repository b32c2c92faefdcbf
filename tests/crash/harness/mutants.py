"""Planted bugs: one textual change of the product each, of the kind that storage engines have had.

`python -m tests.crash.harness.mutants` lists them. A change whose text is no longer found is an
error: the product moved on and the bug has to be planted anew.
"""

from __future__ import annotations

from tests.crash.harness.backup_mutants import BACKUP_MUTANTS
from tests.crash.harness.class_mutants import CLASS_MUTANTS
from tests.crash.harness.history_mutants import HISTORY_MUTANTS
from tests.crash.harness.kv_mutants import KV_MUTANTS
from tests.crash.harness.mutant import Mutant
from tests.crash.harness.stage_mutants import STAGE_MUTANTS

MUTANTS = (
    Mutant(
        "acknowledge before the sync", "engine/commit/committer.py",
        "                if op.gated:\n                    lane.waiting.append((end, op))",
        "                if op.gated:\n                    op.topic.gated -= not op.aside\n"
        "                    self._apply(op)\n                elif op.gated:\n"
        "                    lane.waiting.append((end, op))",
    ),
    Mutant(
        "MARKS entered before the sync", "storage/wal.py",
        "        try:\n            for wal_file in files:\n",
        "        try:\n            self.marks.enter(self.index, upto, lsn)\n"
        "            for wal_file in files:\n",
    ),
    Mutant(
        "log file without a directory sync", "storage/wal_files.py",
        "        fs.sync_dir(directory)\n", "",
    ),
    Mutant(
        "log file in MARKS before it is there", "storage/wal.py",
        "        made = wal_files.create(",
        "        self.marks.enter_file(self.index, number)\n        made = wal_files.create(",
    ),
    Mutant(
        "log file made ahead used for what it does not say", "storage/wal_files.py",
        "self.capacity >= room and self.is_routed == is_routed", "self.capacity >= room",
        area="router", first="made_ahead",
    ),
    Mutant(
        "log read on behind groups that are missing", "storage/wal_reader.py",
        "line.lsn not in (None, int(groups.first_lsns[0]))", "line.lsn is None",
        area="whole",
    ),
    Mutant(
        "empty log file taken for proof of the one in front of it", "storage/wal_reader.py",
        "if has_groups or position == 0 or is_begun(line, log_file.number):", "if True:",
        area="whole",
    ),
    Mutant(
        "data directory without a directory sync", "storage/fs.py",
        "        fs.sync_dir(parent)\n", "        pass\n",
    ),
    Mutant(
        "log trimmed one file too far", "engine/upkeep/trimming.py",
        "number < older.positions[shard]", "number <= older.positions[shard]",
        is_quick=False, first="checkpoints",
    ),
    Mutant(
        "log trimmed as if one snapshot were enough", "engine/upkeep/trimming.py",
        "partial(_remove_logs, data, older)", "partial(_remove_logs, data, newest)",
        is_quick=False, first="checkpoints",
    ),
    Mutant(
        "hot segment unlinked before its cold table stands", "engine/upkeep/relocation.py",
        "    cold.write(data.fs, data.segments, held.info, flags, spans)\n",
        "    data.fs.unlink(path)\n    data.fs.sync_dir(data.segments)\n"
        "    cold.write(data.fs, data.segments, held.info, flags, spans)\n"
        "    data.fs.open(path, create=True).close()\n",
        is_quick=False, first="relocation",
    ),
    Mutant(
        "delete made while its segment is rewritten lost", "engine/upkeep/rewriting.py",
        "        new.unflagged.extend(row.flag_at + index for index in late)\n", "        pass\n",
        first="overtaken_rewriting",
    ),
    Mutant(
        "rewritten segment without a sync", "storage/segment.py",
        "        self._file.sync()\n        self._file.close()\n        self._fs.rename(",
        "        self._file.close()\n        self._fs.rename(", first="rewriting",
    ),
    Mutant(
        "flags between those that are set cleared", "storage/segment.py",
        "        flags[places] = DEAD\n", "        flags[:] = 0\n        flags[places] = DEAD\n",
        first="delete_after_seal",
    ),
    Mutant(
        "old segment removed before a snapshot is without it", "engine/upkeep/rewriting.py",
        "    old.release(block)\n",
        "    old.release(block)\n    if old.left == 0:\n        core.segments.unlink(old.number)\n",
        first="rewriting",
    ),
    Mutant(
        "rewritten with the bytes of what was evicted", "engine/upkeep/rewriting.py",
        "    below = min(max(floor - first, 0), len(dead))\n", "    below = 0\n",
        first="erasing",
    ),
    Mutant(
        "rewritten block with the sizes of the old one", "engine/upkeep/rewriting.py",
        "    topic.correct(block, live_bytes)\n",
        "    topic.correct(block, block.size)\n",
        first="overtaken_rewriting",
    ),
    Mutant(
        "rewrite answered before the log is cut twice", "engine/upkeep/scrub.py",
        "        yield from checkpoint(core)\n        yield from checkpoint(core)\n",
        "        yield from checkpoint(core)\n",
        also=(("engine/upkeep/scrub.py",
               "core.unsealed.is_untrimmed or not spent.isdisjoint(core.segments.garbage)",
               "not spent"),),
        first="erasing",
    ),
    Mutant(
        "tombstone dropped", "engine/reading/tombstones.py",
        "if from_seq + 1 < topic.evict_floor:", "if from_seq + 2 < topic.evict_floor:",
        first="caps",
    ),
    Mutant(
        "delete not logged", "engine/ops/deletes.py",
        'if self.topic.durability == "ephemeral" or', 'if self.topic.durability != "memory" or',
    ),
    Mutant(
        "delete acknowledged before it is durable", "engine/ops/deletes.py",
        'frames.DELETE, topic.durability != "memory", ticket', "frames.DELETE, False, ticket",
        first="delete_before_seal",
    ),
    Mutant(
        "floor goes back in recovery", "engine/recovery/records.py",
        "            retention.evict(topic, load)\n", "            pass\n",
        first="caps",
    ),
    Mutant(
        "seqs used again after a crash", "engine/recovery/recovery.py",
        "            self._hole(topic, topic.ceiling.seq, CRASH)\n", "            pass\n",
    ),
    Mutant(
        "crash hole not logged", "engine/recovery/recovery.py",
        "frames.HOLE, nothing, gated=False, first=first, floor=last, flags=state)",
        "frames.HOLE, nothing, gated=False, first=first, floor=0, flags=state)",
    ),
    Mutant(
        "ceiling not written", "engine/ops/ceilings.py",
        "    core.committer.stage_aside(op)\n", "    op.apply()\n",
    ),
    Mutant(
        "a new topic without its ceiling", "engine/ops/catalog.py",
        "CreateFrame(name, topic.epoch, config, ceiling)", "CreateFrame(name, topic.epoch, config)",
    ),
    Mutant(
        "snapshot not synced", "storage/snapshot.py",
        "        self._file.sync()\n        self._file.close()", "        self._file.close()",
    ),
    Mutant(
        "segment not synced", "storage/segment.py",
        "        self._file.sync()\n        self._file.close()", "        self._file.close()",
        is_quick=False, first="checkpoints",
    ),
    Mutant(
        "failed sync tried again", "storage/wal.py",
        "            for wal_file in files:\n                wal_file.file.sync()\n",
        "            for wal_file in files:\n                try:\n"
        "                    wal_file.file.sync()\n                except OSError:\n"
        "                    wal_file.file.sync()\n",
    ),
    Mutant(
        "delete flags not written before the log is trimmed", "engine/upkeep/checkpoint.py",
        "        yield from write_flags(core, segment)\n", "        yield\n",
        is_quick=False, first="delete_after_seal",
    ),
    Mutant(
        "idempotency key not replayed", "engine/recovery/records.py",
        "        if key and not int(row[\"flags\"]) & columns_codec.MOVED:\n",
        "        if key and False:\n",
    ),
    Mutant(
        "epoch given twice", "engine/state/numbers.py",
        "        self.next_epoch += 1\n        return self.next_epoch - 1\n",
        "        return self.next_epoch\n",
    ),
    Mutant(
        "unsynced end not copied", "engine/recovery/recovery.py",
        "        for tail in self._tails:\n            groups = tail.groups\n",
        "        for tail in self._tails[:0]:\n            groups = tail.groups\n",
    ),
    Mutant(
        "mark ahead of the sync", "storage/wal.py",
        "            synced_upto=self.synced.offset,\n",
        "            synced_upto=self.offset + 512,\n",
        is_quick=False, first="restarts",
    ),
    Mutant(
        "drop acknowledged before it is durable", "engine/ops/catalog.py",
        "Op(topic, frames.DROP, end, gated=True, ticket=ticket, undo=end)",
        "Op(topic, frames.DROP, end, gated=False, ticket=ticket, undo=end)",
        is_quick=False, first="drop_and_recreate",
    ),
    Mutant(
        "config not replayed", "engine/recovery/replay_frames.py",
        "    topic.configure(frame.config, frame.version)\n",
        "    topic.durability = frame.config.durability\n",
        is_quick=False, first="configure",
    ),
    Mutant(
        "promotion without what was removed meanwhile", "engine/ops/promotion.py",
        "*(self._amendments() if is_last else ())]:", "]:",
        is_quick=False, first="sliced_promotion",
    ),
    Mutant(
        "caps of an ephemeral time replayed", "engine/recovery/replay_frames.py",
        "    if before.durability == topic.durability == \"ephemeral\":\n", "    if False:\n",
        is_quick=False, first="promotion",
    ),
    Mutant(
        "rows from before a promotion believed", "engine/recovery/inventory.py",
        "    is_own = held.number >= topic.segments_from\n", "    is_own = True\n",
        is_quick=False, first="promotion",
    ),
    Mutant(
        "segment removed while the older snapshot needs it", "engine/upkeep/trimming.py",
        "        if number not in needed and number in core.segments.garbage:",
        "        if number in core.segments.garbage:",
        is_quick=False, first="drop_and_recreate",
    ),
    Mutant(
        "keys of unfinished writes in the snapshot", "engine/state/idempotency.py",
        "                    if first + count - 1 <= head:\n", "                    if first:\n",
        is_quick=False, first="sliced_checkpoint",
    ),
    Mutant(
        "segment forgets deletes made before it was written", "engine/upkeep/checkpoint.py",
        "first=first, dead=dead)", "first=first, dead=None)",
        is_quick=False, first="overtaken",
    ),
    Mutant(
        "claim handed out before it is durable", "engine/ops/lease_frames.py",
        "frames.LEASE, answer, gated=True,", "frames.LEASE, answer, gated=False,",
        area="queue",
    ),
    Mutant(
        "dead letter seen before it is durable", "engine/queues/dead_letters.py",
        "        self.gated = True\n", "        self.gated = False\n",
        area="queue",
    ),
    Mutant(
        "dead letter not ended where it came from", "engine/queues/origins.py",
        "            if left:\n", "            if left and False:\n",
        area="queue",
    ),
    Mutant(
        "lease survives its job", "engine/state/topic.py",
        "            self.queue.gone(block.first + start, block.first + end)\n        if",
        "            pass\n        if",
        area="queue",
    ),
    Mutant(
        "acknowledgement answered before it is durable", "engine/queues/leases.py",
        'super().__init__(topic, frames.DELETE, topic.durability == "fsync", None)',
        "super().__init__(topic, frames.DELETE, False, None)",
        area="queue",
    ),
    Mutant(
        "job handed out beside its holder", "engine/state/queue.py",
        "        while moments and moments[0] <= now_ms:\n",
        "        while moments and moments[0] <= now_ms + 1:\n",
        area="queue",
    ),
    Mutant(
        "waiting measured by the wall clock", "engine/commit/core.py",
        "        return round(self.clock.monotonic_s() * 1000)\n",
        "        return self.clock.wall_ms()\n",
        area="queue",
    ),
    Mutant(
        "snapshot without leases", "engine/upkeep/checkpoint.py",
        "    record.leases = lease_frames.kept(core, topic)\n", "",
        area="queue",
    ),
    Mutant(
        "claim cursor forgotten", "engine/ops/lease_frames.py",
        "min(max(queue.cursor, frame.cursor), topic.head + 1)", "queue.cursor",
        is_quick=False, area="queue",
    ),
    Mutant(
        "deliveries forgotten", "engine/ops/lease_frames.py",
        "            if counts and counts[index] != 1:\n", "            if counts and False:\n",
        is_quick=False, area="queue",
    ),
    Mutant(
        "leases that became durable not written down", "engine/ops/catalog.py",
        "        lease_frames.stage_whole(core, topic)\n", "        pass\n",
        is_quick=False, area="queue",
    ),
    Mutant(
        "copies durable before their source", "engine/routing/forwarding.py",
        "        core.committer.stand_on(dest, router.source)\n", "        pass\n",
        area="router", first="deletes_of_copies",
    ),
    Mutant(
        "copy seen before it is durable", "engine/routing/forwarding.py",
        "            self.assign(found.count, found.size)\n",
        "            self.assign(found.count, found.size)\n            self.gated = False\n",
        area="router", first="appends",
    ),
    Mutant(
        "loss of the source passed over", "engine/routing/planning.py",
        "        if state != DELETED:\n", "        if False:\n",
        area="router", first="appends",
    ),
    Mutant(
        "router's place not replayed", "engine/recovery/rederive.py",
        "        known.place, known.source_epoch = place, source_epoch\n", "        pass\n",
        area="router", first="appends",
    ),
    Mutant(
        "snapshot without routers", "engine/upkeep/checkpoint.py",
        "[encode(router.frame()) for router in core.routers.kept_for(topic)]", "[]",
        is_quick=False, area="router", first="checkpoints",
    ),
    Mutant(
        "copies made again under other seqs", "engine/recovery/rederive.py",
        "        low += max(dest.head + 1 - first, 0)\n", "",
        is_quick=False, area="router", first="checkpoints",
        # A map comes by again where what a start has copied is read twice.
        also=(
            ("storage/wal_reader.py", "        line.is_succeeded = line.generation < newest\n", ""),
        ),
    ),
    Mutant(
        "a source not looked for where it was copied to", "engine/recovery/rederive.py",
        "            or self._in_log(topic_id, generation + 1, seq, upto)\n", "", area="router",
    ),
    Mutant(
        "only the end of a map looked for", "engine/recovery/rederive.py",
        "        while state == LIVE and low <= high:\n",
        "        low = runs[-1][2]\n        while state == LIVE and low <= high:\n",
        area="chain",
    ),
    Mutant(
        "frames of a topic lost with its name", "engine/recovery/replay.py",
        "            self.succeeded.add(min(other.id, topic.id))\n",
        "            core.leave(min(other, topic, key=lambda each: each.id))\n",
        area="chain",
    ),
    Mutant(
        "copies left to what a checkpoint passes over", "engine/routing/forwarding.py",
        " or core.is_sealing or", " or", is_quick=False, area="chain",
    ),
    Mutant(
        "router that was moved is back", "engine/recovery/rederive.py",
        "in sorted(routers.recovered.items())}",
        "in sorted(routers.recovered.items()) if frame.id not in routers.ended}",
        is_quick=False, area="chain",
    ),
    Mutant(
        "changed router waits for ever", "engine/routing/planning.py",
        "    if stamp is None or router.ahead.cursor >= router.known_upto:\n        return True\n",
        "    if stamp is None or router.ahead.cursor >= router.known_upto:\n"
        "        return router.ahead.cursor >= router.known_upto\n",
        area="chain",
    ),
    *HISTORY_MUTANTS,
    *STAGE_MUTANTS,
    *KV_MUTANTS,
    *BACKUP_MUTANTS,
    *CLASS_MUTANTS,
)  # fmt: skip


if __name__ == "__main__":
    for each in MUTANTS:
        print(f"{each.name}: {each.file}")
