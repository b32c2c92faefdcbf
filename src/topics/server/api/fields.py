"""Single fields on the wire, as the document shows them.

What is in `extra_json_schema` is shown and not enforced by the decoder: the engine checks it, with
a message and a detail that a pattern can not give. Tests generated from the document hold the two
together. The formats are ours; each says in words what JSON Schema has no keyword for.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec

from topics.engine.state.routers import ROUTER_NAME_SCHEMA
from topics.types import BUCKET_CHARS_MAX, I64_MAX, NAME_SCHEMA, ROUTER_META, U64_MAX


def shown(**schema: Any) -> msgspec.Meta:
    """Keywords of JSON Schema for the document alone."""
    return msgspec.Meta(extra_json_schema=schema)


# Any size will do: what is above the server's maximum is clamped.
Clamped = Annotated[int, msgspec.Meta(ge=0)]

# Booleans in answers that are put together by hand.
FALSE_TRUE = (b"false", b"true")

_DIGITS = re.compile(r"[0-9]{1,20}")
EPOCH_SCHEMA = {"type": "string", "pattern": f"^{_DIGITS.pattern}$", "format": "epoch"}
Epoch = Annotated[
    str, shown(**EPOCH_SCHEMA, description="The instance of a topic, a decimal string below 2^64.")
]

Tag = Annotated[str, shown(maxLength=256, format="tag", description="At most 256 bytes of UTF-8.")]
Node = Annotated[
    str, shown(maxLength=128, format="node", description="At most 128 bytes of UTF-8.")
]
CursorOwner = Annotated[
    str, shown(minLength=1, maxLength=128, format="node", description="1 to 128 bytes of UTF-8.")
]
RecordMeta = Annotated[
    dict[str, str],
    shown(
        maxProperties=64,
        propertyNames={"not": {"const": ROUTER_META}},
        description="At most 64 keys and 16 KiB.",
    ),
]

# A producer's batch, and what it calls itself and its parts.
BATCH_SCHEMA = {"type": "integer", "minimum": 0, "maximum": I64_MAX}
BatchNumber = Annotated[int, shown(**BATCH_SCHEMA)]
WORD_SCHEMA = {"type": "string", "minLength": 1, "maxLength": 256}
Word = Annotated[str, shown(**WORD_SCHEMA)]

# As it is read: only a router's own mark is not a text.
ReadMeta = Annotated[
    dict[str, Any],
    shown(additionalProperties={"type": "string"}, properties={ROUTER_META: {"type": "object"}}),
]

TagMatch = Annotated[
    tuple[Literal["tag"], Literal["Eq", "Glob"], str],
    shown(description='["tag", "Eq", a tag], or ["tag", "Glob", a literal prefix and one *].'),
]

# The id of a watch session: what was never handed out is not found, whatever it looks like.
WID_SCHEMA = {"type": "string", "minLength": 1}
U64_SCHEMA = {"type": "integer", "minimum": 0, "maximum": U64_MAX}
BUCKET_SCHEMA = {**NAME_SCHEMA, "maxLength": BUCKET_CHARS_MAX}
KEY_SCHEMA = {"type": "string", "minLength": 1, "maxLength": 256, "format": "key"}
# Where a backup may lie.
PLACE_CHARS_MAX = 4096
BackupPlace = Annotated[
    str,
    shown(
        pattern="^(/|s3://|gs://|az://)", maxLength=PLACE_CHARS_MAX, format="backup-place",
        description="An absolute path, or a bucket.",
    ),
]  # fmt: skip
# What a name in a path stands for.
PATH_SCHEMAS = {
    "topic": NAME_SCHEMA, "cursor": NAME_SCHEMA, "router": ROUTER_NAME_SCHEMA, "wid": WID_SCHEMA,
    "bucket": BUCKET_SCHEMA, "key": KEY_SCHEMA, "snapshot": {"type": "string", "minLength": 1},
}  # fmt: skip
LIST_CURSOR_SCHEMA = {"type": "string", "format": "list-cursor"}
EVENT_ID_SCHEMA = {"type": "string", "format": "event-id"}
EventId = Annotated[str, shown(format="event-id", description="The id of a stream's event.")]


def parse_u64(text: str) -> int | None:
    """An unsigned integer of 64 bits, in digits alone; None for anything else.

    `int` takes signs, spaces, underscores and any size, which nothing behind it can store.
    """
    if not _DIGITS.fullmatch(text):
        return None
    value = int(text)
    return value if value <= U64_MAX else None


def event_schema(names: tuple[str, ...]) -> dict[str, Any]:
    """One event of a stream that has events of these names."""
    return {
        "description": "One event.",
        "type": "object",
        "required": ["event", "data"],
        "properties": {
            "event": {"enum": list(names), "description": "What it tells."},
            "id": {"type": "string", "description": "The reader's place after it."},
            "data": {
                "type": "string",
                "contentMediaType": "application/json",
                "description": "A JSON object, whose fields are those of the event.",
            },
        },
    }
