"""What `import topics` offers, and what it costs."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import topics
from topics import errors


def test_every_error_is_exported() -> None:
    tree = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.TopicsError)
    }
    others = {
        "Appended", "AsyncClient", "AsyncFollower", "AsyncKv", "AsyncProducer", "AsyncWorker",
        "Client", "ConfigInput", "CursorState", "Deleted", "Engine", "Follower", "Gap", "Hold",
        "Job", "Kv", "Page", "Producer", "RangePage", "Record", "RetryPolicy", "Settings",
        "Tombstone", "TopicConfig", "TopicState", "Worker", "__version__",
    }  # fmt: skip
    assert tree == set(topics.__all__) - others
    for name in tree:
        assert getattr(topics, name) is getattr(errors, name)
    for name in others:
        assert getattr(topics, name) is not None


@pytest.mark.parametrize("kind", [topics.Client, topics.AsyncClient, topics.Engine])
def test_help_says_what_every_call_does_and_quotes_no_type(kind: type) -> None:
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_"):
            assert inspect.getdoc(method), name
            shown = str(inspect.signature(method))
            assert ": '" not in shown, name
            assert "-> '" not in shown, name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        topics.nothing_of_the_kind  # noqa: B018


def test_importing_topics_loads_nothing_heavy() -> None:
    code = (
        "import sys, topics; print(sorted({name.partition('.')[0] for name in sys.modules}"
        " & {'msgspec', 'numpy', 'obstore', 'asyncio', 'typer', 'rich', 'xxhash',"
        " 'pyreqwest'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
