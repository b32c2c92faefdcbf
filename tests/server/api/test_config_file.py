"""Settings in a file: flags win over variables, and those over the file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import Served, environment
from topics.errors import InvalidRequest
from topics.server.config import load, read_file


def written(directory: Path, text: str) -> str:
    path = directory / "topics.toml"
    path.write_text(text)
    return str(path)


def test_a_flag_wins_over_a_variable_and_that_over_the_file(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        '[server]\nport = 5001\nmax_topics = 1\nhost = "127.0.0.2"\nprobe_auth = true\n'
        'api_keys = "from-the-file"\n[profiles.work]\nurl = "http://elsewhere"\n',
    )
    config = load(
        {"TOPICS_MAX_TOPICS": "2", "TOPICS_PORT": "5002"}, {"port": "5003"}, read_file(path)
    )
    options = config.options
    assert (options.port, config.settings.max_topics, options.host) == (5003, 2, "127.0.0.2")
    assert options.probe_auth
    assert config.keys.find(b"from-the-file") is not None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[server]\nmax_topic = 1\n", "'max_topic' is not a setting of topics; did you mean max_t"),
        ("[sever]\nport = 1\n", "'sever' is none of its tables, [server], [profiles]; did you me"),
        ("port = 1\n", "'port' is none of its tables"),
        ("[server]\nport = [1]\n", "port must be a text, a whole number, true or false"),
        ("[server\n", "is not TOML"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InvalidRequest) as refused:
        read_file(path)
    assert words in str(refused.value)
    assert path in str(refused.value)


@pytest.mark.slow
def test_a_server_starts_from_a_file(tmp_path: Path) -> None:
    path = written(tmp_path, "[server]\nmax_topics = 1\n")
    with Served(tmp_path, "--config", path) as served:
        with served.wait_ready().client() as client:
            assert [client.write(name, 1).status for name in "ab"] == [201, 429]
        assert served.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[server]\nport = "x"\n', "TOPICS_PORT is 'x', not a whole number"),
        ("[server]\nprot = 1\n", "did you mean port?"),
        (None, "can not be read: No such file or directory"),
    ],
)
def test_a_file_that_can_not_be_used_is_one_line(
    tmp_path: Path, text: str | None, words: str
) -> None:
    path = str(tmp_path / "missing") if text is None else written(tmp_path, text)
    done = subprocess.run(
        [sys.executable, "-m", "topics", "serve", "--config", path,
         "--data-dir", str(tmp_path / "d")],
        capture_output=True, text=True, env=environment(), timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert path in done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "d").exists()


@pytest.mark.slow
def test_the_config_command_tells_what_is_from_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, '[server]\nmax_topics = 7\napi_keys = "SECRET"\n')
    done = subprocess.run(
        [sys.executable, "-m", "topics", "config", "--config", path],
        capture_output=True, text=True, env=environment(TOPICS_PORT="4001"), timeout=60,
    )  # fmt: skip
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()[1:]}
    assert rows["max_topics"] == ["7", path]
    assert rows["port"] == ["4001", "TOPICS_PORT"]
    assert rows["api_keys"] == ["(hidden)", path]
    assert "SECRET" not in done.stdout
