"""Keys of a file are read again on SIGHUP: who is new may come in, who is gone has to go."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers import Served
from tests.support.streams import EventSource, Socket
from topics.errors import InvalidRequest
from topics.server.api.auth import parse_keys, read_keys

pytestmark = pytest.mark.slow

FIRST = "# who may do what\nroot-secret\nleaver:rw\n\nstayer:r, other:w:o.\n"


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Served]:
    file = tmp_path / "keys"
    file.write_text(FIRST)
    with Served(tmp_path, TOPICS_API_KEYS_FILE=str(file)) as served:
        yield served.wait_ready()
        assert served.stop() == 0
    assert "-secret" not in served.log()


def read_again(served: Served, text: str, words: str) -> None:
    """Changes the file, signals, and waits until the log says so."""
    (served.data_dir.parent / "keys").write_text(text)
    said = served.log().count(words)
    served.signal(signal.SIGHUP)
    deadline = time.monotonic() + 30
    while served.log().count(words) == said:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_removed_key_is_out_and_its_streams_end_while_others_go_on(keyed: Served) -> None:
    with keyed.client("leaver") as leaver, keyed.client("stayer") as stayer:
        for _ in range(3):
            assert leaver.write("t", 1).status < 300
            assert stayer.diff("t").status == 200
        path = "/v0/topics/t/stream?tail=true"
        mine = EventSource(keyed.port, path, Authorization="Bearer leaver")
        others = EventSource(keyed.port, path, Authorization="Bearer stayer")
        socket = Socket(keyed.port, "leaver")
        read_again(keyed, FIRST.replace("leaver:rw", "joiner:rw"), "keys were read again")
        assert mine.next("error").data["code"] == 401
        assert socket.next("error")["code"] == "unauthorized"
        assert leaver.write("t", 2).status == 401
        assert stayer.diff("t").status == 200
        assert leaver.with_token("joiner").write("t", 3).status == 200
        assert others.next("record").data["records"][0]["data"] == 3
        for open_one in (mine, others, socket):
            open_one.close()


def test_a_key_with_other_rights_has_those(keyed: Served) -> None:
    with keyed.client("stayer") as client:
        assert client.write("t", 1).status == 403
        read_again(keyed, FIRST.replace("stayer:r", "stayer:rw"), "keys were read again")
        assert client.write("t", 1).status == 201
        read_again(keyed, FIRST, "keys were read again")
        assert client.write("t", 1).status == 403


def test_a_bad_file_keeps_the_old_keys_and_says_why(keyed: Served) -> None:
    with keyed.client("root-secret") as client:
        client.write("t", 1)
        for text in ("", "root-secret:nobody-knows-this-scope", "# nothing\n"):
            read_again(keyed, text, "the keys stay as they were")
            assert client.write("t", 1).status == 200
    assert "TOPICS_API_KEYS_FILE" in keyed.log()
    read_again(keyed, "newcomer", "keys were read again")
    with keyed.client("newcomer") as client:
        assert client.write("t", 1).status == 200


def test_a_file_that_is_gone_keeps_the_old_keys(keyed: Served) -> None:
    file = keyed.data_dir.parent / "keys"
    file.unlink()
    keyed.signal(signal.SIGHUP)
    deadline = time.monotonic() + 30
    while "can not be read" not in keyed.log():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with keyed.client("root-secret") as client:
        assert client.get("/v0/topics").status == 200


def test_keys_that_stay_are_the_same_objects() -> None:
    """What they hold is still counted, and what was removed is known nowhere."""
    keys = parse_keys("a,b:r,c:rw:x")
    first, second, third = keys
    second.inflight = 7
    gone = keys.replace(parse_keys("new,b:r,c:rw:y"))
    assert gone == [first, third]
    assert [key.number for key in keys] == [1, 2, 3]
    assert list(keys)[1] is second
    assert second.inflight == 7
    assert keys.find(b"a") is None


def test_a_file_is_read_as_the_variable_is(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(FIRST)
    assert [(key.number, key.scopes, key.prefixes) for key in read_keys(str(file))] == [
        (key.number, key.scopes, key.prefixes)
        for key in parse_keys("root-secret,leaver:rw,stayer:r,other:w:o.")
    ]
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        read_keys(str(file))
