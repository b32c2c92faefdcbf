"""What schemathesis is told about this API that its document has no way to say.

Loaded into the process of schemathesis, not into that of the tests.
"""

from __future__ import annotations

import base64
import json
import os
import re
from dataclasses import dataclass

import schemathesis
from hypothesis import strategies as st

# Values of our own formats: see `topics.server.api.fields`.
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,20}", fullmatch=True)
SEQS = st.integers(0, 1000)
WAIT_MS_MAX = 20
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
NAMES_MAX = 3
# A topic that is there from the beginning, with so many records.
KEPT, KEPT_RECORDS = "kept", 3
KEPT_QUEUE = "kept-queue"
QUEUE_CALLS = ("/claim", "/ack", "/nack", "/extend", "/work", "/leases")


def texts(bytes_max: int) -> st.SearchStrategy[str]:
    fits = st.text(max_size=bytes_max // 4)
    return fits | st.text(st.characters(max_codepoint=127), max_size=bytes_max)


def encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).decode()


schemathesis.openapi.format("tag", texts(256))
schemathesis.openapi.format("key", texts(256).filter(lambda key: key not in ("", ".", "..")))
schemathesis.openapi.format("node", texts(128).filter(bool))
schemathesis.openapi.format("epoch", st.integers(0, 2**64 - 1).map(str))
schemathesis.openapi.format("list-cursor", NAMES.map(lambda name: encoded({"after": name})))
schemathesis.openapi.format(
    "event-id", st.dictionaries(NAMES, SEQS, max_size=3).map(lambda m: encoded(m).rstrip("="))
)


# The server is a process of the same machine: a backup goes beside its directory, and nowhere else.
BACKUPS = os.path.abspath("backups")
schemathesis.openapi.format("backup-place", st.just(BACKUPS))


@dataclass(frozen=True)
class Rule:
    """A refusal of what fits the schema, because the rule is not one that a schema can state."""

    operation: str
    message: str
    why: str


RULES = (
    Rule("GET /v0/kv/{bucket}/keys", "at_seq is above the head", "depends on the bucket's head"),
    Rule("GET /v0/kv/{bucket}/keys/{key}", "at_seq is above the head", "the same"),
    Rule("GET /v0/kv/{bucket}/keys", "was compacted", "depends on what is left of the past"),
    Rule("GET /v0/kv/{bucket}/keys/{key}", "was compacted", "the same"),
    Rule("GET /v0/kv/{bucket}/keys", "say two things", "compares two parameters"),
    Rule("GET /v0/kv/{bucket}/keys/{key}", "say two things", "the same"),
    Rule("POST /v0/topics/{topic}/delete", "before_seq or match or both", "one of two fields"),
    Rule("PUT /v0/topics/{topic}/cursors/{cursor}", "max_bytes or max_age_ms", "one of two fields"),
    Rule("PUT /v0/topics/{topic}/cursors/{cursor}", "owner and lease_ms", "two fields or none"),
    Rule("POST /v0/stages", "is a bucket", "depends on what is there"),
    Rule("POST /v0/stages/commit", "has expired", "depends on what is there"),
    Rule("GET /v0/kv/{bucket}/keys/{key}", "history is of all times", "compares parameters"),
    Rule("PUT /v0/kv/{bucket}", "a bucket is a log", "a bucket's config is a part of a topic's"),
    *(
        Rule(operation, "this cursor is", "a cursor is of one list, and of one order")
        for operation in (
            "GET /v0/topics",
            "GET /v0/connections",
            "GET /v0/topics/{topic}/leases",
            "GET /v0/kv/{bucket}/keys",
        )
    ),
    Rule("POST /v0/topics/{topic}/range", "arrow format", "compares a number with another field"),
    *(
        Rule(operation, "Glob takes", "a text whose form depends on the one before it")
        for operation in (
            "POST /v0/topics/{topic}/delete",
            "POST /v0/topics/{topic}/range",
            "PUT /v0/routers/{router}",
        )
    ),
    Rule("PUT /v0/routers/{router}", "source and dest must differ", "compares two fields"),
    Rule("PUT /v0/topics/{topic}", "dead_letter must name another topic", "compares with the path"),
    Rule("POST /v0/topics/{topic}", "dead_letter must name another topic", "the same, inline"),
    Rule("POST /v0/topics/{topic}", "can never fit", "depends on the topic's cap"),
    Rule("POST /v0/topics/{topic}", "is full", "depends on the topic's cap and what is there"),
    Rule("POST /v0/topics/{topic}/range", "from_seq must not be above to_seq", "compares fields"),
    Rule("PUT /v0/topics/{topic}/cursors/{cursor}", "above the head", "depends on what is there"),
    Rule("PUT /v0/topics/{topic}/cursors/{cursor}", "it needs a seq", "depends on what is there"),
    *(
        Rule(f"POST /v0/topics/{{topic}}/{call}", "entries and seqs has", "compares two fields")
        for call in ("ack", "nack", "extend")
    ),
    Rule("GET /v0/ws", "send Upgrade: websocket", "is a WebSocket, which an HTTP client is not"),
)


@schemathesis.hook
def filter_failure(context, failure, case, response) -> bool:  # type: ignore[no-untyped-def]
    """Drops what is refused by one of the rules, and nothing else."""
    if type(failure).__name__ != "RejectedPositiveData" or response.status_code not in (
        400,
        410,
        422,
        426,
    ):
        return True
    message = response.json()["error"]["message"]
    return not any(
        rule.operation == case.operation.label and rule.message in message for rule in RULES
    )


@schemathesis.hook
def map_path_parameters(context, path_parameters):  # type: ignore[no-untyped-def]
    """A handful of names instead of any, so that requests meet what earlier ones made.

    Cursors need records and leases need jobs: they have topics that no other request deletes.
    """
    path = context.operation.path
    kept = KEPT if "/cursors" in path else KEPT_QUEUE if path.endswith(QUEUE_CALLS) else ""
    for name, value in (path_parameters or {}).items():
        if name in ("topic", "router", "cursor") and NAME.fullmatch(str(value)):
            few = f"{name}{len(value) % NAMES_MAX}"
            path_parameters[name] = kept or few if name == "topic" else few
    return path_parameters


@schemathesis.hook
def before_call(context, case, kwargs) -> None:  # type: ignore[no-untyped-def]
    """Long-polls are made short, and cursors are put where records are."""
    if case.operation.path == "/v0/backup" and isinstance(case.body, dict):
        dest = case.body.get("dest")
        if isinstance(dest, str) and dest.startswith(("/", "s3://", "gs://", "az://")):
            case.body["dest"] = BACKUPS
    if isinstance(case.body, dict):
        for field, most in (("wait_ms", WAIT_MS_MAX), ("seq", KEPT_RECORDS)):
            value = case.body.get(field)
            if isinstance(value, int | float) and value > most:
                case.body[field] = most
