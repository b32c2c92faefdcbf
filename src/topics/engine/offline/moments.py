"""A moment in the log of a backup: which of its groups come before it, and what later ones say.

A moment is a time, or that a topic's head was a seq. The log is cut in front of the first group of
each shard that is from after it, and is then what a killed process would have left: recovery folds
it as ever. A group is from the time at which its first record was committed; one that brings none,
or records of long ago, is from when it was written. For a topic and a seq the last group is cut
inside, so that the head is that seq; everything else is as of the time of that record.

What comes after the moment is read for what stays so whatever is restored: records that were
deleted and topics that were dropped. Two kinds of deletes are none: what compaction took from a
bucket was superseded only later, and a job that was moved to its dead letters later is not there
yet. Those are told apart here, so that a restore can give them back.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from topics.engine.ops.catalog import decode_create
from topics.engine.ops.deletes import DeleteFrame
from topics.engine.queues import origins
from topics.engine.state import router_frames
from topics.errors import CorruptData, InvalidRequest
from topics.storage import columns as columns_codec
from topics.storage import frames, vault
from topics.storage.frames import Groups
from topics.storage.tiers import Store
from topics.storage.vault import LogCopy, Manifest

# A record is written in the turn in which it was committed. What is older than this by then is one
# that is written again.
TURN_MS = 1000
_WALL = struct.Struct("<Q")
_DELETE = msgspec.msgpack.Decoder(DeleteFrame)


@dataclass(frozen=True, slots=True)
class Place:
    """A frame of the log; nothing of its topic comes after it, and of its records only `count`."""

    generation: int
    shard: int
    number: int
    group: int
    frame: int
    topic_id: int
    count: int


@dataclass(frozen=True, slots=True)
class Moment:
    at_ms: int
    place: Place | None = None


@dataclass(slots=True)
class Later:
    """What the log says of topics after the moment, by their ids."""

    dropped: set[int] = field(default_factory=set)
    before: dict[int, int] = field(default_factory=dict)
    runs: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    # Everything that a delete in the log names, also before the moment: what a snapshot in front
    # of it has no flags for. Those below a seq are apart, because most had gone before.
    since: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    since_below: dict[int, int] = field(default_factory=dict)
    # Records that were there at the moment, and went without having been deleted.
    given_back: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))

    def note_deletes(self, groups: Groups) -> None:
        """Takes note of all deletes of a file, on either side of the moment."""
        for index in np.flatnonzero(groups.frames["kind"] == frames.DELETE).tolist():
            topic_id = int(groups.frames["topic"][index])
            frame = _DELETE.decode(groups.payload(index))
            runs = frame.unpacked()
            self.since[topic_id].extend(zip(runs[0::2], runs[1::2], strict=True))
            self.since_below[topic_id] = max(self.since_below.get(topic_id, 0), frame.before_seq)

    def note(self, groups: Groups, index: int) -> None:
        row = groups.frames[index]
        kind, topic_id = int(row["kind"]), int(row["topic"])
        if kind == frames.DROP:
            self.dropped.add(topic_id)
        elif kind == frames.DELETE:
            self._delete(topic_id, _DELETE.decode(groups.payload(index)))
        elif kind == frames.APPEND and int(row["flags"]) & columns_codec.MOVED:
            origin = origins.decode(groups.columns(index)[1])
            self.given_back[origin.source_id].update(origin.seqs)

    def _delete(self, topic_id: int, frame: DeleteFrame) -> None:
        runs = frame.unpacked()
        pairs = list(zip(runs[0::2], runs[1::2], strict=True))
        if any(frame.lacking):
            for first, last in pairs:
                self.given_back[topic_id].update(range(first, last + 1))
            return
        self.before[topic_id] = max(self.before.get(topic_id, 0), frame.before_seq)
        self.runs[topic_id].extend(pairs)

    def seqs_of(self, topic_id: int, first: int, head: int) -> list[int]:
        """What of the seqs from `first` to `head` was deleted."""
        found = set(range(first, min(self.before.get(topic_id, 0), head + 1)))
        for low, last in self.runs.get(topic_id, ()):
            found.update(range(max(low, first), min(last, head) + 1))
        return sorted(found - self.given_back.get(topic_id, set()))


def read_log(store: Store, log: LogCopy) -> tuple[bytes, Groups]:
    """A log file and its groups. Raises CorruptData for one that is not whole."""
    raw = b"".join(vault.read_object(store, part) for part in log.parts)
    header = frames.decode_file_header(raw[: frames.SECTOR].ljust(frames.SECTOR, b"\0"))
    where = (log.generation, log.shard, log.number)
    if header is None or (header.generation, header.shard, header.number) != where:
        raise CorruptData(f"log file {where} of the backup has no header")
    # Zeros at the end were left out, and the last group may end with some.
    for size in (frames.padded(len(raw)), header.capacity):
        raw = raw.ljust(size, b"\0")
        groups = frames.scan_groups(raw, header.file_id)
        if not groups.damaged:
            return raw[: groups.end], groups
    raise CorruptData(f"log file {where} of the backup is damaged at byte {groups.end}")


def times_of(groups: Groups) -> npt.NDArray[np.int64]:
    """When each group is from."""
    walls = [_WALL.unpack_from(groups.raw, int(at) + 56)[0] for at in groups.starts]
    wall = np.array(walls, dtype=np.int64)
    first = wall.copy()
    table = groups.frames
    brings = np.isin(table["kind"], list(frames.BRINGING))
    np.minimum.at(first, groups.frame_group[brings], table["ts"][brings].astype(np.int64))
    return np.where(first < wall - TURN_MS, wall, first)


def stop_of(groups: Groups, log: LogCopy, moment: Moment) -> int:
    """How many of the groups of a file come before the moment."""
    place = moment.place
    if place is not None and (log.generation, log.shard) == (place.generation, place.shard):
        if log.number != place.number:
            return len(groups.starts) if log.number < place.number else 0
        return place.group + 1
    late = np.flatnonzero(times_of(groups) > moment.at_ms)
    return int(late[0]) if len(late) else len(groups.starts)


def has_started(groups: Groups, stop: int) -> bool:
    """Whether a start had come to its end by then: before, nobody had seen its generation."""
    kinds = groups.frames["kind"][groups.frame_group < stop]
    return bool((kinds == frames.RECOVERED).any())


# -- a seq ---------------------------------------------------------------------------------------


def find_seq(store: Store, manifest: Manifest, topic: str, seq: int, topic_id: int) -> Moment:
    """The moment at which a topic's head became `seq`. Raises InvalidRequest when it never was."""
    for log in manifest.logs:
        _, groups = read_log(store, log)
        mine = np.flatnonzero(groups.frames["topic"] == topic_id)
        for index in mine.tolist():
            span = _span(groups, index)
            if span is None or span[1] < seq:
                continue
            first, last = span
            if first > seq:
                raise InvalidRequest(
                    f"seq {seq} of {topic} was written before the span of backup {manifest.id}, "
                    f"in which the first is {first}"
                )
            return _moment(groups, log, index, (first, last), topic, seq)
    raise InvalidRequest(f"seq {seq} of {topic} was not written in the span of this backup")


def _moment(
    groups: Groups, log: LogCopy, index: int, span: tuple[int, int], topic: str, seq: int
) -> Moment:
    first, last = span
    row = groups.frames[index]
    is_plain = row["kind"] == frames.APPEND and not row["flags"] & columns_codec.MOVED
    if seq != last and not is_plain:
        raise InvalidRequest(
            f"seqs {first} to {last} of {topic} came at once; ask for --seq {first - 1} or {last}"
        )
    group = int(groups.frame_group[index])
    place = Place(
        log.generation, log.shard, log.number, group, index, int(row["topic"]), seq - first + 1
    )
    return Moment(max(int(row["ts"]), int(times_of(groups)[group])), place)


def _span(groups: Groups, index: int) -> tuple[int, int] | None:
    """The seqs that a frame brings."""
    row = groups.frames[index]
    kind, first = int(row["kind"]), int(row["first"])
    if kind == frames.APPEND:
        return first, first + int(row["count"]) - 1
    if kind in (frames.COMMIT, frames.HOLE):
        return first, int(row["floor"])
    if kind == frames.MAP:
        mapped = router_frames.decode_map(groups.payload(index))
        return first, first + sum(last - low + 1 for _, low, last in mapped.runs) - 1
    return None


def names_in(store: Store, manifest: Manifest) -> Iterator[tuple[str, int]]:
    """Names and ids of the topics that the log of a backup creates."""
    for log in manifest.logs:
        _, groups = read_log(store, log)
        for index in np.flatnonzero(groups.frames["kind"] == frames.CREATE).tolist():
            yield decode_create(groups.payload(index)).name, int(groups.frames["topic"][index])


def cut_group(groups: Groups, place: Place) -> bytes:
    """The bytes of the last group, with nothing of the topic after the place."""
    entries, columns, payloads = [], [], []
    inside = np.flatnonzero(groups.frame_group == place.group).tolist()
    for index in inside:
        row = groups.frames[index]
        is_own = int(row["topic"]) == place.topic_id
        if is_own and index > place.frame:
            continue
        cols, payload = groups.columns_raw(index), bytes(groups.payload(index))
        entry = row.tobytes()
        if index == place.frame and int(row["kind"]) == frames.APPEND:
            entry, cols, payload = _cut_append(groups, index, place.count)
        entries.append(entry)
        columns.append(cols)
        payloads.append(payload)
    start = int(groups.starts[place.group])
    head = frames.GROUP.unpack_from(groups.raw, start)
    end = frames.GROUP.size + frames.ENTRY.size * len(entries)
    end += sum(map(len, columns)) + sum(map(len, payloads))
    group = frames.encode_group(
        file_id=head[2], first_lsn=head[3], entries=entries, columns=columns, payloads=payloads,
        end=end, synced_file=head[7], synced_upto=head[8], now_ms=head[9],
    )  # fmt: skip
    if len(group) < end:
        group += b"".join(payloads)
    return bytes(group).ljust(frames.padded(end), b"\0")


def _cut_append(groups: Groups, index: int, count: int) -> tuple[bytes, bytes, bytes]:
    row = groups.frames[index]
    whole, key = groups.columns(index)
    if count == len(whole):
        return row.tobytes(), groups.columns_raw(index), bytes(groups.payload(index))
    kept = whole.cut(0, count)
    # The key of one write of which a part is gone must not answer for the whole of it.
    is_of_each = len(key) == columns_codec.KEY_BYTES * len(whole)
    key = key[: columns_codec.KEY_BYTES * count] if is_of_each else b""
    has_times = bool(int(row["flags"]) & columns_codec.TIMES)
    flags, cols = columns_codec.encode(kept, times=has_times, key=key)
    payload = bytes(kept.payload)
    entry = frames.ENTRY.pack(
        int(row["topic"]), frames.APPEND, flags, count, int(row["first"]), int(row["ts"]),
        int(row["floor"]), len(cols), len(payload),
    )  # fmt: skip
    return entry, cols, payload
