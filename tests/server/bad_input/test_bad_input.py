"""Every kind of bad input on every route: refused with 4xx and its code, and nothing has changed.

The cells of the table are printed with -s, their number by route and code in the summary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.server.bad_input.table import COMMANDS, TARGETS, Cell, Target, cells_of, changed
from tests.support.servers import Client, Reply, Served
from tests.support.streams import Socket
from topics.server.http.errors import STATUSES

CELLS_MIN = 300
ERROR_FIELDS = ({"code", "message"}, {"code", "message", "detail"})
NEEDED_HEADERS = {401: "www-authenticate", 405: "allow", 429: "retry-after", 503: "retry-after"}
GAUGES = (
    "topics_topics", "topics_routers", "topics_records_live", "topics_bytes_live",
    "topics_watch_sessions", "topics_sse_connections", "topics_queue_leases_in_flight",
)  # fmt: skip


def by_route(targets: Sequence[Target]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("target", targets, ids=lambda target: target.route)


# A stream does not end.
STREAMS = ("{wid}", "/stream")
ENDING = [target for target in TARGETS if not target.path.endswith(STREAMS)]


def furnish(served: Served) -> None:
    """Something of everything that bad input could damage."""
    with served.wait_ready().client() as client:
        record = {"data": {"n": 1}, "tag": "t", "node": "n", "meta": {"k": "v"}}
        client.post("/v0/topics/kept", {"records": [record] * 5, "idempotency_key": "k"})
        client.put("/v0/topics/kept/cursors/kept", {"seq": 1})
        client.put("/v0/topics/kept-queue", {"type": "queue"})
        client.write("kept-queue", 1, 2)
        client.put("/v0/routers/kept", {"source": "kept", "dest": "kept-copy"})


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("bad-input")) as served:
        furnish(served)
        yield served
        assert '"level":"error"' not in served.log()
        assert served.stop() == 0


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of another server, for requests that do change something."""
    with Served(tmp_path_factory.mktemp("scratch")) as served:
        furnish(served)
        with served.client() as client:
            yield client


@pytest.fixture(scope="module")
def document(served: Served) -> Any:
    with served.client() as client:
        return client.get("/v0/openapi.json").json


def picture(client: Client) -> Any:
    """Everything a client can see, without what time alone changes."""
    seen: dict[str, Any] = {}
    for entry in client.get("/v0/topics?page_size=1000").json["topics"]:
        path = f"/v0/topics/{entry['topic']}"
        state = client.get(f"{path}?touch=false").json
        for clock in ("performance", "last_read_ts", "effective_priority"):
            del state[clock]
        page = client.post(f"{path}/diff", {"include_tags": True, "limit": 1000}).json
        ranges = client.get(f"{path}/explain").json["ranges"]
        seen[entry["topic"]] = (state, page["records"], page["next_from_seq"], ranges)
    seen["routers"] = client.get("/v0/routers?page_size=1000").json["routers"]
    metrics = client.metrics()
    seen["metrics"] = {name: metrics[name] for name in GAUGES}
    return seen


def send(client: Client, cell: Cell) -> Reply:
    return client.call(cell.method or cell.target.method, cell.path, cell.body, cell.headers)


def check(reply: Reply, cell: Cell, document: Any) -> None:
    """One refusal: its status, its code, its shape, and that the document knows it."""
    content = reply.json
    status = STATUSES[cell.code]
    assert (reply.status, content.get("error", {}).get("code")) == (status, cell.code), reply.raw
    assert reply.headers["content-type"] == "application/json"
    assert set(content) == {"error"}
    assert set(content["error"]) in ERROR_FIELDS
    assert content["error"]["message"]
    assert isinstance(content["error"].get("detail", {}), dict)
    if status in NEEDED_HEADERS:
        assert reply.headers[NEEDED_HEADERS[status]]
    if not cell.method:
        operation = document["paths"][cell.target.path][cell.target.method.lower()]
        assert f"`{cell.code}`" in operation["responses"][str(status)]["description"]


@by_route(TARGETS)
def test_bad_input_is_refused_and_changes_nothing(
    served: Served, document: Any, target: Target, tally: Callable[..., None]
) -> None:
    codes: Counter[str] = Counter()
    with served.client() as client:
        before = picture(client)
        for cell in cells_of(target):
            try:
                reply = send(client, cell)
                check(reply, cell, document)
            except Exception as error:
                raise AssertionError(f"{cell.name}: {error}") from error
            codes[cell.code] += 1
            print(f"{cell.name} -> {reply.status} {cell.code}")
        assert picture(client) == before, "something has changed"
    tally(**{f"bad_input {target.route} {code}": count for code, count in codes.items()})


@by_route(ENDING)
def test_without_its_faults_the_request_is_taken(scratch: Client, target: Target) -> None:
    """Otherwise the cells would be refused for another reason than their fault."""
    query = f"?{target.fixed_query}" if target.fixed_query else ""
    reply = scratch.call(target.method, target.at() + query, target.body)
    assert reply.status in (200, 201), reply.raw


@pytest.mark.parametrize("op", COMMANDS)
def test_bad_commands_are_refused_and_the_socket_stays(
    served: Served, op: str, tally: Callable[..., None]
) -> None:
    valid, fields = COMMANDS[op]
    cells = [(place, fault) for place, faults in fields.items() for fault in faults]
    codes: Counter[str] = Counter()
    with served.client() as client, Socket(served.port) as socket:
        before = picture(client) | {"metrics": None}
        for place, fault in cells:
            answer = socket.ask(op, **changed(valid, place, fault.value))
            assert set(answer) - {"detail"} == {"op", "request_id", "code", "message"}, answer
            assert (answer["op"], answer["code"]) == ("error", fault.code), (place, fault, answer)
            codes[fault.code] += 1
        assert socket.ask("ping")["op"] == "pong"
        assert picture(client) | {"metrics": None} == before, "something has changed"
    tally(**{f"bad_input WebSocket {op} {code}": count for code, count in codes.items()})


def test_the_table_is_large_enough() -> None:
    cells = [cell.name for target in TARGETS for cell in cells_of(target)]
    assert len(cells) == len(set(cells)) >= CELLS_MIN
