"""Keys in order: as a sorted list, at the cost of a few short ones."""

from __future__ import annotations

import random
import time

from topics.kv.index import Index
from topics.kv.sorted_keys import SortedKeys, end_of

LETTERS = "ab\ud7ff\ue000\U0010ffff"


def test_keys_are_in_byte_order_whatever_is_added_and_cut() -> None:
    """Against a plain set, with prefixes at every edge of the alphabet."""
    chance = random.Random(7)
    keys, plain = SortedKeys(), set[str]()
    for _ in range(6000):
        key = "".join(chance.choices(LETTERS, k=chance.randint(1, 6)))
        act = chance.random()
        if act < 0.7:
            if key not in plain:
                keys.add(key)
                plain.add(key)
        elif act < 0.95:
            keys.discard(key)
            plain.discard(key)
        else:
            prefix = key[: chance.randint(1, 4)]
            cut = {each for each in plain if each.startswith(prefix)}
            assert keys.count_under(prefix) == len(cut)
            assert [each for chunk in keys.cut(prefix) for each in chunk] == _sorted(cut)
            plain -= cut
        assert len(keys) == len(plain)
    assert list(keys.after("", is_included=True)) == _sorted(plain)
    start = "b"
    wanted = [each for each in _sorted(plain) if each > start]
    assert list(keys.after(start, is_included=False)) == wanted


def _sorted(keys: set[str]) -> list[str]:
    return sorted(keys, key=lambda key: key.encode("utf-32-be", "surrogatepass"))


def test_the_end_of_a_prefix_is_after_all_that_begins_with_it() -> None:
    """Also behind the last character there is."""
    assert end_of("") is None
    assert end_of("\U0010ffff" * 3) is None
    assert end_of("a\U0010ffff") == "b"


def test_a_scan_costs_what_the_live_keys_cost() -> None:
    """A thousand live keys among a hundred thousand deleted ones are a thousand looks."""
    index = Index()
    for number in range(100_000):
        index.put(f"k{number:06d}", number + 1)
    assert index.delete_prefix("k", 100_001, 1) == 100_000
    began = time.perf_counter()
    assert index.keys.count_under("k") == 0
    assert list(index.keys.after("k", is_included=True)) == []
    assert time.perf_counter() - began < 0.01
    for number in range(0, 100_000, 100):
        index.put(f"k{number:06d}", 100_002 + number)
    assert len(list(index.keys.after("", is_included=True))) == 1000


def test_hiding_many_keys_is_one_short_step() -> None:
    """What is left to do for each of them is done in pieces."""
    index = Index()
    for number in range(50_000):
        index.put(f"k{number:06d}", number + 1)
    index.delete_prefix("", 50_001, 1)
    pieces = 1
    while index.tidy():
        pieces += 1
    assert pieces >= 40
    assert not index.live
    assert index.live_seq("k000001") == 0
    assert list(index.events("k000001")) == [2]
