"""Config: defaults, clamps, the durability class, what may change and what may not."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.support.engines import ENDINGS, PATH, Ending, World, values
from topics.configs import config_changes
from topics.engine.engine import Engine
from topics.errors import DiskFull, Incompatible, InvalidRequest, NotEmpty, TopicNotFound
from topics.testing import Fault, FaultFs
from topics.types import ConfigPatch, TopicConfig

DEFAULTS: dict[str, Any] = {
    "type": "log", "ttl_ms": 0, "cap_records": 0, "cap_bytes": 0, "discard": "old",
    "durable": False, "durability": "disk", "priority": None, "auto_priority": True,
    "auto_create": True, "idempotency_window_ms": 120_000, "dedupe_node": True,
    "lease_ms": 30_000, "claim_jitter_ms": 0, "max_deliveries": 0, "dead_letter": None,
    "leases_durable": False,
}  # fmt: skip

OTHER: dict[str, Any] = {
    "ttl_ms": 5, "cap_records": 6, "cap_bytes": 7_000, "discard": "reject", "durability": "fsync",
    "durable": True, "priority": -3, "auto_priority": False, "auto_create": False,
    "idempotency_window_ms": 9, "dedupe_node": False, "lease_ms": 1000, "claim_jitter_ms": 10,
    "max_deliveries": 4, "dead_letter": "dlq", "leases_durable": True,
}  # fmt: skip


def asdict(config: TopicConfig) -> dict[str, Any]:
    """As it is echoed."""
    return dict(msgspec.to_builtins(config))


@pytest.mark.parametrize("given", [None, {}])
def test_an_omitted_field_takes_its_default(engine: Engine, given: Any) -> None:
    """An empty config means every default, echoed in full and in order."""
    config, created = engine.put_topic("t", given)
    assert created
    assert list(asdict(config).items()) == list(DEFAULTS.items())
    assert engine.state("t").config == config


@pytest.mark.parametrize("field", OTHER)
def test_a_field_is_kept_as_it_was_given(world: World, field: str) -> None:
    """Each field can be set alone, and survives a restart."""
    config, _ = world.engine.put_topic("t", {field: OTHER[field]})
    expected = {**DEFAULTS, field: OTHER[field]}
    if field in ("durable", "durability"):
        expected |= {"durable": True, "durability": "fsync"}
    assert asdict(config) == expected
    world.restart("kill")
    assert asdict(world.engine.state("t").config) == expected


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_config_survives_everything(world: World, how: Ending, durability: str) -> None:
    """The config of a topic is durable when acknowledged, in every class."""
    config, _ = world.engine.put_topic("t", {**OTHER, "durability": durability})
    world.restart(how)
    assert world.engine.state("t").config == config
    changed, created = world.engine.put_topic("t", {"ttl_ms": 1, "durability": durability})
    assert not created
    world.restart(how)
    assert world.engine.state("t").config == changed


def test_put_replaces_the_whole_config(engine: Engine) -> None:
    """What a second PUT leaves out goes back to its default."""
    engine.put_topic("t", OTHER)
    config, created = engine.put_topic("t", {"ttl_ms": 77})
    assert not created
    assert asdict(config) == {**DEFAULTS, "ttl_ms": 77}


def test_an_identical_put_changes_nothing(world: World) -> None:
    """A repeated PUT is not a new version and writes nothing to the log."""
    world.engine.put_topic("t", OTHER)
    frames = world.engine.wal_stats.frames_total
    config, created = world.engine.put_topic("t", OTHER)
    assert not created
    assert config.ttl_ms == 5
    assert world.engine.wal_stats.frames_total == frames


@pytest.mark.parametrize(
    ("field", "given", "kept"),
    [
        ("priority", 1000, 1000),
        ("priority", 1001, 1000),
        ("priority", 2**31 - 1, 1000),
        ("priority", -1001, -1000),
        ("priority", 0, 0),
        ("lease_ms", 0, 100),
        ("lease_ms", 99, 100),
        ("lease_ms", 86_400_001, 86_400_000),
        ("claim_jitter_ms", 5_001, 5_000),
    ],
)
def test_a_value_out_of_range_is_clamped_and_echoed_so(
    engine: Engine, field: str, given: int, kept: int
) -> None:
    """Priority, lease and jitter have ranges; the config shows what stands."""
    config, _ = engine.put_topic("t", {field: given})
    assert asdict(config)[field] == kept


@pytest.mark.parametrize(
    ("given", "durability"),
    [
        ({}, "disk"),
        ({"durable": False}, "disk"),
        ({"durable": True}, "fsync"),
        ({"durability": "ephemeral"}, "ephemeral"),
        ({"durability": "memory", "durable": True}, "memory"),
        ({"durability": "disk", "durable": True}, "disk"),
        ({"durability": "fsync", "durable": False}, "fsync"),
    ],
    ids=str,
)
def test_an_explicit_class_wins_over_the_flag(
    engine: Engine, given: dict[str, Any], durability: str
) -> None:
    """durability decides; without it durable does; durable is echoed as class == fsync."""
    config, _ = engine.put_topic("t", given)
    assert (config.durability, config.durable) == (durability, durability == "fsync")


BAD: list[dict[str, Any]] = [
    {"ttl_ms": -1}, {"ttl_ms": True}, {"ttl_ms": "5"}, {"ttl_ms": 1.5}, {"ttl_ms": None},
    {"ttl_ms": 2**64}, {"cap_records": 2**64}, {"cap_bytes": -5}, {"cap_bytes": 2**70},
    {"cap_records": False}, {"discard": "new"}, {"discard": None}, {"durable": 1},
    {"durable": "true"}, {"durability": "ram"}, {"durability": "Disk"}, {"priority": 2**31},
    {"priority": True}, {"priority": 1.5}, {"auto_create": None}, {"auto_priority": 0},
    {"idempotency_window_ms": -1}, {"idempotency_window_ms": 2**64}, {"type": "stream"},
    {"dead_letter": "t"}, {"dead_letter": ""}, {"dead_letter": "a/b"}, {"dead_letter": "a\n"},
    {"dead_letter": 5}, {"leases_durable": 0}, {"lease_ms": -1}, {"max_deliveries": 2**64},
    {"unknown": 1}, {"ttl": 5}, {"type": None}, {"durability": None},
    {"durability": None, "durable": True},
]  # fmt: skip


@pytest.mark.parametrize("given", BAD, ids=str)
@pytest.mark.parametrize("way", ["put", "write", "body"])
def test_a_config_that_does_not_fit_is_refused(
    world: World, given: dict[str, Any], way: str
) -> None:
    """A wrong type, value or name is invalid_request, and nothing is created."""
    body = '{"records":[{"data":0}],"config":' + json.dumps(given) + "}"
    calls: dict[str, Callable[[], object]] = {
        "put": lambda: world.engine.put_topic("t", given),
        "write": lambda: world.engine.append("t", [{"data": 0}], config=given),
        "body": lambda: world.engine.append_json("t", body.encode()),
    }
    with pytest.raises(InvalidRequest):
        calls[way]()
    assert world.engine.list_topics() == []
    world.fill("t", 1)
    world.restart("kill")
    assert world.look("t").seqs == (1,)


@pytest.mark.parametrize("value", [2**63 - 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("field", ["ttl_ms", "cap_records", "cap_bytes", "idempotency_window_ms"])
def test_the_largest_unsigned_values_are_kept(world: World, field: str, value: int) -> None:
    """Fields of 64 bits take all of them, through a restart and with writes."""
    world.engine.put_topic("t", {field: value})
    world.engine.append("t", [{"data": 0}], idempotency_key="k")
    world.restart("kill")
    assert asdict(world.engine.state("t").config)[field] == value
    assert world.look("t").seqs == (1,)
    assert world.engine.append("t", [{"data": 0}], idempotency_key="k").deduped


@pytest.mark.parametrize(("first", "second"), [("log", "queue"), ("queue", "log")])
def test_the_type_can_not_change(world: World, first: str, second: str) -> None:
    """A PUT that names another type is a conflict and changes nothing."""
    before, _ = world.engine.put_topic("t", {"type": first})
    with pytest.raises(Incompatible) as refused:
        world.engine.put_topic("t", {"type": second, "ttl_ms": 5})
    assert (refused.value.code, refused.value.status) == ("topic_exists_incompatible", 409)
    assert world.engine.state("t").config == before


def test_a_put_without_a_type_keeps_it(world: World) -> None:
    """Type is the one field that an omission does not reset."""
    world.engine.put_topic("t", {"type": "queue"})
    config, _ = world.engine.put_topic("t", {"ttl_ms": 5})
    assert (config.type, config.ttl_ms) == ("queue", 5)
    world.restart("kill")
    assert world.engine.state("t").config.type == "queue"


def test_a_dead_letter_may_name_another_topic(engine: Engine) -> None:
    """Any valid name but the topic's own, whether it exists or not."""
    assert engine.put_topic("t", {"dead_letter": "t.dlq"})[0].dead_letter == "t.dlq"


# -- creating by writing -------------------------------------------------------------------------


def test_a_write_creates_its_topic(engine: Engine) -> None:
    """By default a write to a name nobody has makes the topic, and says so."""
    assert engine.append("t", [{"data": 1}]).created
    assert not engine.append("t", [{"data": 1}]).created
    assert asdict(engine.state("t").config) == DEFAULTS


def test_an_inline_config_counts_only_when_the_write_creates(engine: Engine) -> None:
    """On a topic that exists the config of a write is ignored."""
    engine.append("t", [{"data": 1}], config={"cap_records": 5})
    assert engine.state("t").config.cap_records == 5
    engine.append("t", [{"data": 1}], config={"cap_records": 1, "type": "queue"})
    assert engine.state("t").config.cap_records == 5
    assert engine.state("t").count == 2


@pytest.mark.parametrize(
    ("create", "auto_create", "is_created"),
    [
        (None, None, True),
        (None, True, True),
        (None, False, False),
        (True, None, True),
        (True, False, True),
        (False, None, False),
        (False, True, False),
    ],
)
def test_create_decides_over_auto_create(
    engine: Engine, create: bool | None, auto_create: bool | None, is_created: bool
) -> None:
    """create wins; without it the auto_create of the inline config; without that, yes."""
    config = None if auto_create is None else {"auto_create": auto_create}
    if is_created:
        assert engine.append("t", [{"data": 0}], create=create, config=config).created
        return
    with pytest.raises(TopicNotFound) as missing:
        engine.append("t", [{"data": 0}], create=create, config=config)
    assert (missing.value.code, missing.value.status) == ("topic_not_found", 404)
    assert engine.list_topics() == []


def test_create_false_writes_to_a_topic_that_exists(engine: Engine) -> None:
    """The flag is about creating, not about writing."""
    engine.put_topic("t", {"auto_create": False})
    assert engine.append("t", [{"data": 1}], create=False).first_seq == 1


# -- deleting a topic ----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_deleted_topic_stays_deleted(world: World, how: Ending, durability: str) -> None:
    """The records, the config and the name are gone for good once acknowledged."""
    world.engine.put_topic("t", {"durability": durability})
    world.fill("t", 3)
    world.engine.checkpoint()
    assert world.engine.delete_topic("t")
    world.restart(how)
    assert world.engine.list_topics() == []
    with pytest.raises(TopicNotFound):
        world.engine.diff("t")


def test_deleting_an_absent_topic_is_no_error(engine: Engine) -> None:
    """Deletion of a topic is idempotent."""
    assert not engine.delete_topic("t")
    engine.put_topic("t")
    assert engine.delete_topic("t")
    assert not engine.delete_topic("t")


def test_if_empty_spares_a_topic_with_records(world: World) -> None:
    """if_empty refuses while anything is live; deleted and expired records do not count."""
    world.engine.put_topic("t", {"ttl_ms": 100})
    world.fill("t", 2)
    with pytest.raises(NotEmpty) as refused:
        world.engine.delete_topic("t", if_empty=True)
    assert (refused.value.code, refused.value.status) == ("topic_not_empty", 409)
    assert values(world.engine.diff("t")) == [0, 0]
    world.engine.delete("t", before_seq=2)
    world.clock.advance(101)
    assert world.engine.delete_topic("t", if_empty=True)


def test_a_patch_changes_what_it_names_and_nothing_else(engine: Engine) -> None:
    """The rest of the config stays; a word about the class is one about its shorthand."""
    engine.put_topic("t", {"cap_records": 5, "ttl_ms": 7, "durability": "memory", "priority": 3})
    config = engine.patch_topic("t", ttl_ms=0, priority=None)
    assert (config.cap_records, config.ttl_ms, config.priority) == (5, 0, None)
    assert config.durability == "memory"
    assert engine.patch_topic("t", durable=False, ttl_ms=1).durability == "memory"
    classes = [
        engine.patch_topic("t", **fields).durability
        for fields in ({"durable": True}, {"durability": "ephemeral"}, {"durability": "disk"})
    ]
    assert classes == ["fsync", "ephemeral", "disk"]
    assert engine.patch_topic("t") == engine.state("t").config
    with pytest.raises(TopicNotFound):
        engine.patch_topic("u", ttl_ms=1)
    with pytest.raises(Incompatible):
        engine.patch_topic("t", type="queue")
    with pytest.raises(InvalidRequest):
        engine.patch_topic("t", tll_ms=1)


@pytest.mark.parametrize("how", ENDINGS)
def test_patches_on_their_way_build_on_each_other(world: World, how: Ending) -> None:
    """Each is over what was submitted before it, durable or not; all of them survive."""
    engine = world.engine
    engine.put_topic("t", {"cap_records": 5})
    fields: list[dict[str, Any]] = [{"ttl_ms": 9}, {"max_deliveries": 3}, {"durable": True}]
    puts = [engine.submit_patch("t", ConfigPatch(**one)) for one in fields]
    while not all(put.ticket.done for put in puts):
        engine.flush()
        engine.poll()
    first, second, third = (put.before for put in puts)
    assert first is not None
    assert second is not None
    assert third is not None
    assert config_changes(first, second) == {"ttl_ms": (0, 9)}
    assert config_changes(second, third) == {"max_deliveries": (0, 3)}
    config = world.restart(how).state("t").config
    assert (config.cap_records, config.ttl_ms, config.max_deliveries) == (5, 9, 3)
    assert config.durability == "fsync"


def test_a_patch_that_found_no_room_leaves_the_config_before_it(world: World) -> None:
    """The next one does not bring it back."""
    world.engine.put_topic("t", {"cap_records": 5})
    world.end("clean")
    fs = FaultFs(world.disk)
    with Engine.open(PATH, clock=world.clock, fs=fs, settings=world.settings) as engine:
        fs.fault = Fault("pwrite", errno=errno.ENOSPC, path_contains=".wal")
        with pytest.raises(DiskFull):
            engine.patch_topic("t", ttl_ms=9)
        config = engine.patch_topic("t", max_deliveries=3)
        assert (config.cap_records, config.ttl_ms, config.max_deliveries) == (5, 0, 3)
