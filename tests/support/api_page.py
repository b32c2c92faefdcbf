"""docs/api.md, made of the server's own document: `python -m tests.support.api_page` writes it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from topics.server.app import App
from topics.server.config import load
from topics.server.routes.openapi import describe

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
HEAD = """# The API

Every operation of `/v0`, made of the OpenAPI document that a server has at `/v0/openapi.json` and
shows at `/v0/docs`; `python -m tests.support.api_page` writes this page anew. Fields that are not
known are ignored and named in `Topics-Ignored-Fields`, but for configs. Every answer has
`performance`; every refusal is `{"error": {code, message, detail}}`.
"""
SOCKET = """
## The WebSocket, in five messages

`GET /v0/ws` is one connection for reading and writing. Commands are JSON texts with an `op`, and
may have a `request_id`, which comes back in the answer, beside the fields that were `ignored`.

```json
{"op": "subscribe", "request_id": 1, "topics": {"orders": {"from_seq": 0}}}
{"op": "subscribed", "request_id": 1,
 "topics": {"orders": {"from_seq": 0, "head_seq": 1, "earliest_seq": 1, "epoch": "7"}}}
{"op": "record", "topic": "orders", "records": [{"$seq": 1, "$ts": 1, "data": 17}],
 "from_seq": 0, "to_seq": 1, "head_seq": 1, "epoch": "7"}
{"op": "publish", "request_id": 2, "topic": "orders", "records": [{"data": 18}]}
{"op": "ack", "request_id": 2, "topic": "orders", "first_seq": 2, "last_seq": 2, "head_seq": 2,
 "count": 1, "created": false, "deduped": false, "epoch": "7", "seqs": [2]}
```

Besides, `unsubscribe` is answered by `unsubscribed` and `ping` by `pong`; a subscribed topic sends
`tombstone`, `caught_up` and `topic_deleted`, with the fields of the events of a stream; `error` has
`code`, `message` and `detail`. `subscribe` takes the options of a watch, `publish` the fields of a
write.
"""


def document() -> dict[str, Any]:
    async def made() -> dict[str, Any]:
        return describe(App(load({}, {})).routes)

    return asyncio.run(made())


def page(found: Mapping[str, Any]) -> str:
    lines = [HEAD]
    for tag in found["tags"]:
        lines += [f"## {tag['name']}", "", tag["description"], ""]
        for path, operations in found["paths"].items():
            for method, operation in operations.items():
                if operation["tags"] == [tag["name"]]:
                    lines += _operation(method.upper(), path, operation)
    lines += [SOCKET.strip("\n"), "", "## Bodies", ""]
    for name, schema in sorted(found["components"]["schemas"].items()):
        lines += _schema(name, schema)
    return "\n".join(lines).rstrip() + "\n"


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {operation['operationId']}"
    yield ""
    about = " ".join([operation["summary"], operation.get("description", "")]).strip()
    yield f"`{method} {path}`: {about}"
    yield ""
    for parameter in operation["parameters"]:
        if parameter["in"] != "path":
            must = "; required" if parameter["required"] else ""
            where = "" if parameter["in"] == "query" else f" ({parameter['in']})"
            yield f"- `{parameter['name']}`{where}: {parameter['description']}{must}"
    if operation["parameters"] and operation["parameters"][-1]["in"] != "path":
        yield ""
    if "requestBody" in operation:
        for content in operation["requestBody"]["content"].values():
            yield f"Body: {kind_of(content['schema'])}"
            if "example" in content:
                yield from ("", "```json", json.dumps(content["example"]), "```")
        yield ""
    for status, answer in operation["responses"].items():
        if status < "300":
            kinds = [kind_of(content["schema"]) for content in answer.get("content", {}).values()]
            yield f"- {status}: {' or '.join(dict.fromkeys(kinds)) or answer['description']}"
    yield ""


def _schema(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    if "properties" not in schema:
        return
    yield f"### {name}"
    yield ""
    yield "| field | type | |"
    yield "|---|---|---|"
    needed = set(schema.get("required", ()))
    for field, kind in schema["properties"].items():
        must = "**required.** " if field in needed else ""
        about = kind["description"].replace("|", "\\|")
        yield f"| `{field}` | {kind_of(kind)} | {must}{about} |"
    yield ""


def kind_of(schema: Mapping[str, Any]) -> str:
    """A type in a word."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(map(kind_of, schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    kind = str(schema.get("type", "any"))
    if kind == "array" and schema.get("items"):
        return f"list of {kind_of(schema['items'])}"
    if kind == "object" and schema.get("additionalProperties"):
        return f"map to {kind_of(schema['additionalProperties'])}"
    return kind


if __name__ == "__main__":
    PAGE.write_text(page(document()))
