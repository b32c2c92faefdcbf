"""A filesystem that can only be read: the proof that a tool which looks does not touch.

Every mutating call raises PermissionError. Two are allowed to do nothing, because their effect is
there already: making a directory that exists, and syncing one.
"""

from __future__ import annotations

import errno
from typing import NoReturn

from topics.storage.fs import File, Fs, Lock


class ReadOnlyFs:
    def __init__(self, inner: Fs) -> None:
        self._inner = inner

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        del create, writable
        return self._inner.open(path, writable=False)

    def rename(self, source: str, target: str) -> None:
        del target
        _refuse(source)

    def unlink(self, path: str) -> None:
        _refuse(path)

    def mkdir(self, path: str) -> None:
        if not self._inner.exists(path):
            _refuse(path)

    def listdir(self, path: str) -> list[str]:
        return self._inner.listdir(path)

    def exists(self, path: str) -> bool:
        return self._inner.exists(path)

    def resolve(self, path: str) -> str:
        return self._inner.resolve(path)

    def sync_dir(self, path: str) -> None:
        del path

    def lock(self, path: str, owner: str) -> Lock:
        del owner
        _refuse(path)

    def boot_id(self) -> str:
        return self._inner.boot_id()


def _refuse(path: str) -> NoReturn:
    raise PermissionError(errno.EROFS, "this tool only reads", path)
