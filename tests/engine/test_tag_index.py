"""The tag index: a match delete costs what it matches, not what the log holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engines import SURVIVABLE, Ending, World, tagged
from topics.engine.state.tags import TagIndex


class Steps:
    """Counts how many entries of the index a delete looks at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        look = TagIndex.exact

        def counting(index: TagIndex, tag: str) -> list[int]:
            found = look(index, tag)
            self.count += 1 + len(found)
            return found

        monkeypatch.setattr(TagIndex, "exact", counting)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    return Steps(monkeypatch)


@pytest.mark.parametrize("others", [10, 1_000, 10_000])
@pytest.mark.parametrize("match", ["hit", ["tag", "Glob", "hi*"]], ids=str)
def test_a_delete_looks_only_at_what_matches(
    world: World, steps: Steps, others: int, match: Any
) -> None:
    """The work of a match delete does not grow with the records that do not match."""
    world.engine.append("t", tagged(*[f"miss-{n}" for n in range(others // 2)]))
    world.engine.append("t", tagged(*["hit"] * 3))
    world.engine.append("t", tagged(*[None] * (others // 2)))
    steps.count = 0
    assert world.engine.delete("t", match=match).deleted == 3
    assert steps.count <= 2 * (1 + 3)


def test_deleting_old_versions_again_and_again_costs_the_same(world: World, steps: Steps) -> None:
    """What was deleted leaves the index: a late replacement looks at as much as the first."""
    costs = []
    for version in range(200):
        done = world.engine.append("t", [{"data": version, "tag": "doc"}])
        steps.count = 0
        world.engine.delete("t", match="doc", before_seq=done.first_seq)
        costs.append(steps.count)
    assert max(costs) <= 10
    assert world.look("t").seqs == (200,)


def test_deleted_tags_leave_the_index_also_above_the_floor(world: World) -> None:
    """An old live record does not make the index keep the tags of everything behind it."""
    world.engine.append("t", tagged("anchor"))
    for n in range(3_000):
        world.engine.append("t", tagged(f"once-{n}"))
    world.engine.delete("t", match=["tag", "Glob", "once-*"])
    topic = world.engine.core.by_name["t"]
    for _ in range(20):
        world.clock.advance(100)
        world.engine.maintain(1.0)
    assert topic.tags is not None
    assert topic.tags.entries <= 1
    assert world.engine.delete("t", match="anchor").deleted == 1


def test_evicted_tags_leave_the_index(world: World) -> None:
    """The index of a capped topic stays in proportion to what is live."""
    world.engine.put_topic("t", {"cap_records": 10})
    for n in range(6):
        world.engine.append("t", tagged(*[f"k-{n}-{m}" for m in range(1_000)]))
        for _ in range(30):
            world.clock.advance(100)
            world.engine.maintain(1.0)
    topic = world.engine.core.by_name["t"]
    assert topic.tags is not None
    assert topic.tags.entries <= 2 * 10 + 1024
    assert world.engine.delete("t", match=["tag", "Glob", "k-5-*"]).deleted == 10


@pytest.mark.parametrize("how", SURVIVABLE)
@pytest.mark.parametrize("checkpoints", [0, 1, 3])
def test_the_index_is_complete_after_a_restart(world: World, how: Ending, checkpoints: int) -> None:
    """Tags of sealed and unsealed records are found alike after a restart."""
    world.engine.append("t", tagged("a:1", "b", None, "a:2"))
    for _ in range(checkpoints):
        world.engine.checkpoint()
    world.engine.append("t", tagged("a:1", None, "a:3"))
    world.restart(how)
    world.engine.append("t", tagged("a:1"))
    assert world.engine.delete("t", match="a:1").deleted == 3
    assert world.engine.delete("t", match=["tag", "Glob", "a:*"]).deleted == 2
    assert world.look("t").seqs == (2, 3, 6)


@pytest.mark.parametrize(
    ("prefix", "hits"),
    [("é", 2), ("日", 1), ("\U0001f600", 1), ("z", 2), ("", 8), ("\x00", 1), ("é1", 1)],
)
def test_a_prefix_is_compared_in_bytes(world: World, prefix: str, hits: int) -> None:
    """Tags are byte-exact UTF-8, with no normalisation and no collation."""
    world.engine.append(
        "t", tagged("é", "é1", "e\u0301", "日本", "\U0001f600", "z", "z\uffff", "\x00")
    )
    assert world.engine.delete("t", match=["tag", "Glob", prefix + "*"]).deleted == hits


def test_an_empty_tag_is_a_tag(world: World) -> None:
    """The empty string matches itself and the widest prefix, unlike a record without a tag."""
    world.engine.append("t", tagged("", None, "x"))
    assert world.engine.delete("t", match="").deleted == 1
    world.engine.append("t", tagged(""))
    assert world.engine.delete("t", match=["tag", "Glob", "*"]).deleted == 2
    assert world.look("t").seqs == (2,)


def test_a_tag_that_came_back_is_found_once(world: World) -> None:
    """A prefix takes nothing but what has it, also behind the delete of one of its tags."""
    world.engine.append("t", tagged("b"))
    world.engine.append("t", tagged("a:1"))
    world.engine.delete("t", match="a:1")
    world.engine.append("t", tagged("a:0", None, "a:1"))
    assert world.engine.delete("t", match=["tag", "Glob", "a:*"]).deleted == 2
    assert world.look("t").seqs == (1, 4)


TAGS = st.sampled_from(("", "a", "a:1", "a:2", "b", None))
STEPS = st.one_of(
    st.tuples(st.just("add"), st.lists(TAGS, max_size=4)),
    st.tuples(st.just("forget"), st.tuples(TAGS, st.integers(0, 3))),
    st.tuples(st.just("fold"), st.integers(0, 2)),
    st.tuples(st.just("sweep"), st.sets(st.integers(1, 40))),
)


@given(st.lists(STEPS, max_size=40))
def test_the_index_finds_each_seq_once(steps: list[tuple[str, Any]]) -> None:
    """Whatever came and went before, a prefix finds every tag and every seq exactly once."""
    index, held, head = TagIndex(), dict[str, list[int]](), 0
    for kind, what in steps:
        if kind == "add":
            index.add(what, head + 1)
            for tag in what:
                head += 1
                if tag is not None:
                    held.setdefault(tag, []).append(head)
        elif kind == "forget" and what[0] in held:
            held[what[0]] = held[what[0]][-what[1] :] if what[1] else []
            index.forget(what[0], held[what[0]])
        elif kind == "fold":
            index.fold(what)
        elif kind == "sweep":
            held = {tag: [seq for seq in seqs if seq in what] for tag, seqs in held.items()}
            list(index.sweep(what.__contains__))
        held = {tag: seqs for tag, seqs in held.items() if seqs}
        assert index.entries == sum(map(len, held.values()))
    for prefix in ("", "a", "a:", "b"):
        wanted = sorted(tag for tag in held if tag.startswith(prefix))
        found = [tag for tags in index.under((prefix, True)) for tag in tags]
        assert sorted(tag for tag in found if index.exact(tag)) == wanted
        assert all(index.exact(tag) == held[tag] for tag in wanted)
        every = [seq for seqs in index.find((prefix, True)) for seq in seqs]
        assert sorted(every) == sorted(seq for tag in wanted for seq in held[tag])


def test_a_recreated_topic_has_no_old_tags(world: World) -> None:
    """Deleting a topic deletes its index."""
    world.engine.append("t", tagged("x", "x"))
    world.engine.delete_topic("t")
    world.engine.append("t", tagged("y", "x"))
    assert world.engine.delete("t", match="x").deleted == 1
    assert world.look("t").seqs == (1,)
