"""A range says the same in every format: JSON, Arrow, and counted; and what a diff says."""

from __future__ import annotations

import contextlib
import importlib.util
import random
import time
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from tests.support.engines import World, read_all
from tests.support.tiers import quick_first
from topics.engine.reading.ranges import Gap, RangePage
from topics.server.routes import arrow

HAS_ARROW = importlib.util.find_spec("pyarrow") is not None
pytestmark = pytest.mark.skipif(not HAS_ARROW, reason="pyarrow is an extra")

SETTINGS: list[dict[str, Any]] = [
    {},
    {"resident_bytes": 0, "block_bytes": 512, "block_cache_bytes": 2048},
    {"resident_bytes": 0, "block_bytes": 700, "own_segment_bytes": 256, "block_cache_bytes": 1,
     "cold_dir": "/cold", "hot_bytes": 0},
]  # fmt: skip
DATA = [
    b"1", b"1e400", b'"\\ud800"', b'{"a":1.0,"a":2}', b'{"data":1,"meta":{"k":"v"}}', b"[]",
    b'"\\",\\"meta\\":{"', b'{"x":{},"meta":{"data":{}}}', '"é→𝄞"'.encode(),
    b'"' + b"x" * 90 + b'"', b"[ 1 , 2 ]", b'"\\u0000\\n"', b'{"deep":{"meta":{"meta":{}}}}',
]  # fmt: skip
TAGS = [None, "a", "a:1", "a:2", "b", "é", 'q"\\']
NODES = [None, "n1", "n2", "nöde", 'no"de']
METAS: list[dict[str, str] | None] = [
    None, {}, {"k": "v"}, {"k": "v", "l": ""}, {"": "", "é": "→"}, {'q"': "back\\slash"},
    {"meta": "{}", "data": ',"meta":{'}, {"tab\t": "\n"}, {"a": "x" * 40, "b": "{}", "c": "[1]"},
]  # fmt: skip

Row = tuple[object, ...]


@dataclass(frozen=True)
class Told:
    """What an answer says, whatever its format: rows, and where to go on."""

    rows: list[Row]
    next_from_seq: int
    complete: bool
    epoch: int


def by_json(page: RangePage) -> Told:
    rows: list[Row] = []
    for part in page.parts:
        if isinstance(part, Gap):
            epoch = page.asked_epoch if part.reason == "recreated" else page.epoch
            rows.append((str(epoch), part.gap_from, part.gap_to, part.reason))
            continue
        for r in part.records:
            rows.append((str(page.epoch), r.seq, r.ts, r.node, r.tag, texts(r.meta), bytes(r.data)))
    return Told(rows, page.next_from_seq, page.complete, page.epoch)


def texts(meta: dict[str, Any] | None) -> list[tuple[str, str]] | None:
    """Meta as a map of texts; a value that is none is its JSON."""
    if meta is None:
        return None
    return [
        (name, value if isinstance(value, str) else msgspec.json.encode(value).decode())
        for name, value in meta.items()
    ]


def by_arrow(page: RangePage) -> Told:
    import pyarrow as pa
    import pyarrow.ipc as ipc

    reader = ipc.open_stream(pa.BufferReader(b"".join(arrow.Encoder().encode(page))))
    rows: list[Row] = []
    for batch in reader:
        batch.validate(full=True)
        assert batch.num_rows
        for row in batch.to_pylist():
            assert row["topic"] == page.topic
            if row["_kind"] == "gap":
                assert {row[c] for c in ("ts", "node", "tag", "meta", "data")} == {None}
                rows.append((row["epoch"], row["seq"], row["_gap_to"], row["_gap_reason"]))
                continue
            assert (row["_kind"], row["_gap_to"], row["_gap_reason"]) == ("record", None, None)
            ts = int(row["ts"].timestamp() * 1000 + 0.5)
            parts = (row["node"], row["tag"], row["meta"], row["data"].encode())
            rows.append((row["epoch"], row["seq"], ts, *parts))
    said = reader.schema.metadata
    return Told(
        rows, int(said[b"next_from_seq"]), said[b"complete"] == b"true", int(said[b"epoch"])
    )


def content_bytes(row: Row) -> int:
    """Bytes of data and meta of a record's row."""
    data, pairs = row[6], row[5]
    assert isinstance(data, bytes)
    if pairs is None:
        return len(data)
    assert isinstance(pairs, list)
    # Meta of our own is JSON in a text; nobody else's begins so.
    shown = [
        (msgspec.json.encode(name), value.encode() if name == "_topics_router" else None, value)
        for name, value in pairs
    ]
    members = [name + b":" + (raw or msgspec.json.encode(value)) for name, raw, value in shown]
    return len(data) + len(b"{" + b",".join(members) + b"}")


def is_record(row: Row) -> bool:
    return len(row) == 7


class History:
    """Topics with records in every tier, and with every kind of removal."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = World(**SETTINGS[seed % len(SETTINGS)])
        durability = self.rng.choice(["disk", "disk", "fsync", "memory", "ephemeral"])
        config = {"durability": durability, "ttl_ms": self.rng.choice([0, 0, 5000])}
        self.world.engine.put_topic("t", {**config, "cap_records": self.rng.choice([0, 0, 90])})
        self.world.engine.put_router(
            "r", {"source": "t", "dest": "copy", "guarantee": "exactly_once"}
        )

    def record(self) -> dict[str, Any]:
        rng = self.rng
        record: dict[str, Any] = {"data": msgspec.Raw(rng.choice(DATA))}
        if self.is_rich:
            record |= {
                "tag": rng.choice(TAGS),
                "node": rng.choice(NODES),
                "meta": rng.choice(METAS),
            }
        return record

    def run(self) -> None:
        rng = self.rng
        actions = [self.write] * 6 + [self.single] * 3 + [self.delete] * 2 + [self.pass_time]
        actions += [self.seal] * 2 + [self.restart]
        for _ in range(rng.randrange(4, 22)):
            self.is_rich = rng.random() < 0.7
            rng.choice(actions)()
            self.world.engine.forward()

    def write(self) -> None:
        self.world.engine.append("t", [self.record() for _ in range(self.rng.randrange(1, 40))])

    def single(self) -> None:
        for _ in range(self.rng.randrange(1, 6)):
            self.world.engine.append("t", [self.record()])

    def delete(self) -> None:
        head = self.world.engine.state("t").head_seq
        choice = self.rng.random()
        if choice < 0.4:
            self.world.engine.delete("t", match=self.rng.choice(["a", "b", "é"]))
        elif choice < 0.6:
            self.world.engine.delete("t", match=["tag", "Glob", "a*"])
        elif choice < 0.8:
            self.world.engine.delete("copy", match="b")
        else:
            self.world.engine.delete("t", before_seq=self.rng.randrange(head + 2))

    def pass_time(self) -> None:
        self.world.clock.advance(self.rng.choice([1, 700, 4000]))

    def seal(self) -> None:
        self.world.engine.checkpoint()
        how = self.rng.random()
        if how < 0.2:
            self.world.engine.scrub()
        elif how < 0.6:
            self.world.engine.rewrite(self.rng.choice(["t", "copy"]))

    def restart(self) -> None:
        self.world.restart(self.rng.choice(["clean", "kill", "crash"]))


@pytest.mark.parametrize("seed", quick_first(range(60), 5))
def test_every_format_says_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the tier, the removal, the match and the budget: the same rows and the same end."""
    history = History(seed)
    monkeypatch.setattr(arrow, "BATCH_ROWS_MAX", history.rng.choice([1, 3, 20, 8192]))
    monkeypatch.setattr(arrow, "BATCH_BYTES_MAX", history.rng.choice([1, 1000, 10**6]))
    history.run()
    engine, rng = history.world.engine, history.rng
    for topic in ("t", "copy"):
        if not engine.has_topic(topic):
            continue
        head = engine.state(topic).head_seq
        for _ in range(12):
            from_seq = rng.randrange(head + 1)
            asked: dict[str, Any] = {
                "from_seq": from_seq,
                "to_seq": rng.choice([None, rng.randrange(from_seq, head + 3)]),
                "records_max": rng.choice([0, 0, 1, 5, 30]),
                "bytes_max": rng.choice([0, 0, 1, 60, 700, 5000]),
                "match": rng.choice([None, None, "a", "é", ["tag", "Glob", "a*"], "none"]),
            }
            compare(history.world, topic, asked, diffs(history.world, topic, from_seq))


def diffs(world: World, topic: str, from_seq: int) -> list[Row]:
    """All rows after a seq, as diffs tell them."""
    rows: list[Row] = []
    epoch = str(world.engine.state(topic).epoch)
    for page in read_all(world.engine, topic, from_seq, include_tags=True):
        told = page.tombstone
        if told is not None:
            rows.append((epoch, told.gap_from, told.gap_to, told.reason))
        for r in page.records:
            rows.append((epoch, r.seq, r.ts, r.node, r.tag, texts(r.meta), bytes(r.data)))
    return rows


def compare(world: World, topic: str, asked: dict[str, Any], whole: list[Row]) -> None:
    engine = world.engine
    page = engine.range(topic, **asked)
    told = by_json(page)
    assert by_arrow(page) == told
    records = [row for row in told.rows if is_record(row)]
    assert (page.count, page.content_bytes) == (len(records), sum(map(content_bytes, records)))
    assert told.rows == within(whole, asked, told.next_from_seq)
    counted = engine.range(topic, **asked, keeps_records=False)
    assert counted.parts == counted.gaps
    rest = [row for row in within(whole, asked, counted.next_from_seq) if is_record(row)]
    assert (counted.count, counted.content_bytes) == (len(rest), sum(map(content_bytes, rest)))
    assert spent(rest[:-1], asked) is False
    if not counted.complete:
        ended_early = asked["to_seq"] is not None and asked["to_seq"] > engine.state(topic).head_seq
        assert spent(rest, asked) or ended_early
    if history_is_warm(world):
        assert counted.next_from_seq == told.next_from_seq


def history_is_warm(world: World) -> bool:
    """Whether a read never ends early for want of what is in the cold store."""
    return world.settings.cold_dir is None


def spent(rows: list[Row], asked: dict[str, Any]) -> bool:
    """Whether a budget is used up by these records."""
    too_many = asked["records_max"] and len(rows) >= asked["records_max"]
    too_much = asked["bytes_max"] and sum(map(content_bytes, rows)) >= asked["bytes_max"]
    return bool(too_many or too_much)


def within(whole: list[Row], asked: dict[str, Any], last: int) -> list[Row]:
    """What of a topic is in (from_seq, last] and matches."""
    first, match = asked["from_seq"] + 1, asked["match"]
    if asked["to_seq"] is not None:
        last = min(last, asked["to_seq"])
    rows: list[Row] = []
    for row in whole:
        if not is_record(row):
            epoch, gap_from, gap_to, reason = row
            assert isinstance(gap_from, int)
            assert isinstance(gap_to, int)
            low, high = max(gap_from, first), min(gap_to, last)
            if low <= high:
                rows.append((epoch, low, high, reason))
        elif first <= row[1] <= last and matches(row[4], match):  # type: ignore[operator]
            rows.append(row)
    return rows


def matches(tag: object, match: Any) -> bool:
    if match is None:
        return True
    if not isinstance(tag, str):
        return False
    return tag == match if isinstance(match, str) else tag.startswith(match[2][:-1])


TOLD = {"tag": "a", "node": "n", "meta": {"k": "v", "l": "w"}}


@pytest.mark.parametrize(("writes", "count", "size"), [(10, 2000, 200), (1, 900, 8192)])
@pytest.mark.parametrize("fields", [{}, TOLD])
def test_no_step_of_a_large_range_is_long(
    fields: dict[str, Any], writes: int, count: int, size: int
) -> None:
    """Others wait for one of them, whatever the range comes to and however it was written."""
    world = World()
    for _ in range(writes):
        world.engine.append("t", [{"data": "x" * size, **fields}] * count)
    encoder, page = arrow.Encoder(), world.engine.range("t")
    longest: list[float] = []
    for _ in range(3):
        took, steps = [], encoder.steps(page)
        with contextlib.suppress(StopIteration):
            while True:
                began = time.thread_time()
                next(steps)
                took.append(time.thread_time() - began)
        longest.append(max(took) / sum(took))
    assert page.count == writes * count
    assert min(longest) < 0.1
