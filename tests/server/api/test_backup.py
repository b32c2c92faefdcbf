"""`POST /v0/backup` and `topics backup`, `topics restore`: a running server, and nothing of it."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.s3 import S3Server
from tests.support.servers import Client, Served, environment, inside
from topics.engine.engine import Engine
from topics.engine.offline import backups
from topics.engine.offline.check import check
from topics.storage.fs import OsFs
from topics.storage.tiers import open_store

pytestmark = pytest.mark.slow

SMALL = {"TOPICS_WAL_FILE_BYTES": "262144", "TOPICS_WAL_RESERVE_BYTES": "4096"}


def topics(*arguments: str, code: int = 0, **variables: str) -> Any:
    """The command as a script calls it; its JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "topics", *arguments, "--json"], env=environment(**variables),
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout) if done.stdout else None


def ended(client: Client) -> dict[str, Any]:
    """What became of the backup that runs."""
    deadline = time.monotonic() + 60
    while True:
        state: dict[str, Any] = client.get("/v0/backup").json
        if state["state"] != "running":
            return state
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextlib.contextmanager
def writing(port: int, topic: str) -> Iterator[list[int]]:
    """Somebody who writes all the time; the seqs that were acknowledged."""
    seqs: list[int] = []
    stop = threading.Event()

    def run() -> None:
        with Client(port) as client:
            while not stop.is_set():
                reply = client.write(topic, len(seqs))
                assert reply.status == 200
                seqs.append(reply.json["last_seq"])

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield seqs
    finally:
        stop.set()
        thread.join()


def test_a_server_backs_itself_up_while_it_is_written_to(tmp_path: Path) -> None:
    """Everything acknowledged before it was asked for is in it; `check` finds nothing wrong."""
    dest, target = tmp_path / "backups", tmp_path / "restored"
    with inside(tmp_path / "data", **SMALL) as served, Client(served.port) as client:
        assert client.get("/v0/backup").code == "not_found"
        client.put("/v0/topics/t", {"durability": "disk"})
        with writing(served.port, "t") as seqs:
            while len(seqs) < 200:
                time.sleep(0.01)
            before = seqs[-1]
            reply = client.post("/v0/backup", {"dest": str(dest)})
            assert (reply.status, reply.json["state"]) == (202, "running")
            state = ended(client)
            assert state["state"] == "done", state
        url = f"http://127.0.0.1:{served.port}"
        again = topics("backup", str(dest), TOPICS_URL=url)
        assert again["state"] == "done"
        assert again["bytes_copied"] < again["bytes"]
        head = client.get("/v0/topics/t").json["head_seq"]
    listed = topics("backup", "ls", str(dest))
    assert [line["id"] for line in listed] == [state["id"], again["id"]]
    assert topics("backup", "verify", str(dest))["ok"]
    done = topics("restore", str(dest), "--to", str(target))
    assert (done["backup"], done["topics"]) == (again["id"], 1)
    assert topics("check", str(target))["ok"]
    with Engine.open(target) as engine:
        assert engine.state("t").head_seq == head
    first = str(tmp_path / "first")
    topics("restore", str(dest), "--to", first, "--backup", state["id"])
    with Engine.open(first) as engine:
        assert before <= engine.state("t").head_seq <= head


def test_errors_and_scopes(tmp_path: Path) -> None:
    """It needs `admin`, a place that can be one, and nobody else who backs up."""
    keys = "root:admin,rest:read+write,few:admin:a-"
    with inside(tmp_path / "data", TOPICS_API_KEYS=keys) as served:
        with Client(served.port, "root") as client:
            for dest in ("relative", "ftp://x/y", "", "/nul\0", "/" * 5000, 5, None):
                assert client.post("/v0/backup", {"dest": dest}).status == 400, dest
            assert client.post("/v0/backup").status == 400
            inner = str(tmp_path / "data" / "backups")
            assert client.post("/v0/backup", {"dest": inner}).status == 400
            assert client.post("/v0/backup", {"dest": "/proc/nowhere"}).status == 202
            state = ended(client)
            assert (state["state"], state["ended_ts"] is None) == ("failed", False)
            assert state["error"]
        # A key for some topics is none for all of them.
        for key in ("rest", "few"):
            with Client(served.port, key) as client:
                assert client.post("/v0/backup", {"dest": "/tmp/x"}).code == "forbidden"
                assert client.get("/v0/backup").code == "forbidden"


def test_without_a_server_the_directory_is_opened(tmp_path: Path) -> None:
    """By name, or the one that a server would serve; one that is in use is refused."""
    data, dest = tmp_path / "data", tmp_path / "backups"
    with Engine.open(data) as engine:
        engine.append("t", [{"data": 1}])
    away = {"TOPICS_URL": "http://127.0.0.1:9"}
    assert topics("backup", str(dest), "--data-dir", str(data), **away)["topics"] == 1
    assert topics("backup", str(dest), TOPICS_DATA_DIR=str(data), **away)["topics"] == 1
    topics("backup", str(dest), TOPICS_DATA_DIR=str(tmp_path / "none"), code=3, **away)
    with Engine.open(data):
        topics("backup", str(dest), "--data-dir", str(data), code=3)
    assert len(topics("backup", "ls", str(dest))) == 2


def test_exit_codes(tmp_path: Path) -> None:
    """1 for what is not so, 2 for what can not be meant, 3 for what can not be reached."""
    data, dest = tmp_path / "data", tmp_path / "backups"
    with Engine.open(data) as engine:
        engine.append("t", [{"data": 1}])
        engine.backup(dest)
    here = str(dest)
    topics("backup", "ls", str(tmp_path / "none"), code=3)
    (tmp_path / "empty").mkdir()
    found = topics("backup", "verify", str(tmp_path / "empty"), code=1)
    assert [problem["problem"] for problem in found["problems"]] == ["no_backup"]
    topics("backup", "rm", here, code=2)
    topics("restore", here, "--to", str(data), code=1)
    topics("restore", here, "--to", str(tmp_path / "r"), "--at", "yesterday", code=2)
    topics("restore", here, "--to", str(tmp_path / "r"), "--seq", "1", code=2)
    topics("restore", here, "--to", str(tmp_path / "r"), "--at", "2001-01-01", code=1)
    topics("restore", here, "--to", str(tmp_path / "r"), "--topic", "t", "--seq", "9", code=1)
    assert not (tmp_path / "r").exists()
    (part,) = dest.glob("wal/*/*.part")
    part.write_bytes(part.read_bytes()[:-1])
    found = topics("backup", "verify", here, code=1)
    assert [problem["problem"] for problem in found["problems"]] == ["damaged_object"]
    topics("restore", here, "--to", str(tmp_path / "r"), code=1)
    assert not (tmp_path / "r").exists()


def test_into_a_bucket_and_back(tmp_path: Path) -> None:
    """The objects of a bucket are those of a directory; a second backup stores only what is new."""
    with S3Server(tmp_path) as s3:
        dest = s3.url("backups/here")
        with Served(tmp_path, **SMALL, **s3.env) as served, served.wait_ready().client() as client:
            client.write("t", *["x" * 1000] * 500)
            assert client.post("/v0/backup", {"dest": dest}).status == 202
            first = ended(client)
            assert first["state"] == "done", first
            client.write("t", "last")
            client.post("/v0/backup", {"dest": dest})
            second = ended(client)
            assert second["bytes_copied"] < 10_000 < 500_000 < first["bytes_copied"]
        assert len(topics("backup", "ls", dest, **s3.env)) == 2
        assert topics("backup", "verify", dest, **s3.env)["ok"]
        target = str(tmp_path / "restored")
        topics("restore", dest, "--to", target, **s3.env)
        with Engine.open(target) as engine:
            assert engine.state("t").head_seq == 501


def test_killed_in_the_middle_there_is_no_backup(tmp_path: Path) -> None:
    """A server that is killed while it backs up leaves objects that no manifest names."""
    draw = random.Random(7)
    dest = tmp_path / "backups"
    store = open_store(str(dest), OsFs())
    made = 0
    for _ in range(6):
        with Served(tmp_path, **SMALL) as served, served.wait_ready().client() as client:
            client.write("t", *["x" * 1000] * 300)
            client.post("/v0/backup", {"dest": str(dest)})
            time.sleep(draw.random() * 0.4)
            state = client.get("/v0/backup").json["state"]
            served.kill()
            made += state == "done"
        found = backups.verify(store)
        assert found.ok, found.problems
        assert found.backups >= made
    with Served(tmp_path, **SMALL) as served, served.wait_ready().client() as client:
        client.post("/v0/backup", {"dest": str(dest)})
        assert ended(client)["state"] == "done"
    topics("restore", str(dest), "--to", str(tmp_path / "r"))
    with Engine.open(tmp_path / "r") as engine:
        assert engine.state("t").head_seq == 1800


def test_killed_in_the_middle_there_is_no_directory(tmp_path: Path) -> None:
    """A restore that is killed leaves nothing under the name that it was asked for."""
    data, dest = tmp_path / "data", tmp_path / "backups"
    with Engine.open(data) as engine:
        for _ in range(20):
            engine.append("t", [{"data": "x" * 1000}] * 100)
        engine.checkpoint()
        engine.append("t", [{"data": "x" * 1000}] * 100)
        engine.backup(dest)
    arguments = [sys.executable, "-m", "topics", "restore", str(dest), "--to"]
    is_killed = 0
    # From when it has begun to build on.
    for number, delay_s in enumerate((0.0, 0.01, 0.03, 0.1, 0.2, 0.4)):
        target = tmp_path / f"restored{number}"
        process = subprocess.Popen(
            [*arguments, str(target)], env=environment(), stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 20
        while not list(tmp_path.glob(f".{target.name}.*")) and time.monotonic() < deadline:
            if process.poll() is not None:
                break
            time.sleep(0.002)
        time.sleep(delay_s)
        process.kill()
        process.wait()
        is_killed += not target.exists()
        if not target.exists():
            topics("restore", str(dest), "--to", str(target))
        assert check(OsFs(), str(target)).ok
        with Engine.open(target) as engine:
            assert engine.state("t").head_seq == 2100
    assert is_killed
