"""The OpenAPI document as a page of HTML: made here, so that a browser needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "code,pre{font:14px/1.4 ui-monospace,monospace}pre{overflow:auto}"
    "table{border-collapse:collapse;margin:.5rem 0}"
    "td,th{border:1px solid #8886;padding:.2rem .6rem;text-align:left;vertical-align:top}"
    "summary{cursor:pointer}details{margin:.3rem 0}"
    ":root{color-scheme:light dark}"
)


def html_of(document: Mapping[str, Any]) -> str:
    """The page of a document."""
    return "\n".join(_lines(document))


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    info = document["info"]
    title = f"{escape(info['title'])} {escape(info['version'])}"
    yield f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
    yield '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
    yield f"<style>{_STYLE}</style><h1>{title}</h1><p>{escape(info['description'])}</p>"
    yield '<p>For programs: <a href="/v0/openapi.json">/v0/openapi.json</a></p>'
    yield "<h2>Operations</h2>"
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield from _operation(method.upper(), path, operation)
    yield "<h2>Bodies</h2>"
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>'
        yield from _schema(schema)
        yield "</details>"


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f'<details id="{escape(operation["operationId"])}"><summary>'
    yield f"<code>{method} {escape(path)}</code> {escape(operation['summary'])}</summary>"
    if "description" in operation:
        yield f"<p>{escape(operation['description'])}</p>"
    if operation["parameters"]:
        rows = [
            (p["name"], p["in"], kind_of(p["schema"]), p.get("description", ""))
            for p in operation["parameters"]
        ]
        yield from _table(("parameter", "in", "type", ""), rows)
    if "requestBody" in operation:
        for content in operation["requestBody"]["content"].values():
            yield f"<p>Body: {kind_of(content['schema'])}</p>"
    rows = []
    for status, answer in operation["responses"].items():
        kinds = [kind_of(content["schema"]) for content in answer.get("content", {}).values()]
        rows.append((status, " or ".join(kinds), "", answer["description"]))
    yield from _table(("status", "body", "", ""), rows)
    yield "</details>"


def _schema(schema: Mapping[str, Any]) -> Iterator[str]:
    if "description" in schema:
        yield f"<p>{escape(schema['description'])}</p>"
    needed = set(schema.get("required", ()))
    rows = []
    for name, field in schema.get("properties", {}).items():
        default = f"default {field['default']!r}" if "default" in field else ""
        must = "required" if name in needed else default
        rows.append((name, kind_of(field), must, field.get("description", "")))
    yield from _table(("field", "type", "", ""), rows)


def _table(head: tuple[str, ...], rows: list[tuple[str, str, str, str]]) -> Iterator[str]:
    if not rows:
        return
    yield "<table><tr>" + "".join(f"<th>{escape(word)}</th>" for word in head) + "</tr>"
    for first, second, third, fourth in rows:
        # The second or third is a type, which is made of links.
        cells = (f"<code>{escape(first)}</code>", second, third, escape(fourth))
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    yield "</table>"


def kind_of(schema: Mapping[str, Any]) -> str:
    """A type in a word, with links to those that have a place of their own."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema and "type" not in schema:
        return " or ".join(map(kind_of, schema["anyOf"]))
    if "enum" in schema:
        return " | ".join(escape(repr(value)) for value in schema["enum"])
    kind = escape(str(schema.get("type", "any")))
    if kind == "array" and isinstance(schema.get("items"), dict):
        return f"array of {kind_of(schema['items'])}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"map to {kind_of(schema['additionalProperties'])}"
    return kind
