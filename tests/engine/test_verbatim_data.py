"""Verbatim data: what a client wrote is what every reader gets, byte for byte."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.support.engines import ENDINGS, Ending, World
from tests.support.tiers import quick_first
from topics.engine.engine import Engine
from topics.errors import InvalidRequest, TopicsError

SPELLINGS = [
    "null", "true", "false", "0", "-0", "1.0", "1.10", "1e2", "1E+2", "1e400", "-1e-400",
    "12345678901234567890123456789", "0.1000000000000000055511151231257827", '""', '"a\\/b"',
    '"\\u0041\\u00e9"', '"\\ud83d\\ude00"', '"é😀"', '"\\b\\f\\n\\r\\t\\"\\\\"', '"\u2028\x7f"',
    "[]", "{}", "[ 1 ,\t2 ]", '{"b":1,"a":2}', '{"a":1,"a":2}', '{"":{"":[]}}',
    '{ "k" : [ 1 , { "x" : null } ] }', '[[[[[[[[]]]]]]]]', '"$seq"',
    '{"$seq":5,"data":{"meta":1}}',
]  # fmt: skip

LONE = ['"\\ud800"', '"\\udfff x"', '"\\udc00\\ud800"', '{"\\uD800":["\\udbff","\\ud83d\\ude00"]}',
        '"\\\\ud800 \\ud800"', '"\\ud800\\u0041"']  # fmt: skip


def body(*texts: str, **fields: Any) -> bytes:
    records = ",".join('{"data":' + text + "}" for text in texts)
    rest = "".join(f",{msgspec.json.encode(key).decode()}:{value}" for key, value in fields.items())
    return f'{{"records":[{records}]{rest}}}'.encode()


def stored(engine: Engine, topic: str = "t") -> list[str]:
    return [bytes(record.data).decode() for record in engine.diff(topic, limit=1000).records]


@pytest.mark.parametrize("how", [None, *ENDINGS])
@pytest.mark.parametrize("sealed", [False, True])
def test_every_spelling_survives_every_path(world: World, how: Ending | None, sealed: bool) -> None:
    """Numbers, key order, duplicate keys, escapes and spaces come back as they were written."""
    world.engine.put_topic("t", {"durability": "fsync"})
    for text in (*SPELLINGS, *LONE):
        world.engine.append_json("t", body(text))
    world.engine.append_json("t", body(*SPELLINGS, *LONE))
    if sealed:
        world.engine.checkpoint()
    if how is not None:
        world.restart(how)
    assert stored(world.engine) == [*SPELLINGS, *LONE] * 2


@pytest.mark.parametrize("text", SPELLINGS + LONE)
@pytest.mark.parametrize(
    "fields", quick_first(['"node":"n","tag":"g"', '"tag":"g"', '"meta":{"k":"v"}'], 1)
)
def test_data_is_verbatim_beside_other_fields(engine: Engine, text: str, fields: str) -> None:
    """Tags, nodes and meta before or behind the data do not touch it."""
    record = f'{{{fields},"data":{text}}},{{"data":{text},{fields}}}'
    engine.append_json("t", f'{{"node":"b","records":[{record}]}}'.encode())
    assert stored(engine) == [text, text]
    first = engine.diff("t", include_tags=True).records[0]
    assert first.tag == ("g" if "tag" in fields else None)
    assert first.meta == ({"k": "v"} if "meta" in fields else None)


@pytest.mark.parametrize("text", LONE)
def test_a_lone_surrogate_escape_is_json_like_any_other(engine: Engine, text: str) -> None:
    """The grammar allows it, so it is kept and can be decoded again."""
    import json

    done = engine.append_json("t", body("1", text, "2", idempotency_key='"k"'))
    assert done.count == 3
    assert engine.diff("t").records[1].value == json.loads(text)
    assert engine.append_json("t", body("1", text, "2", idempotency_key='"k"')).deduped


@pytest.mark.parametrize("text", LONE)
def test_a_router_that_is_made_again_knows_copies_with_lone_surrogates(
    engine: Engine, text: str
) -> None:
    """What it has copied is found in the destination whatever the data, and not copied twice."""
    config = {"source": "t", "dest": "copies", "guarantee": "exactly_once", "from_seq": 0}
    engine.append_json("t", body(text))
    for _ in range(2):
        engine.put_router("r", config)
        engine.forward()
        assert stored(engine, "copies") == [text]
        engine.delete_router("r")


@pytest.mark.parametrize(
    "broken",
    [
        '{"records":[{"data":"\\ud800","tag":"\\ud800"}]}',
        '{"records":[{"data":1,"node":"\\udc00"}]}',
        '{"records":[{"data":1,"meta":{"\\ud800":"x"}}]}',
        '{"records":[{"data":1,"meta":{"x":"\\ud800"}}]}',
        '{"records":[{"data":"\\ud800"}],"node":"\\ud800"}',
        '{"records":[{"data":"\\ud800"}],"idempotency_key":"\\ud800"}',
        '{"records":[{"data":"\\ud80"}]}',
        '{"records":[{"data":"\\ud800}]}',
        '{"records":[{"data":\\ud800}]}',
        '{"records":[{"data":"\\ud800"},{"data":NaN}]}',
        '{"records":[{"data":"\\ud800","unknown":1}]}',
        '{"records":[{"tag":"\\ud800"}]}',
    ],
)
def test_a_lone_surrogate_is_refused_where_text_is_meant(engine: Engine, broken: str) -> None:
    """Tags, nodes, meta and keys are text; a surrogate alone is none, and excuses nothing else."""
    with pytest.raises(InvalidRequest):
        engine.append_json("t", broken.encode())
    assert engine.list_topics() == []


def test_a_pair_of_surrogates_in_a_tag_is_one_character(engine: Engine) -> None:
    """Beside data with a lone surrogate, escaped pairs in tags mean what they always mean."""
    engine.append_json(
        "t", b'{"records":[{"tag":"\\ud83d\\ude00","data":"\\ud800"},{"data":"\\udc00"}]}'
    )
    record = engine.diff("t", include_tags=True).records[0]
    assert record.tag == "\U0001f600"
    assert engine.delete("t", match="\U0001f600").deleted == 1


@pytest.mark.parametrize(
    "text",
    [
        "NaN", "Infinity", "-Infinity", "nul", "nullx", "True", "'a'", "01", "1.", ".5", "+1", "1e",
        "0x10", "--1", "[1,]", "[,1]", '{"a":1,}', "{a:1}", '{"a" 1}', '"\\x41"', '"\\u12"', '"a',
        "]",
        '"tab\tinside"', '"line\ninside"', "", " ", "1 2", "/*c*/1", "undefined",
    ],
)  # fmt: skip
def test_what_is_not_json_is_refused(engine: Engine, text: str) -> None:
    """Invalid text is invalid_request, and nothing of the batch is written."""
    with pytest.raises(InvalidRequest):
        engine.append_json("t", body("1", text))
    assert engine.list_topics() == []


@pytest.mark.parametrize(
    "raw", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf5\x80\x80\x80"]
)
@pytest.mark.parametrize("place", ["data", "tag", "key"])
def test_text_that_is_not_utf8_is_refused(engine: Engine, raw: bytes, place: str) -> None:
    """Bytes that are not UTF-8 never reach a reader."""
    inside = {"data": b'"data":"%b"', "tag": b'"data":1,"tag":"%b"', "key": b'"data":{"%b":1}'}
    with pytest.raises(InvalidRequest):
        engine.append_json("t", b'{"records":[{' + inside[place] % raw + b"}]}")
    assert engine.list_topics() == []


@pytest.mark.parametrize("break_", ["\n", "\r", "\r\n", "\n\n"])
def test_line_breaks_between_tokens_become_spaces(engine: Engine, break_: str) -> None:
    """A record is one line; breaks inside strings are escapes and stay."""
    text = f'{{{break_}"a":{break_}[1,{break_}2],"b":"x\\n\\r"{break_}}}'
    engine.append_json("t", body(text))
    (kept,) = stored(engine)
    assert kept == text.replace("\r", " ").replace("\n", " ")
    assert b"\n" not in engine.diff("t").records_json
    assert b"\r" not in engine.diff("t").records_json


@pytest.mark.parametrize("depth", [200, 100_000])
def test_nesting_is_accepted_or_refused_but_never_fatal(engine: Engine, depth: int) -> None:
    """Deep JSON is kept, JSON nested too deep is invalid_request."""
    text = "[" * depth + "]" * depth
    if depth == 200:
        engine.append_json("t", body(text))
        assert stored(engine) == [text]
        return
    for deep in (text, '{"a":' * depth + "1" + "}" * depth, "[" * depth):
        with pytest.raises(InvalidRequest):
            engine.append_json("t", body(deep))
    assert engine.list_topics() == []


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        float("nan"), float("inf"), [float("-inf")], {"a": [None, float("nan")]}, object(), {1, 2j},
        "\ud800", {"\ud800": 1}, nested(5_000), 1j, msgspec.Raw(b"nonsense"), msgspec.Raw(b""),
        msgspec.Raw(b"1 2"), msgspec.Raw(b'"\xff"'), msgspec.Raw(b"NaN"),
    ],
    ids=[str(n) for n in range(15)],
)  # fmt: skip
def test_a_python_value_that_is_not_json_is_refused(engine: Engine, value: Any) -> None:
    """Nothing is bent into shape: what JSON can not say is invalid_request."""
    with pytest.raises(InvalidRequest):
        engine.append("t", [{"data": 1}, {"data": value}])
    assert engine.list_topics() == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"), (1.5, "1.5"), (2**70, str(2**70)), ("é", '"é"'), ([None, 1], "[null,1]"),
        ({"b": 1, "a": [True]}, '{"b":1,"a":[true]}'),
        (msgspec.Raw(b'{"a" : 1e400}'), '{"a" : 1e400}'),
        (msgspec.Raw(b'[1,\n2]'), "[1, 2]"), (msgspec.Raw(b'"\\ud800"'), '"\\ud800"'),
    ],
)  # fmt: skip
def test_a_python_value_is_stored_as_json(engine: Engine, value: Any, text: str) -> None:
    """Values are encoded once; msgspec.Raw is JSON text taken as it is, and checked."""
    engine.append("t", [{"data": value}])
    assert stored(engine) == [text]


def test_meta_comes_back_as_it_was(engine: Engine) -> None:
    """Keys in order, empty strings and an empty object included."""
    metas: list[dict[str, str]] = [{"b": "1", "a": ""}, {}, {"é": "\U0001f600"}, {"": "\n"}]
    engine.append("t", [{"data": 0, "meta": meta} for meta in metas])
    assert [list((r.meta or {}).items()) for r in engine.diff("t").records] == [
        list(meta.items()) for meta in metas
    ]
    assert engine.diff("t").records_json.count(b'"meta":') == 4


@pytest.mark.parametrize("broken", [True, False])
def test_a_batch_is_written_whole_or_not_at_all(world: World, broken: bool) -> None:
    """One bad record refuses all of them, with no seq used up."""
    world.fill("t", 1)
    texts = ["1"] * 50 + (["NaN"] if broken else []) + ["2"] * 50
    if broken:
        with pytest.raises(TopicsError):
            world.engine.append_json("t", body(*texts))
    else:
        assert world.engine.append_json("t", body(*texts)).first_seq == 2
    world.fill("t", 1)
    assert world.engine.state("t").head_seq == (2 if broken else 102)
