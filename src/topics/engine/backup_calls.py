"""The calls of whoever keeps a copy: begin a backup, look how far it is, wait for it."""

from __future__ import annotations

from topics.engine.lifecycle import Lifecycle
from topics.engine.upkeep.backup import BackupStatus
from topics.errors import InvalidRequest, StorageError
from topics.storage.fs import AnyPath, text_of
from topics.storage.tiers import SCHEME, open_store


class BackupCalls(Lifecycle):
    """A mixin of Engine."""

    def begin_backup(self, dest: AnyPath) -> BackupStatus:
        """Begins a backup to a directory or a bucket, which `maintain` goes on with.

        Raises Conflicting while one runs.
        """
        self._check_writable()
        data, url = self.core.data, text_of(dest)
        if SCHEME.match(url) is None:
            path = data.fs.resolve(url).rstrip("/") + "/"
            if path.startswith(data.root.rstrip("/") + "/"):
                raise InvalidRequest("a backup can not lie in the directory that it is of")
        return self.maintenance.backups.begin(url, open_store(url, data.fs))

    @property
    def backup_status(self) -> BackupStatus | None:
        """The backup that runs, or the last one that did since the start."""
        return self.maintenance.backups.status

    def backup(self, dest: AnyPath) -> BackupStatus:
        """A backup of everything that is there now, to its end. Raises StorageError."""
        self.finish_recovery()
        done = self.begin_backup(dest)
        with self.core.background.alone():
            while done.state == "running":
                self._guard(self.maintenance.step)
                self.core.background.jobs.pause()
                done = self.backup_status or done
        if done.state == "failed":
            raise StorageError(f"the backup failed: {done.error}", backup=done.id)
        return done
