"""Who may watch what: a session belongs to the key that made it, a command to what it does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from tests.support.servers import Client, Inside, inside
from tests.support.streams import EventSource, Refused, Socket

KEYS = "root,reader:read,writer:w,admin:a,both:rw,tenant::t42:,odd+key/=:read"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    with inside(
        tmp_path_factory.mktemp("locked"),
        TOPICS_API_KEYS=KEYS,
        TOPICS_MAX_SSE_CONNECTIONS_PER_KEY="2",
    ) as served:
        with served.client("root") as client:
            client.write("t", 1)
            client.write("t42:t", 1)
        yield served


@pytest.fixture
def root(locked: Inside) -> Iterator[Client]:
    with locked.client("root") as client:
        yield client


def post(client: Client, token: str, *names: str) -> Any:
    return client.with_token(token).post("/v0/watch", {"topics": {name: {} for name in names}})


def url_of(client: Client, token: str = "reader", name: str = "t") -> str:
    reply = post(client, token, name)
    assert reply.status == 200, reply.raw
    return str(reply.json["stream_url"])


def refusal(port: int, url: str, **headers: str) -> tuple[int, str]:
    with pytest.raises(Refused) as refused:
        EventSource(port, url, **headers)
    return refused.value.status, refused.value.code


@pytest.mark.parametrize(
    ("token", "status"),
    [("root", 200), ("reader", 200), ("both", 200), ("writer", 403), ("admin", 403), ("", 401),
     ("unknown", 401)],
)  # fmt: skip
def test_a_session_needs_the_read_scope(root: Client, token: str, status: int) -> None:
    assert post(root, token, "t").status == status


def test_every_topic_of_a_session_is_within_the_prefixes(root: Client) -> None:
    assert post(root, "tenant", "t42:t").status == 200
    assert post(root, "tenant", "t42:t", "t").status == 403
    # Not even whether it exists is told.
    assert post(root, "tenant", "nowhere").status == 403
    lenient = root.with_token("tenant").post(
        "/v0/watch?lenient=true", {"topics": {"t": {}, "t42:t": {}}}
    )
    assert lenient.status == 403


@pytest.mark.parametrize("token", ["", "unknown", "root", "both", "writer"])
def test_a_stream_opens_for_the_key_that_made_it_only(root: Client, token: str) -> None:
    """A session's id that leaked is no credential, and no other key will do, however mighty."""
    url = url_of(root)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    assert refusal(root.port, url, **headers) == (401, "unauthorized")
    if token:
        assert refusal(root.port, f"{url}?token={token}") == (401, "unauthorized")
    with EventSource(root.port, url, Authorization="Bearer reader") as events:
        assert events.next().name == "record"


def test_a_browser_may_present_the_key_in_the_query(root: Client) -> None:
    """Form-decoded, the first one counts, and on the streams only."""
    with EventSource(root.port, url_of(root) + "?token=reader&token=root") as events:
        assert events.next().name == "record"
    url = url_of(root, "odd+key/=")
    with EventSource(root.port, url + "?token=odd%2Bkey%2F%3D") as events:
        assert events.next().name == "record"
    assert refusal(root.port, url + "?token=odd+key/=")[0] == 401
    with root.with_token("") as nobody:
        assert nobody.get("/v0/topics/t?token=root").status == 401
        assert nobody.post("/v0/watch?token=root", {"topics": {"t": {}}}).status == 401
    # The header counts for more.
    headers = {"Authorization": "Bearer root"}
    assert refusal(root.port, url_of(root) + "?token=reader", **headers)[0] == 401


def test_an_unknown_session_needs_a_key_too(root: Client) -> None:
    url = "/v0/watch/wid_" + "A" * 22
    assert refusal(root.port, url) == (401, "unauthorized")
    assert refusal(root.port, url, Authorization="Bearer reader") == (404, "not_found")


def test_a_key_has_its_own_share_of_streams(locked: Inside, root: Client) -> None:
    """Of event streams and WebSockets together, counted for the key that made the session."""
    bearer = {"Authorization": "Bearer both"}
    key = next(key for key in locked.config.keys if key.number == 5)
    with EventSource(root.port, url_of(root, "both"), **bearer), Socket(locked.port, "both"):
        with pytest.raises(Refused) as refused:
            EventSource(root.port, url_of(root, "both"), **bearer)
        assert refused.value.status == 429
        assert refused.value.detail == {"limit": "max_sse_connections_per_key", "max": 2}
        with pytest.raises(InvalidStatus) as status:
            Socket(locked.port, "both")
        assert status.value.response.status_code == 429
        # Others have theirs.
        with EventSource(root.port, url_of(root), Authorization="Bearer reader") as events:
            events.next()
    locked.wait_until(lambda: key.streams == 0)
    # A stream that takes over does not count twice.
    url = url_of(root, "both")
    with EventSource(root.port, url, **bearer), EventSource(root.port, url, **bearer) as events:
        EventSource(root.port, url, **bearer).close()
    locked.wait_until(lambda: key.streams == 0)


# -- WebSocket -------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", "unknown"])
def test_a_socket_needs_a_key(locked: Inside, token: str) -> None:
    with pytest.raises(InvalidStatus) as status:
        Socket(locked.port, token)
    assert status.value.response.status_code == 401


@pytest.mark.parametrize(
    ("token", "topic", "answers"),
    [
        # (subscribe, publish, publish that creates, publish that creates with config)
        ("root", "t", ("subscribed", "ack", "ack", "ack")),
        ("reader", "t", ("subscribed", "forbidden", "forbidden", "forbidden")),
        ("writer", "t", ("forbidden", "ack", "ack", "forbidden")),
        ("admin", "t", ("forbidden", "forbidden", "forbidden", "forbidden")),
        ("both", "t", ("subscribed", "ack", "ack", "forbidden")),
        ("tenant", "t", ("forbidden", "forbidden", "forbidden", "forbidden")),
        ("tenant", "t42:t", ("subscribed", "ack", "ack", "ack")),
    ],
)
def test_every_command_is_authorized_by_what_it_does(
    locked: Inside, token: str, topic: str, answers: tuple[str, ...]
) -> None:
    records = [{"data": 1}]
    new = f"{topic}-{token}"
    with Socket(locked.port, token) as socket:
        frames = [
            socket.ask("subscribe", topic=topic, tail=True),
            # Config on a topic that exists is ignored, so it needs no scope of its own.
            socket.ask("publish", topic=topic, records=records, config={"ttl_ms": 5}),
            socket.ask("publish", topic=new, records=records),
            socket.ask("publish", topic=new + "2", records=records, config={"ttl_ms": 0}),
        ]
        assert socket.ask("ping")["op"] == "pong"
    assert tuple(f["code"] if f["op"] == "error" else f["op"] for f in frames) == answers
