"""Planted bugs about backups and restores."""

from __future__ import annotations

from tests.crash.harness.mutant import Mutant

BACKUP_MUTANTS = (
    Mutant(
        "deletes from after the moment undone", "engine/offline/restore.py",
        "        _apply_later(engine, layout.later, done)\n", "",
        area="backup", first="histories",
    ),
    Mutant(
        "restored topics with the epochs of the original", "engine/offline/restore.py",
        "        if not keep_epochs:\n", "        if keep_epochs:\n",
        area="backup", first="histories", is_quick=False,
    ),
    Mutant(
        "directory built under the name that was asked for", "engine/offline/restore.py",
        '    building = join(parent or "/", f".{name}.restoring-{secrets.token_hex(4)}")\n',
        "    building = target\n",
        area="backup", first="sweep", is_quick=False,
    ),
    Mutant(
        "rename of a restored directory not synced", "engine/offline/restore.py",
        '    fs.sync_dir(parent or "/")\n', "",
        area="backup", first="sweep", is_quick=False,
    ),
    Mutant(
        "what happened at the moment left out", "engine/offline/moments.py",
        "np.flatnonzero(times_of(groups) > moment.at_ms)",
        "np.flatnonzero(times_of(groups) >= moment.at_ms)",
        area="backup", first="histories", is_quick=False,
    ),
    Mutant(
        "backup without the end of the log", "engine/upkeep/copying.py",
        "            if parsed[2] > mark.number:\n",
        "            if parsed[2] >= mark.number:\n",
        area="backup", first="histories", is_quick=False,
    ),
    Mutant(
        "earlier parts of a log file forgotten", "engine/upkeep/copying.py",
        "        log = LogCopy(*key, [*log.parts, part])\n",
        "        log = LogCopy(*key, [part])\n",
        area="backup", first="histories", is_quick=False,
    ),
    Mutant(
        "nothing pinned while it is copied", "engine/upkeep/backup.py",
        "        core.is_pinned = True\n", "        core.is_pinned = False\n",
        area="backup", first="histories", is_quick=False,
    ),
    Mutant(
        "backup that ends where it began", "engine/upkeep/backup.py",
        "            marks, to_ms = core.log.positions, core.clock.wall_ms()\n",
        "            to_ms = core.clock.wall_ms()\n",
        area="backup", first="histories", is_quick=False,
    ),
    Mutant(
        "oldest backup that has the moment chosen", "engine/offline/backups.py",
        "    for manifest in found:\n        if manifest.from_ms",
        "    for manifest in reversed([*found]):\n        if manifest.from_ms",
        area="backup", first="histories", is_quick=False,
    ),
    Mutant(
        "restored tail vouched for as nobody did", "engine/offline/layout.py",
        "min(mark, self._vouched.get(key, mark))", "mark",
        area="backup", first="tears",
    ),
    Mutant(
        "groups of nobody backed up", "engine/upkeep/copying.py",
        "                line.first_lsn = vouch.lsn or None\n",
        "                line.first_lsn = None\n",
        area="backup", first="tears", is_quick=False,
    ),
)  # fmt: skip
