"""Heads of requests that came before, byte for byte, so that they need no parsing when they return.

llhttp stays the judge of what is HTTP: a head is learnt only from a read that it took as one whole
plain request, and the same bytes at the same place mean the same again.
"""

from __future__ import annotations

from topics.server.message import Head

HEADS_MAX = 1024
HEAD_BYTES_MAX = 1024


class KnownHeads:
    """Forgotten all at once when there are too many: hot ones are back after one request."""

    __slots__ = ("heads",)

    def __init__(self) -> None:
        self.heads: dict[bytes, Head] = {}

    def learn(self, data: bytes, head: Head) -> None:
        """Keeps the head of a read, if the read was that head and its body and nothing else.

        A head with a secret in it is not kept: keys are in memory as hashes only.
        """
        end = data.find(b"\r\n\r\n") + 4
        body_bytes = int(head.headers.get(b"content-length", b"0"))
        if len(data) - end != body_bytes or end > HEAD_BYTES_MAX:
            return
        if b"authorization" in head.headers or b"token" in head.query:
            return
        head.body_bytes = body_bytes
        if len(self.heads) >= HEADS_MAX:
            self.heads.clear()
        self.heads[data[:end]] = head
