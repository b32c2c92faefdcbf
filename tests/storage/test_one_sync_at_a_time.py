"""The system tells of a failed sync once: whoever syncs the same file beside it hears of it too."""

from __future__ import annotations

import errno
import threading

import pytest

from tests.storage.test_next_log_file import ROOT, Log, held
from topics.errors import DiskFull, Poisoned
from topics.storage import frames, marks
from topics.testing import Fault


def refusing(log: Log, then: Fault | None = None) -> Fault:
    """The disk is full for the next write, and the fault behind it is the other one."""

    def follow() -> None:
        log.faults.fault = then

    return Fault("pwrite", errno=errno.ENOSPC, path_contains=".wal", action=follow)


def test_no_sync_vouches_for_what_a_write_that_was_taken_back_found_lost() -> None:
    """The writer is told; a sync beside it, which is told nothing, may not count."""
    log = Log()
    log.write()
    log.shard.sync()
    log.write()
    vouched, file = log.shard.synced, log.faults.inner.open(log.shard.current.path)
    syncer = threading.Thread(target=log.shard.sync)

    def lose() -> None:
        file.fail_sync("dropped")
        syncer.start()
        syncer.join(0.1)

    failing = Fault("sync", errno=errno.EIO, sync_effect="ignored", path_contains=".wal")
    failing.action = lose
    log.faults.fault = refusing(log, failing)
    with pytest.raises(Poisoned):
        log.write()
    syncer.join()
    assert log.shard.poison is not None
    assert log.shard.synced == vouched
    assert marks.read(log.disk, ROOT).lines[1, 0].mark == vouched
    file.close()
    log.close()


def test_no_write_is_taken_back_by_a_sync_behind_one_that_failed() -> None:
    """It would be told that all is well: whether the write can be found later, nobody knows."""
    log = Log()
    log.write()
    failing = Fault("sync", errno=errno.EIO, path_contains=".wal")
    with held(log, failing, log.shard.sync, refusing(log)) as let_go:
        threading.Timer(0.1, let_go).start()
        with pytest.raises(Poisoned):
            log.write()
    log.close()


def test_a_write_is_taken_back_beside_a_sync_that_ends_well() -> None:
    """The disk was full: nothing of the write is there, everything before it is durable."""
    log = Log()
    end = log.write()
    slow = Fault("sync", errno=0, sync_effect="persisted")
    with held(log, slow, log.shard.sync, refusing(log)) as let_go:
        threading.Timer(0.1, let_go).start()
        with pytest.raises(DiskFull):
            log.write()
    assert (log.shard.poison, log.shard.synced) == (None, end)
    raw = log.disk.files()[log.shard.current.path]
    assert frames.scan_groups(raw, log.shard.current.file_id).end == end.offset
    log.write()
    log.close()
