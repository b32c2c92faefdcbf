"""The log in this process through the client's interface: the same answers, from any thread."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.tiers import quick_first
from topics import AsyncClient, Client, Gap, RetryPolicy, errors
from topics.client import kv_calls, log_calls, queue_calls, reader_calls, stage_calls
from topics.client.options import Options
from topics.client.reader_calls import WatchFrom
from topics.client.request import Request
from topics.server.config import embedded
from topics.server.embedded import Embedded
from topics.storage.fs import OsFs
from topics.testing.faultfs import Fault, FaultFs

# What two logs can not have in common: times, what is drawn by chance, and how busy they are.
OWN = re.compile(
    r"performance|\$?(.*_)?ts|deadlines?|lease_id|wid|stream_url|stage|snapshot|uptime_ms|bytes_\w+"
    r"|effective_priority"
)
NAMES = ("a", "b", "jobs", "with space:ü/x")
PROGRAM_CALLS = 60


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """As the module's server, which has the size of a server's log files."""
    path = tmp_path_factory.mktemp("embedded")
    with Client.embedded(path, wal_file_bytes=64 << 20, retries=RetryPolicy(0.2)) as client:
        yield client


class Program:
    """Calls drawn by chance; what one side has told before is used on that side again."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._seed = seed

    def calls(self) -> Iterator[Callable[[dict[str, Any]], Request[Any]]]:
        for _ in range(PROGRAM_CALLS):
            draw = self._chance.choice(
                [self._topic, self._write, self._write, self._read, self._cursor, self._queue,
                 self._queue, self._stage, self._key, self._router, self._server]
            )  # fmt: skip
            yield draw()

    def _name(self) -> str:
        return f"{self._seed}-{self._chance.choice(NAMES)}"

    def _of(self, *calls: Request[Any]) -> Callable[[dict[str, Any]], Request[Any]]:
        call = self._chance.choice(calls)
        return lambda _told: call

    def _topic(self) -> Callable[[dict[str, Any]], Request[Any]]:
        name, chance = self._name(), self._chance
        kind = "queue" if "jobs" in name else "log"
        return self._of(
            log_calls.create_topic(name, type=kind, cap_records=chance.choice([0, 5, 100])),
            log_calls.create_topic(name, ttl_ms=-1),
            log_calls.change_topic(name, durability=chance.choice(["fsync", "memory"])),
            log_calls.topic(name), log_calls.topic(name, touch=False),
            log_calls.topics(prefix=str(self._seed), page_size=chance.choice([1, 2, 1000])),
            log_calls.topics(cursor="nonsense", sort="bytes"),
            log_calls.explain(name), log_calls.explain(name, 2, 1), log_calls.rewrite(name),
            log_calls.delete(name, before_seq=chance.randrange(20)),
            log_calls.delete(name, match=("tag", "Eq", "x")), log_calls.delete(name),
            log_calls.delete_topic(name, if_empty=chance.random() < 0.8),
        )  # fmt: skip

    def _write(self) -> Callable[[dict[str, Any]], Request[Any]]:
        name, chance = self._name(), self._chance
        records: Any = [
            {"data": {"n": n}, "tag": chance.choice(["x", "y"]), "meta": {"k": "v" * n}}
            for n in range(chance.randrange(1, 6))
        ]  # fmt: skip
        key = chance.choice([None, "", "again", "é" * 300])
        return self._of(
            log_calls.append(name, records, node="n1", idempotency_key=key),
            log_calls.append(name, records, idempotency_key=f"{self._seed}-{len(records)}"),
            log_calls.append(name, records, create=False),
            log_calls.append(name, [{"data": "large" * 300_000}]),
            log_calls.append(name, []), log_calls.append("n" * 20_000, records),
            log_calls.append_json(name, b'{"records":[{"data":1.0,"extra":[]}],"what":1}'),
            log_calls.append_json(name, b"\xff not JSON"), log_calls.append_json(name, b""),
        )  # fmt: skip

    def _read(self) -> Callable[[dict[str, Any]], Request[Any]]:
        name, at = self._name(), self._chance.randrange(8)
        return self._of(
            reader_calls.diff(name, from_seq=at, limit=3, include_tags=True),
            reader_calls.diff(name, node="n1"), reader_calls.diff(name, wait_ms=1),
            reader_calls.diff(name, limit=-1), reader_calls.diff(name, epoch="x"),
            reader_calls.range(name, from_seq=at, max_records=2),
            reader_calls.range(name, match=("tag", "Glob", "x*")),
            reader_calls.range_size(name), reader_calls.seq_at(name, 0),
            reader_calls.watch({name: WatchFrom(from_seq=at)}), reader_calls.watch({}),
        )  # fmt: skip

    def _cursor(self) -> Callable[[dict[str, Any]], Request[Any]]:
        name, at = self._name(), self._chance.randrange(8)
        return self._of(
            reader_calls.set_cursor(name, "c", at),
            reader_calls.set_cursor(name, "c", at, reset=True),
            reader_calls.set_cursor(name, "d", owner="me", lease_ms=60_000),
            reader_calls.cursor(name, "c"), reader_calls.cursors(name),
            reader_calls.delete_cursor(name, "c"),
        )  # fmt: skip

    def _queue(self) -> Callable[[dict[str, Any]], Request[Any]]:
        name, chance = self._name(), self._chance
        seqs = [chance.randrange(1, 8)]
        which = chance.randrange(5)

        def held(told: dict[str, Any]) -> Request[Any]:
            job = told.get("job")
            seqs, ids = ([job.seq], [job.lease_id]) if job else ([1], ["nothing"])
            return queue_calls.extend(name, "w", seqs, 60_000, lease_ids=ids)

        if which == 0:
            return held
        return self._of(
            queue_calls.claim(name, "w", 2, lease_ms=600_000), queue_calls.claim(name, "w", 0),
            queue_calls.ack(name, "w", seqs), queue_calls.nack(name, "w", seqs, delay_ms=0),
            queue_calls.ack(name, "other", seqs), queue_calls.leases(name),
            queue_calls.claim(name, "w", wait_ms=1),
        )  # fmt: skip

    def _stage(self) -> Callable[[dict[str, Any]], Request[Any]]:
        name, producer, batch = self._name(), f"{self._seed}-p", self._chance.randrange(4)
        if self._chance.random() < 0.5:
            return lambda told: stage_calls.commit(
                producer, batch, query="q", stages=told.get("stages", [])[-1:]
            )
        return self._of(
            stage_calls.stage(name, [{"data": 1}], producer=producer, batch=batch),
            stage_calls.drop_stages(producer, batch),
        )

    def _key(self) -> Callable[[dict[str, Any]], Request[Any]]:
        bucket, key = f"{self._seed}-kv", self._chance.choice(["k", "l", "m/n ü"])
        seq = self._chance.randrange(4)
        return self._of(
            kv_calls.create_bucket(bucket, history=2), kv_calls.bucket(bucket),
            kv_calls.put_key(bucket, key, {"v": seq}), kv_calls.put_key(bucket, key, 1, if_seq=seq),
            kv_calls.get_key(bucket, key), kv_calls.get_key(bucket, key, at_seq=seq),
            kv_calls.key_history(bucket, key), kv_calls.delete_key(bucket, key),
            kv_calls.keys(bucket, page_size=1), kv_calls.delete_prefix(bucket, "k"),
            kv_calls.compact(bucket, max_age_ms=600_000),
        )  # fmt: skip

    def _router(self) -> Callable[[dict[str, Any]], Request[Any]]:
        source, dest = self._name(), self._name()
        return self._of(
            log_calls.create_router(f"{self._seed}-r", source=source, dest=dest),
            log_calls.router(f"{self._seed}-r"), log_calls.routers(prefix=str(self._seed)),
            log_calls.delete_router(f"{self._seed}-r"),
        )  # fmt: skip

    def _server(self) -> Callable[[dict[str, Any]], Request[Any]]:
        return self._of(
            log_calls.health(), log_calls.ready(), log_calls.openapi(), log_calls.connections(),
            Request("GET", "/v0/nothing/here", bytes), Request("PATCH", "/v0/topics", bytes),
        )  # fmt: skip


def told(client: Client, call: Request[Any], before: dict[str, Any]) -> Any:
    """What one side answers, without what only that side can know."""
    try:
        answer = client.send(call)
    except errors.TopicsError as error:
        return type(error), error.code, error.status, error.message, plain(error.detail)
    if getattr(answer, "claimed", None):
        before["job"] = answer.claimed[0]
    if isinstance(answer, stage_calls.Staged):
        before.setdefault("stages", []).append(answer.stage)
    return plain(msgspec.json.decode(msgspec.json.encode(answer)))


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items() if not OWN.fullmatch(key)}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value


@pytest.mark.parametrize("seed", quick_first(range(12), 4))
def test_a_program_gets_the_answers_of_a_server(url: str, other: Client, seed: int) -> None:
    """Values and errors, whatever is asked in whatever order."""
    with Client(url, retries=RetryPolicy(0.2)) as client:
        before: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
        for number, call in enumerate(Program(seed).calls()):
            there, here = call(before[0]), call(before[1])
            expected = told(client, there, before[0])
            assert told(other, here, before[1]) == expected, f"call {number}: {here.path}"


def test_threads_share_it(tmp_path: Path) -> None:
    """Writes of many threads at once have their own seqs, and all are there after a restart."""
    with Client.embedded(tmp_path) as client:
        with ThreadPoolExecutor(8) as threads:
            done = threads.map(lambda n: client.append("t", [{"data": n}]).first_seq, range(400))
            assert sorted(done) == list(range(1, 401))
        with pytest.raises(errors.DirectoryLocked):
            Client.embedded(tmp_path)
    with Client.embedded(str(tmp_path)) as client:
        assert sorted(found.value for found in client.range("t").records) == list(range(400))


def test_what_builds_on_the_client_works_on_it(tmp_path: Path) -> None:
    """Followers, workers, producers and buckets."""
    with Client.embedded(tmp_path) as client:
        client.create_topic("t", cap_records=500)
        with client.producer() as producer:
            receipts = [producer.send("t", n) for n in range(2000)]
        assert [receipt.result() for receipt in receipts[-2:]] == [1999, 2000]
        follower = client.follow("t", cursor="me")
        first, gap = client.topic("t").earliest_seq, None
        for item in follower:
            if isinstance(item, Gap):
                gap = item
            elif item.seq == 2000:
                break
        assert gap is not None
        assert (gap.gap_from, gap.gap_to) == (1, first - 1)
        follower.commit()
        assert client.cursor("t", "me").seq == 2000
        client.create_topic("jobs", type="queue")
        client.append("jobs", [{"data": n} for n in range(20)])
        seen: list[int] = []
        done = client.worker("jobs", lambda job: seen.append(job.value), idle_s=0.1).run()
        assert (done.done, sorted(seen)) == (20, list(range(20)))
        client.kv("b").put("k", [1])
        assert client.kv("b").get("k") == [1]


async def _connected(client: AsyncClient, count: int) -> None:
    while len((await client.connections()).connections) != count:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def test_calls_are_counted_as_requests_are(tmp_path: Path) -> None:
    """Answers and refusals, by route and status."""
    with Client.embedded(tmp_path) as client:
        client.append("t", [{"data": 1}])
        for _ in range(3):
            with pytest.raises(errors.TopicNotFound):
                client.diff("nowhere")
        lines = [line for line in client.metrics_text().splitlines() if "/diff" in line]
        assert any('"404"' in line and line.endswith(" 3") for line in lines), lines


def test_for_asyncio(tmp_path: Path) -> None:
    """The same names; a call that is cancelled is given up, as by a client that went away."""

    async def use() -> None:
        async with AsyncClient.embedded(tmp_path) as client:
            many = [client.append("many", [{"data": number}]) for number in range(50)]
            assert {done.first_seq for done in await asyncio.gather(*many)} == set(range(1, 51))
            await client.create_topic("jobs", type="queue")
            claim = asyncio.ensure_future(client.claim("jobs", "w", wait_ms=60_000))
            await _connected(client, 1)
            claim.cancel()
            await asyncio.gather(claim, return_exceptions=True)
            await client.append("jobs", [{"data": 1}])
            assert (await client.claim("jobs", "v")).claimed[0].seq == 1
            async for item in client.follow("many", tail=False):
                if item.value == 49:
                    break
            await _connected(client, 0)
        with pytest.raises(errors.Unreachable):
            await client.topic("many")

    asyncio.run(use())


def test_what_can_not_be_opened_says_why(tmp_path: Path) -> None:
    """At once, or in the first call where nobody can wait."""
    with pytest.raises(errors.InvalidRequest, match="did you mean max_topics"):
        Client.embedded(tmp_path, max_topic=3)
    with pytest.raises(errors.InvalidRequest, match="max_topics"):
        Client.embedded(tmp_path, max_topics="many")
    place = tmp_path / "file"
    place.write_text("not a directory")
    with pytest.raises(errors.StorageError, match="file"):
        Client.embedded(place)

    async def use() -> None:
        async with AsyncClient.embedded(place) as client:
            with pytest.raises(errors.StorageError, match="file"):
                await client.topics()

    asyncio.run(use())


def test_its_end_is_the_end_of_all_that_waits(tmp_path: Path) -> None:
    """Reads that wait are answered, what comes later is refused at once, nothing is half done."""
    client = Client.embedded(tmp_path)
    client.create_topic("t")
    follower, answers = client.follow("t"), []
    waits = threading.Thread(target=lambda: answers.append(client.diff("t", wait_ms=60_000)))
    follows = threading.Thread(target=lambda: answers.extend(_failure_of(follower)))
    for thread in (waits, follows):
        thread.start()
    while len(client.connections().connections) < 2:
        time.sleep(0.01)
    began_s = time.monotonic()
    client.close()
    client.close()
    for thread in (waits, follows):
        thread.join(20)
    assert sorted(type(found).__name__ for found in answers) == ["Page", "Unreachable"]
    with pytest.raises(errors.Unreachable, match="closed") as refused:
        client.append("t", [{"data": 1}])
    assert refused.value.detail["sent"] is False
    assert time.monotonic() - began_s < 20


def _failure_of(follower: Any) -> list[BaseException]:
    try:
        list(follower)
    except errors.TopicsError as error:
        return [error]
    return []


def test_a_disk_that_fails_ends_it_and_says_so(tmp_path: Path) -> None:
    """The write is unknown, later calls are refused with the reason, and a new start recovers."""
    fs = FaultFs(OsFs())
    within = Embedded(embedded({}), tmp_path, fs=fs)
    within.start()
    client = Client.of(Options("", "", within=within))
    client.create_topic("t", durability="fsync")
    client.append("t", [{"data": 1}])
    fs.fault = Fault("sync", forever=True)
    with pytest.raises(errors.OutcomeUnknown):
        client.append("t", [{"data": 2}])
    with pytest.raises(errors.Unreachable, match="closed: "):
        client.topic("t")
    within.close()
    with Client.embedded(tmp_path) as again:
        assert again.range("t").records[0].value == 1


def _write_and_die(path: str) -> None:
    client = Client.embedded(path)
    client.create_topic("t", durability="fsync")
    for number in range(20):
        client.append("t", [{"data": number}])
    multiprocessing.current_process().kill()


@pytest.mark.slow
def test_a_process_that_dies_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    """As a server that is killed."""
    process = multiprocessing.get_context("spawn").Process(
        target=_write_and_die, args=(str(tmp_path),)
    )
    process.start()
    process.join(60)
    with Client.embedded(tmp_path) as client:
        assert [found.value for found in client.range("t").records] == list(range(20))


def _use_after_fork(client: Client) -> None:
    with client, pytest.raises(errors.Unreachable, match="forked"):
        client.append("t", [{"data": 2}])


def test_a_forked_process_is_told_that_the_log_is_not_its_own(tmp_path: Path) -> None:
    """Instead of waiting for a thread that it does not have; the first process goes on."""
    with Client.embedded(tmp_path) as client:
        client.append("t", [{"data": 1}])
        child = multiprocessing.get_context("fork").Process(target=_use_after_fork, args=(client,))
        child.start()
        child.join(60)
        assert child.exitcode == 0
        assert client.append("t", [{"data": 3}]).first_seq == 2
