"""What clients of a server that is killed know: what was acknowledged, and what may be there.

A write or a delete whose answer never came is unknown until the server is back. What is found then
is settled: from then on it stays as it was found.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Write:
    """One write request: its records, and what is known of it."""

    number: int
    payloads: list[bytes]
    tag: str
    key: str | None
    # Empty while it is unknown, or when it turned out not to be there.
    seqs: list[int] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        records = b",".join(
            b'{"data":%b,"tag":"%b"}' % (payload, self.tag.encode()) for payload in self.payloads
        )
        key = b',"idempotency_key":"%b"' % self.key.encode() if self.key is not None else b""
        return b'{"records":[%b]%b}' % (records, key)


@dataclass(frozen=True)
class Delete:
    """One delete request, and the seqs that it removes if it is carried out."""

    body: dict[str, object]
    seqs: frozenset[int]


class TopicJournal:
    """One topic. Its writers add to it side by side; the checks have it for themselves."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = threading.Lock()
        # What every seq is, from the first time that anybody was told.
        self.contents: dict[int, tuple[bytes, str]] = {}
        self.deleted: set[int] = set()
        self.unknown_writes: list[Write] = []
        self.unknown_deletes: list[Delete] = []
        self.head_seq = 0

    @property
    def expected(self) -> dict[int, tuple[bytes, str]]:
        """What must be there, whatever became of the unknown."""
        unsure = {seq for delete in self.unknown_deletes for seq in delete.seqs}
        gone = self.deleted | unsure
        return {seq: found for seq, found in self.contents.items() if seq not in gone}

    def acknowledge(self, write: Write, seqs: list[int]) -> None:
        with self.lock:
            self._note(write, seqs)

    def _note(self, write: Write, seqs: list[int]) -> None:
        assert len(seqs) == len(write.payloads)
        write.seqs = seqs
        for seq, payload in zip(seqs, write.payloads, strict=True):
            before = self.contents.setdefault(seq, (payload, write.tag))
            assert before == (payload, write.tag), f"{self.name} {seq} was given out twice"
        self.head_seq = max(self.head_seq, seqs[-1])

    def removed(self, delete: Delete) -> None:
        with self.lock:
            self.deleted |= delete.seqs

    # -- after a restart -----------------------------------------------------------------------

    def settle(self, found: dict[int, tuple[bytes, str]]) -> Counter[str]:
        """Compares what was found with what is known, and decides what was not.

        Raises AssertionError with the first broken promise.
        """
        counts: Counter[str] = Counter()
        self._settle_writes(found, counts)
        self._settle_deletes(found, counts)
        expected = self.expected
        for seq, content in expected.items():
            assert found.get(seq) == content, f"{self.name} {seq}: {found.get(seq)}, not {content}"
        extra = found.keys() - expected.keys()
        back = extra & self.deleted
        assert not back, f"{self.name}: deleted and back: {sorted(back)[:5]}"
        assert not extra, f"{self.name}: nobody wrote {sorted(extra)[:5]}"
        counts["records"] = len(expected)
        counts["deleted"] = len(self.deleted)
        return counts

    def _settle_writes(self, found: dict[int, tuple[bytes, str]], counts: Counter[str]) -> None:
        seqs_of: dict[bytes, list[int]] = {}
        for seq in sorted(found):
            seqs_of.setdefault(found[seq][0], []).append(seq)
        for write in self.unknown_writes:
            seqs = [seq for payload in write.payloads for seq in seqs_of.get(payload, [])]
            counts["unknown"] += 1
            if not seqs:
                continue
            whole = list(range(seqs[0], seqs[0] + len(write.payloads)))
            assert seqs == whole, f"{self.name}: write {write.number} is there as {seqs}"
            self._note(write, seqs)
            counts["unknown_there"] += 1
        self.unknown_writes = []

    def _settle_deletes(self, found: dict[int, tuple[bytes, str]], counts: Counter[str]) -> None:
        for delete in self.unknown_deletes:
            left = delete.seqs & found.keys()
            counts["unknown"] += 1
            assert not left or left == delete.seqs, f"{self.name}: half of a delete: {left}"
            if not left:
                self.deleted |= delete.seqs
        self.unknown_deletes = []
