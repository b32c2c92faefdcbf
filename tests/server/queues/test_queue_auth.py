"""Which key may do what with a queue, and how many streams it may have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from tests.server.queues.conftest import Queue
from tests.support.servers import Client, Inside, inside
from tests.support.streams import EventSource, Refused

KEYS = "root,reader:r,writer:w,both:rw,deleter:d,admin:a,tenant::t42:,odd +&key:rw"
BODIES: dict[str, dict[str, Any]] = {
    "claim": {"node": "w"},
    "ack": {"node": "w", "seqs": [1]},
    "nack": {"node": "w", "seqs": [1]},
    "extend": {"node": "w", "seqs": [1], "lease_ms": 1000},
}
MAY = {
    "claim": {"root", "both"},
    "work": {"root", "both"},
    "ack": {"root", "both", "writer"},
    "nack": {"root", "both", "writer"},
    "extend": {"root", "both", "writer"},
}


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    directory = tmp_path_factory.mktemp("locked")
    limits = {"TOPICS_MAX_SSE_CONNECTIONS": "3", "TOPICS_MAX_SSE_CONNECTIONS_PER_KEY": "2"}
    with inside(directory, None, TOPICS_API_KEYS=KEYS, **limits) as server:
        with server.client("root") as root:
            for name in ("jobs", "t42:jobs"):
                Queue(root, name).configure()
        yield server


@pytest.fixture
def root(locked: Inside) -> Iterator[Client]:
    with locked.client("root") as client:
        yield client


def open_work(port: int, path: str, token: str = "") -> int:
    """The status that a stream begins with."""
    bearer = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with EventSource(port, path, **bearer) as events:
            return events.status
    except Refused as refused:
        return refused.status


@pytest.mark.parametrize("key", ["root", "reader", "writer", "both", "deleter", "admin"])
@pytest.mark.parametrize("verb", MAY)
def test_each_call_needs_its_scopes(locked: Inside, root: Client, verb: str, key: str) -> None:
    expected = 200 if key in MAY[verb] else 403
    if verb == "work":
        assert open_work(locked.port, "/v0/topics/jobs/work?node=w", key) == expected
        return
    reply = root.with_token(key).post(f"/v0/topics/jobs/{verb}", BODIES[verb])
    assert reply.status == expected
    assert reply.code == ("" if expected == 200 else "forbidden")


@pytest.mark.parametrize("verb", MAY)
def test_prefixes_bind_every_call(locked: Inside, root: Client, verb: str) -> None:
    for name, expected in (("t42:jobs", 200), ("jobs", 403)):
        path = f"/v0/topics/{quote(name)}/{verb}"
        if verb == "work":
            assert open_work(locked.port, path + "?node=w", "tenant") == expected
        else:
            assert root.with_token("tenant").post(path, BODIES[verb]).status == expected


def test_a_key_in_the_query_opens_streams_only(locked: Inside, root: Client) -> None:
    work = "/v0/topics/jobs/work?node=w"
    assert open_work(locked.port, work) == 401
    assert open_work(locked.port, work + "&token=both") == 200
    assert open_work(locked.port, work + "&token=odd+%2B%26key&token=nobody") == 200
    assert open_work(locked.port, work + "&token=nobody") == 401
    assert open_work(locked.port, work + "&token=reader") == 403
    bare = Client(root.port)
    assert bare.post("/v0/topics/jobs/claim?token=both", BODIES["claim"]).status == 401
    bare.close()


def test_dead_letters_stay_within_the_prefixes(root: Client) -> None:
    """A queue may not write into the topics of others on behalf of its key."""
    tenant = root.with_token("tenant")
    outside, within = {"dead_letter": "dead"}, {"dead_letter": "t42:dead"}
    path = "/v0/topics/t42:configured"
    assert tenant.put(path, {"type": "queue", **outside}).code == "forbidden"
    assert tenant.put(path, {"type": "queue", **within}).status == 201
    written = {"records": [{"data": 1}], "config": {"type": "queue", **outside}}
    assert tenant.post("/v0/topics/t42:inline", written).code == "forbidden"
    assert root.get("/v0/topics/t42:inline").status == 404


def test_streams_count_against_the_limits(locked: Inside, root: Client) -> None:
    path = "/v0/topics/jobs/work?node=w&token="
    locked.wait_until(lambda: locked.services.delivery.connections == 0)
    with EventSource(locked.port, path + "both"):
        with EventSource(locked.port, path + "both"):
            assert root.metrics()["topics_sse_connections"] == 2
            with pytest.raises(Refused) as refused:
                EventSource(locked.port, path + "both")
            assert (refused.value.status, refused.value.code) == (429, "throttled")
            assert refused.value.detail["limit"] == "max_sse_connections_per_key"
            assert "retry-after" in refused.value.headers
            with EventSource(locked.port, path + "root"):
                with pytest.raises(Refused) as refused:
                    EventSource(locked.port, path + "root")
                assert refused.value.detail == {"limit": "max_sse_connections", "max": 3}
        # A stream that has ended makes room.
        locked.wait_until(lambda: locked.services.delivery.connections == 1)
        with EventSource(locked.port, path + "both"):
            pass


@pytest.mark.parametrize("verb", BODIES)
@pytest.mark.parametrize("durability", ["ephemeral", "disk", "fsync"])
def test_no_call_keeps_its_slot(locked: Inside, root: Client, verb: str, durability: str) -> None:
    """However soon it is answered: jobs that are held, that are not, and none at all."""
    queue = Queue(root, f"slots-{verb}-{durability}")
    queue.configure(durability=durability)
    for seqs in ([1, 2], [9], [1, 9]):
        root.write(queue.name, *range(3))
        root.post(f"/v0/topics/{queue.name}/claim", {"node": "w", "max": 9})
        named = {} if verb == "claim" else {"seqs": seqs}
        assert root.post(f"/v0/topics/{queue.name}/{verb}", {**BODIES[verb], **named}).status == 200
    assert locked.run(lambda: [key.inflight for key in locked.config.keys]) == [0] * 8
