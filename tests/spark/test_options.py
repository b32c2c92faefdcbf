"""Options: the page is made of them, a bad one is named before anything is read, no token shows."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from pyspark_topics import errors
from pyspark_topics.errors import BadOption, Refused, Unreachable
from pyspark_topics.http import Server
from pyspark_topics.options import Access, source_options
from tests.support.option_tables import PAGE, refreshed
from tests.support.servers import Served

ROOT = Path(__file__).parents[2]
# Nobody listens there: an option that is read too late would be an error of the connection.
NOWHERE = "http://127.0.0.1:1"
SECRET = "s3cret-token"


def test_the_page_is_made_of_the_options() -> None:
    """`python -m tests.support.option_tables` writes them anew."""
    assert refreshed(PAGE.read_text()) == PAGE.read_text()


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("url", {"url": "ftp://x"}), ("url", {"url": "http://u:p@x"}), ("url", {"url": None}),
        ("subscribe", {"subscribePattern": "a"}), ("subscribe", {"subscribe": None}),
        ("subscribe", {"subscribe": "a,,b"}),
        ("subscribePattern", {"subscribePattern": "(", "subscribe": None}),
        ("startingOffsets", {"startingOffsets": "first"}),
        ("startingOffsets", {"startingOffsets": '{"t": -1}'}),
        ("startingOffsets", {"startingOffsets": '{"t": 1.5}'}),
        ("startingOffsets", {"startingOffsets": '{"other": 1}'}),
        ("startingOffsets", {"startingOffsets": "{}"}),
        ("startingOffsets", {"startingOffsets": "latest"}),
        ("startingTimestamp", {"startingTimestamp": "yesterday"}),
        ("endingOffsets", {"endingOffsets": "earliest"}),
        ("endingTimestamp", {"endingTimestamp": "-1"}),
        ("failOnDataLoss", {"failOnDataLoss": "maybe"}),
        ("gapMode", {"gapMode": "ignore"}),
        ("minPartitions", {"minPartitions": "0"}),
        ("maxRecordsPerPartition", {"maxRecordsPerPartition": "many"}),
        ("includeMeta", {"includeMeta": "1"}),
        ("pushdown", {"pushdown": "yes"}),
        ("fetch.numRetries", {"fetch.numRetries": "-1"}),
        ("fetch.timeoutMs", {"fetch.timeoutMs": "0"}),
        ("token", {"token": "a\nb"}),
        ("cursor", {"cursor": "c"}),
        ("maxOffsetsPerTrigger", {"maxOffsetsPerTrigger": "5"}),
        ("maxoffsetpertrigger", {"maxOffsetPerTrigger": "5"}),
    ],
)  # fmt: skip
def test_a_batch_option_that_can_not_be_read_is_named(option: str, given: dict[str, Any]) -> None:
    check(option, given, is_stream=False)


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("startingOffsets", {"startingOffsets": "latest"}),
        ("endingOffsets", {"endingOffsets": "latest"}),
        ("pushdown", {"pushdown": "true"}),
        ("maxOffsetsPerTrigger", {"maxOffsetsPerTrigger": "0"}),
        ("maxBytesPerTrigger", {"maxBytesPerTrigger": "1k"}),
        ("cursorHoldBytes", {"cursorHoldBytes": "5"}),
        ("cursorHoldMs", {"cursorHoldMs": "5"}),
        ("cursorHoldMs", {"cursorHoldMs": "x", "cursor": "c"}),
        ("cursor", {"cursor": "no name"}),
    ],
)  # fmt: skip
def test_a_stream_option_that_can_not_be_read_is_named(option: str, given: dict[str, Any]) -> None:
    check(option, given, is_stream=True)


def check(option: str, given: dict[str, Any], *, is_stream: bool) -> None:
    asked = {"url": NOWHERE, "subscribe": "t", **given}
    if "subscribePattern" in given and "subscribe" not in given:
        asked["subscribe"] = "t"
    with pytest.raises(BadOption) as refused:
        source_options({k: v for k, v in asked.items() if v is not None}, is_stream=is_stream)
    assert str(refused.value).startswith(f"[TOPIC_OPTION] option {option}: ")
    copy = pickle.loads(pickle.dumps(refused.value))
    assert str(copy) == str(refused.value)


def test_latest_says_that_it_needs_a_cursor() -> None:
    with pytest.raises(BadOption, match="needs the option cursor"):
        source_options(
            {"url": NOWHERE, "subscribe": "t", "startingOffsets": "latest"}, is_stream=True
        )


def test_the_token_is_in_no_text() -> None:
    """Not in what is shown of options, not in an error of the connection or of the options."""
    options = source_options(
        {"url": NOWHERE, "subscribe": "t", "token": SECRET, "fetch.numRetries": "0"},
        is_stream=True,
    )
    assert SECRET not in repr(options)
    with pytest.raises(Unreachable) as away, Server(options.access) as server:
        server.get("/v0/topics")
    assert SECRET not in str(away.value)
    with pytest.raises(BadOption) as bad:
        source_options({"url": NOWHERE, "subscribe": "t", "token": SECRET + "\n"}, is_stream=True)
    assert SECRET not in str(bad.value)


def test_a_wrong_key_is_not_tried_again(tmp_path: Path) -> None:
    with Served(tmp_path, TOPICS_API_KEYS="right:rw") as served:
        served.wait_ready("right")
        url = f"http://127.0.0.1:{served.port}"
        for token, status in (("wrong", 401), ("right", 403)):
            began = time.monotonic()
            with Server(Access(url, token)) as server, pytest.raises(Refused) as refused:
                server.put("/v0/topics/t", {})
            assert refused.value.status == status
            assert time.monotonic() - began < 5
            assert token not in str(refused.value)


def test_a_kept_connection_that_is_gone_is_no_failure(tmp_path: Path) -> None:
    """Servers close what is idle: one that is tried anew at once, with no try used up."""
    with Served(tmp_path) as first:
        port = first.wait_ready().port
        with Server(Access(f"http://127.0.0.1:{port}", retries=0)) as server:
            assert server.get("/v0/health")["status"] == "ok"
            first.kill()
            first.port_file.unlink()
            with Served(tmp_path, TOPICS_PORT=str(port)) as second:
                second.wait_ready()
                assert server.get("/v0/health")["status"] == "ok"


def test_refused_connections_are_tried_for_30_to_45_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By default, with pauses that grow."""
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    with Server(Access(NOWHERE)) as server, pytest.raises(Unreachable):
        server.get("/v0/topics")
    assert 30 <= sum(pauses) <= 45
    assert pauses == sorted(pauses)


def test_the_wheel_has_the_package_that_spark_looks_for(tmp_path: Path) -> None:
    """At its top, where Spark looks for names that begin with pyspark_."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("pyspark_")}
    ours = (ROOT / "src" / "pyspark_topics").glob("*.py")
    assert packed == {f"pyspark_topics/{path.name}" for path in ours}


def test_every_error_has_a_code_of_its_own() -> None:
    kinds = [
        kind for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.TopicsSparkError)
    ]  # fmt: skip
    assert len({kind.code for kind in kinds}) == len(kinds)


def test_executors_need_nothing_else_of_ours() -> None:
    """What a task imports is the standard library, pyspark and pyarrow."""
    code = (
        "import sys, pyspark_topics, pyspark_topics.batch, pyspark_topics.stream; "
        "print(sorted({name.partition('.')[0] for name in sys.modules}"
        " & {'topics', 'msgspec', 'numpy', 'pandas', 'pyarrow', 'delta'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
