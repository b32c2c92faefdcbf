"""Routes × fields × faults: the cells of the table of bad input, generated from what is said here.

A target is a route with a request that is valid. Each of its cells is that request with one fault.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.server.bad_input import faults
from tests.server.bad_input.faults import INVALID, Body, Fault

Fields = Mapping[str, tuple[Fault, ...]]
Words = Mapping[str, str]


@dataclass(frozen=True)
class Target:
    """`{}` in the path is filled with names; `fields` are places in the body, dotted."""

    method: str
    path: str
    body: Any = None
    fields: Fields = field(default_factory=dict)
    query: Mapping[str, Words] = field(default_factory=dict)
    # A query that the request can not be without.
    fixed_query: str = ""
    needs_body: bool = False
    # A config: what it does not know, it refuses.
    is_config: bool = False
    # Names that make the request valid, where they are not those of the topic "kept".
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def route(self) -> str:
        return f"{self.method} {self.path}"

    def at(self, **names: str) -> str:
        return self.path.format(**{**NAMES, **self.names, **names})


@dataclass(frozen=True)
class Cell:
    target: Target
    place: str
    fault: str
    path: str
    code: str = INVALID
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    method: str = ""

    @property
    def name(self) -> str:
        return f"{self.target.route} {self.place}: {self.fault}"


NAMES = {"topic": "kept", "router": "kept", "cursor": "kept", "wid": "wid_" + "A" * 22}
JSON = {"Content-Type": faults.JSON}

CONFIG: Fields = {
    "type": faults.WORD_OR_NULL, "ttl_ms": faults.U64, "cap_records": faults.U64,
    "cap_bytes": faults.U64, "discard": faults.WORD, "durable": faults.FLAG,
    "durability": faults.WORD_OR_NULL, "priority": faults.I32_OR_NULL,
    "auto_priority": faults.FLAG, "auto_create": faults.FLAG,
    "idempotency_window_ms": faults.U64, "dedupe_node": faults.FLAG, "lease_ms": faults.U64,
    "claim_jitter_ms": faults.U64, "max_deliveries": faults.U64, "dead_letter": faults.NAME,
    "leases_durable": faults.FLAG,
}  # fmt: skip
LOOK: Fields = {
    "node": faults.NODES, "limit": faults.CLAMPED, "max_batch_bytes": faults.CLAMPED,
    "include_tags": faults.FLAG, "include_meta": faults.FLAG,
}  # fmt: skip
TAG = (*faults.TEXT_OR_NULL, Fault("257 long", "x" * 257), Fault("258 bytes", "é" * 129))
NODE = (*faults.TEXT_OR_NULL, Fault("129 long", "x" * 129), Fault("130 bytes", "é" * 65))
KEY = (*faults.TEXT_OR_NULL, Fault("empty", ""), Fault("257 long", "k" * 257))
WORKER = (*NODE, Fault("null", None), Fault("empty", ""))
QUEUE = {"topic": "kept-queue"}
RECORDS = faults.RECORDS + faults.MANY_RECORDS + faults.LARGE_RECORDS
TOPICS = faults.TOPICS + faults.UNKNOWN_TOPICS
PAGING = {"page_size": faults.NUMBER_WORDS, "cursor": faults.CURSOR_WORDS}
TOPIC = "/v0/topics/{topic}"

TARGETS = (
    Target("PUT", TOPIC, {}, CONFIG | {"dead_letter": (*faults.NAME, Fault("itself", "kept"))},
           is_config=True),
    Target("PATCH", TOPIC, {}, CONFIG | {"dead_letter": (*faults.NAME, Fault("itself", "kept"))},
           is_config=True),
    Target("GET", TOPIC, query={"touch": faults.FLAG_WORDS}),
    Target("DELETE", TOPIC, query={"if_empty": faults.FLAG_WORDS}, names={"topic": "absent"}),
    Target("GET", "/v0/topics", query={**PAGING, "touch": faults.FLAG_WORDS,
                                       "sort": {"word": "size", "empty": "", "case": "Bytes"}}),
    Target("GET", "/v0/connections", query=PAGING),
    Target("GET", TOPIC + "/leases", query=PAGING, names=QUEUE),
    Target(
        "POST", TOPIC, {"records": [{"data": 1}], "config": {}}, {
            "records": RECORDS, "records.0.tag": TAG, "records.0.node": NODE,
            "records.0.meta": faults.META, "node": NODE, "idempotency_key": KEY,
            "create": faults.FLAG_OR_NULL, "disable_backpressure": faults.FLAG,
            "return_seqs": faults.FLAG, "config.no_such_field": faults.of({"there": 1}),
            **{f"config.{name}": found for name, found in CONFIG.items()},
        }, query={"return_seqs": faults.FLAG_WORDS}, needs_body=True,
    ),
    Target(
        "POST", TOPIC + "/diff", {}, LOOK | {
            "from_seq": faults.U64, "wait_ms": faults.CLAMPED, "epoch": faults.EPOCH,
        },
    ),
    Target(
        "POST", TOPIC + "/range", {}, {
            "from_seq": faults.U64, "to_seq": faults.U64_OR_NULL, "max_bytes": faults.CLAMPED,
            "max_records": faults.CLAMPED, "epoch": faults.EPOCH, "format": faults.WORD,
        },
    ),
    Target("GET", TOPIC + "/seq-at", query={"ts": faults.NUMBER_WORDS}, fixed_query="ts=1"),
    Target(
        "POST", TOPIC + "/delete", {"before_seq": 0},
        {"before_seq": faults.U64, "match": faults.MATCH}, needs_body=True,
    ),
    Target(
        "GET", TOPIC + "/explain", query={"from": faults.NUMBER_WORDS, "to": faults.NUMBER_WORDS}
    ),
    Target(
        "PUT", TOPIC + "/cursors/{cursor}", {"seq": 1}, {
            "seq": (*faults.U64_OR_NULL, Fault("above the head", 1000)), "epoch": faults.EPOCH,
            "if_absent": faults.FLAG, "reset": faults.FLAG, "hold": faults.HOLD,
        },
    ),
    Target("GET", TOPIC + "/cursors"),
    Target("GET", TOPIC + "/cursors/{cursor}"),
    Target("DELETE", TOPIC + "/cursors/{cursor}", names={"cursor": "absent"}),
    Target(
        "PUT", "/v0/routers/{router}", {"source": "kept", "dest": "kept-copy"}, {
            "source": (*faults.NAME_NOT_NULL, Fault("the other", "kept-copy")),
            "dest": (*faults.NAME_NOT_NULL, Fault("the other", "kept")),
            "preserve_node": faults.FLAG, "preserve_tag": faults.FLAG, "create_dest": faults.FLAG,
            "filter": faults.MATCH, "allow_cycle": faults.FLAG, "guarantee": faults.WORD,
            "from_seq": faults.U64_OR_NULL,
        }, needs_body=True, is_config=True,
    ),
    Target("GET", "/v0/routers/{router}"),
    Target("DELETE", "/v0/routers/{router}", names={"router": "absent"}),
    Target("GET", "/v0/routers", query=PAGING),
    Target(
        "POST", "/v0/watch", {"topics": {"kept": {}}}, LOOK | {
            "node": (*faults.NODES, Fault("1001 nodes", [str(n) for n in range(1001)])),
            "topics": TOPICS, "heartbeat_ms": faults.CLAMPED, "include_data": faults.FLAG,
            "consistency": faults.WORD, "cursor": faults.EVENT_ID,
        }, query={"lenient": faults.FLAG_WORDS}, needs_body=True,
    ),
    Target("GET", "/v0/watch/{wid}"),
    Target("GET", TOPIC + "/stream", query={
        "from_seq": faults.NUMBER_WORDS, "tail": faults.FLAG_WORDS, "limit": faults.NUMBER_WORDS,
        "max_batch_bytes": faults.NUMBER_WORDS, "heartbeat_ms": faults.NUMBER_WORDS,
        "include_tags": faults.FLAG_WORDS, "include_meta": faults.FLAG_WORDS,
        "include_data": faults.FLAG_WORDS, "consistency": {"word": "x", "empty": ""},
        "epoch": {"word": "x", "negative": "-1", "2^64": str(2**64)},
    }),
    Target(
        "POST", TOPIC + "/claim", {"node": "w"}, {
            "node": WORKER, "max": faults.U64, "lease_ms": faults.U64_OR_NULL,
            "wait_ms": faults.U64,
        }, needs_body=True, names=QUEUE,
    ),
    *(
        Target(
            "POST", f"{TOPIC}/{call}", {"node": "w", "seqs": [1], **more}, {
                "node": WORKER, "seqs": faults.SEQS + faults.MANY_SEQS,
                "lease_ids": faults.LEASE_IDS, **wrong,
            }, needs_body=True, names=QUEUE,
        )
        for call, more, wrong in (
            ("ack", {}, {}), ("nack", {}, {"delay_ms": faults.U64}),
            ("extend", {"lease_ms": 100}, {"lease_ms": faults.U64}),
        )
    ),
    *(Target("GET", path) for path in ("/v0/health", "/v0/ready", "/healthz", "/readyz")),
    *(Target("GET", path) for path in ("/", "/v0", "/v0/docs")),
    *(Target("GET", path) for path in ("/v0/metrics", "/metrics")),
    Target("GET", "/v0/openapi.json"),
)  # fmt: skip


# Commands of a WebSocket, each with a valid message.
COMMANDS: dict[str, tuple[dict[str, Any], Fields]] = {
    "subscribe": (
        {"topic": "kept"},
        LOOK
        | {
            "topic": faults.NAME,
            "from_seq": faults.U64,
            "tail": faults.FLAG,
            "epoch": faults.EPOCH,
            # What `topic` says of a topic counts for more than what `topics` does.
            "topics": faults.without(TOPICS, "null", "empty", "2^64", "epoch"),
            "include_data": faults.FLAG,
            "consistency": faults.WORD,
        },
    ),
    "unsubscribe": (
        {"topic": "kept"},
        {"topic": faults.TEXT_OR_NULL, "topics": faults.of({"text": "x", "of numbers": [1]})},
    ),
    "publish": (
        {"topic": "kept", "records": [{"data": 1}], "config": {}},
        {
            "topic": faults.NAME_NOT_NULL,
            "records": RECORDS,
            "records.0.tag": TAG,
            "records.0.node": NODE,
            "records.0.meta": faults.META,
            "idempotency_key": KEY,
            "return_seqs": faults.FLAG,
            "create": faults.FLAG_OR_NULL,
            "config.ttl_ms": faults.U64,
            "config.no_such_field": faults.of({"there": 1}),
            "disable_backpressure": faults.FLAG,
        },
    ),
}


def cells_of(target: Target) -> Iterator[Cell]:
    yield from _fields(target)
    yield from _bodies(target)
    yield from _names(target)
    yield from _queries(target)
    yield from _heads(target)
    yield from _methods(target)


def _request(target: Target, **names: str) -> dict[str, Any]:
    """What every cell has of the valid request."""
    query = f"?{target.fixed_query}" if target.fixed_query else ""
    found: dict[str, Any] = {"target": target, "path": target.at(**names) + query}
    if target.body is not None:
        found |= {"body": faults.encoded(target.body), "headers": JSON}
    return found


def _fields(target: Target) -> Iterator[Cell]:
    for place, wrong in target.fields.items():
        for fault in wrong:
            body = changed(target.body, place, fault.value)
            found = _request(target) | {"body": faults.encoded(body)}
            yield Cell(place=place, fault=fault.name, code=fault.code, **found)


def changed(body: Any, place: str, value: Any) -> Any:
    """A copy of a body with another value at a place."""
    found = copy.deepcopy(body)
    *parents, last = place.split(".")
    holder = found
    for name in parents:
        holder = holder[int(name) if isinstance(holder, list) else name]
    holder[last] = value
    return found


def _bodies(target: Target) -> Iterator[Cell]:
    if target.body is None:
        return
    wrong: tuple[Body, ...] = (
        *faults.BODIES,
        *(faults.STRICT if target.is_config else ()),
        *(faults.NEEDED if target.needs_body else ()),
    )
    for body in wrong:
        found = _request(target) | {"headers": body.headers}
        if body.data is not None:
            found["body"] = body.data
        yield Cell(place="body", fault=body.name, code=body.code, **found)
    found = _request(target) | {"body": b"", "headers": {**JSON, "Content-Length": "67108865"}}
    yield Cell(place="body", fault="too large", code="payload_too_large", **found)


def _names(target: Target) -> Iterator[Cell]:
    words = {"router": faults.ROUTER_NAMES, "wid": faults.WIDS}
    for name in NAMES:
        if f"{{{name}}}" in target.path:
            for fault, word in words.get(name, faults.PATH_NAMES).items():
                code = "not_found" if name == "wid" else INVALID
                found = _request(target, **{name: word})
                yield Cell(place=name, fault=fault, code=code, **found)


def _queries(target: Target) -> Iterator[Cell]:
    for name, words in target.query.items():
        for fault, word in words.items():
            found = _request(target) | {"path": f"{target.at()}?{name}={word}"}
            yield Cell(place=f"?{name}", fault=fault, **found)
    if target.query:
        many = "&".join(f"x{n}=1" for n in range(101))
        found = _request(target) | {"path": f"{target.at()}?{many}"}
        yield Cell(place="query", fault="101 fields", **found)
    if target.fixed_query:
        yield Cell(place="query", fault="absent", **(_request(target) | {"path": target.at()}))


HEADS = {
    "foreign host": ({"Host": "evil.example"}, "forbidden"),
    "rebound host": ({"Host": "127.0.0.1.evil.example"}, "forbidden"),
    "foreign origin": ({"Origin": "http://evil.example"}, "forbidden"),
    "no origin": ({"Origin": "null"}, "forbidden"),
    "other port": ({"Origin": "http://127.0.0.1:1"}, "forbidden"),
    "expectation": ({"Expect": "a miracle"}, "expectation_failed"),
    "129 headers": ({f"X-{n}": "1" for n in range(129)}, "headers_too_large"),
    "large header": ({"X-Large": "x" * 70_000}, "headers_too_large"),
    "transfer coding": ({"Transfer-Encoding": "gzip"}, INVALID),
}  # fmt: skip


def _heads(target: Target) -> Iterator[Cell]:
    for fault, (headers, code) in HEADS.items():
        found = _request(target)
        found["headers"] = {**found.get("headers", {}), **headers}
        yield Cell(place="head", fault=fault, code=code, **found)
    found = _request(target)
    found["path"] += ("&" if "?" in found["path"] else "?") + "x" * 17_000
    yield Cell(place="head", fault="long target", code="uri_too_long", **found)
    yield from _special_heads(target)


def _special_heads(target: Target) -> Iterator[Cell]:
    if target.route == "GET /v0/watch/{wid}":
        found = _request(target)
        yield Cell(place="wid", fault="unknown", code="not_found", **found)
    if target.method == "POST" and target.path == TOPIC:
        for fault, key in (("257 long", "k" * 257), ("empty", " ")):
            for beside in ({}, {"idempotency_key": "k"}):
                found = _request(target) | {"body": faults.encoded(target.body | beside)}
                found["headers"] = {**JSON, "Idempotency-Key": key}
                where = "Idempotency-Key" + " beside one in the body" * bool(beside)
                yield Cell(place=where, fault=fault, **found)


def _methods(target: Target) -> Iterator[Cell]:
    for method in faults.METHODS:
        found = {"path": target.at(), "target": target, "method": method}
        yield Cell(place="method", fault=method, code="method_not_allowed", **found)
