"""What somebody meets who uses the commands for the first time, and how a script is told."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from unittest import mock

import msgspec
import pytest
import typer

from tests.support.commands import Topics
from topics import Client
from topics.cli import exits, server

pytestmark = pytest.mark.slow

AWAY = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    "arguments",
    [("append", "t"), ("tail", "-f", "t"), ("export", "t", "-"), ("queue", "produce", "q"),
     ("queue", "work", "q", "--", "cat"), ("kv", "follow", AWAY, "b", "--into", "c")],
)  # fmt: skip
def test_what_is_patient_says_soon_that_there_is_no_server(
    topics: Topics, arguments: tuple[str, ...]
) -> None:
    """And goes on when there is one; Ctrl-C ends it as ever."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    waiting = topics.start(*arguments[:split], "--url", AWAY, *arguments[split:])
    began_s = time.monotonic()
    assert waiting.stderr is not None
    told = waiting.stderr.readline()
    assert told.startswith(f"no answer from {AWAY}: ")
    assert told.endswith("; waiting for it, up to 30 s\n")
    # With the start of the process, and long before it gives up.
    assert time.monotonic() - began_s < 20
    waiting.send_signal(signal.SIGINT)
    waiting.communicate(timeout=30)
    assert waiting.returncode == exits.INTERRUPTED


@pytest.mark.parametrize(
    ("lines", "flags", "words"),
    [
        ('{"data":1}\n\n{"tag":"x"}\n', ["--records"], "line 3 of standard input: "),
        ('{"data":1}\n\n{"data":1,"tag":5}\n', ["--records"], "line 3 of standard input: "),
        ('{"data":1}\n{"data"\n', ["--records"], "line 2 of standard input is not JSON ("),
        ("1\nNaN\n", [], "line 2 of standard input is not JSON (invalid character (byte 0)); --t"),
        ('1\n"' + "x" * 1_100_000 + '"\n', [], "line 2 of standard input: "),
    ],
)
def test_a_line_that_is_refused_is_named(
    topics: Topics, lines: str, flags: list[str], words: str
) -> None:
    told = topics("append", "refusing", *flags, stdin=lines, code=exits.NOT_SO).stderr
    assert words in told.splitlines()[-1]


def test_a_file_that_can_not_be_read_is_named(topics: Topics, tmp_path: Path) -> None:
    told = topics("append", "t", str(tmp_path), code=exits.NOT_SO).stderr.splitlines()
    assert told == ["0 records sent to t", f"topics: {tmp_path}: Is a directory"]
    told = topics("append", "t", str(tmp_path / "no"), code=exits.NOT_SO).stderr.splitlines()
    assert told[-1] == f"topics: {tmp_path / 'no'}: No such file or directory"


def test_an_export_that_can_not_be_writes_nothing(
    topics: Topics, client: Client, tmp_path: Path
) -> None:
    client.append("few", [{"data": 1}, {"data": 2}])
    for file in ("f.jsonl", "f.parquet"):
        place = str(tmp_path / file)
        topics("export", "few", place, "--from", "2", "--to", "1", code=exits.USAGE)
        told = topics("export", "few", place, "--from", "9", code=exits.NOT_SO).stderr
        assert "its head is 2" in told
        assert "0 records and 0 gaps" in topics("export", "few", place, "--from", "2").stderr
        assert "1 record and 0 gaps" in topics("export", "few", place, "--from", "1").stderr
    assert "is a directory" in topics("export", "few", str(tmp_path), code=exits.USAGE).stderr
    missing = str(tmp_path / "none" / "f.jsonl")
    assert (
        "there is no such directory" in topics("export", "few", missing, code=exits.NOT_SO).stderr
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.jsonl", "f.parquet"]


def test_an_export_leaves_pipes_devices_and_links_where_they_are(
    topics: Topics, client: Client, tmp_path: Path
) -> None:
    """A pipe is written to, and so is what a link leads to: neither becomes a file."""
    client.append("piped", [{"data": 1}, {"data": 2}])
    pipe, link, real = tmp_path / "pipe", tmp_path / "link.jsonl", tmp_path / "real.jsonl"
    os.mkfifo(pipe)
    # Opened for both: neither end waits for the other.
    with open(os.open(pipe, os.O_RDWR | os.O_NONBLOCK), "rb", buffering=0) as reader:
        topics("export", "piped", str(pipe))
        assert (reader.read(10_000) or b"").count(b"\n") == 2
    assert pipe.is_fifo()
    link.symlink_to(real)
    for _ in range(2):
        topics("export", "piped", str(link))
        assert len(real.read_text().splitlines()) == 2
        assert link.is_symlink()
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("create t --durability often", "'often' is not one of 'ephemeral', 'memory', 'disk'"),
        ("create t --discard new", "'new' is not one of 'old', 'reject'"),
        ("create t --priority 5000", "5000 is more than 1000"),
        ("create t --lease 1ms", "--lease 1ms: it must be from 100 ms"),
        ("create t --cap-records few", "'few' is not a whole number"),
        ("ls --sort sizes", "'--sort': 'sizes' is not one of"),
    ],
)  # fmt: skip
def test_a_value_that_can_not_be_is_shown_as_it_was_typed(
    topics: Topics, arguments: str, words: str
) -> None:
    assert words in topics("topic", *arguments.split(), code=exits.USAGE).stderr


def test_a_key_with_the_end_of_its_line_is_told_and_not_shown(topics: Topics) -> None:
    told = topics("topic", "ls", "--token", "secret\r\n", code=exits.NOT_SO).stderr
    assert "line break" in told
    assert "secret" not in told


def test_jobs_are_not_written_into_a_log(topics: Topics, client: Client) -> None:
    client.append("only-a-log", [{"data": 1}])
    told = topics("queue", "produce", "only-a-log", stdin="1\n", code=exits.NOT_SO).stderr
    assert "is a log; nothing was written" in told
    assert client.topic("only-a-log").count == 1


def test_a_worker_needs_a_command_that_is_there(topics: Topics, client: Client) -> None:
    client.create_topic("idle", type="queue")
    told = topics("queue", "work", "idle", "--", "./no-such-command", code=exits.USAGE).stderr
    assert "there is no command './no-such-command'" in told


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_worker_that_is_interrupted_says_so_by_its_exit_code(
    topics: Topics, client: Client, number: signal.Signals, code: int
) -> None:
    queue = f"stopped-{code}"
    client.create_topic(queue, type="queue")
    client.append(queue, [{"data": 1}])
    worker = topics.start("queue", "work", queue, "--", "cat")
    deadline = time.monotonic() + 30
    while client.topic(queue).count and time.monotonic() < deadline:
        time.sleep(0.02)
    worker.send_signal(number)
    _, told = worker.communicate(timeout=30)
    assert (worker.returncode, told) == (code, "1 done, 0 failed, 0 lost\n")


def test_top_shows_lag_and_pressure(topics: Topics, client: Client) -> None:
    client.append("behind", [{"data": n} for n in range(7)])
    client.set_cursor("behind", "slow", 3)
    [row] = [row for row in topics.json("top", "-n", "1000") if row["topic"] == "behind"]
    assert row["lag"] == 4
    shown = topics("top", "--once", "-n", "1000").stdout
    assert "pressure  queue " in shown
    assert "lag" in shown


def test_a_router_that_is_described_anew_says_what_changed(topics: Topics, client: Client) -> None:
    client.create_topic("here")
    assert "created" in topics("router", "create", "here", "there").stderr
    told = topics("router", "create", "here", "there", "--tag", "a:*").stderr
    assert 'filter: null → ["tag","Glob","a:*"]' in told
    assert "tag Glob a:*" in topics("router", "show", "here->there").stdout


def test_show_leaves_out_what_a_topic_does_not_have(topics: Topics, client: Client) -> None:
    client.create_topic("plain")
    client.create_bucket("kept", history=3)
    shown = topics("topic", "show", "plain").stdout
    assert "UNSET" not in shown
    assert "history" not in shown
    names = [line.split("  ")[0] for line in shown.splitlines()]
    assert len(names) == len(set(names))
    assert "history                3" in topics("topic", "show", "kv:kept").stdout


def test_a_place_for_backups_is_asked_for_and_not_made_up(topics: Topics, tmp_path: Path) -> None:
    """`ls` alone is no place; one that can not be read is exit 3, also in a bucket."""
    for verb in ("ls", "verify"):
        assert f"{verb} needs DEST" in topics("backup", verb, code=exits.USAGE).stderr
        topics("backup", verb, str(tmp_path / "none"), code=exits.UNREACHABLE)
    topics.environment |= {
        "AWS_ENDPOINT_URL": AWAY, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s",
    }  # fmt: skip
    told = topics("backup", "ls", "s3://nobody/here", code=exits.UNREACHABLE).stderr
    assert told.startswith("topics: s3://nobody/here can not be read: ")
    assert topics.json("backup", "ls", str(tmp_path)) == []


def test_since_and_a_number_are_the_last_records_of_those(topics: Topics, client: Client) -> None:
    client.append("young", [{"data": n} for n in range(5)])
    client.delete("young", before_seq=2)
    found = topics.json("tail", "young", "--since", "1h", "-n", "2")
    assert [one["data"] for one in found] == [3, 4]
    assert len(topics.json("tail", "young", "--since", "1h")) == 4
    assert topics.json("tail", "young", "--since", "1h", "-n", "0") == []


def test_what_was_exported_can_be_appended(topics: Topics, client: Client, tmp_path: Path) -> None:
    """With tag, node, meta and every spelling of the data; a gap is left out, and said to be."""
    client.create_topic("from", cap_records=4)
    client.append("from", [{"data": n} for n in range(3)])
    odd = msgspec.Raw(b'{"a" : 1.0,"a":"\\ud800", "gap_from": 1, "$seq": 2}')
    client.append("from", [{"data": odd, "tag": "t", "node": "n", "meta": {"k": "v"}}])
    client.append("from", [{"data": None}, {"data": "x", "tag": "u"}])
    file = str(tmp_path / "from.jsonl")
    topics("export", "from", file)
    told = topics("append", "to", "--records", file).stderr
    assert told == "4 records sent to to (seq 1 to 4); 1 gap left out\n"
    here = client.diff("from", include_tags=True, from_seq=2)
    there = client.diff("to", include_tags=True)
    for before, after in zip(here.records, there.records, strict=True):
        assert bytes(before.data) == bytes(after.data)
        assert (before.tag, before.node, before.meta) == (after.tag, after.node, after.meta)
    assert there.records[1].tag == "t"


def test_ctrl_c_at_a_question_is_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> bool:
        raise typer.Abort

    monkeypatch.setattr("sys.stdin", mock.Mock(isatty=lambda: True))
    monkeypatch.setattr(typer, "confirm", interrupted)
    with pytest.raises(KeyboardInterrupt):
        server.is_sure("Remove all?", yes=False)


def test_a_topic_made_anew_is_not_called_lost(topics: Topics, client: Client) -> None:
    client.append("again", [{"data": 1}])
    shown = topics("diff", "again", "--from", "9").stdout.splitlines()
    assert shown[0].startswith("recreated: ")
    assert "lost" not in shown[0]
    assert len(shown) == 2
