"""Planted bugs about changes of class, and about what meets them on its way.

Each undoes the fix of a defect that a review found with random histories of its own. `first` says
in which histories it is looked for: none was written for one of them.
"""

from __future__ import annotations

from tests.crash.harness.mutant import Mutant

CLASS_MUTANTS = (
    Mutant(
        "class changed while a write has no frame yet", "engine/ops/promotion.py",
        "        if is_last and topic.gated:\n", "        if False:\n",
        area="class", first="slices",
    ),
    Mutant(
        "keys of writes that are partly gone left out of the log", "engine/ops/repeats.py",
        "        if key not in carried\n", "        if key not in carried and not count\n",
        area="class",
    ),
    Mutant(
        "what compaction left forgotten with the class", "engine/ops/promotion.py",
        "DeleteFrame(0, runs.tobytes(), lacking=topic.compacted)", "DeleteFrame(0, runs.tobytes())",
        area="class", first="buckets",
    ),
    Mutant(
        "epochs that a start passed over given again", "engine/recovery/replay.py",
        "            self.core.numbers.pass_epoch(int(groups.frames[\"first\"][index]) - 1)\n", "",
        area="class", first="machines",
    ),
    Mutant(
        "topic of a refused commit left in the log", "engine/ops/commits.py",
        "            for name in sorted(parts, key=lambda name: name not in there):\n",
        "            for name in parts:\n", area="class", first="refusals",
    ),
    Mutant(
        "part of a commit left without an end", "engine/ops/commits.py",
        "            except Exception as error:\n                # The others",
        "            except ZeroDivisionError as error:\n                # The others",
        area="class", first="failures",
        also=(
            ("engine/commit/committer.py",
             ("        finally:\n            # Where that failed, it ends as well: refused.\n"
              "            self._apply_resident(op)\n"),
             ("        except ZeroDivisionError:\n            pass\n"
              "        self._apply_resident(op)\n")),
        ),
    ),
)  # fmt: skip
