"""The journal of the soak notices every kind of broken promise."""

from __future__ import annotations

import pytest

from tests.server.soak.journal import Delete, TopicJournal, Write

Found = dict[int, tuple[bytes, str]]
ONE, TWO, THREE = b'{"n":1}', b'{"n":2}', b'{"n":3}'


@pytest.fixture
def journal() -> TopicJournal:
    """1 and 2 acknowledged in one write, 3 acknowledged and deleted."""
    journal = TopicJournal("t")
    journal.acknowledge(Write(1, [ONE, TWO], "a", None), [1, 2])
    journal.acknowledge(Write(2, [THREE], "b", None), [3])
    journal.removed(Delete({"match": "b"}, frozenset({3})))
    return journal


THERE: Found = {1: (ONE, "a"), 2: (TWO, "a")}


def test_what_was_acknowledged_passes(journal: TopicJournal) -> None:
    assert journal.settle(THERE) == {"records": 2, "deleted": 1}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({1: (ONE, "a")}, "2: None"),
        ({1: (ONE, "a"), 2: (b'{"n": 2}', "a")}, "2: "),
        ({1: (ONE, "a"), 2: (TWO, "b")}, "2: "),
        ({**THERE, 3: (THREE, "b")}, "deleted and back"),
        ({**THERE, 4: (b"4", "a")}, "nobody wrote"),
    ],
    ids=["lost", "changed", "other tag", "resurrected", "invented"],
)
def test_a_broken_promise_is_noticed(journal: TopicJournal, found: Found, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        journal.settle(found)


def test_an_unknown_write_is_there_whole_once_or_not_at_all(journal: TopicJournal) -> None:
    four, five = b'{"n":4}', b'{"n":5}'

    def settle(found: Found) -> Write:
        write = Write(3, [four, five], "c", "k")
        journal.unknown_writes = [write]
        journal.settle(THERE | found)
        return write

    assert settle({}).seqs == []
    for part in ({4: (four, "c")}, {4: (five, "c"), 5: (four, "c")}):
        with pytest.raises(AssertionError, match="is there as"):
            settle(part)
    whole = {4: (four, "c"), 5: (five, "c")}
    with pytest.raises(AssertionError, match="is there as"):
        settle({**whole, 6: (four, "c"), 7: (five, "c")})
    assert settle(whole).seqs == [4, 5]
    # It is settled: from now on it has to be there.
    with pytest.raises(AssertionError, match="4: None"):
        journal.settle(THERE)


def test_an_unknown_delete_is_carried_out_whole_or_not_at_all(journal: TopicJournal) -> None:
    def settle(found: Found) -> None:
        journal.unknown_deletes = [Delete({"match": "a"}, frozenset({1, 2}))]
        journal.settle(found)

    settle(THERE)
    with pytest.raises(AssertionError, match="half of a delete"):
        settle({1: (ONE, "a")})
    settle({})
    with pytest.raises(AssertionError, match="deleted and back"):
        journal.settle(THERE)


def test_a_seq_is_not_given_out_twice(journal: TopicJournal) -> None:
    with pytest.raises(AssertionError, match="given out twice"):
        journal.acknowledge(Write(3, [b"other"], "a", None), [3])
