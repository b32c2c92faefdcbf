"""What goes wrong for somebody new: one line that names what was typed, and what to try."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import topics
from tests.support.commands import here
from tests.support.servers import Served, environment
from tests.support.tiers import quick_first
from topics.cli import exits
from topics.server.about import ABOUT
from topics.server.config import defaults

# What Kubernetes sets in every container beside a service that is called topics.
OF_A_SERVICE = {
    "TOPICS_SERVICE_HOST": "10.0.0.1", "TOPICS_SERVICE_PORT": "4000",
    "TOPICS_SERVICE_PORT_HTTP": "4000", "TOPICS_PORT_4000_TCP": "tcp://10.0.0.1:4000",
    "TOPICS_PORT_4000_TCP_PROTO": "tcp", "TOPICS_PORT_4000_TCP_PORT": "4000",
    "TOPICS_PORT_4000_TCP_ADDR": "10.0.0.1",
}  # fmt: skip


def refused(*arguments: str, **variables: str) -> str:
    """The last line of a command that was used wrongly; before it is how it is used."""
    done = here(*arguments, environment=environment(NO_COLOR="1", **variables))
    assert (done.returncode, done.stdout) == (exits.USAGE, "")
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("serve --prot 4001", "No such option: --prot"),
        ("serve --port abc", "--port abc: it is 'abc', not a whole number"),
        ("serve --port 99999", "--port 99999: it is 99999; it must be at most 65535"),
        ("serve --wal-shards 0", "--wal-shards 0: it must be from 1 to 64"),
        ("serve --log-level warn", "--log-level warn: it is 'warn'; it must be one of"),
        ("serve --log-level warn", "debug, info, warning, error; did you mean warning?"),
        ("serve --max-limit -1", "--max-limit -1: it is negative: -1"),
        ("serve extra", "unexpected extra argument(s) (extra)"),
        ("servr", "No such command 'servr'; did you mean serve?"),
        ("topic creat x", "No such command 'creat'. Did you mean 'create'?"),
        ("topic ls --sort sizes", "'sizes' is not one of 'name', 'bytes', 'count', 'lag'"),
        ("topic create x --ttl soon", "'soon' is no duration such as 90s"),
        ("tail --josn x", "No such option: --josn (Possible options: --json"),
        ("topic ls --url nonsense", "--url: 'nonsense' is not the URL of a server"),
        ("topic ls --url http://host:40000x", "'http://host:40000x' is not the URL of a server"),
        ("topic ls --url http://host:400000", "'http://host:400000' is not the URL of a server"),
        ("topic ls --url http://[::1:4000", "'http://[::1:4000' is not the URL of a server"),
        ("topic ls --url http://ho\udcffst", "is not the URL of a server"),
        ("backup ls ", "DEST is empty; . is the directory you are in"),
        ("queue claim q --max many", "Invalid value for '-n' / '--max'"),
    ],
)  # fmt: skip
def test_a_bad_flag_is_a_usage_error_that_names_it(arguments: str, words: str) -> None:
    assert words in refused(*arguments.split(" "))


@pytest.mark.parametrize("command", ["tail {}", "kv get b {}", "topic ls {}"])
def test_what_is_not_utf_8_is_told_in_a_line(command: str) -> None:
    """Python makes lone surrogates of such arguments, and no server can be sent one."""
    arguments = command.format("\udcff").split()
    done = here(*arguments, environment=environment(TOPICS_URL="http://127.0.0.1:1"))
    assert (done.returncode, done.stdout) == (exits.NOT_SO, "")
    assert done.stderr == "topics: '\\udcff' can not be sent: it is not UTF-8\n"


def test_a_key_is_never_shown() -> None:
    said = refused("serve", "--api-keys", "hush:hash")
    assert "--api-keys: " in said
    assert "hush" not in said
    assert "hash" not in said


def test_a_variable_that_can_not_be_is_named_as_it_is_set(tmp_path: Path) -> None:
    variables = environment(TOPICS_PORT="abc")
    done = here("serve", "--data-dir", str(tmp_path / "d"), environment=variables)
    assert (done.returncode, done.stdout) == (exits.NOT_SO, "")
    assert done.stderr == "topics: TOPICS_PORT is 'abc', not a whole number\n"


@pytest.fixture
def busy_port() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield str(taken.getsockname()[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    "stumble",
    quick_first(
        [
            ("--port PORT", "127.0.0.1:PORT: the port is in use; stop what listens there, or"),
            ("--data-dir theirs", "theirs is not a topics directory: it holds 'notes.txt' and no"),
            ("--data-dir file", "there is a file where a directory should be: HERE/file"),
            ("--data-dir file/below", "there is a file where a directory should be: HERE/file"),
            ("--host no.such.host.invalid --api-keys k", "no.such.host.invalid:0: no host of that"),
            ("--host 192.0.2.1 --api-keys k", "192.0.2.1:0: this machine has no such address"),
        ],
        2,
    ),
)  # fmt: skip
def test_a_start_that_can_not_be_is_one_line(
    tmp_path: Path, busy_port: str, stumble: tuple[str, str]
) -> None:
    """And changes nothing in what is not ours."""
    (tmp_path / "file").write_text("")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "notes.txt").write_text("theirs")
    flags, words = (text.replace("PORT", busy_port) for text in stumble)
    done = subprocess.run(
        [sys.executable, "-m", "topics", "serve", *flags.split()], capture_output=True, text=True,
        cwd=tmp_path, env=environment(TOPICS_PORT="0"), timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (exits.NOT_SO, "")
    assert words.replace("HERE", str(tmp_path)) in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in (tmp_path / "theirs").iterdir()] == ["notes.txt"]


@pytest.mark.slow
def test_what_kubernetes_sets_does_not_stop_a_start(tmp_path: Path) -> None:
    with Served(tmp_path, "--port", "0", TOPICS_PORT="tcp://10.0.0.1:4000", **OF_A_SERVICE) as one:
        one.wait_ready()
        assert one.stop() == 0


@pytest.mark.slow
def test_an_unknown_host_is_told_by_a_command() -> None:
    done = here("topic", "ls", "--url", "http://no.such.host.invalid:1", environment=environment())
    assert done.returncode == exits.UNREACHABLE
    assert "no answer from http://no.such.host.invalid:1" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_variables_of_a_service_beside_us_are_not_shown_as_settings(tmp_path: Path) -> None:
    """`topics config` says what a server would do; nor do they hide which file a mistake is in."""
    variables = environment(TOPICS_PORT="tcp://10.0.0.1:4000", **OF_A_SERVICE)
    done = here("config", "--json", environment=variables)
    [port] = [one for one in json.loads(done.stdout) if one["name"] == "port"]
    assert (port["value"], port["source"]) == (4000, "default")
    file = tmp_path / "topics.toml"
    file.write_text("[server]\nport = 70000\n")
    done = here("serve", "--config", str(file), environment=variables)
    assert (done.returncode, str(file) in done.stderr) == (exits.NOT_SO, True)


def test_the_help_of_serve_fits_into_80_columns_and_has_every_setting() -> None:
    done = here("serve", "--help", environment=environment(COLUMNS="80", NO_COLOR="1"))
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in done.stdout
    # Once of the options together, once of --config.
    assert done.stdout.count("[server]") == 2
    words = set(done.stdout.split())
    assert defaults().keys() == ABOUT.keys()
    for name, default in defaults().items():
        flag = name.replace("_", "-")
        assert f"--no-{flag}" in words if default is True else f"--{flag}" in words
    assert sum(line.startswith("╭─ ") for line in lines) >= 5


def test_the_switches_that_help_leaves_out_are_taken(tmp_path: Path) -> None:
    """What an environment has set can be set back; nothing starts, for the port is no port."""
    for flag in ("--threads", "--no-threads", "--probe-auth", "--no-probe-auth"):
        assert "--port x" in refused("serve", flag, "--port", "x")


def test_versions_for_scripts() -> None:
    done = here("version", "--json", environment=environment())
    found = json.loads(done.stdout)
    assert found["topics"] == topics.__version__
    assert found["python"] == sys.version.split()[0]
    assert {"implementation", "system", "release", "machine"} < found.keys()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["status", "audit", "gaps", "sync x", "optimize", "vacuum"])
def test_the_lake_without_its_packages_says_what_to_install(command: str, tmp_path: Path) -> None:
    without = "pyarrow", "deltalake", "pyspark"
    program = f"import sys; sys.modules.update(dict.fromkeys({without!r}))\n"
    program += "from topics.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "lake", *command.split(), "--lake", str(tmp_path)],
        env=environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (exits.NOT_SO, "")
    [line] = done.stderr.splitlines()
    assert "pip install 'topics-log[spark]'" in line
