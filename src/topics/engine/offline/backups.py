"""What is in a place for backups: the list of them, whether each is whole, which one has a moment.

Looks only. A backup is named when its manifest can be believed; `verify` reads every object that a
manifest names and holds it against its size and checksum, each once.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from topics.clock import iso_time
from topics.engine.offline import moments
from topics.engine.offline.findings import Progress, Report
from topics.engine.offline.moments import Moment
from topics.errors import CorruptData, InvalidRequest, NotFound, TopicNotFound, TopicsError
from topics.storage import snapshot, vault
from topics.storage.tiers import Store
from topics.storage.vault import Manifest

NOTHING = "there is no backup here"
SPANS_SHOWN = 3


class BackupLine(msgspec.Struct, kw_only=True):
    """A backup, in a line of the list."""

    id: str
    # When it began, and the moments that can be restored from it.
    began_ms: int
    from_ms: int
    to_ms: int
    topics: int
    bytes: int
    bytes_copied: int


class Verified(msgspec.Struct, kw_only=True):
    ok: bool
    backups: int
    objects: int
    bytes: int
    problems: list[dict[str, object]]


def listed(store: Store) -> tuple[list[BackupLine], Report]:
    """The backups that are there, oldest first, and the manifests that can not be believed."""
    report = Report()
    lines = [
        BackupLine(
            id=each.id, began_ms=each.began_ms, from_ms=each.from_ms, to_ms=each.to_ms,
            topics=each.topics, bytes=each.bytes, bytes_copied=each.bytes_copied,
        )
        for each in reversed(_believed(store, report))
    ]  # fmt: skip
    return lines, report


def manifests(store: Store) -> Iterator[Manifest]:
    """Newest first. Raises CorruptData where it comes to one that can not be believed."""
    for backup_id in vault.ids(store):
        yield vault.read_manifest(store, backup_id)


def _believed(store: Store, report: Report) -> list[Manifest]:
    """Newest first; the others are problems."""
    found = []
    for backup_id in vault.ids(store):
        try:
            found.append(vault.read_manifest(store, backup_id))
        except CorruptData as error:
            report.problem(vault.manifest_name(backup_id), "damaged_manifest", error.message)
    return found


def verify(store: Store, progress: Progress | None = None) -> Verified:
    """Reads everything that any backup names. Raises OSError where the store can not be read."""
    report = Report()
    found = _believed(store, report)
    named = {each: manifest.id for manifest in found for each in manifest.objects()}
    total, done = sum(each.size for each in named), 0
    for each, backup_id in sorted(named.items(), key=lambda item: item[0].name):
        try:
            for piece in vault.pieces(store, each):
                done += len(piece)
                if progress is not None:
                    progress(done, total)
        except CorruptData as error:
            report.problem(each.name, "damaged_object", f"{error.message} (backup {backup_id})")
    return Verified(
        ok=not report.problems, backups=len(found), objects=len(named), bytes=done,
        problems=report.problems,
    )  # fmt: skip


# -- which one -----------------------------------------------------------------------------------


def choose(
    store: Store,
    backup_id: str | None = None,
    *,
    at_ms: int | None = None,
    topic: str | None = None,
    seq: int | None = None,
) -> tuple[Manifest, Moment | None]:
    """The backup to restore from, and the moment in it; None is its end.

    The newest one that has the moment in its span knows most of the deletes that came later. Raises
    NotFound where there is none, InvalidRequest for a moment that none of them has, and CorruptData
    where one that is newer than any that has it can not be believed: nobody is given less than
    there may be without a word.
    """
    found = manifests(store) if backup_id is None else iter([vault.read_manifest(store, backup_id)])
    try:
        if at_ms is not None:
            return _covering(found, at_ms)
        if topic is not None and seq is not None:
            return _having(store, found, topic, seq)
        for manifest in found:
            return manifest, None
    except CorruptData as error:
        raise CorruptData(
            f"{error.message}; --backup ID restores from another one, and `topics backup ls` lists "
            "them", **error.detail,
        ) from None  # fmt: skip
    raise NotFound(NOTHING)


def _covering(found: Iterator[Manifest], at_ms: int) -> tuple[Manifest, Moment]:
    spans: list[str] = []
    for manifest in found:
        if manifest.from_ms <= at_ms <= manifest.to_ms:
            return manifest, Moment(at_ms)
        span = f"{iso_time(manifest.from_ms)} to {iso_time(manifest.to_ms)}"
        spans.insert(0, f"{span} ({manifest.id})")
    if not spans:
        raise NotFound(NOTHING)
    newest = ", ".join(spans[-SPANS_SHOWN:])
    raise InvalidRequest(
        f"no backup here has {iso_time(at_ms)} in its span; the newest go from {newest}"
    )


def _having(
    store: Store, found: Iterator[Manifest], topic: str, seq: int
) -> tuple[Manifest, Moment]:
    why: TopicsError | None = None
    for manifest in found:
        try:
            return manifest, _moment(store, manifest, topic, seq)
        except (InvalidRequest, TopicNotFound) as error:
            why = why or error
    raise why or NotFound(NOTHING)


def _moment(store: Store, manifest: Manifest, topic: str, seq: int) -> Moment:
    """Of all topics that had a name the youngest counts."""
    ids = [topic_id for name, topic_id in moments.names_in(store, manifest) if name == topic]
    for each in manifest.snapshots:
        _, records = snapshot.decode(vault.read_object(store, each.body), each.number)
        ids += [record.id for record in records if record.name == topic]
    if not ids:
        raise TopicNotFound(f"backup {manifest.id} has no topic {topic}", topic=topic)
    return moments.find_seq(store, manifest, topic, seq, max(ids))
