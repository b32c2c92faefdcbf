"""Profiles of the command line: which server is meant, and whose key it is sent."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from tests.support.commands import here
from tests.support.servers import environment, inside
from topics.cli import exits

FILE = """
[profiles.default]
url = "http://default:1"
token = "default-key"

[profiles.other]
url = "http://other:2"
token = "other-key"

[profiles.bare]
url = "http://bare:3"
"""


def said(home: Path, *arguments: str, **variables: str) -> dict[str, tuple[str, str]]:
    """Each setting of `topics config`, with where it came from."""
    done = here(
        *arguments, "config", "--json",
        environment=environment(XDG_CONFIG_HOME=str(home), **variables),
    )  # fmt: skip
    assert done.returncode == exits.OK, done.stderr
    return {one["name"]: (one["value"], one["source"]) for one in json.loads(done.stdout)}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "topics").mkdir()
    (tmp_path / "topics" / "config.toml").write_text(FILE)
    return tmp_path


def test_a_profile_is_found_by_flag_variable_or_as_the_default(home: Path) -> None:
    """And `topics config` says which, without showing a key."""
    file = str(home / "topics" / "config.toml")
    found = said(home)
    assert found["url"] == ("http://default:1", f"profile default of {file}")
    assert found["token"] == ("(hidden)", f"profile default of {file}")
    assert found["profiles"] == ("default, other, bare", file)
    found = said(home, TOPICS_PROFILE="other")
    assert (found["url"][0], found["profile"]) == ("http://other:2", ("other", "TOPICS_PROFILE"))
    found = said(home, "--profile", "bare", TOPICS_PROFILE="other")
    assert (found["url"][0], found["profile"]) == ("http://bare:3", ("bare", "--profile"))


def test_the_key_of_a_profile_goes_to_its_own_server_only(home: Path) -> None:
    """Whatever else is set: a key that leaks can not be taken back."""
    keys = {"http://default:1": "default", "http://other:2": "other", "http://bare:3": ""}
    flags: list[tuple[str, ...]] = [(), ("--profile", "other"), ("--profile", "bare")]
    variables: list[dict[str, str]] = [{}, {"TOPICS_URL": "http://env:9"}]
    chosen: list[dict[str, str]] = [{}, {"TOPICS_PROFILE": "other"}]
    for flag, one, two in itertools.product(flags, variables, chosen):
        found = said(home, *flag, **one, **two)
        owner = keys.get(found["url"][0], "")
        source = f"profile {owner} of" if owner else "default"
        assert found["token"][1].startswith(source), (flag, one, two)


def test_variables_win_over_profiles_that_were_not_named(home: Path) -> None:
    """A profile that was, wins over them."""
    variables = {"TOPICS_URL": "http://env:9", "TOPICS_TOKEN": "env-key"}
    found = said(home, **variables)
    assert (found["url"][1], found["token"][1]) == ("TOPICS_URL", "TOPICS_TOKEN")
    found = said(home, "--profile", "other", **variables)
    assert found["url"][0] == "http://other:2"
    assert found["token"][1].startswith("profile other")
    assert said(home, "--profile", "bare", **variables)["token"][1] == "TOPICS_TOKEN"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[profiles.default]\nulr = 'x'", "did you mean url?"),
        ("[profile.default]\nurl = 'x'", "did you mean profiles?"),
        ("[sever]\nport = 1", "did you mean server?"),
        ("[profiles]\ndefault = 'x'", "[profiles.default]"),
        ("[profiles", "config.toml"),
    ],
)
def test_a_file_that_can_not_be_meant_says_what_is_wrong(home: Path, text: str, words: str) -> None:
    """In one line, with its name."""
    (home / "topics" / "config.toml").write_text(text)
    done = here("topic", "ls", environment=environment(XDG_CONFIG_HOME=str(home)))
    assert done.returncode == exits.NOT_SO
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_one_file_serves_a_server_and_its_clients(home: Path) -> None:
    """Both as `--config` and for the profiles, each with its own table."""
    file = home / "topics" / "config.toml"
    file.write_text(f"[server]\nmax_topics = 7\n{FILE}")
    assert said(home)["url"] == ("http://default:1", f"profile default of {file}")
    assert said(home)["max_topics"][1] == "default", "a server's table is for --config only"
    done = here(
        "config", "--json", "--config", str(file),
        environment=environment(XDG_CONFIG_HOME=str(home)),
    )  # fmt: skip
    found = {one["name"]: (one["value"], one["source"]) for one in json.loads(done.stdout)}
    assert found["max_topics"] == ("7", str(file))
    assert found["url"] == ("http://default:1", f"profile default of {file}")


def test_commands_use_it(tmp_path: Path) -> None:
    """A server with a key, by name; without the name nobody is there."""
    with inside(tmp_path / "data", TOPICS_API_KEYS="key") as server:
        (tmp_path / "topics").mkdir()
        (tmp_path / "topics" / "config.toml").write_text(
            f'[profiles.here]\nurl = "http://127.0.0.1:{server.port}"\ntoken = "key"\n'
        )
        variables = environment(XDG_CONFIG_HOME=str(tmp_path))
        done = here("--profile", "here", "topic", "create", "t", environment=variables)
        assert done.returncode == exits.OK, done.stderr
        done = here("--profile", "her", "topic", "ls", environment=variables)
        assert (done.returncode, "it has here" in done.stderr) == (exits.NOT_SO, True)
        measured(variables)


def measured(variables: dict[str, str]) -> None:
    """`topics bench` has figures for each call, and leaves nothing behind."""
    done = here(
        "--profile", "here", "bench", "--seconds", "0.1", "--json", environment=variables
    )  # fmt: skip
    assert done.returncode == exits.OK, done.stderr
    found = json.loads(done.stdout)["measured"]
    assert len(found) == 4
    for one in found:
        assert one["count"] > 0
        assert 0 < one["p50_ms"] <= one["p99_ms"]
    listed = here("--profile", "here", "topic", "ls", "--json", environment=variables)
    assert [one["topic"] for one in json.loads(listed.stdout)] == ["t"]
