"""Where things lie in a lake: a directory, or a place in an object store.

    topics/<name>                  the Delta table of a topic, `:` in its name written as `~`
    latest/<name>                  the latest value of each tag, where it was asked for
    _dlq/<name>                    the dead letters: what a user's schema has rejected
    _schemas/<name>.json           the schema that a topic's records are judged by
    _accounts/<name>/<epoch>.json  an epoch that sync has met: what was deleted in it, its last head
    _locks/<name>                  in a directory: held by whoever writes the table
    _lake.json                     the lake's id, part of the name of the cursor that shows its lag

Everything is found by relative paths: a copied lake is the same lake.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, from_url

from topics.errors import NotFound, Unreachable

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_TABLES, _LATEST, _LETTERS, _ACCOUNTS, _SCHEMAS = (
    "topics", "latest", "_dlq", "_accounts", "_schemas"
)  # fmt: skip
_LOCKS, _ID = "_locks", "_lake.json"
_LOCK_PAUSE_S = 0.02


def folder_of(topic: str) -> str:
    return topic.replace(":", "~")


def topic_of(folder: str) -> str:
    return folder.replace("~", ":")


def matching(patterns: Iterable[str], topics: Iterable[str]) -> list[str]:
    """Names that match one of the shell patterns, in byte order."""
    wanted = list(patterns)
    return sorted(t for t in topics if any(fnmatchcase(t, pattern) for pattern in wanted))


class Lake:
    """A lake by its root."""

    def __init__(self, root: str) -> None:
        root = root.removeprefix("file://")
        self.is_local = "://" not in root
        self.root = str(Path(root).absolute()) if self.is_local else root.rstrip("/")

    def check(self) -> None:
        """Raises NotFound where there is no lake: nothing may be said of one by mistake."""
        if self.is_local and not Path(self.root).is_dir():
            raise NotFound(f"there is no lake at {self.root}")

    def table_uri(self, topic: str) -> str:
        return f"{self.root}/{_TABLES}/{folder_of(topic)}"

    def latest_uri(self, topic: str) -> str:
        return f"{self.root}/{_LATEST}/{folder_of(topic)}"

    def letters_uri(self, topic: str) -> str:
        return f"{self.root}/{_LETTERS}/{folder_of(topic)}"

    def tables(self) -> list[str]:
        """The topics that have a table, in byte order."""
        found = self._listed(_TABLES)["common_prefixes"]
        return sorted(topic_of(each.rstrip("/").rpartition("/")[2]) for each in found)

    def met(self) -> list[str]:
        """The topics that sync has met, whether or not they still have a table; in byte order."""
        found = self._listed(_ACCOUNTS)["common_prefixes"]
        names = (topic_of(each.rstrip("/").rpartition("/")[2]) for each in found)
        return sorted({*names, *self.tables()})

    @cached_property
    def id(self) -> str:
        """Made when it is first asked for."""
        found = self.read(_ID)
        if found is None:
            found = {"id": uuid.uuid4().hex[:12]}
            self.write(_ID, found)
        return str(found["id"])

    def epochs(self, topic: str) -> list[str]:
        """The epochs of a topic that sync has met."""
        found = self._listed(f"{_ACCOUNTS}/{folder_of(topic)}")["objects"]
        names = [each["path"].rpartition("/")[2] for each in found]
        return [name.removesuffix(".json") for name in names if name.endswith(".json")]

    def account(self, topic: str, epoch: str) -> dict[str, Any] | None:
        return self.read(f"{_ACCOUNTS}/{folder_of(topic)}/{epoch}.json")

    def keep_account(self, topic: str, epoch: str, account: dict[str, Any]) -> None:
        self.write(f"{_ACCOUNTS}/{folder_of(topic)}/{epoch}.json", account)

    def schema(self, topic: str) -> dict[str, Any] | None:
        return self.read(f"{_SCHEMAS}/{folder_of(topic)}.json")

    def keep_schema(self, topic: str, schema: dict[str, Any]) -> None:
        self.write(f"{_SCHEMAS}/{folder_of(topic)}.json", schema)

    def read(self, path: str) -> dict[str, Any] | None:
        try:
            content = bytes(obstore.get(self._store, path).bytes())
        except FileNotFoundError:
            return None
        except BaseError as error:
            raise _away(self.root, error) from None
        found: dict[str, Any] = json.loads(content)
        return found

    def write(self, path: str, value: dict[str, Any]) -> None:
        """Replaces a file as a whole."""
        try:
            obstore.put(self._store, path, json.dumps(value).encode())
        except BaseError as error:
            raise _away(self.root, error) from None

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Every file of the lake with its content, whatever version needs it."""
        try:
            for batch in obstore.list(self._store):
                for found in batch:
                    try:
                        content = bytes(obstore.get(self._store, found["path"]).bytes())
                    except FileNotFoundError:
                        continue
                    yield f"{self.root}/{found['path']}", content
        except BaseError as error:
            raise _away(self.root, error) from None

    @contextmanager
    def writing(self, topic: str) -> Iterator[None]:
        """Held while a table is written, so that two writers do not meet.

        Spark's commits replace a file of the same name in a directory: it looks, then renames. An
        object store refuses the second of two, and needs no lock.
        """
        if not self.is_local:
            yield
            return
        file = Path(self.root) / _LOCKS / folder_of(topic)
        file.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(_LOCK_PAUSE_S)
            yield
        finally:
            os.close(handle)

    def _listed(self, folder: str) -> Any:
        try:
            return obstore.list_with_delimiter(self._store, f"{folder}/")
        except FileNotFoundError:
            return {"common_prefixes": [], "objects": []}
        except BaseError as error:
            raise _away(self.root, error) from None

    @cached_property
    def _store(self) -> ObjectStore:
        if self.is_local:
            return LocalStore(self.root, mkdir=True)
        return from_url(self.root)


def _away(root: str, error: Exception) -> Unreachable:
    words = str(error).splitlines()[0] if str(error) else type(error).__name__
    return Unreachable(f"the lake at {root} can not be reached: {words}")
