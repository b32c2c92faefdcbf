"""Planted bugs about buckets."""

from __future__ import annotations

from tests.crash.harness.mutant import Mutant

KV_MUTANTS = (
    Mutant(
        "marker removed before its readers", "kv/compaction.py",
        "            elif seq > self._readers_seq:\n", "            elif False:\n",
        area="kv", first="histories",
        also=(("kv/compactor.py", "any(each.seq < batch.unmarked_seq for", "any(False for"),),
    ),
    Mutant(
        "marker removed that a snapshot needs", "kv/compaction.py",
        "            elif (yield from self._is_needed(seq, marker)):\n",
        "            elif False:\n",
        area="kv", first="histories", is_quick=False,
    ),
    Mutant(
        "compaction by what a crash can take", "kv/compactor.py",
        "        yield from engine.until_durable()\n", "", area="kv", first="sweep",
    ),
    Mutant(
        "marker gone before what it hid", "kv/compaction.py",
        "        events = [event for event in self._index.events(key) if abs(event) <= seq]\n",
        "        events = [-seq]\n", area="kv", first="histories",
    ),
    Mutant(
        "lowered cap evicts from a bucket", "engine/state/retention.py",
        "    if not config.is_bucket and (", "    if True and (", area="kv", first="histories",
        is_quick=False,
    ),
    Mutant(
        "rewritten block forgets its kinds", "storage/columns.py",
        " if metas.any() else None, _texts_without(self.kinds, gone),\n",
        " if metas.any() else None,\n",
        area="kv", first="histories", is_quick=False,
    ),
    Mutant(
        "kept version taken for a removed one", "kv/compaction.py",
        "                    self._batch.gapped_seq = max(self._batch.gapped_seq, event)\n",
        "                    pass\n", area="kv", first="histories", is_quick=False,
    ),
    Mutant(
        "past forgotten by a start", "engine/ops/deletes.py",
        "    topic.note_compacted(frame.lacking)\n", "",
        area="kv", first="histories", is_quick=False,
    ),
    Mutant(
        "range marker not folded", "kv/bucket.py",
        "            elif kind.startswith(RANGE):\n                index",
        "            elif False:\n                index", area="kv", first="histories",
    ),
    Mutant(
        "replica made anew begins before what it has", "engine/routing/definitions.py",
        "    router.began = fed.began\n    return fed.upto\n",
        "    router.began = fed.began\n    return start\n", area="kv", first="histories",
    ),
    Mutant(
        "what an ended router brought forgotten by a start", "engine/recovery/rederive.py",
        "        core.routers.note_fed(dest.id, brought, copied=frame.place.forwarded_total)\n",
        "        pass\n", area="kv", first="histories", is_quick=False,
    ),
    Mutant(
        "replica goes on past a marker that is gone", "engine/routing/definitions.py",
        "    if source.compacted.unmarked_seq > fed.upto:\n", "    if False:\n",
        area="kv", first="histories",
    ),
)  # fmt: skip
