"""What can be wrong with a field, a body, a name, a query or a head, as values.

A fault has a name, what is sent, and the code it must be refused with. Which fields have which
faults is said in `table.py`.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

INVALID = "invalid_request"


@dataclass(frozen=True)
class Fault:
    name: str
    value: Any
    code: str = INVALID


def of(values: Mapping[str, Any], code: str = INVALID) -> tuple[Fault, ...]:
    return tuple(Fault(name, value, code) for name, value in values.items())


def without(faults: tuple[Fault, ...], *names: str) -> tuple[Fault, ...]:
    assert set(names) <= {fault.name for fault in faults}
    return tuple(fault for fault in faults if fault.name not in names)


# -- fields of a JSON body -----------------------------------------------------------------------

CLAMPED = of(
    {
        "negative": -1,
        "fraction": 1.5,
        "small fraction": 1e-9,
        "text": "1",
        "true": True,
        "null": None,
        "list": [1],
        "object": {},
    }
)
U64 = CLAMPED + of({"2^64": 2**64, "1e30": 1e30})
U64_OR_NULL = without(U64, "null")
I32_OR_NULL = of(
    {"2^31": 2**31, "-2^31-1": -(2**31) - 1, "fraction": 0.5, "text": "1", "true": True, "list": []}
)
FLAG = of({"one": 1, "zero": 0, "text": "true", "null": None, "list": [], "object": {}})
FLAG_OR_NULL = without(FLAG, "null")
TEXT_OR_NULL = of({"number": 1, "true": True, "list": ["a"], "object": {}})
WORD = of({"unknown": "other", "case": "OLD", "empty": "", "number": 1, "null": None, "list": []})
WORD_OR_NULL = without(WORD, "null")
EPOCH = TEXT_OR_NULL + of(
    {
        "empty": "",
        "word": "x",
        "sign": "-1",
        "2^64": str(2**64),
        "long": "1" * 21,
        "nl": "1\n",
        "underscore": "1_0",
    }
)
NODES = of({"number": 1, "true": True, "object": {}, "list of numbers": [1], "nested": [["a"]]})
NAME = of(
    {
        "empty": "",
        "space": "a b",
        "slash": "a/b",
        "leading dot": ".a",
        "leading dash": "-a",
        "newline": "a\n",
        "accent": "é",
        "nul": "a\0",
        "256 long": "a" * 256,
        "number": 1,
        "list": ["a"],
        "object": {},
    }
)
NAME_NOT_NULL = NAME + of({"null": None})
SEQS = of(
    {
        "null": None,
        "number": 1,
        "text": "1",
        "empty": [],
        "negative": [-1],
        "fraction": [0.5],
        "text inside": ["1"],
        "2^64": [2**64],
    }
)
MANY_SEQS = of({"too many": [1] * 1001}, "batch_too_large")
LEASE_IDS = of({"text": "x", "of numbers": [1], "too few": [], "too many": ["a", "b"]})
MATCH = of(
    {
        "number": 1,
        "true": True,
        "object": {},
        "empty list": [],
        "two": ["tag", "Eq"],
        "four": ["tag", "Eq", "a", "b"],
        "other field": ["node", "Eq", "a"],
        "other op": ["tag", "Like", "a"],
        "case": ["tag", "eq", "a"],
        "no star": ["tag", "Glob", "a"],
        "two stars": ["tag", "Glob", "a**"],
        "inner star": ["tag", "Glob", "a*b*"],
        "leading star": ["tag", "Glob", "*a"],
        "number to match": ["tag", "Eq", 1],
        "null to match": ["tag", "Eq", None],
    }
)
META = of(
    {
        "text": "x",
        "list": [],
        "number": 1,
        "number inside": {"k": 1},
        "null inside": {"k": None},
        "nested": {"k": {}},
        "65 keys": {str(n): "" for n in range(65)},
        "too large": {"k": "x" * 17_000},
        "ours": {"_topics_router": "x"},
    }
)
RECORDS = of(
    {
        "null": None,
        "object": {},
        "text": "x",
        "empty": [],
        "of numbers": [1],
        "of lists": [[]],
        "without data": [{}],
    }
)
MANY_RECORDS = of({"too many": [{"data": 1}] * 10_001}, "batch_too_large")
LARGE_RECORDS = of({"too large": [{"data": "x" * 1_048_577}]}, "record_too_large")
HOLD = of(
    {
        "text": "x",
        "number": 1,
        "list": [],
        "empty": {},
        "unknown": {"max_bytes": 1, "max": 1},
        "zero": {"max_bytes": 0},
        "negative": {"max_age_ms": -1},
        "nulls": {"max_bytes": None},
        "2^64": {"max_bytes": 2**64},
        "fraction": {"max_age_ms": 0.5},
    }
)
TOPICS = of(
    {
        "null": None,
        "list": ["kept"],
        "text": "kept",
        "empty": {},
        "number inside": {"kept": 1},
        "bad name": {"a b": {}},
        "empty name": {"": {}},
        "negative": {"kept": {"from_seq": -1}},
        "2^64": {"kept": {"from_seq": 2**64}},
        "tail": {"kept": {"tail": 1}},
        "epoch": {"kept": {"epoch": "x"}},
        "too many": {f"t{n}": {} for n in range(257)},
    }
)
UNKNOWN_TOPICS = of({"unknown topic": {"kept": {}, "no-such-topic": {}}}, "topic_not_found")
EVENT_ID = TEXT_OR_NULL + of(
    {
        "garbage": "%%%",
        "not json": "eA",
        "a number": "MQ",
        "negative": "eyJhIjotMX0",
        "text seq": "eyJhIjoiMSJ9",
        "a list": "WzFd",
        "negative epoch": "eyJhIjoxLCIkZXBvY2hzIjp7ImEiOiItNSJ9fQ",
        "epoch 2^64": "eyJhIjoxLCIkZXBvY2hzIjp7ImEiOiIxODQ0Njc0NDA3MzcwOTU1MTYxNiJ9fQ",
        "epoch with an underscore": "eyJhIjoxLCIkZXBvY2hzIjp7ImEiOiIxXzAifX0",
    }
)

# -- whole bodies --------------------------------------------------------------------------------

JSON = "application/json"


@dataclass(frozen=True)
class Body:
    """A body that is wrong as a whole, or wrongly announced. `{}` stands for a valid one."""

    name: str
    data: bytes | None = None
    code: str = INVALID
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": JSON})


def announced(**headers: str) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


BODIES = (
    Body("list", b"[]"), Body("null", b"null"), Body("text", b'"x"'), Body("number", b"1"),
    Body("blank", b" "), Body("cut", b'{"a'), Body("open", b"{"), Body("comma", b'{"a":1,}'),
    Body("two values", b"{} {}"), Body("garbage behind", b"{}x"), Body("quotes", b"{'a': 1}"),
    Body("comment", b"{} // done"), Body("NaN", b'{"from_seq": NaN}'), Body("word", b"nope"),
    Body("deep", b'{"a":' * 5000 + b"}" * 5000),
    Body("not UTF-8", b'{"\xff": 1}'), Body("UTF-16", "{}".encode("utf-16")),
    Body("byte order mark", b"\xef\xbb\xbf{}"), Body("overlong", b'{"\xc0\xaf": 1}'),
    Body("control character", b'{"a\x01": 1}'), Body("leading zero", b'{"from_seq": 01}'),
    Body("no type", code="unsupported_media_type", headers={"Content-Type": ""}),
    Body("other type", code="unsupported_media_type", headers=announced(Content_Type="text/plain")),
    Body("form", code="unsupported_media_type",
         headers=announced(Content_Type="application/x-www-form-urlencoded")),
    Body("similar type", code="unsupported_media_type",
         headers=announced(Content_Type="application/jsonx")),
    Body("charset", code="unsupported_media_type",
         headers=announced(Content_Type="application/json; charset=utf-16")),
    Body("coding", code="unsupported_media_type",
         headers=announced(Content_Type=JSON, Content_Encoding="br")),
    Body("not gzip", code=INVALID, headers=announced(Content_Type=JSON, Content_Encoding="gzip")),
    Body("cut gzip", gzip.compress(b"{}" * 50)[:-9],
         headers=announced(Content_Type=JSON, Content_Encoding="gzip")),
)  # fmt: skip
STRICT = (Body("unknown field", b'{"no_such_field": 1}'),)
NEEDED = (Body("no body", b"", headers={}), Body("empty object", b"{}"))

# -- names in paths, queries, heads --------------------------------------------------------------

PATH_NAMES = {
    "leading dash": "-a", "leading dot": ".a", "slash": "a%2Fb", "up": "%2e%2e", "newline": "a%0A",
    "space": "a%20b", "plus": "a+b", "nul": "a%00", "accent": "%C3%A9", "not UTF-8": "%ff",
    "half an escape": "a%4", "no escape": "a%zz", "256 long": "a" * 256, "percent": "a%25",
    "star": "a*", "at": "a@b",
}  # fmt: skip
ROUTER_NAMES = PATH_NAMES | {"leading arrow": "%3Ea"}
WIDS = {
    "short": "wid_x",
    "word": "x",
    "long": "wid_" + "A" * 23,
    "other sign": "wid_" + "A" * 21 + "%2B",
}

FLAG_WORDS = {"word": "maybe", "yes": "yes", "two": "2", "empty": "", "not UTF-8": "%ff"}
NUMBER_WORDS = {
    "negative": "-1", "word": "x", "fraction": "1.5", "empty": "", "sign": "%2B1", "hex": "0x1",
    "2^64": str(2**64), "arabic digit": "%D9%A1", "space": "%201",
}  # fmt: skip
CURSOR_WORDS = {
    "word": "x", "escape": "%25%25", "empty object": "e30=", "null": "bnVsbA==",
    "other key": "eyJiZWZvcmUiOiJhIn0=", "number": "eyJhZnRlciI6MX0=",
    "padding": "eyJhZnRlciI6ImpvYnMifQ", "more": "eyJhZnRlciI6ImpvYnMifQ==x", "not UTF-8": "%ff",
}  # fmt: skip

METHODS = ("SEARCH", "TRACE", "LOCK", "PROPFIND")


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()
