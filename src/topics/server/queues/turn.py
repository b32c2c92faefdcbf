"""Claims that need not wait, those of one turn of the loop together.

Each gets what it would have got alone, in the order in which they came: one pass for all of them
only costs less. Where there are fewer jobs than were asked for, each has a pass of its own, because
a pass would divide them.
"""

from __future__ import annotations

from functools import partial

from topics.engine.commit.ticket import Ticket
from topics.engine.state.queue_values import Claimant, Claimed
from topics.engine.state.segments import ColdMiss
from topics.errors import Poisoned
from topics.server.api.call import Call
from topics.server.queues.claims import Claim, render
from topics.server.queues.desks import Desks

# A call, what it asks for, and how long it would wait.
Asked = tuple[Call, Claimant, int]


class ClaimTurn:
    def __init__(self, desks: Desks) -> None:
        self._services = desks.services
        self._driver = desks.services.driver
        self._desks = desks
        self._asked: dict[str, list[Asked]] = {}

    def add(self, name: str, asked: Asked) -> None:
        """Answers the call at the end of this turn, or when it has waited long enough."""
        others = self._asked.get(name)
        if others is not None:
            others.append(asked)
            return
        self._asked[name] = [asked]
        self._services.tick.defer(self._serve)

    def _serve(self) -> None:
        turn, self._asked = self._asked, {}
        for name, claims in turn.items():
            try:
                if len(claims) > 1 and self._is_scarce(name, claims):
                    for one in claims:
                        self._submit(name, [one])
                else:
                    self._submit(name, claims)
            except Poisoned as error:
                _fail(claims, self._services.failed(error))
            except Exception as error:
                _fail(claims, error)

    def _is_scarce(self, name: str, claims: list[Asked]) -> bool:
        ready = self._driver.engine.ready_jobs(name)
        return ready is not None and 0 < ready < sum(claimant.max for _, claimant, _ in claims)

    def _submit(self, name: str, claims: list[Asked]) -> None:
        engine = self._driver.engine
        try:
            ticket = engine.submit_claims(name, [claimant for _, claimant, _ in claims])
        except ColdMiss as miss:
            for claim in self._waiting(name, claims):
                claim.wait().fetch(miss)
            return
        if not ticket.done:
            ticket.callback = partial(_hand_out, self._waiting(name, claims))
            self._driver.flush_soon()
            return
        if ticket.error is not None:
            _fail(claims, ticket.error)
            return
        desk, is_draining = self._desks.by_name.get(name), self._services.is_draining
        for asked, claimed in zip(claims, ticket.result, strict=True):
            call, _, wait_ms = asked
            if desk is not None:
                desk.note_claimed(claimed.seqs)
            if claimed.seqs or not wait_ms or is_draining:
                call.respond_json(render(call, name, claimed))
            else:
                self._waiting(name, [asked])[0].wait()

    def _waiting(self, name: str, claims: list[Asked]) -> list[Claim]:
        queue = self._driver.engine.queue_handle(name)
        return [
            Claim(self._desks, call, queue, claimant, wait_ms) for call, claimant, wait_ms in claims
        ]


def _hand_out(claims: list[Claim], ticket: Ticket[list[Claimed]]) -> None:
    if ticket.error is not None:
        for claim in claims:
            claim.fail(ticket.error)
        return
    results: list[Claimed] = ticket.result
    for claim, claimed in zip(claims, results, strict=True):
        claim.claimed(claimed)


def _fail(claims: list[Asked], error: BaseException) -> None:
    for call, _, _ in claims:
        call.fail(error)
