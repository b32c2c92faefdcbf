"""Keys: how they are written down, what each may do, and that nothing else gets in."""

from __future__ import annotations

import hmac
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers import Client, Served, inside
from topics.errors import InvalidRequest
from topics.server.api.auth import ADMIN, ALL_SCOPES, DELETE, READ, WRITE, parse_keys, query_token
from topics.server.routes.listing import visible_prefixes

KEY_SCOPES = {
    "root-secret": ALL_SCOPES, "reader": READ, "writer": WRITE, "deleter": DELETE, "manager": ADMIN,
    "both": READ | WRITE,
}  # fmt: skip
ROUTES = [
    ("GET", "/v0/topics", None, READ),
    ("GET", "/v0/topics/here", None, READ),
    ("POST", "/v0/topics/here/diff", {}, READ),
    ("GET", "/v0/topics/here/explain", None, READ),
    ("GET", "/v0/metrics", None, READ),
    ("POST", "/v0/topics/here", {"records": [{"data": 1}]}, WRITE),
    ("POST", "/v0/topics/here/delete", {"match": "none"}, DELETE),
    ("DELETE", "/v0/topics/absent", None, DELETE),
    ("PUT", "/v0/topics/here", {}, ADMIN),
]


@pytest.fixture
def root(locked: Served) -> Iterator[Client]:
    with locked.client("root-secret") as client:
        client.put("/v0/topics/here")
        yield client


@pytest.mark.parametrize(
    ("entry", "scopes", "prefixes"),
    [
        ("s", ALL_SCOPES, ()),
        ("s:", ALL_SCOPES, ()),
        ("s::", ALL_SCOPES, ()),
        ("s:read", READ, ()),
        ("s:r+w", READ | WRITE, ()),
        ("s:rw+d", READ | WRITE | DELETE, ()),
        ("s:read+write+delete+admin", ALL_SCOPES, ()),
        ("s::t42:|shared.", ALL_SCOPES, ("t42:", "shared.")),
        ("s:a:x", ADMIN, ("x",)),
    ],
)
def test_an_entry_means_what_it_says(entry: str, scopes: int, prefixes: tuple[str, ...]) -> None:
    (key,) = parse_keys(f" {entry} ")
    assert (key.scopes, key.prefixes) == (scopes, prefixes)
    assert len(key.digest) == 32


@pytest.mark.parametrize(
    "text",
    [
        "s:reed", "s:read+", "s:+", "s:READ", "s:r w", ":read", "s::a||b", "s::|", ",", "s,s:r",
        "", " ", "\t", ",,", " , ",
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="TOPICS_API_KEYS"):
        parse_keys(text)


def test_a_token_in_a_query_is_form_decoded_and_the_first_counts() -> None:
    assert query_token(b"a=1&token=x%2By+z&token=other") == b"x+y z"
    assert query_token(b"tokens=x&token") is None


@pytest.mark.parametrize(
    ("prefixes", "wanted", "seen"),
    [
        ("", "a", ["a"]),
        ("t:|u", "", ["t:", "u"]),
        ("t:|u", "t:4", ["t:4"]),
        ("t:|u", "t", ["t:"]),
        ("t:|u", "v", []),
    ],
)
def test_what_a_key_sees_of_a_listing(prefixes: str, wanted: str, seen: list[str]) -> None:
    (key,) = parse_keys(f"s::{prefixes}")
    assert visible_prefixes(key, wanted) == seen


@pytest.mark.parametrize(("method", "path", "body", "needed"), ROUTES)
def test_every_route_asks_for_its_scope(
    locked: Served, root: Client, method: str, path: str, body: object, needed: int
) -> None:
    for secret, scopes in KEY_SCOPES.items():
        reply = root.with_token(secret).call(method, path, body)
        if scopes & needed == needed:
            assert reply.status == 200, (secret, reply.raw)
        else:
            assert (reply.status, reply.code) == (403, "forbidden"), (secret, reply.raw)


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Bearer root-secre", "Bearer root-secret2", "Basic root-secret"],
)
@pytest.mark.parametrize(("method", "path", "body", "needed"), ROUTES)
def test_without_a_known_key_nothing_is_told(
    locked: Served, header: str, method: str, path: str, body: object, needed: int
) -> None:
    with locked.client() as client:
        reply = client.call(method, path, body, {"Authorization": header})
    assert (reply.status, reply.code) == (401, "unauthorized")
    assert reply.headers["www-authenticate"] == "Bearer"


def test_the_scheme_may_be_written_in_any_case(locked: Served) -> None:
    with locked.client() as client:
        assert client.get("/v0/topics", Authorization="bEaReR   reader").status == 200


def test_a_token_in_the_query_is_not_taken_on_ordinary_routes(locked: Served) -> None:
    with locked.client() as client:
        assert client.get("/v0/topics?token=root-secret").status == 401


def test_prefixes_bound_what_a_key_can_name(locked: Served, root: Client) -> None:
    for name in ("t42:a", "shared.b", "t4", "other"):
        root.put(f"/v0/topics/{name}")
    tenant = root.with_token("tenant")
    for name, status in (("t42:a", 200), ("shared.b", 200), ("t4", 403), ("T42:a", 403)):
        assert tenant.write(name, 1).status == status
        assert tenant.diff(name).status == status
        assert tenant.get(f"/v0/topics/{name}").status == status
    # Also where nothing is there: a key learns nothing about names that are not its own.
    assert tenant.delete("/v0/topics/unknown").status == 403
    listed = tenant.get("/v0/topics").json["topics"]
    assert [entry["topic"] for entry in listed] == ["shared.b", "t42:a"]
    listed = root.with_token("tenant-reader").get("/v0/topics?page_size=1").json
    assert [entry["topic"] for entry in listed["topics"]] == ["t42:a"]
    assert "next_cursor" not in listed
    metrics = root.with_token("tenant-reader").metrics()
    assert set(metrics["topics_topic_head_seq"]) == {"t42:a"}


def test_a_config_on_a_write_needs_admin_only_where_it_would_create(
    locked: Served, root: Client
) -> None:
    writer = root.with_token("writer")
    refused = writer.write("made-by-writer", 1, config={"cap_records": 1})
    assert (refused.status, refused.code) == (403, "forbidden")
    assert root.get("/v0/topics/made-by-writer").status == 404
    assert writer.write("here", 1, config={"cap_records": 1}).status == 200
    assert writer.write("made-by-writer", 1).status == 201


def test_probes_need_no_key_unless_told_so(locked: Served) -> None:
    with locked.client() as client:
        for path in ("/v0/health", "/healthz", "/v0/ready", "/readyz", "/v0/openapi.json"):
            assert client.get(path).status == 200


def test_probes_can_be_made_to_ask(tmp_path: Path) -> None:
    keys = {"TOPICS_API_KEYS": "s:w", "TOPICS_PROBE_AUTH": "true"}
    with inside(tmp_path, **keys) as served, served.client() as client:
        for path in ("/v0/health", "/healthz", "/v0/ready", "/readyz"):
            assert client.get(path).status == 401
            assert client.get(path, Authorization="Bearer s").status == 200


def test_a_key_has_only_so_many_requests_in_flight(tmp_path: Path) -> None:
    keys = {"TOPICS_API_KEYS": "one,two", "TOPICS_MAX_INFLIGHT_PER_KEY": "2"}
    wait = b'{"wait_ms":30000}'
    with inside(tmp_path, **keys) as served, served.client("one") as client:
        client.put("/v0/topics/a")
        waiting = [served.client("one") for _ in range(2)]
        for other in waiting:
            other.connection.request(
                "POST", "/v0/topics/a/diff", wait,
                {"Content-Type": "application/json", "Authorization": "Bearer one"},
            )  # fmt: skip
        served.wait_until(lambda: len(served.services.waiters) == 2)
        refused = client.get("/v0/topics/a")
        assert (refused.status, refused.code) == (429, "throttled")
        assert refused.detail == {"limit": "max_inflight_per_key", "max": 2}
        assert refused.headers["retry-after"] == "1"
        # Another key is not concerned; a client that leaves, and an answer, make room.
        with served.client("two") as other:
            assert other.get("/v0/topics/a").status == 200
        waiting[0].close()
        served.wait_until(lambda: len(served.services.waiters) == 1)
        assert client.write("a", 1).status == 200
        assert waiting[1].connection.getresponse().read()
        keys_now = served.run(lambda: [key.inflight for key in served.config.keys])
        assert keys_now == [0, 0]
        waiting[1].close()


def test_comparing_takes_every_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first key is compared no sooner than the last: no early exit."""
    keys = parse_keys(",".join(f"k{n}" for n in range(5)))
    calls = itertools.count()
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: (next(calls), real(a, b))[1])
    found = [keys.find(token) for token in (b"k0", b"k4", b"none")]
    assert [key and key.number for key in found] == [1, 5, None]
    assert next(calls) == 15


def test_a_delete_takes_no_router_along_that_the_key_could_not_delete(locked: Served) -> None:
    """Neither is it removed, nor is its name told."""
    with locked.client("root-secret") as root:
        for name in ("t42:out", "t42:in", "other", "t42:mine", "t42:to"):
            root.put(f"/v0/topics/{name}")
        for router, source, dest in (
            ("foreign-out", "t42:out", "other"), ("foreign-in", "other", "t42:in"),
            ("t42:own", "t42:mine", "t42:to"),
        ):  # fmt: skip
            made = root.put(f"/v0/routers/{router}", {"source": source, "dest": dest})
            assert made.status == 201, made.raw
        tenant = root.with_token("tenant")
        for name in ("t42:out", "t42:in"):
            refused = tenant.delete(f"/v0/topics/{name}")
            assert (refused.status, refused.code) == (403, "forbidden")
            assert b"foreign" not in refused.raw
            assert b"other" not in refused.raw
            assert root.get(f"/v0/topics/{name}").status == 200
        assert root.get("/v0/routers/foreign-out").status == 200
        assert tenant.delete("/v0/topics/t42:mine").json["routers_removed"] == ["t42:own"]
        assert root.delete("/v0/topics/t42:out").json["routers_removed"] == ["foreign-out"]
        root.delete("/v0/topics/other")
        assert tenant.delete("/v0/topics/t42:in").status == 200


def test_a_router_in_the_way_is_not_named_to_a_key_that_may_not_touch_it(locked: Served) -> None:
    with locked.client("root-secret") as root:
        for name, source, dest in (
            ("hidden-1", "hidden-a", "t42:taken"), ("hidden-2", "t42:round", "hidden-b"),
            ("hidden-3", "hidden-b", "t42:end"), ("t42:seen", "t42:x", "t42:y"),
        ):  # fmt: skip
            assert root.put(f"/v0/routers/{name}", {"source": source, "dest": dest}).status == 201
        tenant = root.with_token("tenant")
        fan_in = tenant.put("/v0/routers/t42:r", {"source": "t42:z", "dest": "t42:taken"})
        cycle = tenant.put("/v0/routers/t42:r", {"source": "t42:end", "dest": "t42:round"})
        own = tenant.put("/v0/routers/t42:r", {"source": "t42:z", "dest": "t42:y"})
    assert (fan_in.code, fan_in.detail) == (
        "topic_exists_incompatible", {"reason": "router_dest_fan_in"},
    )  # fmt: skip
    assert cycle.code == "router_cycle"
    assert b"hidden" not in fan_in.raw + cycle.raw
    assert own.detail["router"] == "t42:seen"
