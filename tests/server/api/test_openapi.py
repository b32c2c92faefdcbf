"""The document describes what the server does: same table, same types, nothing undeclared."""

from __future__ import annotations

import re
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from tests.support.api_page import PAGE, page
from tests.support.api_page import document as api_document
from tests.support.servers import Client, Served
from topics.engine.state.write_request import RecordInput, WriteRequest
from topics.server.api import shapes


@pytest.fixture
def document(client: Client) -> Any:
    return client.get("/v0/openapi.json").json


def test_it_is_a_closed_document(document: Any) -> None:
    assert document["openapi"] == "3.1.0"
    text = msgspec.json.encode(document).decode()
    for name in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert name in document["components"]["schemas"]
    ids = [o["operationId"] for path in document["paths"].values() for o in path.values()]
    assert len(ids) == len(set(ids))


def test_it_is_valid_openapi(document: Any) -> None:
    # Here, because importing it costs a second.
    from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

    assert [str(error) for error in OPENAPI_31_VALIDATOR.iter_errors(document)] == []


def test_every_route_is_there_with_its_errors(document: Any) -> None:
    found = {(path, verb) for path, verbs in document["paths"].items() for verb in verbs}
    topic = "/v0/topics/{topic}"
    assert found >= {
        (topic, "put"), (topic, "get"), (topic, "delete"), (topic, "post"),
        ("/v0/topics", "get"), (topic + "/diff", "post"), (topic + "/delete", "post"),
        (topic + "/explain", "get"), ("/v0/health", "get"), ("/healthz", "get"),
        ("/v0/ready", "get"), ("/readyz", "get"), ("/v0/metrics", "get"),
        ("/v0/openapi.json", "get"),
    }  # fmt: skip
    write = document["paths"][topic]["post"]
    assert {"200", "201", "400", "401", "403", "404", "413", "415", "422", "429", "503", "507"} <= (
        set(write["responses"])
    )
    assert "`topic_full`" in write["responses"]["422"]["description"]
    assert "Retry-After" in write["responses"]["429"]["headers"]
    assert "write" in write["description"]
    for verbs in document["paths"].values():
        for operation in verbs.values():
            answers = operation["responses"]
            assert "default" not in answers
            # Nobody is promised an internal error.
            assert answers.get("500", {}).get("description", "") in ("", "`corrupt_data`.")


def test_answers_are_of_the_declared_type(client: Client, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    record = {"data": {"a": [1]}, "tag": "t", "node": "n", "meta": {"k": "v"}}
    replies: list[tuple[type, Any]] = [
        (shapes.TopicPut, client.put(path, {"cap_records": 2})),
        (shapes.Written, client.post(path, {"records": [record] * 3})),
        (shapes.Written, client.post(path + "?return_seqs=false", {"records": [record]})),
        (shapes.DiffPage, client.post(path + "/diff", {"include_tags": True})),
        (shapes.DiffPage, client.post(path + "/diff", {"from_seq": 4})),
        (shapes.TopicStateBody, client.get(path)),
        (shapes.TopicPage, client.get("/v0/topics?page_size=1")),
        (shapes.RecordsDeleted, client.post(path + "/delete", {"match": "t"})),
        (shapes.Explained, client.get(path + "/explain")),
        (shapes.TopicDeleted, client.delete(path)),
        (shapes.Health, client.get("/v0/health")),
        (shapes.Ready, client.get("/v0/ready")),
        (shapes.Error, client.get(path)),
    ]
    for kind, reply in replies:
        decoded = msgspec.json.decode(reply.raw, type=kind)
        # Nothing on the wire that the type does not know.
        assert msgspec.to_builtins(decoded) == reply.json, kind


def test_the_write_of_the_document_is_the_one_that_is_decoded() -> None:
    shown = msgspec.structs.fields(shapes.WriteBody)
    decoded = {field.name: field for field in msgspec.structs.fields(WriteRequest)}
    assert {field.name: field.default for field in shown} == {
        name: field.default for name, field in decoded.items()
    }
    shown = msgspec.structs.fields(shapes.RecordToWrite)
    assert {field.name for field in shown} == {
        field.name for field in msgspec.structs.fields(RecordInput)
    }


def test_what_a_request_made_leads_on(document: Any) -> None:
    """Links name operations that exist, and give them all the names that they need."""
    operations = {
        operation["operationId"]: operation
        for verbs in document["paths"].values()
        for operation in verbs.values()
    }
    found = 0
    for operation in operations.values():
        for response in operation["responses"].values():
            for link in response.get("links", {}).values():
                needed = [p for p in operations[link["operationId"]]["parameters"] if p["required"]]
                in_path = {p["name"] for p in needed if p["in"] == "path"}
                assert in_path == link["parameters"].keys()
                found += 1
    assert found
    watch = document["paths"]["/v0/watch"]["post"]["responses"]["200"]["links"]
    assert watch["streamWatch"]["parameters"] == {"wid": "$response.body#/wid"}


def test_it_says_whether_a_key_is_asked_for(document: Any, locked: Served) -> None:
    with locked.client() as client:
        asking = client.get("/v0/openapi.json").json
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            is_probe = path in ("/v0/health", "/v0/ready", "/healthz", "/readyz")
            is_open = is_probe or path in ("/v0/openapi.json", "/v0/docs", "/v0", "/")
            assert operation["security"] == []
            assert bool(asking["paths"][path][verb]["security"]) is not is_open


def test_it_needs_no_key(locked: Served) -> None:
    with locked.client() as client:
        assert client.get("/v0/openapi.json").status == 200


def test_every_operation_has_a_name_that_reads_well(document: Any) -> None:
    """And belongs somewhere: generated clients are made of both."""
    operations = [o for path in document["paths"].values() for o in path.values()]
    names = [operation["operationId"] for operation in operations]
    assert all(re.fullmatch(r"[a-z]+([A-Z][a-z]*)*", name) for name in names)
    assert {"writeRecords", "diff", "claimJobs", "ackJobs"} <= set(names)
    tags = {tag["name"] for tag in document["tags"]}
    assert {tag for operation in operations for tag in operation["tags"]} == tags


def test_every_field_is_described_and_every_body_has_an_example(document: Any) -> None:
    """The examples fit their own schemas."""
    for name, schema in document["components"]["schemas"].items():
        for field, kind in schema.get("properties", {}).items():
            assert kind["description"].endswith("."), (name, field)
    for path in document["paths"].values():
        for operation in path.values():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                schema = {**content["schema"], "components": document["components"]}
                jsonschema_rs.Draft202012Validator(schema).validate(content["example"])
            events = operation["responses"].get("200", {}).get("content", {})
            for field, kind in (
                events.get("text/event-stream", {}).get("schema", {}).get("properties", {}).items()
            ):
                assert kind["description"].endswith("."), (operation["operationId"], field)


def test_generators_find_nothing_that_they_do_not_know(document: Any) -> None:
    """No true or false for a schema, and no default: it would make a field required."""

    def look(node: Any, place: str) -> None:
        if isinstance(node, list):
            for each in node:
                look(each, place)
        elif isinstance(node, dict):
            for key, value in node.items():
                assert key != "default" or "parameters" in place, place
                if key in ("items", "not", "propertyNames"):
                    assert isinstance(value, dict), place
                if key in ("prefixItems", "anyOf", "oneOf", "allOf"):
                    assert all(isinstance(each, dict) for each in value), place
                look(value, f"{place}.{key}")

    look(document, "")


def test_the_page_of_the_api_is_made_of_the_document() -> None:
    assert PAGE.read_text() == page(api_document()), "run python -m tests.support.api_page"
