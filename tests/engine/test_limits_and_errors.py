"""Limits: in UTF-8 bytes, checked before anything happens, each with its own error."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.support.engines import PATH, World, explained, seqs, tagged
from topics import errors
from topics.engine.engine import Engine
from topics.engine.state.write_request import request_of
from topics.errors import (
    BatchTooLarge,
    Closed,
    DiskFull,
    InvalidRequest,
    PayloadTooLarge,
    RecordTooLarge,
    Throttled,
)
from topics.settings import KIB, MIB, Settings, from_environment
from topics.storage import snapshot
from topics.testing import FakeDisk


def refused(world: World, kind: type[errors.TopicsError], records: Any, **options: Any) -> Any:
    """Appends, expects the error, and checks that nothing happened."""
    world.engine.put_topic("t")
    with pytest.raises(kind) as error:
        world.engine.append("t", records, **options)
    assert world.engine.state("t").head_seq == 0
    with pytest.raises(kind):
        world.engine.append("fresh", records, **options)
    assert world.engine.list_topics() == ["t"]
    return error.value


# -- names ---------------------------------------------------------------------------------------

GOOD_NAMES = ["a", "Z", "0", "a.b_c:d-e", "render-queue:tenantA", "9" * 255, "a" + "-" * 254]
BAD_NAMES: list[Any] = [
    "", ".", "-a", "_a", ":a", "a/b", "a b", "a\n", "\na", "a\x00", "é", "a\u0301", "ａ", "a" * 256,
    "..", "a*", "a%2f", 5, None, True, b"a", "\ud800",
]  # fmt: skip


@pytest.mark.parametrize("name", GOOD_NAMES, ids=lambda name: name[:20])
def test_a_good_name_is_taken_as_it_is(world: World, name: str) -> None:
    """Names are case-sensitive and byte-exact, 1 to 255 characters."""
    world.fill(name, 1)
    world.restart("kill")
    assert world.engine.list_topics() == [name]


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: repr(name)[:20])
@pytest.mark.parametrize("call", ["put_topic", "append", "delete_topic", "diff", "state"])
def test_a_bad_name_is_refused_by_every_call(engine: Engine, name: Any, call: str) -> None:
    """The whole name has to match; a trailing newline does not."""
    arguments: dict[str, Any] = {"records": [{"data": 0}]} if call == "append" else {}
    with pytest.raises(InvalidRequest):
        getattr(engine, call)(name, **arguments)
    assert engine.list_topics() == []


def test_names_that_differ_in_case_are_two_topics(world: World) -> None:
    """There is no folding."""
    world.fill("t", 1)
    world.fill("T", 2)
    assert (world.look("t").head, world.look("T").head) == (1, 2)


# -- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["t" * 256, "é" * 128, "日" * 85, "\U0001f600" * 64])
def test_a_tag_of_256_bytes_is_accepted(world: World, text: str) -> None:
    """The limit of a tag is in UTF-8 bytes."""
    world.engine.append("t", [{"data": 0, "tag": text}])
    assert world.engine.delete("t", match=text).deleted == 1


@pytest.mark.parametrize("text", ["t" * 257, "é" * 129, "日" * 86, "\U0001f600" * 65, "\ud800"])
@pytest.mark.parametrize("field", ["tag", "node"])
def test_a_tag_or_node_that_is_too_long_is_refused(world: World, text: str, field: str) -> None:
    """One byte too many, or no text at all, is invalid_request."""
    refused(world, InvalidRequest, [{"data": 0}, {"data": 0, field: text}])


@pytest.mark.parametrize("text", ["n" * 129, "é" * 65, "\U0001f600" * 33])
@pytest.mark.parametrize("level", ["record", "batch"])
def test_a_node_of_129_bytes_is_refused(world: World, text: str, level: str) -> None:
    """128 bytes are the limit, for the record's node and for the batch's."""
    if level == "record":
        refused(world, InvalidRequest, [{"data": 0, "node": text}])
    else:
        refused(world, InvalidRequest, [{"data": 0}], node=text)


@pytest.mark.parametrize("unit", ["x", "é", "\U0001f600"])
def test_a_record_may_have_one_mebibyte(world: World, unit: str) -> None:
    """data and meta together, in bytes; seq and time do not count."""
    each = len(unit.encode())
    fits = unit * ((MIB - 2) // each)
    fits += "x" * (MIB - 2 - len(fits.encode()))
    world.engine.append("t", [{"data": fits}])
    error = refused_large(world, [{"data": 0}, {"data": fits + "x"}])
    assert error.detail["index"] == 1


def refused_large(world: World, records: list[dict[str, Any]]) -> RecordTooLarge:
    head = world.engine.state("t").head_seq
    with pytest.raises(RecordTooLarge) as error:
        world.engine.append("t", records)
    assert (error.value.code, error.value.status) == ("record_too_large", 400)
    assert world.engine.state("t").head_seq == head
    return error.value


def test_meta_counts_towards_the_size_of_a_record(world: World) -> None:
    """A record whose data alone would fit is refused with its meta."""
    meta = {"k": "v" * 100}
    room = MIB - 2 - len(msgspec.json.encode(meta))
    world.engine.append("t", [{"data": "x" * room, "meta": meta}])
    refused_large(world, [{"data": "x" * (room + 1), "meta": meta}])


@pytest.mark.parametrize(
    ("meta", "fits"),
    [
        ({str(n): "" for n in range(64)}, True),
        ({str(n): "" for n in range(65)}, False),
        ({"k": "v" * (16 * KIB - len('{"k":""}'))}, True),
        ({"k": "v" * (16 * KIB - len('{"k":""}') + 1)}, False),
        ({"k": "é" * (8 * KIB)}, False),
    ],
    ids=["64 keys", "65 keys", "16 KiB", "16 KiB and a byte", "wide"],
)
def test_meta_has_limits_of_its_own(world: World, meta: dict[str, str], fits: bool) -> None:
    """16 KiB and 64 keys."""
    if fits:
        world.engine.append("t", [{"data": 0, "meta": meta}])
        assert world.engine.diff("t").records[0].meta == meta
    else:
        refused(world, InvalidRequest, [{"data": 0, "meta": meta}])


@pytest.mark.parametrize(
    "meta", [{"k": 1}, {"k": None}, {"k": ["v"]}, {1: "v"}, [], "m", {"_topics_router": "x"}]
)
def test_meta_is_a_map_of_strings(world: World, meta: Any) -> None:
    """Other values, and the name reserved for routers, are refused."""
    refused(world, InvalidRequest, [{"data": 0, "meta": meta}])


def test_a_batch_may_have_ten_thousand_records(world: World) -> None:
    """One more is batch_too_large."""
    assert world.engine.append("t", [{"data": 0}] * 10_000).last_seq == 10_000
    with pytest.raises(BatchTooLarge) as error:
        world.engine.append("t", [{"data": 0}] * 10_001)
    assert (error.value.code, error.value.status) == ("batch_too_large", 400)
    assert world.engine.state("t").head_seq == 10_000


def test_a_batch_needs_a_record(world: World) -> None:
    """An empty write is invalid_request."""
    refused(world, InvalidRequest, [])


@pytest.mark.parametrize(
    "record",
    [
        {}, {"tag": "x"}, {"data": 0, "$tag": "x"}, {"data": 0, "seq": 5}, {"data": 0, "tag": 5},
        {"data": 0, "node": True}, {"data": 0, "tag": b"x"}, 5, "data", None, [("data", 0)],
    ],
    ids=repr,
)  # fmt: skip
def test_a_record_has_data_and_nothing_unknown(world: World, record: Any) -> None:
    """Missing data, unknown fields and wrong types are refused, also inside a batch."""
    refused(world, InvalidRequest, [{"data": 0}, record])


@pytest.mark.parametrize(
    "options", [{"node": 5}, {"node": True}, {"create": 1}, {"create": "yes"}, {"node": "\ud800"}]
)
def test_options_of_a_write_have_their_types(world: World, options: dict[str, Any]) -> None:
    """true is not an integer and an integer is not true."""
    refused(world, InvalidRequest, [{"data": 0}], **options)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b"{}", b'{"records":[]}', b'{"records":{}}', b'{"records":[1]}',
        b'{"records":[{}]}', b'{"records":[{"data":1}],"unknown":1}', b'{"records":null}',
        b'{"records":[{"data":1,"tag":null,"x":1}]}', b'{"records":[{"data":1}]} x',
        b'{"records":[{"data":1}],"create":1}', b'{"records":[{"data":1}],"node":1}',
        b'{"records":[{"data":1,"tag":1}]}', b'{"records":[{"data":1,"meta":{"k":1}}]}',
        b'{"records":[{"data":1,"meta":{"_topics_router":"x"}}]}', b"\xef\xbb\xbf{}",
        b'{"records":[{"data":1}],"config":{"ttl_ms":true}}',
        b'{"records":[{"data":1}],"config":[]}',
        b'{"records":[{"data":1}],"disable_backpressure":1}', b'{"records":[{"data":1}]',
    ],
)  # fmt: skip
def test_a_body_that_does_not_fit_is_refused(engine: Engine, body: bytes) -> None:
    """A JSON body of another shape is invalid_request and creates nothing."""
    with pytest.raises(InvalidRequest) as error:
        engine.append_json("t", body)
    assert (error.value.code, error.value.status) == ("invalid_request", 400)
    assert engine.list_topics() == []


def test_a_body_has_a_size_limit() -> None:
    """Beyond it is payload_too_large, before the body is looked at."""
    world = World(max_body_bytes=100)
    body = b'{"records":[{"data":"%b"}]}'
    world.engine.append_json("t", body % (b"x" * (100 - len(body) + 2)))
    with pytest.raises(PayloadTooLarge) as error:
        world.engine.append_json("t", body % (b"x" * (100 - len(body) + 3)))
    assert (error.value.code, error.value.status) == ("payload_too_large", 413)


@pytest.mark.parametrize(
    ("setting", "value", "record"),
    [
        ("max_tag_bytes", 3, {"data": 0, "tag": "four"}),
        ("max_node_bytes", 3, {"data": 0, "node": "four"}),
        ("max_meta_bytes", 10, {"data": 0, "meta": {"k": "vvvvv"}}),
        ("max_meta_keys", 1, {"data": 0, "meta": {"a": "", "b": ""}}),
        ("max_record_bytes", 5, {"data": "xxxx"}),
    ],
)
def test_every_limit_is_a_setting(setting: str, value: int, record: dict[str, Any]) -> None:
    """A smaller limit refuses what the default accepts."""
    World().engine.append("t", [record])
    with pytest.raises(InvalidRequest):
        World(**{setting: value}).engine.append("t", [record])


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("max_batch_records", 10_000), ("max_record_bytes", MIB), ("max_body_bytes", 64 * MIB),
        ("max_meta_bytes", 16 * KIB), ("max_tag_bytes", 256), ("max_node_bytes", 128),
        ("max_limit", 1000), ("max_topics", 100_000), ("max_total_bytes", 0),
    ],
)  # fmt: skip
def test_limits_are_read_from_the_environment(name: str, default: int) -> None:
    """TOPICS_<NAME>, with the documented default when it is not set."""
    assert getattr(from_environment({}), name) == default
    assert getattr(from_environment({f"TOPICS_{name.upper()}": "7"}), name) == 7


@pytest.mark.parametrize(
    "environment",
    [
        {"TOPICS_MAX_TOPICS": "many"}, {"TOPICS_MAX_TOPICS": "-1"}, {"TOPICS_MAX_TOPICS": "1.5"},
        {"TOPICS_WAL_SHARDS": "0"}, {"TOPICS_WAL_SHARDS": "65"}, {"TOPICS_WAL_FILE_BYTES": "1"},
    ],
    ids=str,
)  # fmt: skip
def test_a_setting_that_makes_no_sense_is_refused_by_name(environment: dict[str, str]) -> None:
    """The error says which one."""
    with pytest.raises(InvalidRequest) as error:
        from_environment(environment)
    (key,) = environment
    assert key.removeprefix("TOPICS_").lower() in str(error.value.detail).lower()


# -- caps of the instance ------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["put", "write"])
def test_the_number_of_topics_is_bounded(way: str) -> None:
    """A new topic beyond the most is throttled; those that exist can be written and changed."""
    world = World(max_topics=2)
    world.fill("a", 1)
    world.engine.put_topic("b")
    with pytest.raises(Throttled) as error:
        world.engine.put_topic("c") if way == "put" else world.fill("c", 1)
    assert error.value.detail == {"limit": "max_topics", "max": 2}
    world.fill("a", 1)
    world.engine.put_topic("b", {"ttl_ms": 5})
    assert world.engine.list_topics() == ["a", "b"]
    world.engine.delete_topic("a")
    world.fill("c", 1)


def test_zero_means_any_number_of_topics() -> None:
    """0 switches the cap off."""
    world = World(max_topics=0)
    for n in range(20):
        world.engine.put_topic(f"t{n}")
    assert len(world.engine.list_topics()) == 20


def test_the_bytes_of_the_instance_are_bounded() -> None:
    """A write that would pass the quota is throttled; deleting anywhere makes room again."""
    world = World(max_total_bytes=1000)
    for _ in range(12):
        world.fill("a", 1)
        world.fill("b", 1)
    with pytest.raises(Throttled) as error:
        world.fill("a", 10)
    assert error.value.detail == {"limit": "max_total_bytes", "max": 1000}
    total = world.engine.state("a").bytes + world.engine.state("b").bytes
    assert 900 < total <= 1000
    world.engine.delete("a", before_seq=3)
    world.fill("b", 1)
    world.restart("kill")
    with pytest.raises(Throttled):
        world.fill("a", 5)
    world.engine.delete_topic("a")
    world.fill("b", 2)


def test_writes_on_their_way_count_for_the_quota() -> None:
    """Submitting many writes at once does not get around it."""
    world = World(max_total_bytes=500)
    world.engine.put_topic("t", {"durable": True})
    for _ in range(12):
        world.engine.submit_append("t", request_of([{"data": 0}]))
    with pytest.raises(Throttled):
        world.engine.submit_append("t", request_of([{"data": 0}]))
    world.engine.sync()
    assert world.engine.state("t").bytes <= 500


# -- ends ----------------------------------------------------------------------------------------

CALLS: dict[str, Any] = {
    "append": lambda e: e.append("t", [{"data": 0}]),
    "append to a new topic": lambda e: e.append("new", [{"data": 0}]),
    "append_json": lambda e: e.append_json("t", b'{"records":[{"data":1}]}'),
    "put_topic": lambda e: e.put_topic("t", {"ttl_ms": 1}),
    "put a new topic": lambda e: e.put_topic("new"),
    "delete": lambda e: e.delete("t", before_seq=1),
    "delete_topic": lambda e: e.delete_topic("t"),
    "delete an absent topic": lambda e: e.delete_topic("absent"),
    "diff": lambda e: e.diff("t"),
    "diff of an absent topic": lambda e: e.diff("absent"),
    "state": lambda e: e.state("t"),
    "explain": lambda e: e.explain("t"),
    "list_topics": lambda e: e.list_topics(),
    "flush": lambda e: e.flush(),
    "poll": lambda e: e.poll(),
    "sync": lambda e: e.sync(),
    "maintain": lambda e: e.maintain(),
    "checkpoint": lambda e: e.checkpoint(),
    "submit_put": lambda e: e.submit_put("new", None),
    "submit_delete": lambda e: e.submit_delete("t", before_seq=1, match=None),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_closed_engine_says_so(world: World, call: Any) -> None:
    """Every call after close raises Closed and changes nothing."""
    world.fill("t", 1)
    engine = world.engine
    engine.close()
    engine.close()
    with pytest.raises(Closed) as error:
        call(engine)
    assert (error.value.code, error.value.status) == ("shutting_down", 503)
    world.engine = world.open()
    assert world.engine.list_topics() == ["t"]
    assert world.look("t").seqs == (1,)


def test_an_engine_closes_at_the_end_of_its_block(world: World) -> None:
    """`with` makes everything durable and lets go of the directory."""
    with world.engine as engine:
        engine.append("t", [{"data": 0}])
    assert world.open().state("t").head_seq == 1


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_a_full_disk_refuses_writes_and_nothing_else(durability: str) -> None:
    """disk_full says that nothing was written; reads and deletes go on, writes too with space."""
    world = World(disk=FakeDisk())
    world.engine.put_topic("t", {"durability": durability})
    world.engine.append("t", tagged("x", None))
    world.disk.capacity_bytes = world.disk.used_bytes()
    with pytest.raises(DiskFull) as error:
        world.engine.append("t", [{"data": "x" * 60_000}])
    assert (error.value.code, error.value.status) == ("disk_full", 507)
    assert seqs(world.engine.diff("t")) == [1, 2]
    assert world.engine.delete("t", match="x").deleted == 1
    world.disk.capacity_bytes = None
    assert world.engine.append("t", [{"data": "x" * 60_000}]).first_seq == 3
    world.restart("kill")
    assert world.look("t").seqs == (2, 3)


def until_full(world: World) -> int:
    """Writes until there is no room; how much."""
    for count in range(1000):
        try:
            world.engine.append("t", [{"data": "x" * 16_000}])
        except DiskFull:
            return count * 16_000
    raise AssertionError("the disk is endless")


def test_a_disk_without_room_for_a_whole_log_file_is_not_full_yet() -> None:
    """Smaller ones are made; and something is left for the checkpoint that gives room back."""
    world = World(disk=FakeDisk(), wal_shards=1, wal_file_bytes=MIB)
    world.engine.put_topic("t", {"durability": "fsync"})
    until = world.disk.used_bytes() + 900 * KIB
    world.disk.capacity_bytes = until
    assert until_full(world) >= MIB + 500 * KIB
    assert until - world.disk.used_bytes() >= 64 * KIB
    before = world.look("t")
    world.restart("kill")
    assert world.look("t") == before


@pytest.mark.parametrize("room", [256 * KIB, 900 * KIB, 2400 * KIB])
def test_what_is_deleted_on_a_full_disk_makes_room_without_a_restart(room: int) -> None:
    """The delete takes what was kept for it, and a checkpoint follows."""
    world = World(disk=FakeDisk(), wal_shards=1, wal_file_bytes=MIB)
    world.engine.put_topic("t", {"durability": "fsync"})
    world.disk.capacity_bytes = world.disk.used_bytes() + room
    first = until_full(world)
    head = world.engine.state("t").head_seq
    world.engine.delete("t", before_seq=head + 1)
    for _ in range(20):
        world.clock.advance(500)
        while world.engine.maintain(1.0):
            pass
    assert until_full(world) >= first // 2
    assert explained(world.engine, "t")[0] == (1, head, "deleted")
    seqs_before = world.look("t").seqs
    world.restart("kill")
    assert world.look("t").seqs == seqs_before


def test_a_disk_that_was_full_once_is_not_checkpointed_for_ever() -> None:
    """Two give the room back; what is written after that waits for its checkpoint as ever."""
    world = World(disk=FakeDisk(), wal_shards=1, wal_file_bytes=MIB)
    world.engine.put_topic("t", {"durability": "fsync"})
    world.disk.capacity_bytes = world.disk.used_bytes() + 900 * KIB
    until_full(world)
    world.engine.delete("t", before_seq=world.engine.state("t").head_seq + 1)
    world.disk.capacity_bytes = None
    newest = []
    for _ in range(20):
        world.fill("t", 1)
        world.clock.advance(1000)
        while world.engine.maintain(1.0):
            pass
        newest.append(max(snapshot.numbers(world.disk, f"{PATH}/snap"), default=0))
    assert newest[-1] == newest[5] == 2


def test_a_full_disk_does_not_half_delete_a_topic() -> None:
    """A topic whose deletion was refused is still there, before and after a restart."""
    world = World(disk=FakeDisk())
    world.fill("t", 2)
    world.disk.capacity_bytes = world.disk.used_bytes()
    big = request_of([{"data": "x" * 60_000}])
    world.engine.submit_append("t", big)
    try:
        deleted = world.engine.delete_topic("t")
    except DiskFull:
        deleted = False
    assert (world.engine.list_topics() == []) == deleted
    world.disk.capacity_bytes = None
    world.restart("kill")
    assert (world.engine.list_topics() == []) == deleted


def test_a_full_disk_creates_no_topic() -> None:
    """A refused lazy create leaves no name behind, and the next one works."""
    world = World(disk=FakeDisk())
    world.disk.capacity_bytes = world.disk.used_bytes()
    with pytest.raises(DiskFull):
        world.engine.append("t", [{"data": "x" * 100_000}])
    assert world.engine.list_topics() == []
    world.disk.capacity_bytes = None
    assert world.engine.append("t", [{"data": 1}]).created


def errors_of(kind: type[errors.TopicsError]) -> list[type[errors.TopicsError]]:
    return [kind, *(leaf for child in kind.__subclasses__() for leaf in errors_of(child))]


@pytest.mark.parametrize("kind", errors_of(errors.TopicsError), ids=lambda kind: kind.__name__)
def test_every_error_has_a_code_a_status_and_a_detail(kind: type[errors.TopicsError]) -> None:
    """Codes are snake_case, statuses are HTTP's, details are for machines."""
    error = kind("what happened", limit=5)
    assert (str(error), error.message, error.detail) == (
        "what happened",
        "what happened",
        {"limit": 5},
    )
    assert error.code == error.code.lower()
    assert error.code.replace("_", "").isalpha()
    assert 400 <= error.status <= 599


def test_settings_are_checked_when_an_engine_opens() -> None:
    """An engine does not start with a setting that nothing could run with."""
    with pytest.raises(InvalidRequest):
        Engine.open("/x", fs=FakeDisk(), settings=Settings(wal_shards=0))
