"""Codecs: what was encoded is decoded as it was, in whichever of its forms it was written."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topics.storage import columns, frames, marks, segment
from topics.storage.columns import Columns
from topics.storage.frames import SECTOR, FileHeader, Mark
from topics.storage.marks import Vouch
from topics.storage.segment import FileBytes, SegmentWriter
from topics.testing import FakeDisk

EXAMPLES = settings(
    max_examples=200, deadline=None, derandomize=True, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
TEXT = st.none() | st.text(max_size=8)
FILE_ID = 77


@st.composite
def runs(draw: st.DrawFn) -> Columns:
    """A run of records with any of its columns."""
    records = draw(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=12))
    count, at = len(records), 0
    ends = array("I")
    for record in records:
        at += len(record)
        ends.append(at)
    starts = sorted({0, *draw(st.lists(st.integers(0, count - 1), max_size=3))})
    times = sorted(draw(st.lists(
        st.integers(0, 2**62), min_size=len(starts), max_size=len(starts), unique=True
    )))  # fmt: skip
    texts = st.none() | st.lists(TEXT, min_size=count, max_size=count)
    metas = st.none() | st.lists(st.integers(0, 1), min_size=count, max_size=count).map(bytearray)
    return Columns(
        b"".join(records), ends, array("I", starts), array("q", times),
        draw(texts), draw(texts), draw(metas),
    )  # fmt: skip


def shown(run: Columns) -> tuple[object, ...]:
    parts = (run.ends, run.times_at, run.times, run.nodes, run.tags, run.metas)
    return (bytes(run.payload), *parts)


@EXAMPLES
@given(run=runs())
def test_columns_come_back_as_they_were(run: Columns) -> None:
    flags, raw = columns.encode(run, times=True)
    found = columns.decode(flags, len(run), raw, run.payload, 0)[0]
    assert shown(found) == shown(run)


@EXAMPLES
@given(run=runs())
def test_columns_without_times_have_that_of_their_frame(run: Columns) -> None:
    flags, raw = columns.encode(run, times=False)
    found = columns.decode(flags, len(run), raw, run.payload, 5)[0]
    assert [found.time_of(index) for index in range(len(run))] == [5] * len(run)
    assert shown(found)[:2] == shown(run)[:2]


@pytest.mark.slow
@EXAMPLES
@given(one=runs(), two=runs())
def test_runs_that_were_joined_can_be_cut_apart(one: Columns, two: Columns) -> None:
    joined = columns.empty()
    joined.extend(one)
    joined.extend(two)
    parts = joined.cut(0, len(one)), joined.cut(len(one), len(one) + len(two))
    for part, before in zip(parts, (one, two), strict=True):
        assert bytes(part.payload) == before.payload
        assert part.ends == before.ends
        expected = [before.time_of(index) for index in range(len(before))]
        assert [part.time_of(index) for index in range(len(part))] == expected
        assert (part.tags or [None] * len(part)) == (before.tags or [None] * len(before))


def group(payloads: list[bytes]) -> bytes:
    """A group with these payloads, as it stands in a file."""
    entries = [
        frames.ENTRY.pack(3, frames.APPEND, 0, 1, seq, 9, 0, 0, len(payload))
        for seq, payload in enumerate(payloads, 1)
    ]
    end = frames.GROUP.size + frames.ENTRY.size * len(entries) + sum(map(len, payloads))
    head = frames.encode_group(
        file_id=FILE_ID, first_lsn=1, entries=entries, columns=[], payloads=payloads, end=end,
        synced_file=1, synced_upto=SECTOR, now_ms=5,
    )  # fmt: skip
    whole = bytes(head) if len(head) >= end else bytes(head) + b"".join(payloads)
    return whole[:end].ljust(frames.padded(end), b"\0")


@pytest.mark.parametrize("size", [0, 1, 500, 30_000, 100_000])
def test_a_large_group_has_the_bytes_of_one_that_was_joined(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its payloads are copied into it or written after it, the file is the same."""
    payloads = [bytes([number]) * size for number in range(4)]
    monkeypatch.setattr(frames, "SPLIT_BYTES", 1 << 40)
    joined = group(payloads)
    monkeypatch.setattr(frames, "SPLIT_BYTES", 0)
    assert group(payloads) == joined
    found = frames.scan_groups(bytes(SECTOR) + joined, FILE_ID)
    assert [bytes(found.payload(index)) for index in range(len(payloads))] == payloads
    assert found.frames["first"].tolist() == [1, 2, 3, 4]
    assert found.end == SECTOR + len(joined)


def test_the_header_of_a_log_file_comes_back_as_it_was() -> None:
    header = FileHeader(FILE_ID, 4, 1, 9, 1_700_000_000_000, "boot", 65536, True)
    assert frames.decode_file_header(header.encode()) == header


def test_marks_say_what_was_entered_last() -> None:
    """Of each shard the place and the file, of earlier generations what was known."""
    disk = FakeDisk()
    disk.mkdir("/d")
    marks.create(disk, "/d")
    earlier = {(1, 0): Vouch(3, Mark(3, 1024), 7)}
    begun = marks.begin(disk, "/d", file_id=5, generation=2, shards=2, earlier=earlier)
    begun.enter_file(0, 1)
    begun.enter_file(1, 1)
    begun.enter(1, Mark(1, 2048), 12)
    begun.is_ready = True
    begun.settle()
    assert not marks.read(disk, "/d").is_ready, "one slot of each pair does not say so yet"
    begun.settle()
    begun.close()
    known = marks.read(disk, "/d")
    assert (known.generation, known.shards, known.is_ready) == (2, 2, True)
    assert not known.damage
    assert known.lines[1, 0] == earlier[1, 0]
    assert (known.lines[2, 1].mark, known.lines[2, 1].lsn) == (Mark(1, 2048), 12)


@pytest.mark.slow
@EXAMPLES
@given(blocks=st.lists(runs(), min_size=1, max_size=3))
def test_a_segment_has_the_blocks_that_were_added(blocks: list[Columns]) -> None:
    disk = FakeDisk()
    disk.mkdir("/d")
    writer, first = SegmentWriter(disk, "/d", 1), 1
    for block in blocks:
        writer.add(block, topic_id=3, epoch=2, first=first, dead=bytes(len(block)))
        first += len(block)
    written = writer.finish()
    source = FileBytes(disk.open("/d/" + segment.file_name(1)))
    info = segment.read_info(source, 1)
    assert info.rows == written.rows
    found = [segment.read_block(source, row, 1) for row in info.rows]
    assert [shown(block) for block in found] == [shown(block) for block in blocks]
