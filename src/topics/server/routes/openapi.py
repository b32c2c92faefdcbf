"""GET /v0/openapi.json: the surface described, from the same table and types that serve it."""

from __future__ import annotations

from typing import Any

import msgspec

from topics import __version__
from topics.server.api.auth import scope_names
from topics.server.api.call import Call
from topics.server.api.fields import PATH_SCHEMAS, event_schema
from topics.server.api.gauges import CONTENT_TYPE
from topics.server.api.operations import TAGS, name_of, tag_of
from topics.server.api.route import Parameter, Route
from topics.server.api.shapes import Error
from topics.server.api.words import EXAMPLES, FIELDS
from topics.server.config import Config
from topics.server.http.errors import STATUSES
from topics.server.http.message import JSON, Answer, Response

REF = "#/components/schemas/{name}"
_RETRY = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}
_RETRYABLE = (429, 503)


class Document:
    def __init__(self, config: Config, table: list[Route]) -> None:
        self._config = config
        self._table = table
        self._text = b""

    def routes(self) -> list[Route]:
        return [
            Route(
                method="GET", path="/v0/openapi.json", handler=self.document, is_probe=True,
                summary="This document.", answers={200: dict[str, Any]},
                errors=("unauthorized",),
            )
        ]  # fmt: skip

    def content(self) -> dict[str, Any]:
        """The document of this server."""
        return describe(
            self._table,
            has_keys=bool(self._config.keys),
            has_probe_auth=self._config.options.probe_auth,
        )

    def document(self, _call: Call) -> Answer:
        if not self._text:
            self._text = msgspec.json.encode(self.content())
        return Response(self._text)


def describe(
    routes: list[Route], *, has_keys: bool = False, has_probe_auth: bool = False
) -> dict[str, Any]:
    """The OpenAPI 3.1 document of these routes, on a server that asks for keys or does not."""
    types = [Error]
    for route in routes:
        types += [kind for kind in (route.body, *route.answers.values()) if kind is not None]
    shapes, components = msgspec.json.schema_components(types, ref_template=REF)
    components = {name: _readable(name, shape) for name, shape in components.items()}
    schemas = {id(kind): shape for kind, shape in zip(types, shapes, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if not route.is_shown:
            continue
        path = "/".join(f"{{{p[1:]}}}" if p.startswith(":") else p for p in route.path.split("/"))
        operation = paths.setdefault(path, {})[route.method.lower()] = _operation(route, schemas)
        is_gated = has_keys and (not route.is_probe or has_probe_auth)
        operation["security"] = _security(route) if is_gated else []
        if links := _links(route, routes):
            for status in map(str, (*route.answers, *route.others)):
                operation["responses"][status]["links"] = links
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "topics",
            "version": __version__,
            "description": "A persistent event log whose every loss is explicit.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": name, "description": about} for name, about in TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "token": {"type": "apiKey", "in": "query", "name": "token"},
            },
        },
    }


def _readable(name: str, shape: dict[str, Any]) -> dict[str, Any]:
    """A schema with a word for each field, in keywords that generators of clients understand.

    A default stands in the words: where it is a keyword, generators take the field for one that is
    always there.
    """
    fields = {
        field: _field(f"{name}.{field}", plain(schema))
        for field, schema in shape.get("properties", {}).items()
    }
    return {**plain(shape), "properties": fields} if fields else plain(shape)


def _field(place: str, schema: dict[str, Any]) -> dict[str, Any]:
    default = schema.pop("default", None)
    about = FIELDS.get(place) or schema.get("description") or ""
    about = about or FIELDS.get(place.partition(".")[2], "")
    if default not in (None, [], {}):
        about += f" Default: {msgspec.json.encode(default).decode()}."
    return {**schema, "description": about}


def plain(schema: Any) -> Any:
    """A schema without true and false for schemas: tuples have a type for what is after them."""
    if isinstance(schema, list):
        return [plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: plain(value) for key, value in schema.items()}
    if found.get("enum") == [True]:
        # Generators know no list of booleans.
        found = {**found, "type": "boolean"}
        del found["enum"]
    if found.get("items") is False:
        found["items"] = found["prefixItems"][-1]
    if not any(found.get("prefixItems", [True])):
        # Of anything: their number is all there is to say.
        del found["prefixItems"]
    return found


def _operation(route: Route, schemas: dict[int, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": name_of(route),
        "tags": [tag_of(route)],
        "summary": route.summary,
        "parameters": [*map(_path_parameter, route.names), *map(_parameter, route.parameters)],
        "responses": {**_successes(route, schemas), **_failures(route, schemas)},
    }
    if route.scopes:
        operation["description"] = f"Needs the scope {' and '.join(scope_names(route.scopes))}."
    if route.body is not None:
        content = {"schema": schemas[id(route.body)]}
        example = EXAMPLES.get(getattr(route.body, "__name__", ""))
        if example is not None:
            content["example"] = example
        operation["requestBody"] = {"required": route.needs_body, "content": {JSON: content}}
    return operation


def _security(route: Route) -> list[dict[str, list[str]]]:
    return [{"key": []}, {"token": []}] if route.takes_query_token else [{"key": []}]


def _links(route: Route, routes: list[Route]) -> dict[str, Any]:
    """What can be done next with what a request made: the same names, or the id it was given."""
    if route.method not in ("PUT", "POST") or not route.answers:
        return {}
    if route.path == "/v0/watch":
        known = {"wid": "$response.body#/wid"}
    else:
        known = {name: f"$request.path.{name}" for name in route.names}
    followers = [
        other
        for other in routes
        if other is not route and other.is_shown and known and set(other.names) == known.keys()
    ]
    return {
        name_of(other): {"operationId": name_of(other), "parameters": known} for other in followers
    }


def _path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": PATH_SCHEMAS[name]}


def _parameter(given: Parameter) -> dict[str, Any]:
    return {
        "name": given.name, "in": given.where, "required": given.is_required,
        "schema": given.schema, "description": given.about,
    }  # fmt: skip


def _successes(route: Route, schemas: dict[int, Any]) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for status, kind in route.answers.items():
        content: dict[str, Any] = {JSON: {"schema": schemas[id(kind)]}}
        if route.path in ("/v0/metrics", "/metrics"):
            content[CONTENT_TYPE.partition(";")[0]] = {"schema": {"type": "string"}}
        answers[str(status)] = {
            "description": "Created." if status == 201 else "Done.",
            "content": content,
        }
    for status, (content_type, about) in route.others.items():
        answer = answers.setdefault(str(status), {"description": about})
        if content_type:
            schema = event_schema(route.events) if route.events else {"type": "string"}
            answer.setdefault("content", {})[content_type] = {"schema": schema}
    return answers


def _failures(route: Route, schemas: dict[int, Any]) -> dict[str, Any]:
    by_status: dict[int, list[str]] = {}
    for code in route.codes:
        by_status.setdefault(STATUSES[code], []).append(code)
    failures: dict[str, Any] = {}
    for status, codes in sorted(by_status.items()):
        failures[str(status)] = {
            "description": " or ".join(f"`{code}`" for code in codes) + ".",
            "content": {JSON: {"schema": schemas[id(Error)]}},
        }
        if status in _RETRYABLE:
            failures[str(status)]["headers"] = _RETRY
    return failures
