"""Planted bugs about stages and commits."""

from __future__ import annotations

from tests.crash.harness.mutant import Mutant

STAGE_MUTANTS = (
    Mutant(
        "stage told before its file is synced", "storage/fs.py",
        "                at += len(part)\n            file.sync()\n",
        "                at += len(part)\n", area="stage", first="batches",
    ),
    Mutant(
        "stage told before its name is durable", "engine/commit/stage_files.py",
        "            work.run()\n        self._data.fs.sync_dir(self._data.stages)\n",
        "            work.run()\n", area="stage", first="batches",
    ),
    Mutant(
        "batch not remembered when the log is replayed", "engine/recovery/batches.py",
        "    core.stages.note(topic_id, record.producer, record.done, limit)\n", "",
        area="stage", first="batches",
    ),
    Mutant(
        "snapshot without producers", "engine/upkeep/checkpoint.py",
        "    record.producers = producers_of(core, topic)\n", "",
        area="stage", first="checkpoints",
    ),
    Mutant(
        "stage of a commit removed with the first snapshot", "engine/upkeep/trimming.py",
        "yield from _trim_stages(core, older)", "yield from _trim_stages(core, newest)",
        area="stage", first="checkpoints",
    ),
    Mutant(
        "stage of a commit removed at once", "engine/ops/commit_frames.py",
        '        if topic.durability == "ephemeral":\n            stages.discard',
        '        if topic.durability != "memory":\n            stages.discard',
        area="stage", first="batches",
    ),
    Mutant(
        "commit seen before it is durable", "engine/ops/commit_frames.py",
        "        self.gated = True\n", "", area="stage", first="classes",
    ),
    Mutant(
        "topics of a commit forgotten, so that a cut one is never healed", "engine/ops/commits.py",
        "topics = self._topics if len(self._topics) > 1 else ()", "topics = ()",
        area="stage", first="batches",
    ),
    Mutant(
        "dropped stage comes back after a crash", "engine/commit/stage_files.py",
        "            if fs.exists(path):\n                fs.unlink(path)\n", "",
        area="stage", first="batches",
    ),
    Mutant(
        "commit published a piece at a time", "engine/ops/commit_frames.py",
        "            run[1].payload = bytes(run[1].payload)\n            self._runs.append(run)\n",
        "            run[1].payload = bytes(run[1].payload)\n"
        "            self.topic.publish(run[0], run[1], self.core.settings.block_bytes)\n",
        area="stage", first="pieces",
    ),
)  # fmt: skip
