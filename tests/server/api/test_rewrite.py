"""`POST /v0/topics/:topic/rewrite`: what a topic has lost leaves every file of a running server.

Shown with grep over the data directory and the cold store; and space that comes back by itself.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.directories import image
from tests.support.s3 import S3Server
from tests.support.servers import Client, Inside, Served, inside
from tests.support.waiting import until

pytestmark = pytest.mark.slow

SMALL = {
    "TOPICS_WAL_FILE_BYTES": "262144", "TOPICS_WAL_RESERVE_BYTES": "4096",
    "TOPICS_BLOCK_BYTES": "4096", "TOPICS_SEGMENT_BYTES": "32768",
    "TOPICS_OWN_SEGMENT_BYTES": "8192", "TOPICS_RESIDENT_BYTES": "0",
}  # fmt: skip
COLD = {"TOPICS_HOT_BYTES": "0", "TOPICS_BLOCK_CACHE_BYTES": "1"}


def holding(directory: Path, text: bytes) -> list[str]:
    """The files below a directory that hold `text`, whoever makes and removes some meanwhile."""
    found = []
    for path in directory.rglob("*"):
        try:
            if path.is_file() and text in path.read_bytes():
                found.append(str(path.relative_to(directory)))
        except FileNotFoundError:
            continue
    return found


def spoil(client: Client) -> dict[str, int]:
    """Secrets deleted by tag and by seq, evicted and expired; how many records each topic keeps."""
    mixed = [{"data": f"s3cret-{n}" if n % 3 else f"kept-{n}", "tag": f"t{n % 3}",
              "node": "s3cret" if n % 3 else "n", "meta": {"k": "s3cret" if n % 3 else "v"}}
             for n in range(300)]  # fmt: skip
    for start in range(0, 300, 50):
        client.post("/v0/topics/tagged", {"records": mixed[start : start + 50]})
    client.put("/v0/topics/capped", {"cap_records": 5})
    client.put("/v0/topics/brief", {"ttl_ms": 300})
    for name in ("capped", "brief", "low"):
        client.write(name, *[f"s3cret {name} {n}" for n in range(200)])
    return {"tagged": 100, "capped": 5, "brief": 0, "low": 10}


def lose(client: Client) -> None:
    for tag in ("t1", "t2"):
        assert client.post("/v0/topics/tagged/delete", {"match": tag}).status == 200
    client.write("capped", *["kept"] * 5)
    client.write("low", *["kept"] * 10)
    assert client.post("/v0/topics/low/delete", {"before_seq": 201}).json["count"] == 10
    time.sleep(0.4)


def erase(client: Client, names: list[str]) -> None:
    for name in names:
        reply = client.post(f"/v0/topics/{name}/rewrite")
        assert reply.status == 200, reply.raw
        body = reply.json
        assert set(body) == {"topic", "bytes_before", "bytes_after", "performance"}
        assert body["bytes_after"] <= body["bytes_before"]


def kept(client: Client, names: dict[str, int]) -> None:
    for name, count in names.items():
        records: list[Any] = []
        page = {"next_from_seq": 0, "caught_up": False}
        while not page["caught_up"]:
            page = client.diff(name, limit=1000, from_seq=page["next_from_seq"]).json
            records += page["records"]
        assert len(records) == count, name
        assert b"s3cret" not in str(records).encode()


@pytest.mark.parametrize("sealed", [False, True])
def test_grep_finds_nothing_on_a_running_server(tmp_path: Path, sealed: bool) -> None:
    variables = {**SMALL, "TOPICS_SEAL_RECORDS": "150" if sealed else "1000000"}
    with Served(tmp_path, **variables) as served, served.wait_ready().client() as client:
        names = spoil(client)
        lose(client)
        assert holding(served.data_dir, b"s3cret")
        (served.data_dir / "quarantine" / "000000000009.seg").write_bytes(b"s3cret")
        erase(client, list(names))
        assert holding(served.data_dir, b"s3cret") == []
        kept(client, names)
        assert [r["state"] for r in client.get("/v0/topics/capped/explain").json["ranges"]] == [
            "evicted", "live",
        ]  # fmt: skip
        assert served.stop() == 0
    with Served(tmp_path, **variables) as served, served.wait_ready().client() as client:
        kept(client, names)
        assert holding(served.data_dir, b"s3cret") == []


def test_what_is_in_a_directory_as_cold_store_goes_too(tmp_path: Path) -> None:
    cold = tmp_path / "cold"
    variables = {**SMALL, **COLD, "TOPICS_SEAL_RECORDS": "150", "TOPICS_COLD_DIR": str(cold)}
    with Served(tmp_path, **variables) as served, served.wait_ready().client() as client:
        names = spoil(client)
        until(lambda: bool(holding(cold, b"s3cret")))
        lose(client)
        erase(client, list(names))
        assert holding(served.data_dir, b"s3cret") == []
        assert holding(cold, b"s3cret") == []
        kept(client, names)


@pytest.mark.slow
def test_what_is_in_a_bucket_goes_too(tmp_path: Path) -> None:
    with S3Server(tmp_path) as s3:
        variables = {
            **SMALL, **COLD, **s3.env, "TOPICS_SEAL_RECORDS": "150",
            "TOPICS_COLD_DIR": s3.url("topics/x"),
        }  # fmt: skip
        with Served(tmp_path, **variables) as served, served.wait_ready().client() as client:
            names = spoil(client)
            until(lambda: bool(holding(s3.root, b"s3cret")))
            lose(client)
            erase(client, list(names))
            assert holding(served.data_dir, b"s3cret") == []
            assert holding(s3.root, b"s3cret") == []
            kept(client, names)


@pytest.mark.parametrize("deleted", [0, 1, 200])
def test_what_is_told_is_what_the_records_take(tmp_path: Path, deleted: int) -> None:
    """From the log to a segment nothing grows, and what was deleted is missing, however little."""
    with Served(tmp_path, **SMALL) as served, served.wait_ready().client() as client:
        client.write("t", *["x" * 20] * 200)
        client.post("/v0/topics/t/delete", {"before_seq": deleted + 1})
        first, again = (client.post("/v0/topics/t/rewrite").json for _ in range(2))
        sizes = first["bytes_before"], first["bytes_after"]
        assert (sizes[0] > sizes[1]) == (deleted > 0)
        assert (sizes[1] > 0) == (deleted < 200)
        assert (again["bytes_before"], again["bytes_after"]) == (sizes[1], sizes[1])


def test_errors_and_scopes(tmp_path: Path) -> None:
    keys = "root-secret,reader:read,deleter:delete,admin:a"
    with (
        Served(tmp_path, TOPICS_API_KEYS=keys, **SMALL) as served,
        served.wait_ready("root-secret").client("root-secret") as client,
    ):
        client.write("a", 1)
        assert client.post("/v0/topics/missing/rewrite").code == "topic_not_found"
        assert client.post("/v0/topics/.../rewrite").status in (400, 404)
        assert client.get("/v0/topics/a/rewrite").status == 405
        for token in ("reader", "deleter"):
            assert client.with_token(token).post("/v0/topics/a/rewrite").status == 403
        assert client.with_token("admin").post("/v0/topics/a/rewrite").status == 200
        document = client.get("/v0/openapi.json").json
        assert "post" in document["paths"]["/v0/topics/{topic}/rewrite"]


def test_a_store_that_is_away_is_told_and_asked_again(tmp_path: Path) -> None:
    cold = tmp_path / "cold"
    variables = {**SMALL, **COLD, "TOPICS_SEAL_RECORDS": "150", "TOPICS_COLD_DIR": str(cold)}
    with Served(tmp_path, **variables) as served, served.wait_ready().client() as client:
        names = spoil(client)
        until(lambda: bool(holding(cold, b"s3cret")))
        lose(client)
        cold.rename(tmp_path / "gone")
        reply = client.post("/v0/topics/tagged/rewrite")
        assert (reply.status, reply.code) == (503, "store_unreachable")
        assert client.write("tagged", "still served").status == 200
        (tmp_path / "gone").rename(cold) if not cold.exists() else merge(tmp_path / "gone", cold)
        until(lambda: client.post("/v0/topics/tagged/rewrite").status == 200)
        assert holding(cold, b"s3cret-1") == []
        kept(client, {**names, "tagged": 101})


def merge(source: Path, target: Path) -> None:
    for path in source.iterdir():
        path.rename(target / path.name)


@pytest.mark.slow
def test_several_ask_at_once_and_readers_see_nothing_of_it(tmp_path: Path) -> None:
    """Records are written, deleted and read back while their segments are rewritten."""
    with inside(tmp_path / "data", **SMALL, TOPICS_SEAL_RECORDS="200") as served:
        ended = threading.Event()
        wrong: list[Any] = []
        reader = threading.Thread(target=read_all, args=(served, ended, wrong))
        reader.start()
        with served.client() as client:
            live: dict[int, int] = {}
            for turn in range(12):
                seqs = write(client, turn)
                live.update(seqs)
                doomed = [seq for seq, n in live.items() if n % 4 != turn % 4]
                assert client.post("/v0/topics/a/delete", {"match": f"t{turn % 3}"}).status == 200
                live = {s: n for s, n in live.items() if n % 3 != turn % 3}
                assert doomed
                askers = [threading.Thread(target=ask, args=(served, wrong)) for _ in range(3)]
                for asker in askers:
                    asker.start()
                for asker in askers:
                    asker.join()
                page = client.post("/v0/topics/a/range", {"to_seq": 10**9}).json
                assert {r["$seq"]: r["data"]["n"] for r in page["records"]} == live
        ended.set()
        reader.join()
        assert wrong == []


def write(client: Client, turn: int) -> dict[int, int]:
    numbers = range(turn * 100, turn * 100 + 100)
    records = [{"data": {"n": n, "pad": "x" * 200}, "tag": f"t{n % 3}"} for n in numbers]
    seqs = client.post("/v0/topics/a", {"records": records}).json["seqs"]
    return dict(zip(seqs, numbers, strict=True))


def ask(served: Inside, wrong: list[Any]) -> None:
    with served.client() as client:
        reply = client.post("/v0/topics/a/rewrite")
        if reply.status != 200:
            wrong.append(reply.raw)


def read_all(served: Inside, ended: threading.Event, wrong: list[Any]) -> None:
    with served.client() as client:
        while not ended.is_set():
            reply = client.diff("a", limit=1000)
            records = reply.json.get("records", []) if reply.status != 404 else []
            if reply.status not in (200, 404):
                wrong.append(reply.raw)
            wrong.extend(r for r in records if len(r["data"]["pad"]) != 200)


@pytest.mark.slow
def test_space_comes_back_by_itself(tmp_path: Path) -> None:
    """A topic that was overwritten ten times over takes no more than twice its live bytes."""
    variables = {
        **SMALL, "TOPICS_SEAL_RECORDS": "300", "TOPICS_SEAL_AGE_MS": "300",
        "TOPICS_REWRITE_AGE_MS": "4000",
    }  # fmt: skip
    with Served(tmp_path, **variables) as served, served.wait_ready().client() as client:
        for turn in range(10):
            records = [{"data": "x" * 300, "tag": f"k{n}"} for n in range(200)]
            client.post("/v0/topics/a", {"records": records})
            for tag in random.Random(turn).sample(range(200), 200 if turn < 9 else 0):
                client.post("/v0/topics/a/delete", {"match": f"k{tag}"})
            client.write("a", *["y" * 300] * 4)
        client.post("/v0/topics/a/delete", {"match": ["tag", "Glob", "nothing*"]})
        live = client.get("/v0/topics/a").json["bytes"]
        segments = served.data_dir / "seg"

        def taken() -> int:
            return sum(len(raw) for name, raw in image(segments).items() if name.endswith(".seg"))

        until(lambda: taken() <= 2 * live)
        metrics = client.metrics()
        assert metrics["topics_erased_bytes_total"] > 0
        assert metrics["topics_segment_bytes"] <= 3 * live
        assert metrics["topics_dead_bytes"] <= live


@pytest.mark.slow
def test_deleted_bytes_leave_within_their_time(tmp_path: Path) -> None:
    """Too few for a share, nobody asks, nobody writes: they go all the same."""
    variables = {**SMALL, "TOPICS_REWRITE_AGE_MS": "3000"}
    with Served(tmp_path, **variables) as served, served.wait_ready().client() as client:
        client.write("a", *[f"kept {n}" for n in range(100)])
        client.post("/v0/topics/a", {"records": [{"data": "s3cret", "tag": "s"}]})
        client.put("/v0/topics/b", {"ttl_ms": 100})
        client.write("b", "s3cret")
        client.post("/v0/topics/a/delete", {"match": "s"})
        until(lambda: holding(served.data_dir, b"s3cret") == [])
        assert client.get("/v0/topics/a").json["count"] == 100


@pytest.mark.slow
def test_a_server_killed_while_it_rewrites_loses_nothing(tmp_path: Path) -> None:
    """kill -9 at any moment of a rewrite: what was acknowledged is there, what was deleted gone."""
    variables = {**SMALL, "TOPICS_SEAL_RECORDS": "400"}
    draw = random.Random(5)
    live: dict[int, int] = {}
    numbers = itertools.count()
    for turn in range(8):
        with Served(tmp_path, **variables) as served, served.wait_ready().client() as client:
            client.put("/v0/topics/a", {"durability": "fsync"})
            page = client.post("/v0/topics/a/range", {"to_seq": 10**9, "max_records": 10**6}).json
            assert {r["$seq"]: r["data"]["n"] for r in page["records"]} == live, turn
            assert page["gaps"] == []
            for _ in range(4):
                chosen = list(itertools.islice(numbers, 250))
                records = [{"data": {"n": n, "p": "x" * 100}, "tag": f"t{n % 5}"} for n in chosen]
                seqs = client.post("/v0/topics/a", {"records": records}).json["seqs"]
                live.update(zip(seqs, chosen, strict=True))
            gone = draw.sample(range(5), 2)
            for tag in gone:
                assert client.post("/v0/topics/a/delete", {"match": f"t{tag}"}).status == 200
            live = {seq: n for seq, n in live.items() if n % 5 not in gone}
            asker = threading.Thread(target=ask_until_killed, args=(served,))
            asker.start()
            time.sleep(draw.random() * 0.4)
            served.kill()
            asker.join()


def ask_until_killed(served: Served) -> None:
    try:
        with served.client() as client:
            client.post("/v0/topics/a/rewrite")
    except OSError:
        pass
