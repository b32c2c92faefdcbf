"""Buckets through both clients and embedded: the same names, the same answers."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from topics import AsyncClient, Client, Engine, errors
from topics.kv.embedded import open_bucket


def exercise(kv: Any) -> None:
    """What the contract shows, in its order."""
    seq = kv.put("ada", {"born": 1815})
    assert kv.get("ada") == {"born": 1815}
    assert kv.get("nobody") is None
    assert kv.get("nobody", default=7) == 7
    entry = kv.entry("ada")
    assert (entry.value, entry.seq) == ({"born": 1815}, seq)
    assert entry.ts > 0
    assert kv.entry("nobody") is None
    with pytest.raises(errors.Conflicting) as refused:
        kv.put("ada", 1, if_seq=seq + 5)
    assert refused.value.detail["seq"] == seq
    kv.put("tenant42:a", None)
    kv.put("tenant42:b", "é")
    assert list(kv.keys()) == ["ada", "tenant42:a", "tenant42:b"]
    assert list(kv.scan(prefix="tenant42:")) == [("tenant42:a", None), ("tenant42:b", "é")]
    with kv.snapshot() as view:
        assert kv.delete("ada") is True
        assert kv.delete("ada") is False
        assert view.get("ada") == {"born": 1815}
        assert len(list(view.scan())) == 3
    assert kv.get("ada") is None
    assert [(one.key, one.deleted) for one in kv.history("ada")] == [("ada", False), ("ada", True)]
    assert kv.delete_range("tenant42:") == 2
    assert (kv.size, kv.pending_tombstones) == (0, 2)
    time.sleep(0.003)
    assert kv.compact(max_age_ms=0) == 2
    assert kv.history("ada") == []


def test_over_http(client: Client) -> None:
    """The blocking client."""
    exercise(client.kv("over-http"))
    assert client.create_bucket("made", history=3, grace_ms=5).config.history == 3
    assert client.bucket("made").config.grace_ms == 5
    assert "made" in [found.bucket for found in client.buckets(prefix="ma").buckets]
    assert client.delete_bucket("made").deleted
    assert client.kv("made").get("k") is None
    assert client.kv("made").delete("k") is False


def test_half_a_surrogate_pair_is_a_value_like_any_other(client: Client, url: str) -> None:
    """Read alone, in lists and in the past, and by a replica, between others."""
    kv = client.kv("surrogates")
    kv.put("a", {"plain": 1})
    kv.put("b", msgspec.Raw(b'["\\ud800", "\\\\ud800"]'))
    kv.put("c", 3)
    kv.delete("a")
    odd = ["\ud800", "\\ud800"]
    assert kv.get("b") == odd
    assert repr(kv.entry("c")).startswith("KeyEntry(key='c', seq=3, ts=")
    assert repr(kv.entry("c")).endswith(", value=3)")
    assert list(kv.scan()) == [("b", odd), ("c", 3)]
    assert [one.seq for one in kv.entries()] == [2, 3]
    assert list(kv.keys()) == ["b", "c"]
    assert [one.value for one in kv.history("b")] == [odd]
    assert kv.follow_into(client.kv("surrogates-too"), until_caught_up=True) == 2
    assert dict(client.kv("surrogates-too").scan()) == {"b": odd, "c": 3}

    async def run() -> None:
        async with AsyncClient(url) as own:
            found = [(one.key, one.value) async for one in own.kv("surrogates").entries()]
            assert found == [("b", odd), ("c", 3)]

    asyncio.run(run())


def test_embedded(tmp_path: Path) -> None:
    """The same names on an engine of this process."""
    with Engine.open(str(tmp_path)) as engine:
        exercise(open_bucket(engine, "embedded"))


def test_for_asyncio(client: Client, url: str) -> None:
    """The same names, awaited."""

    async def run() -> None:
        async with AsyncClient(url) as own:
            kv = own.kv("for-asyncio")
            seq = await kv.put("a", 1)
            assert await kv.get("a") == 1
            entry = await kv.entry("a")
            assert entry is not None
            assert entry.seq == seq
            found = kv.keys()
            assert [key async for key in found] == ["a"]
            async with await kv.snapshot() as view:
                assert await kv.delete("a")
                assert [pair async for pair in view.scan()] == [("a", 1)]
            assert (await kv.size, await kv.pending_tombstones) == (0, 1)
            assert len(await kv.history("a")) == 2
            assert await kv.delete_range("") == 0
            assert await kv.compact() == 0

    asyncio.run(run())
    assert client.kv("for-asyncio").size == 0
