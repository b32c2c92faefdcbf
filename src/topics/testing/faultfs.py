"""One planned fault on the way to any Fs: the Nth matching call, once or from then on.

Counts every call by operation, so that a sweep can run a workload once, read `calls` and then fail
each call in turn. Faults compound by nesting: `FaultFs(FaultFs(disk, first), second)`.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from topics.storage.fs import File, Fs, Lock
from topics.testing.fakenodes import SyncEffect
from topics.testing.sparsebytes import SECTOR_BYTES

Operation = Literal[
    "open",
    "create",
    "pread",
    "pwrite",
    "sync",
    "allocate",
    "truncate",
    "rename",
    "unlink",
    "mkdir",
    "listdir",
    "sync_dir",
    "lock",
]
ReadEffect = Literal["error", "bit-flip", "zero-sector", "truncation"]


@dataclass(slots=True)
class Fault:
    """What goes wrong. `nth` counts from 1 among calls of `operation` on matching paths.

    `errno` 0 means that the call reports success: with a sync and "ignored" that is a lying disk.
    `sync_effect` says what a failing sync did to the unsynced bytes of the file: "dropped" loses
    them from cache and disk, "persisted" makes them durable, "cached" leaves them readable while
    no later sync writes them, "ignored" leaves them pending. For `sync_dir`, "persisted" does the
    work and the others do not. `short_bytes` of a pwrite are written before it fails.
    `read_effect` damages the bytes of a pread at `damage_at`, counted from the start of that read;
    such a read reports no error. `action` runs as the fault fires: stall, kill, move a clock.
    `fired` counts how often it has.
    """

    operation: Operation
    nth: int = 1
    errno: int = errno.EIO
    forever: bool = False
    sync_effect: SyncEffect = "dropped"
    short_bytes: int | None = None
    read_effect: ReadEffect = "error"
    damage_at: int = 0
    path_contains: str = ""
    action: Callable[[], None] | None = field(default=None, repr=False)
    matched: int = field(default=0, init=False)
    fired: int = field(default=0, init=False)

    def strikes(self, operation: Operation, path: str) -> bool:
        if operation != self.operation or self.path_contains not in path:
            return False
        self.matched += 1
        is_due = self.matched >= self.nth if self.forever else self.matched == self.nth
        self.fired += is_due
        return is_due

    def raise_error(self, path: str) -> None:
        if self.errno:
            raise OSError(self.errno, os.strerror(self.errno), path)


@runtime_checkable
class _FailsSync(Protocol):
    def fail_sync(self, effect: SyncEffect) -> None: ...


class FaultFile:
    def __init__(self, fs: FaultFs, inner: File) -> None:
        self.path = inner.path
        self._fs = fs
        self._inner = inner

    def pread(self, length: int, offset: int) -> bytes:
        fault = self._fs.strike("pread", self.path)
        if fault is None:
            return self._inner.pread(length, offset)
        if fault.read_effect == "error":
            fault.raise_error(self.path)
        return _damaged(self._inner.pread(length, offset), offset, fault)

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        fault = self._fs.strike("pwrite", self.path)
        if fault is None:
            self._inner.pwrite(data, offset)
            return
        if fault.short_bytes is not None:
            self._inner.pwrite(bytes(data)[: fault.short_bytes], offset)
        elif not fault.errno:
            self._inner.pwrite(data, offset)
        fault.raise_error(self.path)

    def sync(self) -> None:
        fault = self._fs.strike("sync", self.path)
        if fault is None:
            self._inner.sync()
            return
        self.fail_sync(fault.sync_effect)
        fault.raise_error(self.path)

    def fail_sync(self, effect: SyncEffect) -> None:
        """Only a FakeDisk can drop its cache or forget that a page is dirty."""
        if isinstance(self._inner, _FailsSync):
            self._inner.fail_sync(effect)
        elif effect == "persisted":
            self._inner.sync()
        elif effect != "ignored":
            raise TypeError(f"sync effect {effect!r} needs a FakeDisk below this FaultFs")

    def allocate(self, length: int) -> None:
        self._fs.fail_at("allocate", self.path)
        self._inner.allocate(length)

    def truncate(self, length: int) -> None:
        self._fs.fail_at("truncate", self.path)
        self._inner.truncate(length)

    def size(self) -> int:
        return self._inner.size()

    def close(self) -> None:
        self._inner.close()


def _damaged(data: bytes, offset: int, fault: Fault) -> bytes:
    if not data or fault.read_effect == "error":
        return data
    at = fault.damage_at % len(data)
    if fault.read_effect == "truncation":
        return data[:at]
    if fault.read_effect == "bit-flip":
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    sector = (offset + at) // SECTOR_BYTES * SECTOR_BYTES
    start = max(0, sector - offset)
    end = min(len(data), sector + SECTOR_BYTES - offset)
    return data[:start] + bytes(end - start) + data[end:]


class FaultFs:
    """`fault` may be replaced at any time; None passes everything through."""

    def __init__(self, inner: Fs, fault: Fault | None = None) -> None:
        self.inner = inner
        self.fault = fault
        self.calls: Counter[str] = Counter()
        self._guard = threading.Lock()

    def strike(self, operation: Operation, path: str) -> Fault | None:
        """Counts a call and returns the fault that befalls it, its action done."""
        with self._guard:
            self.calls[operation] += 1
            fault = self.fault
            if fault is None or not fault.strikes(operation, path):
                return None
        if fault.action is not None:
            fault.action()
        return fault

    def fail_at(self, operation: Operation, path: str) -> None:
        fault = self.strike(operation, path)
        if fault is not None:
            fault.raise_error(path)

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> FaultFile:
        is_new = create and not self.inner.exists(path)
        self.fail_at("create" if is_new else "open", path)
        return FaultFile(self, self.inner.open(path, create=create, writable=writable))

    def rename(self, source: str, target: str) -> None:
        self.fail_at("rename", source)
        self.inner.rename(source, target)

    def unlink(self, path: str) -> None:
        self.fail_at("unlink", path)
        self.inner.unlink(path)

    def mkdir(self, path: str) -> None:
        self.fail_at("mkdir", path)
        self.inner.mkdir(path)

    def listdir(self, path: str) -> list[str]:
        self.fail_at("listdir", path)
        return self.inner.listdir(path)

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def resolve(self, path: str) -> str:
        return self.inner.resolve(path)

    def sync_dir(self, path: str) -> None:
        fault = self.strike("sync_dir", path)
        if fault is None or fault.sync_effect == "persisted":
            self.inner.sync_dir(path)
        if fault is not None:
            fault.raise_error(path)

    def lock(self, path: str, owner: str) -> Lock:
        self.fail_at("lock", path)
        return self.inner.lock(path, owner)

    def boot_id(self) -> str:
        return self.inner.boot_id()
