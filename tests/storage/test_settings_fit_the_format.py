"""Settings that contradict each other, or that the files can not hold, are refused at the start.

What a file holds is taken from the structures themselves: a field that gets narrower, or a setting
that is not held to one, fails here and not in front of a client.
"""

from __future__ import annotations

import struct
from array import array
from typing import Any

import msgspec
import pytest

from tests.support.engines import World
from topics.engine.engine import Engine
from topics.engine.ops import promotion, singles
from topics.engine.ops.lease_frames import Granted
from topics.engine.queues import dead_letters
from topics.engine.queues.claims import DOOMED_MAX
from topics.engine.queues.origins import encode as encode_origin
from topics.engine.routing import planning
from topics.engine.state.batch import Batch
from topics.engine.state.write_request import RecordInput
from topics.errors import InvalidRequest, PayloadTooLarge, Throttled
from topics.server.config import load
from topics.settings import AT_MOST, KEY_BYTES, LEASE_BYTES, MIB, Settings, check, from_environment
from topics.storage import columns, frames, segment
from topics.testing import FakeDisk

WORST_SEQ = 2**64 - 1
ENTRY = frames.ENTRY_DTYPE.fields
assert ENTRY is not None


def most(width_bytes: int) -> int:
    return 2 ** (8 * width_bytes) - 1


COUNT_MAX = most(ENTRY["count"][0].itemsize)
PAYLOAD_MAX = most(ENTRY["size"][0].itemsize)
COLUMNS_MAX = most(ENTRY["cols"][0].itemsize)
TEXT_MAX = most(array("H").itemsize) - 1
END_MAX = most(array("I").itemsize)


def worst_extra_bytes(node_bytes: int) -> int:
    """What the log adds to a record in the worst case."""
    node = "\x01" * node_bytes
    batch = Batch([RecordInput(msgspec.Raw(b"1"), meta={"a": "b"})], node, Settings(
        max_node_bytes=node_bytes))  # fmt: skip
    rendered = batch.render(WORST_SEQ, 2**63 - 1)
    return len(rendered.payload) - len(b"1") - len(b'{"a":"b"}')


def worst_key_bytes() -> int:
    return len(msgspec.msgpack.encode((bytes(16), WORST_SEQ, COUNT_MAX, 2**63)))


def worst_lease_bytes() -> int:
    one, two = (
        len(msgspec.msgpack.encode(Granted("n", 1, 1, *[array("Q", [1] * count).tobytes()] * 3)))
        for count in (1000, 2000)
    )
    return (two - one) // 1000


# Each setting, the field it ends in, and the most it may be for that.
FIELDS = {
    "max_batch_records": COUNT_MAX,
    "max_tag_bytes": TEXT_MAX,
    "max_node_bytes": TEXT_MAX,
    "max_claim": PAYLOAD_MAX // worst_lease_bytes(),
    "max_idempotency_keys": most(struct.calcsize("<I")) // worst_key_bytes(),
    "max_record_bytes": min(PAYLOAD_MAX, END_MAX),
    "block_bytes": PAYLOAD_MAX // promotion.GROUP_BLOCKS,
}


@pytest.mark.parametrize(("name", "field_max"), FIELDS.items())
def test_no_setting_may_be_more_than_its_field_holds(name: str, field_max: int) -> None:
    assert AT_MOST[name] <= field_max
    others = {"max_node_bytes": 0, "max_body_bytes": 1} if name == "max_batch_records" else {}
    check(Settings(**{"max_batch_records": 1000, **others, name: AT_MOST[name]}))
    with pytest.raises(InvalidRequest, match=f"TOPICS_{name.upper()} is .* at most") as refusal:
        check(Settings(**{**others, name: AT_MOST[name] + 1}))
    assert refusal.value.detail == {"setting": name}


def test_the_sizes_that_bounds_are_made_of_are_those_of_the_format() -> None:
    settings = Settings()
    assert worst_key_bytes() <= KEY_BYTES
    assert worst_lease_bytes() <= LEASE_BYTES
    row = segment.ROW.format
    assert (row.count("I"), PAYLOAD_MAX) == (5, most(struct.calcsize("<I")))
    for node_bytes in (0, 1, settings.max_node_bytes):
        extra_bytes = worst_extra_bytes(node_bytes)
        body_bytes = PAYLOAD_MAX - 1000 * extra_bytes
        with pytest.raises(InvalidRequest, match="TOPICS_MAX_BODY_BYTES"):
            check(Settings(
                max_body_bytes=body_bytes + 1, max_batch_records=1000, max_node_bytes=node_bytes,
            ))  # fmt: skip


def test_what_the_engine_writes_by_itself_fits_as_well() -> None:
    """Shared writes, copies of routers, dead letters, and what is logged when a class changes."""
    for count in (singles.SHARED_MAX, planning.RECORDS_MAX, DOOMED_MAX, frames.COUNT_MAX):
        assert count <= COUNT_MAX
    key = encode_origin(1, 1, [WORST_SEQ] * DOOMED_MAX)
    columns.encode(columns.single_time(b"{},", 1), times=False, key=key)
    largest = AT_MOST["max_record_bytes"]
    assert max(dead_letters.BYTES_MAX, planning.BYTES_MAX) + largest <= PAYLOAD_MAX


CONTRADICTIONS: list[dict[str, Any]] = [
    {"wal_reserve_bytes": 256 * 1024, "wal_file_bytes": 256 * 1024},
    {"wal_reserve_bytes": 33 * MIB},
    {"wal_file_bytes": 65536},
    {"wal_file_bytes": 4097 * MIB},
    {"max_body_bytes": 2**32 - 1},
    {"max_node_bytes": 65534, "max_batch_records": 65535},
    {"seal_bytes": 0},
    {"seal_records": 0},
    {"block_bytes": 0},
    {"segment_bytes": 0},
    {"sync_interval_ms": 2**62},
    {"hot_bytes": 2**63},
]


@pytest.mark.parametrize("given", CONTRADICTIONS, ids=str)
def test_contradictions_are_refused_by_name_everywhere(given: dict[str, Any]) -> None:
    """By the engine, from the environment and by the server, before anything is touched."""
    disk = FakeDisk()
    texts = {f"TOPICS_{name.upper()}": str(value) for name, value in given.items()}
    for start in (
        lambda: Engine.open("/data", fs=disk, settings=Settings(**given)),
        lambda: from_environment(texts),
        lambda: load(texts, {}),
    ):
        with pytest.raises(InvalidRequest) as refusal:
            start()
        assert any(key in refusal.value.message for key in (*texts, "TOPICS_WAL_RESERVE_BYTES"))
    assert disk.listdir("/data") == []


@pytest.mark.parametrize("name", ["session_ttl_ms", "drain_ms"])
def test_timers_of_the_server_are_bounded_too(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"TOPICS_{name.upper()}"):
        load({f"TOPICS_{name.upper()}": str(2**62)}, {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "records", "node"),
    [
        ({"max_batch_records": COUNT_MAX}, [{"data": 1}] * COUNT_MAX, "n"),
        ({"max_tag_bytes": TEXT_MAX}, [{"data": 1, "tag": "t" * TEXT_MAX}] * 2, None),
        ({"max_node_bytes": TEXT_MAX}, [{"data": 1}] * 2, "\x01" * TEXT_MAX),
    ],
    ids=["count", "tag", "node"],
)
def test_a_write_as_large_as_settings_go_is_there_after_a_kill(
    settings: dict[str, int], records: list[dict[str, Any]], node: str | None
) -> None:
    world = World(**settings)
    world.engine.append("a", records, node=node)
    assert world.restart("kill").state("a").count == len(records)
    world.engine.checkpoint()
    page = world.restart("clean").diff("a", limit=1, include_tags=True)
    assert (page.records[0].tag, page.records[0].node) == (records[0].get("tag"), node)


def test_a_write_without_a_body_is_held_to_the_size_of_one() -> None:
    world = World(max_body_bytes=1000)
    world.engine.append("a", [{"data": "x" * 400}] * 2)
    with pytest.raises(PayloadTooLarge):
        world.engine.append("a", [{"data": "x" * 400}] * 3)
    assert world.engine.state("a").count == 2


def test_topics_are_refused_before_their_numbers_run_out() -> None:
    """An id is never used twice: after four billion there are no more."""
    world = World()
    world.engine.core.numbers.next_topic_id = most(ENTRY["topic"][0].itemsize)
    world.engine.put_topic("last")
    with pytest.raises(Throttled, match="created"):
        world.engine.put_topic("more")
    assert world.restart("kill").list_topics() == ["last"]
