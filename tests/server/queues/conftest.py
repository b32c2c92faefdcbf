from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.servers import Client, Inside, Reply, inside
from tests.support.streams import EventSource

_numbers = itertools.count(1)


class Queue:
    """One queue as its workers see it."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name
        self.path = f"/v0/topics/{name}"

    def configure(self, **config: Any) -> Queue:
        reply = self.client.put(self.path, {"type": "queue", **config})
        assert reply.status in (200, 201), reply.raw
        return self

    def fill(self, *data: Any, **fields: Any) -> list[int]:
        """Jobs with this data; their seqs."""
        reply = self.client.write(self.name, *data, **fields)
        assert reply.status == 200, reply.raw
        seqs: list[int] = reply.json["seqs"]
        return seqs

    def call(self, verb: str, **body: Any) -> Reply:
        return self.client.post(f"{self.path}/{verb}", body)

    def done(self, verb: str, **body: Any) -> dict[str, Any]:
        reply = self.call(verb, **body)
        assert reply.status == 200, reply.raw
        found: dict[str, Any] = reply.json
        return found

    def claim(self, node: str, max: int = 1, **fields: Any) -> list[dict[str, Any]]:
        """The jobs of one claim."""
        jobs: list[dict[str, Any]] = self.done("claim", node=node, max=max, **fields)["claimed"]
        return jobs

    def claim_seqs(self, node: str, max: int = 1, **fields: Any) -> list[int]:
        return [job["$seq"] for job in self.claim(node, max, **fields)]

    def ack(self, node: str, *seqs: int, **fields: Any) -> dict[str, Any]:
        return self.done("ack", node=node, seqs=seqs, **fields)

    def nack(self, node: str, *seqs: int, **fields: Any) -> dict[str, Any]:
        return self.done("nack", node=node, seqs=seqs, **fields)

    def extend(self, node: str, *seqs: int, **fields: Any) -> dict[str, Any]:
        return self.done("extend", node=node, seqs=seqs, **fields)

    @property
    def counts(self) -> tuple[int, int, int]:
        """(ready, in flight, dead-lettered)."""
        found = self.client.get(f"{self.path}?touch=false").json["queue"]
        return found["ready"], found["in_flight"], found["dead_lettered"]

    def work(self, node: str, query: str = "", **headers: str) -> EventSource:
        """An open stream of jobs."""
        path = f"{self.path}/work?node={quote(node)}{query and '&' + query}"
        return EventSource(self.client.port, path, **headers)


def jobs_of(events: EventSource, count: int) -> list[dict[str, Any]]:
    """The next jobs that a stream pushes."""
    return [events.next("job").data for _ in range(count)]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """A server without keys, shared: every test has queues of its own."""
    with inside(tmp_path_factory.mktemp("queues")) as served:
        yield served


@pytest.fixture
def client(server: Inside) -> Iterator[Client]:
    with server.client() as client:
        yield client


@pytest.fixture
def topic() -> str:
    """A name nobody else uses."""
    return f"jobs-{next(_numbers)}"


@pytest.fixture
def queue(client: Client, topic: str) -> Queue:
    return Queue(client, topic).configure()


@pytest.fixture
def beside(server: Inside) -> Iterator[Callable[..., Future[Any]]]:
    """Runs `call(queue, …)` in a thread, on a connection of its own."""

    def run(call: Callable[..., Any], queue: Queue, *arguments: Any, **fields: Any) -> Any:
        with server.client() as client:
            return call(Queue(client, queue.name), *arguments, **fields)

    with ThreadPoolExecutor(64) as pool:
        yield lambda call, *arguments, **fields: pool.submit(run, call, *arguments, **fields)


@pytest.fixture
def waiting(server: Inside) -> Callable[[Queue, int], None]:
    """Returns when so many claims wait at the desk of a queue."""

    def wait(queue: Queue, count: int) -> None:
        def is_so() -> bool:
            desk = server.app.desks.by_name.get(queue.name)
            return desk is not None and len(desk.line.keys() - desk.streams) == count

        server.wait_until(is_so)

    return wait
