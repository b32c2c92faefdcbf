"""What connections know of the server that they belong to.

A server knows its connections, and they know it: here is the half that keeps the modules of the
protocols from knowing each other. `exchange` and `known_heads` ask for more of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from topics.server.http.carrying import Carrier
from topics.server.http.ledger import Ledger
from topics.server.http.limits import HttpLimits
from topics.server.http.slices import Slices
from topics.server.http.turns import TurnEnd

# Told of a request that was answered with an error, the error, and the status of the answer.
Refused: TypeAlias = Callable[[Any, BaseException, int], None]


class Connection(Protocol):
    """What the server knows of any connection."""

    slot: int

    def scan(self, now: float) -> None:
        """Looks for what has taken too long; called about every `scan_s`."""
        ...

    def drain(self) -> None:
        """The server is going away: ends as soon as what is in flight has been answered."""
        ...

    def abort(self) -> None:
        """Ends at once."""
        ...


class AnswerHolder(Protocol):
    """Whatever has answers that its client has not taken."""

    def cut_answers(self) -> None: ...


class BodyHolder(Protocol):
    """Whatever has the beginning of a body or of a message."""

    def cut_body(self) -> None: ...


class Hub(Protocol):
    """What all connections share. `now` is the loop's time, a scan old at most."""

    loop: asyncio.AbstractEventLoop
    limits: HttpLimits
    turn_end: TurnEnd
    slices: Slices
    carrier: Carrier
    now: float
    is_draining: bool
    bodies: Ledger[BodyHolder]
    unsent: Ledger[AnswerHolder]
    refused: Refused

    def join(self, connection: Connection) -> None:
        """Counts a connection in until it leaves."""
        ...

    def join_stream(self, stream: Connection) -> None:
        """Looks after a stream of a connection until it leaves: it has no socket of its own."""
        ...

    def leave(self, connection: Connection) -> None: ...

    def replace(self, connection: Connection, successor: Connection) -> None:
        """The successor has taken the connection over."""
        ...
