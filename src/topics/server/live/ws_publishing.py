"""Publishes of a WebSocket on their way, and how they are told what became of them."""

from __future__ import annotations

from typing import Protocol

from topics.engine.state.topic import Topic
from topics.errors import TopicsError
from topics.server.live.ws_commands import RequestId
from topics.types import Appended


class Publisher(Protocol):
    """The connection that a publish came on."""

    def ack(self, published: Published, done: Appended, /) -> None: ...

    def refuse(self, published: Published, error: TopicsError, /) -> None: ...


class Published:
    """A publish on its way."""

    __slots__ = ("began_s", "connection", "ignored", "request_id", "returns_seqs")

    def __init__(
        self,
        connection: Publisher,
        request_id: RequestId,
        returns_seqs: bool,
        began_s: float,
        ignored: tuple[str, ...],
    ) -> None:
        self.connection = connection
        self.request_id = request_id
        self.returns_seqs = returns_seqs
        self.began_s = began_s
        self.ignored = ignored

    def fail(self, error: TopicsError) -> None:
        self.connection.refuse(self, error)


class Acks:
    """Tells the owners of publishes, of whatever connection."""

    def together(self, topic: Topic, first: int, ts: int, owners: list[Published]) -> None:
        for seq, owner in enumerate(owners, first):
            self.alone(owner, Appended(topic.name, topic.epoch, seq, seq, seq, 1, ts, False, False))

    def alone(self, owner: Published, done: Appended) -> None:
        owner.connection.ack(owner, done)


# One for all, so that publishes of several connections share frames.
ACKS = Acks()
