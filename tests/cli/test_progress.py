"""What takes its time says how far it is: to a person, on standard error, and to nobody else."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.commands import Topics
from topics import Client
from topics.engine.engine import Engine

pytestmark = pytest.mark.slow
Arguments = tuple[str, ...]


def exporting(client: Client, _: Path) -> Arguments:
    # A page has 8 MiB; the bar moves between pages.
    client.append("far", [{"data": "x" * 900_000} for _ in range(20)])
    return ("export", "far", "-")


def following(client: Client, _: Path) -> Arguments:
    """A copy of all keys, then what came since."""
    for number in range(20):
        client.kv("source").put(f"k{number}", number)
    return ("kv", "follow", client.options.url, "source", "--into", "replica", "--once")


def erasing(client: Client, data: Path) -> Arguments:
    client.append("people", [{"data": who, "tag": who} for who in ("ann", "bob")])
    data.mkdir(exist_ok=True)
    return ("erase", "people", "--tag", "bob", "--prove", "--data-dir", str(data))


def scrubbing(_: Client, data: Path) -> Arguments:
    with Engine.open(str(data)) as engine:
        engine.append("t", [{"data": number} for number in range(10)])
        engine.checkpoint()
        engine.delete("t", before_seq=5)
    return ("scrub", str(data))


@pytest.mark.parametrize("command", [exporting, following, erasing, scrubbing])
def test_a_person_sees_how_far_it_is(
    topics: Topics, client: Client, tmp_path: Path, command: Callable[[Client, Path], Arguments]
) -> None:
    words = command.__name__
    arguments = command(client, tmp_path / "data")
    assert words not in topics(*arguments).stderr
    seen = topics.on_terminal(*arguments)
    assert words in seen
    assert re.search(r"[1-9]\d*%", seen)
