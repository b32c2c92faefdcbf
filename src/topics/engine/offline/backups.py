"""What is in a place for backups: the list of them, whether each is whole, which one has a moment.

Looks only. A backup is named when its manifest can be believed; `verify` reads every object that a
manifest names and holds it against its size and checksum, each once.
"""

from __future__ import annotations

import msgspec

from topics.engine.offline import moments
from topics.engine.offline.findings import Progress, Report
from topics.engine.offline.moments import Moment
from topics.errors import CorruptData, InvalidRequest, NotFound, TopicNotFound, TopicsError
from topics.storage import snapshot, vault
from topics.storage.tiers import Store
from topics.storage.vault import Manifest


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


def listed(store: Store) -> list[BackupLine]:
    """The backups that are there, oldest first. Raises CorruptData for a damaged manifest."""
    return [
        BackupLine(
            id=each.id, began_ms=each.began_ms, from_ms=each.from_ms, to_ms=each.to_ms,
            topics=each.topics, bytes=each.bytes, bytes_copied=each.bytes_copied,
        )
        for each in reversed(manifests(store))
    ]  # fmt: skip


def manifests(store: Store) -> list[Manifest]:
    """Newest first."""
    return [vault.read_manifest(store, backup_id) for backup_id in vault.ids(store)]


def verify(store: Store, progress: Progress | None = None) -> Verified:
    """Reads everything that any backup names. Raises OSError where the store can not be read."""
    report, found = Report(), []
    for backup_id in vault.ids(store):
        try:
            found.append(vault.read_manifest(store, backup_id))
        except CorruptData as error:
            report.problem(vault.manifest_name(backup_id), "damaged_manifest", error.message)
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
    NotFound where there is none, InvalidRequest for a moment that none of them has.
    """
    found = manifests(store) if backup_id is None else [vault.read_manifest(store, backup_id)]
    if not found:
        raise NotFound("there is no backup here")
    if at_ms is not None:
        for manifest in found:
            if manifest.from_ms <= at_ms <= manifest.to_ms:
                return manifest, Moment(at_ms)
        spans = ", ".join(f"{m.from_ms} to {m.to_ms} ({m.id})" for m in reversed(found))
        raise InvalidRequest(f"no backup here has {at_ms} ms in its span; they go from {spans}")
    if topic is None or seq is None:
        return found[0], None
    why: TopicsError | None = None
    for manifest in found:
        try:
            return manifest, _moment(store, manifest, topic, seq)
        except (InvalidRequest, TopicNotFound) as error:
            why = why or error
    assert why is not None
    raise why


def _moment(store: Store, manifest: Manifest, topic: str, seq: int) -> Moment:
    """Of all topics that had a name the youngest counts."""
    ids = [topic_id for name, topic_id in moments.names_in(store, manifest) if name == topic]
    for each in manifest.snapshots:
        _, records = snapshot.decode(vault.read_object(store, each.body), each.number)
        ids += [record.id for record in records if record.name == topic]
    if not ids:
        raise TopicNotFound(f"backup {manifest.id} has no topic {topic}", topic=topic)
    return moments.find_seq(store, manifest, topic, seq, max(ids))
