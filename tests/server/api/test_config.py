"""What a server is told at its start, and what makes it refuse to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import environment
from topics.errors import InvalidRequest
from topics.server.about import ABOUT, settings_table
from topics.server.config import ELSEWHERE, defaults, is_loopback, load, setting_fields


def test_the_defaults_are_safe() -> None:
    config = load({}, {})
    assert (config.options.host, config.options.port) == ("127.0.0.1", 4000)
    assert not config.keys
    assert config.settings.gc_freeze is True
    assert config.settings.max_topics == 100_000
    assert config.options.max_inflight_per_key == 1000


def test_variables_and_flags_of_the_same_name() -> None:
    environment = {"TOPICS_MAX_TOPICS": "7", "TOPICS_PORT": "1", "TOPICS_PROBE_AUTH": "1"}
    config = load(environment, {"port": "2", "max_claim": "9", "max_topics": None})
    assert (config.settings.max_topics, config.options.port) == (7, 2)
    assert config.options.probe_auth is True
    assert config.settings.max_claim == 9


def test_every_limit_of_the_contract_is_a_setting() -> None:
    names = {field.name for field in setting_fields()}
    assert names >= {
        "max_topics", "max_routers", "max_watch_sessions", "max_sse_connections",
        "max_sse_connections_per_key", "max_inflight_per_key", "max_total_bytes",
        "max_batch_records", "max_record_bytes", "max_body_bytes", "max_meta_bytes",
        "max_tag_bytes", "max_node_bytes", "max_limit", "max_watch_topics", "max_claim",
    }  # fmt: skip


def test_variables_of_other_parts_are_accepted() -> None:
    load(dict.fromkeys(ELSEWHERE, "x") | {"HOME": "/", "TOPIC": "x"}, {})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("TOPICS_MAX_TOPIC", "1"),
        ("TOPICS_MAX_TOPICS", "many"),
        ("TOPICS_MAX_TOPICS", "-1"),
        ("TOPICS_MAX_INFLIGHT_PER_KEY", "-1"),
        ("TOPICS_MAX_LIMIT", "0"),
        ("TOPICS_MAX_WATCH_TOPICS", "0"),
        ("TOPICS_PORT", "70000"),
        ("TOPICS_PROBE_AUTH", "maybe"),
        ("TOPICS_LOG_LEVEL", "loud"),
        ("TOPICS_DATA_DIR", ""),
        ("TOPICS_API_KEYS", "s:reed"),
    ],
)
def test_a_setting_that_can_not_be_used_is_named(key: str, value: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        load({key: value}, {})
    name = key.removeprefix("TOPICS_")
    assert name in refused.value.message or name.lower() in refused.value.message


@pytest.mark.parametrize(
    ("host", "is_safe"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("localhost", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.0.1", False),
        ("example.com", False),
        ("", False),
    ],
)
def test_an_open_door_needs_keys_or_a_clear_word(host: str, is_safe: bool) -> None:
    assert is_loopback(host) is is_safe
    variables = {"TOPICS_HOST": host}
    if is_safe:
        load(variables, {})
        return
    with pytest.raises(InvalidRequest, match="TOPICS_ALLOW_INSECURE_NO_AUTH"):
        load(variables, {})
    load({**variables, "TOPICS_API_KEYS": "s"}, {})
    load({**variables, "TOPICS_ALLOW_INSECURE_NO_AUTH": "1"}, {})


def serve(directory: Path, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "topics", "serve", *flags], capture_output=True, text=True,
        env=environment(TOPICS_DATA_DIR=str(directory / "data"), **variables), timeout=60,
        check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "variables", "words"),
    [
        ((), {"TOPICS_HOST": "0.0.0.0"}, "TOPICS_API_KEYS"),
        ((), {"TOPICS_API_KEYS": "top-secret:reed"}, "scope"),
        ((), {"TOPICS_MAX_TOPIX": "1"}, "TOPICS_MAX_TOPIX"),
        (("--max-topics", "x"), {}, "--max-topics"),
    ],
)
def test_a_server_that_may_not_start_says_why(
    tmp_path: Path, flags: tuple[str, ...], variables: dict[str, str], words: str
) -> None:
    done = serve(tmp_path, *flags, **variables)
    assert done.returncode == (2 if flags else 1)
    assert words in done.stderr
    assert "top-secret" not in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "data").exists()


def test_every_setting_is_documented() -> None:
    """To renew the table: print `settings_table(defaults())` into docs/server.md."""
    assert set(ABOUT) == set(defaults())
    text = (Path(__file__).parents[3] / "docs" / "server.md").read_text()
    assert text.endswith(settings_table(defaults()) + "\n")


def test_what_kubernetes_sets_for_a_service_of_this_name_does_not_stop_a_start() -> None:
    config = load(
        {
            "TOPICS_SERVICE_HOST": "10.0.0.1", "TOPICS_SERVICE_PORT": "4000",
            "TOPICS_SERVICE_PORT_HTTP": "4000", "TOPICS_PORT": "tcp://10.0.0.1:4000",
            "TOPICS_PORT_4000_TCP": "tcp://10.0.0.1:4000", "TOPICS_PORT_4000_TCP_PROTO": "tcp",
            "TOPICS_PORT_4000_TCP_PORT": "4000", "TOPICS_PORT_4000_TCP_ADDR": "10.0.0.1",
        },
        {},
    )  # fmt: skip
    assert config.options.port == 4000
    assert load({"TOPICS_PORT": "4001"}, {}).options.port == 4001


def test_a_misspelt_setting_is_told_what_was_meant() -> None:
    with pytest.raises(InvalidRequest, match=r"did you mean TOPICS_MAX_TOPICS\?"):
        load({"TOPICS_MAX_TOPIC": "5"}, {})
    for like_nothing in ("TOPICS_QQQQQQQQ", "TOPICS_FOO"):
        with pytest.raises(InvalidRequest, match="unset it or correct its name"):
            load({like_nothing: "5"}, {})
