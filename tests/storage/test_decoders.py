"""Any bytes whatever: a decoder takes them for what was written, or refuses them as corrupt."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.crash.harness.log_harness import SETTINGS, deterministic
from tests.crash.harness.rot import built, kind_of
from topics.errors import CorruptData
from topics.storage import cold, columns, frames, marks, segment, snapshot
from topics.storage.frames import SECTOR
from topics.testing import FakeDisk

EXAMPLES = settings(
    max_examples=300, deadline=None, derandomize=True, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


def only_corrupt_data(call: Callable[[], object]) -> None:
    try:
        call()
    except CorruptData:
        pass


@EXAMPLES
@given(
    flags=st.integers(0, 127), count=st.integers(0, 40), raw=st.binary(max_size=400),
    payload=st.binary(max_size=100),
)  # fmt: skip
def test_columns_decode_or_are_corrupt(flags: int, count: int, raw: bytes, payload: bytes) -> None:
    only_corrupt_data(lambda: columns.decode(flags, count, raw, payload, 0))


@functools.cache
def some_log() -> bytes:
    with deterministic(1):
        files = built(SETTINGS)[0].files()
    logs = [content for path, content in files.items() if kind_of(path) == "wal"]
    return max(logs, key=lambda content: len(content.rstrip(b"\0")))


@EXAMPLES
@given(raw=st.binary(max_size=3000), cut=st.integers(0, 10**6), flips=st.integers(1, 255))
def test_groups_are_found_whole_or_not_at_all(raw: bytes, cut: int, flips: int) -> None:
    """Any bytes, and a real log with any byte changed: a prefix of it, or all of it, unchanged."""
    frames.scan_groups(raw, 7)
    log = bytearray(some_log())
    header = frames.decode_file_header(bytes(log[:SECTOR]))
    assert header is not None
    whole = frames.scan_groups(bytes(log), header.file_id)
    log[SECTOR + cut % (whole.end - SECTOR)] ^= flips
    found = frames.scan_groups(bytes(log), header.file_id)
    assert found.frames.tobytes() == whole.frames.tobytes()[: found.frames.nbytes]
    for index in range(len(found.frames)):
        at, size = int(found.payload_at[index]), int(found.frames["size"][index])
        assert found.raw[at : at + size] == whole.raw[at : at + size]


def _file(content: bytes, path: str) -> FakeDisk:
    disk = FakeDisk()
    disk.mkdir("/d")
    file = disk.open(path, create=True)
    if content:
        file.pwrite(content, 0)
    return disk


@pytest.mark.slow
@EXAMPLES
@given(
    raw=st.binary(max_size=300)
    | st.binary(max_size=300).map(lambda body: segment.SEGMENT_MAGIC + body)
)
def test_a_segment_decodes_or_is_corrupt(raw: bytes) -> None:
    disk = _file(raw, "/d/1.seg")
    only_corrupt_data(lambda: segment.read_info(segment.FileBytes(disk.open("/d/1.seg")), 1))


@pytest.mark.slow
@EXAMPLES
@given(
    raw=st.binary(max_size=700) | st.binary(max_size=700).map(lambda body: snapshot.MAGIC + body)
)
def test_a_snapshot_decodes_or_is_corrupt(raw: bytes) -> None:
    disk = _file(raw, "/d/" + snapshot.file_name(1))
    only_corrupt_data(lambda: snapshot.read(disk, "/d", 1))


@pytest.mark.slow
@EXAMPLES
@given(raw=st.binary(max_size=300) | st.binary(max_size=300).map(lambda body: cold.MAGIC + body))
def test_a_cold_table_decodes_or_is_corrupt(raw: bytes) -> None:
    disk = _file(raw, "/d/" + cold.file_name(1))
    only_corrupt_data(lambda: cold.read(disk, "/d", 1))


@pytest.mark.slow
@EXAMPLES
@given(raw=st.binary(max_size=1500) | st.binary(max_size=1500).map(lambda b: marks.MAGIC + b))
def test_marks_decode_or_are_corrupt(raw: bytes) -> None:
    disk = _file(raw, "/d/" + marks.NAME)
    only_corrupt_data(lambda: marks.read(disk, "/d"))
