"""What the head of a request decides is answered before its body is read, whatever the protocol."""

from __future__ import annotations

import dataclasses
import gzip
import time
from collections.abc import Iterator

import msgspec
import pytest

from tests.server.protocol.h2_client import H2Client
from tests.server.protocol.wire import Wire
from tests.support.servers import Served

KEYS = "root,reader:read,tenant::t42:"
MIB = 1024 * 1024
BODY_BYTES = 50 * MIB


@dataclasses.dataclass(frozen=True)
class Refused:
    status: int
    code: str
    method: str = "POST"
    path: str = "/v0/topics/a"
    key: str = "root"
    headers: tuple[tuple[str, str], ...] = ()
    content_type: str = "application/json"
    length: int = BODY_BYTES

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        fields = [("content-type", self.content_type), *self.headers]
        if self.key:
            fields.append(("authorization", f"Bearer {self.key}"))
        if self.length:
            fields.append(("content-length", str(self.length)))
        return tuple(fields)


REFUSED = {
    "no key": Refused(401, "unauthorized", key=""),
    "no key, in chunks": Refused(401, "unauthorized", key="", length=0),
    "unknown key": Refused(401, "unauthorized", key="other"),
    "missing scope": Refused(403, "forbidden", key="reader"),
    "other prefix": Refused(403, "forbidden", key="tenant"),
    "no key and other type": Refused(401, "unauthorized", key="", content_type="text/plain"),
    "unknown path": Refused(404, "not_found", path="/v0/nothing"),
    "other method": Refused(405, "method_not_allowed", method="PUT", path="/v0/topics/a/diff"),
    "other page": Refused(403, "forbidden", headers=(("origin", "http://evil"),)),
    "other type": Refused(415, "unsupported_media_type", content_type="text/plain"),
    "other coding": Refused(
        415, "unsupported_media_type", headers=(("content-encoding", "br"),)
    ),
    "too large": Refused(413, "payload_too_large", length=65 * MIB),
    "too large for its path": Refused(413, "payload_too_large", path="/v0/topics/a/diff"),
    "no key, too large for its path": Refused(401, "unauthorized", path="/v0/watch", key=""),
    "too large for its path and other type": Refused(
        413, "payload_too_large", path="/v0/watch", content_type="text/plain"
    ),
    "broken path": Refused(400, "invalid_request", path="/v0/topics/a%zz"),
}  # fmt: skip


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("locked"), TOPICS_API_KEYS=KEYS) as served:
        yield served.wait_ready()
        assert served.stop() == 0


def head_of(case: Refused, *more: str) -> bytes:
    lines = [f"{case.method} {case.path} HTTP/1.1", "Host: localhost", *more]
    lines += [f"{name}: {value}" for name, value in case.fields]
    if not case.length:
        lines.append("Transfer-Encoding: chunked")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("expect", [(), ("Expect: 100-continue",)], ids=["", "expect"])
def test_a_head_is_refused_unread_and_the_connection_ends(
    locked: Served, case: Refused, expect: tuple[str, ...]
) -> None:
    """No 100 is sent either: the next thing the client hears is the refusal."""
    with Wire(locked.port) as wire:
        answered = wire.send(head_of(case, *expect)).answer()
        assert (answered.status, answered.code) == (case.status, case.code)
        assert answered.headers["connection"] == "close"
        assert wire.is_closed()


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_a_stream_is_refused_unread_and_the_connection_goes_on(
    locked: Served, case: Refused
) -> None:
    with H2Client(locked.port) as client:
        number = client.begin(case.method, case.path, (*case.fields, ("expect", "100-continue")))
        answered = client.answer(number)
        assert answered.status == case.status
        assert msgspec.json.decode(answered.body)["error"]["code"] == case.code
        assert not answered.informed
        while answered.reset is None:
            assert client.read()
        assert answered.reset == 0, "the client is told to stop, not that it failed"
        assert client.request("GET", "/v0/health").status == 200


# What is refused for its length is refused for that alone.
WHOLE = sorted(name for name, case in REFUSED.items() if case.status != 413)


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_request_gets_the_answer_that_its_head_would(locked: Served, name: str) -> None:
    """It makes no difference how much of the body has come when the head is looked at."""
    case = dataclasses.replace(REFUSED[name], length=REFUSED[name].length and 12)
    body = b'{"records":1' if case.length else b"2\r\n{}\r\n0\r\n\r\n"
    with Wire(locked.port) as wire:
        answered = wire.send(head_of(case) + body).answer()
        assert (answered.status, answered.code) == (case.status, case.code)


def test_a_client_that_goes_on_sending_can_read_its_refusal(locked: Served) -> None:
    with Wire(locked.port) as wire:
        wire.send(head_of(REFUSED["no key"]) + b"x" * 3_000_000)
        assert wire.answer().status == 401
        assert wire.is_closed()


def test_requests_in_front_of_a_refused_head_are_answered_first(locked: Served) -> None:
    diff = b'{"wait_ms":200}'
    first = dataclasses.replace(REFUSED["other type"], path="/v0/topics/w/diff", length=len(diff),
                                content_type="application/json")  # fmt: skip
    with locked.client("root") as client:
        assert client.put("/v0/topics/w").status == 201
    with Wire(locked.port) as wire:
        wire.send(head_of(first) + diff + head_of(REFUSED["no key"]) + b"{")
        assert [wire.answer().status, wire.answer().status] == [200, 401]
        assert wire.is_closed()


def test_a_head_that_may_go_on_is_asked_for_its_body(locked: Served) -> None:
    body = b'{"records":[{"data":1}]}'
    case = Refused(0, "", length=len(body))
    with Wire(locked.port) as wire:
        assert wire.send(head_of(case, "Expect: 100-continue")).answer().status == 100
        assert wire.send(body).answer().status in (200, 201)
    with H2Client(locked.port) as client:
        number = client.begin("POST", "/v0/topics/a", (*case.fields, ("expect", "100-continue")))
        while not client.streams[number].informed:
            assert client.read()
        client.h2.send_data(number, body, end_stream=True)
        client.flush()
        assert client.answer(number).status in (200, 201)


def test_nothing_is_unpacked_for_a_client_without_a_key(locked: Served) -> None:
    """Else 60 KiB could be made to cost 64 MiB; whole bodies are judged by their heads, too."""
    bomb = gzip.compress(b"\0" * (40 * MIB))
    headers = (("content-encoding", "gzip"),)
    case = dataclasses.replace(REFUSED["no key"], headers=headers, length=len(bomb))
    with Wire(locked.port) as wire:
        assert wire.send(head_of(case) + bomb).answer().status == 401


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_a_body_that_nobody_looks_at_is_read_and_not_kept(locked: Served, method: str) -> None:
    size = 20 * MIB
    path = "/v0/health" if method == "GET" else "/v0/topics/gone"
    case = Refused(200, "", method=method, path=path, length=size)
    with Wire(locked.port) as wire, locked.client("root") as client:
        wire.send(head_of(case) + b"x" * (size - 1))
        time.sleep(0.1)
        assert client.metrics()["topics_inflight_body_bytes"] == 0
        assert wire.send(b"x").answer().status == 200
