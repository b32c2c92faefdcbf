"""A head that came before is taken as read with its key, and nobody gets in who would not."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from tests.server.protocol.wire import Wire
from tests.support.servers import Inside, inside
from topics.server.http.message import Head

KEYS = {"writer-secret": "w", "reader-secret": "r", "tenant-secret": "w:t42."}
BODY = b'{"records":[{"data":1}]}'


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Inside]:
    keys = ",".join(f"{secret}:{rights}" for secret, rights in KEYS.items())
    with inside(tmp_path, TOPICS_API_KEYS=keys) as served:
        yield served


def write(secret: str, topic: str = "t", body: bytes = BODY, lines: str = "") -> bytes:
    head = (
        f"POST /v0/topics/{topic} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"{lines}Authorization: Bearer {secret}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def kept(served: Inside) -> list[Head]:
    heads = served.server.known_heads
    return served.run(
        lambda: [
            *heads.forms.values(),
            *(known[0] for known in (*heads.exact.values(), *heads.sealed.values())),
        ]
    )


def test_a_head_with_a_key_is_known_by_its_digest_and_the_secret_is_not_kept(
    locked: Inside,
) -> None:
    with Wire(locked.port) as wire:
        for body in (BODY, BODY, BODY + b" ", BODY + b"  "):
            assert wire.send(write("writer-secret", body=body)).answer().status in (200, 201)
    heads = locked.server.known_heads
    assert kept(locked)
    assert not heads.exact
    assert all(isinstance(key, str) for key in heads.forms)
    assert all(len(key) == sha256().digest_size for key in heads.sealed)
    for head in kept(locked):
        assert b"authorization" not in head.headers
        text = repr((head.headers, head.path, head.query, head.noted, head.found))
        assert "secret" not in text


@pytest.mark.parametrize("secret", ["writer-secreT", "writer-secre", "nobody", "reader-secret"])
def test_a_wrong_key_is_refused_after_the_right_one_is_known(locked: Inside, secret: str) -> None:
    """On the same connection, in the same place, however often."""
    with Wire(locked.port) as wire:
        refused = wire.send(write(secret)).answer()
        assert refused.status == (403 if secret in KEYS else 401)
        for _ in range(3):
            assert wire.send(write("writer-secret")).answer().status in (200, 201)
            again = wire.send(write(secret)).answer()
            assert (again.status, again.body) == (refused.status, refused.body)
    assert len(kept(locked)) == 1 + 1


def test_callers_share_a_connection(locked: Inside) -> None:
    """As behind a proxy: each request is judged by its own head, whoever sent the last one."""
    probe = b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    nameless = write("writer-secret").replace(b"Authorization: Bearer writer-secret\r\n", b"")
    named = write("writer-secret", lines="Idempotency-Key: one\r\n")
    with Wire(locked.port) as wire:
        for _ in range(3):
            for request, status in (
                (write("writer-secret"), 200), (write("reader-secret"), 403), (probe, 200),
                (write("tenant-secret", "t42.a"), 200), (nameless, 401), (named, 200),
                (write("writer-secret", "t42.a"), 200), (write("nobody"), 401),
            ):  # fmt: skip
                for _ in range(2):
                    answer = wire.send(request).answer()
                    assert (200 if answer.status == 201 else answer.status) == status


def test_a_key_stays_within_its_prefixes(locked: Inside) -> None:
    with Wire(locked.port) as wire:
        for _ in range(3):
            assert wire.send(write("tenant-secret", "t42.a")).answer().status in (200, 201)
            assert wire.send(write("tenant-secret", "t43.a")).answer().status == 403


@pytest.mark.parametrize("spelling", ["AUTHORIZATION", "authorization", "Authorization"])
def test_however_it_is_spelt_the_secret_is_not_kept(locked: Inside, spelling: str) -> None:
    request = write("writer-secret").replace(b"Authorization", spelling.encode())
    with Wire(locked.port) as wire:
        for _ in range(3):
            assert wire.send(request).answer().status in (200, 201)
    heads = locked.server.known_heads
    assert not any(b"secret" in key for key in (*heads.exact, *heads.sealed))
    assert not any(b"secret" in key for key in heads.forms if isinstance(key, bytes))
    assert not any(b"secret" in value for head in kept(locked) for value in head.headers.values())


def test_a_token_in_a_query_is_not_kept_however_it_is_written(locked: Inside) -> None:
    with Wire(locked.port) as wire:
        for name in ("token", "t%6Fken"):
            for _ in range(2):
                request = f"GET /v0/topics/t/events?{name}=nobody HTTP/1.1\r\nHost: a\r\n\r\n"
                wire.send(request.encode()).answer()
                target = f"GET /v0/topics?{name}=writer-secret HTTP/1.1\r\nHost: a\r\n\r\n"
                assert wire.send(target.encode()).answer().status == 401
    heads = locked.server.known_heads
    assert not any(b"writer-secret" in key for key in heads.forms if isinstance(key, bytes))


def test_a_key_at_its_bound_is_throttled_though_its_head_is_known(tmp_path: Path) -> None:
    """Writes that wait hold a slot each, and give it back when they are answered."""
    with (
        inside(
            tmp_path, TOPICS_API_KEYS="writer-secret", TOPICS_MAX_INFLIGHT_PER_KEY="2"
        ) as served,
        Wire(served.port) as wire,
    ):
        for _ in range(3):
            assert wire.send(write("writer-secret")).answer().status in (200, 201)
        poll = b'{"from_seq":3,"wait_ms":20000}'
        reads = [Wire(served.port) for _ in range(2)]
        (key,) = served.config.keys
        for read in reads:
            request = write("writer-secret", body=poll)
            read.send(request.replace(b"/topics/t ", b"/topics/t/diff "))
        served.wait_until(lambda: key.inflight == 2)
        throttled = wire.send(write("writer-secret")).answer()
        assert (throttled.status, throttled.code) == (429, "throttled")
        for read in reads:
            read.socket.close()
        served.wait_until(lambda: key.inflight == 0)
        assert wire.send(write("writer-secret")).answer().status == 200
        assert key.inflight == 0


@pytest.mark.parametrize("keys", ["", "writer-secret"])
def test_a_client_that_sends_no_more_has_its_write_answered(tmp_path: Path, keys: str) -> None:
    """With a key as without: it only waits for its answer."""
    variables = {"TOPICS_API_KEYS": keys} if keys else {}
    with inside(tmp_path, **variables) as served:
        for _ in range(3):
            with Wire(served.port) as wire:
                wire.send(write("writer-secret"))
                wire.socket.shutdown(socket.SHUT_WR)
                assert wire.answer().status in (200, 201)
