"""The commands that speak to a server, as scripts use them: streams, JSON and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.commands import Topics
from topics import Client
from topics.cli import exits

# Most of them start a process, or several.
pytestmark = pytest.mark.slow


# -- append ----------------------------------------------------------------------------------------


def test_each_line_is_the_data_of_one_record_verbatim(topics: Topics, client: Client) -> None:
    """Spelling included; the count is on standard error."""
    lines = ['{"b": 1.0, "a":"ü"}', "17", '"\\ud800"', "null", "[1 , 2]"]
    done = topics("append", "lines", stdin="\n".join(lines) + "\n\n")
    assert done.stdout == ""
    assert "5 records" in done.stderr
    records = client.diff("lines").records
    assert [bytes(record.data).decode() for record in records] == lines


def test_files_in_order_and_the_last_line_without_an_end(
    topics: Topics, client: Client, tmp_path: Path
) -> None:
    """Also `-` in between."""
    (tmp_path / "a").write_text("1\n2\n")
    (tmp_path / "b").write_text("4")
    answer = topics.json(
        "append", "files", str(tmp_path / "a"), "-", str(tmp_path / "b"), stdin="3\n"
    )
    assert answer == {"topic": "files", "count": 4, "first_seq": 1, "last_seq": 4}
    assert [record.value for record in client.diff("files").records] == [1, 2, 3, 4]


def test_whole_records_and_plain_text(topics: Topics, client: Client) -> None:
    """`--records` takes tags and meta, `--text` takes anything."""
    record = '{"data": 1, "tag": "x", "meta": {"k": "v"}}'
    topics("append", "whole", "--records", stdin=record + "\n")
    found = client.diff("whole", include_tags=True).records[0]
    assert (found.value, found.tag, found.meta) == (1, "x", {"k": "v"})
    topics("append", "plain", "--text", "--node", "n", stdin='hello "you"\n')
    assert client.diff("plain").records[0].value == 'hello "you"'


@pytest.mark.parametrize("bad", ["hello", "1,2", "[1\n2],3", '{"a":1', '1}, {"data": 2'])
def test_a_line_that_is_no_json_is_named(topics: Topics, client: Client, bad: str) -> None:
    """Nothing of its batch is sent, and no line passes for two records."""
    done = topics("append", "strict", stdin=f"1\n{bad}\n", code=exits.NOT_SO)
    assert "line 2 of standard input is not JSON" in done.stderr
    assert "0 records" in done.stderr
    assert "--text" in done.stderr


def test_text_that_is_not_utf_8_is_named(topics: Topics, tmp_path: Path) -> None:
    """Like a line that is no JSON: another text in its place would be a silent loss."""
    (tmp_path / "latin").write_bytes("one\ncaf\u00e9\n".encode("latin-1"))
    done = topics("append", "latin", "--text", str(tmp_path / "latin"), code=exits.NOT_SO)
    assert f"line 2 of {tmp_path / 'latin'} is not UTF-8" in done.stderr
    assert "0 records" in done.stderr


def test_ctrl_c_says_what_was_sent(topics: Topics, client: Client) -> None:
    """Exit code 130, and the count is what is there."""
    process = topics.start("append", "interrupted")
    assert process.stdin is not None
    process.stdin.write("1\n2\n3\n")
    process.stdin.flush()
    deadline = time.monotonic() + 20
    while not list(client.all_topics(prefix="interrupted")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=20)
    assert process.returncode == exits.INTERRUPTED
    assert f"interrupted: {client.topic('interrupted').count} records" in told


def test_lines_leave_as_they_come(topics: Topics, client: Client) -> None:
    """A slow pipe does not wait for a full batch."""
    process = topics.start("append", "slow-pipe")
    assert process.stdin is not None
    for number in range(3):
        process.stdin.write(f"{number}\n")
        process.stdin.flush()
        deadline = time.monotonic() + 20
        while not any(one.head_seq > number for one in client.all_topics(prefix="slow-pipe")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    process.communicate(timeout=20)
    assert process.returncode == 0


# -- tail, diff, export, explain, delete -----------------------------------------------------------


@pytest.fixture
def capped(client: Client) -> str:
    """Seqs 1 to 4 evicted, 6 deleted, 5 and 7 to 9 live."""
    if not list(client.all_topics(prefix="capped")):
        client.create_topic("capped", cap_records=5)
        for number in range(9):
            client.append("capped", [{"data": {"n": number}, "tag": f"t{number}"}])
        client.delete("capped", match="t5")
    return "capped"


def test_tail_shows_the_last_records(topics: Topics, capped: str) -> None:
    """And steps over what was deleted."""
    found = topics.json("tail", capped, "-n", "3")
    assert [item["$seq"] for item in found] == [7, 8, 9]
    assert found[0]["data"] == {"n": 6}
    assert found[0]["topic"] == capped
    lines = topics("tail", capped, "-n", "1").stdout.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("9 ")
    assert lines[0].endswith('{"n":8}')


def test_tail_shows_losses_in_their_place(topics: Topics, capped: str) -> None:
    """Whoever asks for more than there is sees what happened to the rest."""
    found = topics.json("tail", capped, "-n", "100")
    assert found[0] == {"topic": capped, "gap_from": 1, "gap_to": 4, "reason": "cap"}
    assert [item["$seq"] for item in found[1:]] == [5, 7, 8, 9]
    assert "1–4 lost: cap" in topics("tail", capped, "-n", "100").stdout


def test_a_topic_that_is_named_twice_is_shown_once(topics: Topics, capped: str) -> None:
    """As each of its records is, with -f too."""
    once = topics("tail", capped, "-n", "2").stdout
    assert topics("tail", capped, capped, "-n", "2").stdout == once


def test_tail_since(topics: Topics, capped: str) -> None:
    """Younger than, with the loss that may be; a bad time is a usage error."""
    found = topics.json("tail", capped, "--since", "1h")
    assert found[0] == {"topic": capped, "gap_from": 1, "gap_to": 4, "reason": "cap"}
    assert [item["$seq"] for item in found[1:]] == [5, 7, 8, 9]
    assert topics.json("tail", capped, "--since", "0s") == []
    assert topics.json("tail", capped, "--since", "99999d") == found
    assert "10m" in topics("tail", capped, "--since", "soon", code=exits.USAGE).stderr


def test_tail_follows(topics: Topics, client: Client) -> None:
    """The last ones first, then what comes, until Ctrl-C."""
    client.append("live-a", [{"data": 1}])
    client.append("live-b", [{"data": 2}])
    process = topics.start("tail", "-f", "--json", "live-a", "live-b")
    assert process.stdout is not None
    first = [json.loads(process.stdout.readline()) for _ in range(2)]
    assert [(item["topic"], item["data"]) for item in first] == [("live-a", 1), ("live-b", 2)]
    client.append("live-b", [{"data": 3}])
    assert json.loads(process.stdout.readline())["data"] == 3
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == exits.INTERRUPTED


def test_diff_is_one_page(topics: Topics, capped: str) -> None:
    """With the tombstone, and where to go on."""
    page = topics.json("diff", capped, "-n", "2")
    assert page["tombstone"]["gap_to"] == 4
    assert page["next_from_seq"] == 7
    assert "next: --from 7" in topics("diff", capped, "-n", "2").stderr


def test_export_as_json_lines_and_parquet(topics: Topics, capped: str, tmp_path: Path) -> None:
    """Gaps are in their place; the file is whole."""
    target = tmp_path / "out.jsonl"
    topics("export", capped, str(target))
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert [item.get("$seq", item.get("gap_from")) for item in lines] == [1, 5, 7, 8, 9]
    assert topics("export", capped, "-").stdout == target.read_text()
    table = tmp_path / "out.parquet"
    told = topics.json("export", capped, str(table))
    assert (told["records"], told["gaps"]) == (4, 1)
    parquet = pytest.importorskip("pyarrow.parquet")
    assert parquet.read_table(table)["seq"].to_pylist() == [1, 5, 7, 8, 9]
    assert sorted(os.listdir(tmp_path)) == ["out.jsonl", "out.parquet"]


def test_export_with_json_to_standard_output_is_one_value(
    topics: Topics, client: Client, capped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An array of what are lines without it, however many pages; the summary is said beside it."""
    items = [json.loads(line) for line in topics("export", capped, "-").stdout.splitlines()]
    done = topics("export", capped, "-", "--json")
    assert json.loads(done.stdout) == items
    assert "4 records and 1 gap" in done.stderr
    monkeypatch.setattr("topics.cli.export.PAGE_BYTES", 1)
    assert topics.json("export", capped, "-") == items
    client.create_topic("empty")
    assert topics.json("export", "empty", "-") == []


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1"])
def test_standard_output_is_one_by_whatever_name(
    topics: Topics, capped: str, name: str, tmp_path: Path
) -> None:
    """A pipe or a file, which is not replaced: what stood in it stays."""
    lines = topics("export", capped, "-").stdout
    out = tmp_path / "out.json"
    for flags in ([], ["--json"]):
        command = [sys.executable, "-m", "topics", "export", capped, name, *flags]
        piped = subprocess.run(command, env=topics.environment, capture_output=True, timeout=60)
        out.write_text("before\n")
        with out.open("a") as file:
            subprocess.run(command, env=topics.environment, stdout=file, check=True, timeout=60)
        before, _, text = out.read_text().partition("\n")
        assert (before, text) == ("before", piped.stdout.decode())
        found = json.loads(text) if flags else list(map(json.loads, text.splitlines()))
        assert found == list(map(json.loads, lines.splitlines()))


def test_explain_accounts_for_every_seq(topics: Topics, capped: str) -> None:
    """As JSON and drawn."""
    ranges = topics.json("explain", capped)["ranges"]
    assert [(found["from"], found["to"], found["state"]) for found in ranges] == [
        (1, 4, "evicted"), (5, 5, "live"), (6, 6, "deleted"), (7, 9, "live"),
    ]  # fmt: skip
    assert "××××█·███" in topics("explain", capped).stdout


def test_delete_is_by_seq_or_tag(topics: Topics, client: Client) -> None:
    """And says how many."""
    client.append("gone", [{"data": n, "tag": f"t:{n}"} for n in range(10)])
    assert topics.json("delete", "gone", "--before", "4")["deleted"] == 3
    assert "7 deleted; 0 left" in topics("delete", "gone", "--tag", "t:*").stderr
    topics("delete", "gone", code=exits.USAGE)


# -- topics, cursors, routers, queues --------------------------------------------------------------


def test_topics_from_create_to_rm(topics: Topics) -> None:
    """What exists is not changed by accident; what is not there is said."""
    made = topics.json("topic", "create", "made", "--ttl", "7d", "--cap-bytes", "10MiB")
    assert (made["created"], made["config"]["ttl_ms"]) == (True, 604_800_000)
    assert not topics.json("topic", "create", "made", "--ttl", "7d")["created"]
    told = topics("topic", "create", "made", "--ttl", "8d", code=exits.NOT_SO).stderr
    assert "another ttl_ms" in told
    assert "ttl_ms" in topics("topic", "set", "made", "--ttl", "8d").stderr
    assert topics.json("topic", "show", "made")["config"]["cap_bytes"] == 10 * 1024 * 1024
    assert "made" in topics("topic", "ls").stdout
    assert [one["topic"] for one in topics.json("topic", "ls", "mad")] == ["made"]
    topics("topic", "rm", "made")
    assert "was not there" in topics("topic", "rm", "made", code=exits.NOT_SO).stderr
    assert "topics topic ls" in topics("topic", "show", "made", code=exits.NOT_SO).stderr


def test_keys_of_a_bucket(topics: Topics) -> None:
    """Every command of `topics kv`, with what scripts go by."""
    assert topics.json("kv", "put", "people", "ada", '{"born":1815}')["created"] is True
    topics("kv", "put", "people", "ada", "{oops", code=exits.NOT_SO)
    topics("kv", "put", "people", "ada", "1", "--if-seq", "7", code=exits.NOT_SO)
    topics("kv", "put", "people", "bob", "-", stdin="[1, 2]")
    assert topics("kv", "get", "people", "ada").stdout == '{"born":1815}\n'
    assert topics("kv", "keys", "people").stdout == "ada\nbob\n"
    assert topics.json("kv", "keys", "people") == ["ada", "bob"]
    assert topics.json("kv", "keys", "people", "--prefix", "c") == []
    assert [one["value"] for one in topics.json("kv", "scan", "people")] == [{"born": 1815}, [1, 2]]
    assert [one["key"] for one in topics.json("kv", "scan", "people", "--at-seq", "1")] == ["ada"]
    topics("kv", "put", "people", "cy", "-5", "--if-seq", "0")
    assert topics("kv", "get", "people", "cy").stdout == "-5\n"
    topics("kv", "delete", "people", "cy")
    lines = topics("kv", "scan", "people", "--prefix", "b").stdout.splitlines()
    assert [json.loads(line)["value"] for line in lines] == [[1, 2]]
    assert topics.json("kv", "delete", "people", "bob")["deleted"] is True
    topics("kv", "delete", "people", "bob", code=exits.NOT_SO)
    topics("kv", "get", "people", "bob", code=exits.NOT_SO)
    assert "deleted" in topics("kv", "history", "people", "bob").stdout
    topics("kv", "history", "people", "who", code=exits.NOT_SO)
    assert {one["key"] for one in topics.json("kv", "history", "people", "bob")} == {"bob"}
    assert topics.json("kv", "stats", "people")["pending_tombstones"] == 2
    time.sleep(0.003)
    assert topics.json("kv", "compact", "people", "--max-age", "0")["removed_tombstones"] == 2
    assert topics.json("kv", "delete-range", "people", "a")["deleted"] == 1
    assert "keys" in topics("kv", "stats", "people").stdout
    topics("kv", "stats", "nobody", code=exits.NOT_SO)


def test_a_bucket_follows_another(topics: Topics, client: Client, url: str) -> None:
    """Until it has caught up, from the place where it was."""
    client.kv("leader").put("a", 1)
    topics("kv", "follow", url, "leader", "--into", "copy", "--once")
    assert dict(client.kv("copy").scan()) == {"a": 1}
    client.kv("leader").delete("a")
    topics("kv", "follow", url, "leader", "--into", "copy", "--once")
    assert dict(client.kv("copy").scan()) == {}
    itself = "kv", "follow", url, "leader", "--into", "leader", "--once"
    assert 'bucket "leader" can not follow itself' in topics(*itself, code=exits.NOT_SO).stderr


def test_cursors(topics: Topics, client: Client) -> None:
    """Forward is free, backwards is said."""
    client.append("read", [{"data": 1}] * 5)
    assert topics.json("cursor", "set", "read", "me", "3")["lag"] == 2
    assert "--reset" in topics("cursor", "set", "read", "me", "1", code=exits.NOT_SO).stderr
    topics("cursor", "set", "read", "me", "1", "--reset")
    assert [one["seq"] for one in topics.json("cursor", "ls", "read")] == [1]
    topics("cursor", "rm", "read", "me")
    topics("cursor", "rm", "read", "me", code=exits.NOT_SO)


def test_routers(topics: Topics, client: Client) -> None:
    """With a name of their own, or that of the two."""
    assert topics.json("router", "create", "from", "to", "--tag", "x*")["router"] == "from->to"
    assert topics.json("router", "show", "from->to")["filter"] == ["tag", "Glob", "x*"]
    assert [one["dest"] for one in topics.json("router", "ls")] == ["to"]
    topics("router", "rm", "from->to")
    topics("router", "rm", "from->to", code=exits.NOT_SO)


def test_queues_by_hand(topics: Topics) -> None:
    """Produce, claim, give back, acknowledge, count."""
    topics("queue", "produce", "hand", stdin='{"n":1}\n{"n":2}\n')
    claimed = topics.json("queue", "claim", "hand", "-n", "2")["claimed"]
    assert [job["data"]["n"] for job in claimed] == [1, 2]
    topics("queue", "claim", "hand", code=exits.NOT_SO)
    stats = topics.json("queue", "stats", "hand")
    assert (stats["ready"], stats["in_flight"], len(stats["leases"])) == (0, 2, 2)
    topics("queue", "nack", "hand", "1")
    assert "1 acknowledged" in topics("queue", "ack", "hand", "2").stderr
    assert "not held" in topics("queue", "ack", "hand", "2", code=exits.NOT_SO).stderr
    topics("queue", "stats", "hand")


def test_a_command_for_each_job(topics: Topics, client: Client, tmp_path: Path) -> None:
    """Its exit code decides: done, or once more."""
    topics("queue", "produce", "run", stdin="1\n2\n3\n")
    script = f"cat >> {tmp_path}/$TOPICS_JOB_SEQ; test $TOPICS_JOB_SEQ != 2"
    told = topics("queue", "work", "run", "--idle", "200ms", "--", "sh", "-c", script).stderr
    assert "2 done, 1 failed" in told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "3"]
    assert client.topic("run").count == 1


def test_top_and_config(topics: Topics, client: Client) -> None:
    """A look at the server, and at what would be its settings."""
    client.append("topmost", [{"data": "x" * 1000}])
    assert "topmost" in [row["topic"] for row in topics.json("top", "-n", "1000")]
    assert "topics" in topics("top", "--once").stdout
    client.append("kv:a:b", [{"data": 1}])
    assert " kv:a:b " in topics("top", "--once", "-n", "1000").stdout
    found = {one["name"]: one for one in topics.json("config")}
    assert found["url"]["source"] == "TOPICS_URL"
    assert found["max_topics"]["source"] == "default"


# -- errors ----------------------------------------------------------------------------------------


def test_a_server_that_is_not_there_is_exit_3(topics: Topics) -> None:
    """One line, with what to try."""
    told = topics("topic", "ls", "--url", "http://127.0.0.1:1", code=exits.UNREACHABLE).stderr
    assert told.count("\n") == 1
    assert "topics serve" in told
    assert "URL of a server" in topics("topic", "ls", "--url", "nonsense", code=exits.USAGE).stderr


@pytest.mark.parametrize(
    "arguments",
    [("tail", "nothing-here"), ("diff", "nothing-here"), ("explain", "nothing-here"),
     ("export", "nothing-here", "-"), ("queue", "claim", "nothing-here")],
)  # fmt: skip
def test_a_topic_that_is_not_there_is_exit_1(topics: Topics, arguments: tuple[str, ...]) -> None:
    """One line, with what to try."""
    told = topics(*arguments, code=exits.NOT_SO).stderr
    assert told.count("\n") == 1
    assert "`topics topic ls`" in told
