"""POST /v0/backup begins a backup beside everything else; GET says how far it is."""

from __future__ import annotations

import os

import msgspec

from topics.engine.upkeep.backup import BackupStatus, State
from topics.errors import Forbidden, InvalidRequest, NotFound, StorageError
from topics.loose import Loose
from topics.server.api.auth import ADMIN
from topics.server.api.call import Call
from topics.server.api.decoding import decode
from topics.server.api.fields import PLACE_CHARS_MAX, BackupPlace
from topics.server.api.route import Route
from topics.server.api.shapes import Performance
from topics.server.http.message import Answer
from topics.server.loop.services import BACKUP_PATH, Services
from topics.storage.tiers import SCHEME


class BackupBody(msgspec.Struct, kw_only=True):
    dest: BackupPlace


class BackupState(msgspec.Struct, kw_only=True):
    """The backup that runs, or the last one that did since the server's start."""

    id: str
    dest: str
    state: State
    began_ts: int
    ended_ts: int | None
    from_ts: int | None
    to_ts: int | None
    topics: int | None
    bytes: int
    bytes_done: int
    bytes_copied: int
    error: str
    performance: Performance


_BODY = Loose(BackupBody)


class BackupRoutes:
    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        return [
            Route(
                method="POST", path=BACKUP_PATH, handler=self.begin, scopes=ADMIN,
                summary="Begin a backup to a directory of the server or to a bucket.",
                body=BackupBody, needs_body=True, answers={202: BackupState}, errors=("conflict",),
            ),
            Route(
                method="GET", path=BACKUP_PATH, handler=self.look, scopes=ADMIN,
                summary="How far the backup is that runs, or what became of the last one.",
                answers={200: BackupState}, errors=("not_found",),
            ),
        ]  # fmt: skip

    def begin(self, call: Call) -> Answer:
        _check_all(call)
        dest = decode(call, _BODY).dest
        scheme = SCHEME.match(dest)
        is_known = scheme is not None and scheme[1] in ("s3", "gs", "az")
        is_place = is_known or (scheme is None and os.path.isabs(dest) and "\0" not in dest)
        if not is_place or len(dest) > PLACE_CHARS_MAX:
            raise InvalidRequest("dest must be an absolute path, or begin with s3://, gs://, az://")
        try:
            status = self._services.engine.begin_backup(dest)
        except StorageError as error:
            raise InvalidRequest(error.message) from None
        self._services.driver.work_soon()
        return call.answer(_state(call, status), 202)

    def look(self, call: Call) -> Answer:
        _check_all(call)
        status = self._services.engine.backup_status
        if status is None:
            raise NotFound("no backup was begun since the server's start")
        return call.answer(_state(call, status))


def _check_all(call: Call) -> None:
    """A backup is of every topic."""
    if call.key is not None and call.key.prefixes:
        raise Forbidden("this key is for some topics, and a backup has all of them")


def _state(call: Call, status: BackupStatus) -> BackupState:
    fields = msgspec.structs.asdict(status)
    return BackupState(**fields, performance=call.performance())
