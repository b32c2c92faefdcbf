"""A pass: jobs of a queue for everybody who waits for them, in one engine call.

It is the one way by which jobs are leased, for claims that are answered at once, those that wait,
and `/work` streams. Whoever gets jobs is a Member; those of one pass are its cohort.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from topics.engine.commit.ticket import Ticket
from topics.engine.state.queue_values import Claimant, Claimed
from topics.engine.state.segments import ColdMiss
from topics.errors import Poisoned, TopicsError
from topics.server.http.errors import LOG
from topics.server.loop.services import Services


class Member(Protocol):
    """Somebody who asks for jobs."""

    @property
    def must_be_answered(self) -> bool:
        """Whether the next pass ends its wait, with jobs or without."""
        ...

    def claimant(self) -> Claimant | None:
        """What it asks for now; None for one that asks for nothing any more."""
        ...

    def take(self, claimed: Claimed) -> None:
        """What a pass had for it. It has left the line, and may enter it again."""
        ...

    def fail(self, error: BaseException) -> None:
        """The pass failed; nothing was leased. As `take`."""
        ...

    def is_held_back(self, retry_after_ms: int) -> bool:
        """Whether pressure keeps it waiting; it is told so."""
        ...


Cohort = list[tuple[Member, Claimant]]
NoteClaimed = Callable[[list[int]], None]


class Pass:
    """Leases what is ready when it is made; `tell` says to each member what it got.

    Raises ColdMiss when the next job has to be fetched first: nothing was leased, nobody told.
    Whatever else goes wrong is the members' to be told.
    """

    __slots__ = ("_cohort", "_error", "_name", "_services", "_ticket")

    def __init__(self, services: Services, name: str, cohort: Cohort) -> None:
        self._services = services
        self._name = name
        self._cohort = cohort
        self._ticket: Ticket[list[Claimed]] | None = None
        self._error: BaseException | None = None
        try:
            claimants = [claimant for _, claimant in cohort]
            self._ticket = services.engine.submit_claims(name, claimants)
        except ColdMiss:
            raise
        except Exception as error:
            self._error = error

    @property
    def members(self) -> list[Member]:
        return [member for member, _ in self._cohort]

    @property
    def is_done(self) -> bool:
        """Whether members can be told now; else the log is waited for."""
        return self._ticket is None or self._ticket.done

    def when_done(self, callback: Callable[[], None]) -> None:
        assert self._ticket is not None
        self._ticket.callback = lambda _: callback()
        self._services.driver.flush_soon()

    def tell(self, note: NoteClaimed | None) -> bool:
        """Tells each member what it got; `note` gets the jobs before. False when it failed."""
        error = self._error if self._ticket is None else self._ticket.error
        if error is not None or self._ticket is None:
            self._fail(error)
            return False
        for (member, _), claimed in zip(self._cohort, self._ticket.result, strict=True):
            if note is not None:
                note(claimed.seqs)
            member.take(claimed)
        return True

    def _fail(self, error: BaseException | None) -> None:
        assert error is not None
        if isinstance(error, Poisoned):
            error = self._services.failed(error)
        elif not isinstance(error, TopicsError):
            LOG.error("jobs of %s can not be handed out", self._name, exc_info=error)
        for member, _ in self._cohort:
            member.fail(error)
