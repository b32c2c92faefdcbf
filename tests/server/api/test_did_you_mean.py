"""A slip of the pen in a field or a value is told what may have been meant, whatever carried it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from tests.support.servers import Client
from topics.configs import config_input
from topics.errors import InvalidRequest
from topics.nearest import WORD_CHARS_MAX, in_words, meant

T = "/v0/topics/did-you-mean"
WRITE = {"records": [{"data": 1}]}


@pytest.mark.parametrize(
    ("method", "path", "body", "words"),
    [
        ("PUT", T, {"ttl": 5}, "did you mean ttl_ms?"),
        ("PATCH", T, {"cap_record": 5}, "did you mean cap_records?"),
        ("PUT", T, {"durability": "fsynch"}, "one of ephemeral, memory, disk, fsync; did you mean"),
        ("PUT", T, {"discard": "rejct"}, "it is one of old, reject; did you mean reject?"),
        ("PUT", T, {"type": "qeue"}, "did you mean queue?"),
        ("POST", T, {**WRITE, "config": {"capp_records": 1}}, "did you mean cap_records?"),
        ("POST", T, {**WRITE, "config": {"ttl_ms": 1.0, "discard": "odl"}}, "did you mean old?"),
        ("POST", f"{T}/range", {"format": "arow"}, "one of json, arrow, none; did you mean arrow?"),
        ("POST", f"{T}/range", {"match": ["tag", "Globe", "a*"]}, "did you mean Glob?"),
        ("POST", f"{T}/delete", {"match": ["tag", "Prefix", "a"]}, "it is one of Eq, Glob"),
        ("POST", f"{T}/delete", {"match": ["node", "Eq", "a"]}, "it is one of tag"),
        ("PUT", "/v0/routers/r", {"sourc": "a"}, "did you mean source?"),
        (
            "PUT", "/v0/routers/r", {"source": "a", "dest": "b", "filter": ["tag", "eq", "a"]},
            'filter must be "tag", ["tag","Eq","X"]',
        ),
        ("PUT", "/v0/kv/did-you-mean", {"histori": 3}, "did you mean history?"),
        ("GET", "/v0/topics?sort=byte", None, "bytes, count, lag; not 'byte'; did you mean bytes?"),
        ("GET", f"{T}/stream?consistency=stron", None, "did you mean strong?"),
    ],
)  # fmt: skip
def test_over_http(client: Client, method: str, path: str, body: Any, words: str) -> None:
    client.put(T)
    reply = client.call(method, path, body)
    assert (reply.status, reply.code) == (400, "invalid_request"), reply.raw
    assert words in reply.json["error"]["message"]


def test_in_python() -> None:
    with pytest.raises(InvalidRequest, match=r"did you mean ttl_ms\?"):
        config_input({"ttl": 5})
    with pytest.raises(InvalidRequest, match=r"did you mean memory\?"):
        config_input({"durability": "memry"})


def test_what_is_like_nothing_gets_no_advice() -> None:
    assert meant("zzzzzz", ["ttl_ms", "cap_bytes"]) == ""
    assert meant("ttl_ms" * WORD_CHARS_MAX, ["ttl_ms"]) == ""


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    colour: Literal["red", "green"] = "red"


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    many: list[Inner] = []
    named: dict[str, Inner | None] = {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"many": [{}, {"color": "red"}]}', "did you mean colour?"),
        (b'{"many": [{"colour": "gren"}]}', "it is one of red, green; did you mean green?"),
        (b'{"named": {"x": {"colou": 1}}}', "did you mean colour?"),
        (b'{"man": 1}', "did you mean many?"),
    ],
)
def test_at_any_depth(text: bytes, words: str) -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.json.decode(text, type=Outer)
    assert in_words(refused.value, Outer).endswith(words)


@pytest.mark.parametrize("name", ["a`b", "x` - at `$.many", "` - at `$[0].y[", "'", "\n", ""])
def test_whatever_a_field_is_called(name: str) -> None:
    """The name is the client's: advice may be missing, the words of the decoder never."""
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.convert({name: 1}, Outer)
    assert in_words(refused.value, Outer).startswith(str(refused.value))
