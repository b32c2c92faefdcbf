"""Errors of the operating system as ours, where nothing was written yet."""

from __future__ import annotations

import errno

from topics.errors import DiskFull, Overloaded, StorageError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_FILES = (errno.EMFILE, errno.ENFILE)


def typed(error: OSError, what: str) -> DiskFull | StorageError:
    if error.errno in FULL:
        return DiskFull(f"{what}: no space left on the device")
    if error.errno in NO_FILES:
        return Overloaded(f"{what}: too many files are open; nothing is lost, try again")
    where = f": {error.filename}" if error.filename else ""
    return StorageError(f"{what}: {error.strerror or error}{where}")
