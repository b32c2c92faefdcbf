"""Claims that need not wait, those of one turn of the loop together.

Each gets what it would have got alone, in the order in which they came: one pass for all of them
only costs less. Where there are fewer jobs than were asked for, each has a pass of its own, because
a pass would divide them.
"""

from __future__ import annotations

from functools import partial

from topics.engine.state.segments import ColdMiss
from topics.server.queues.claims import Claim
from topics.server.queues.desks import Desks
from topics.server.queues.passes import Pass


class ClaimTurn:
    def __init__(self, desks: Desks) -> None:
        self._desks = desks
        self._services = desks.services
        self._asked: dict[str, list[Claim]] = {}

    def add(self, claim: Claim) -> None:
        """Answers the claim at the end of this turn, or when it has waited long enough."""
        others = self._asked.get(claim.name)
        if others is not None:
            others.append(claim)
            return
        self._asked[claim.name] = [claim]
        self._services.turn_end.defer(self._serve)

    def _serve(self) -> None:
        turn, self._asked = self._asked, {}
        for name, claims in turn.items():
            if len(claims) > 1 and self._is_scarce(name, claims):
                for claim in claims:
                    self._pass(name, [claim])
            else:
                self._pass(name, claims)

    def _is_scarce(self, name: str, claims: list[Claim]) -> bool:
        ready = self._services.engine.ready_jobs(name)
        return ready is not None and 0 < ready < sum(claim.asked.max for claim in claims)

    def _pass(self, name: str, claims: list[Claim]) -> None:
        try:
            leasing = Pass(self._services, name, [(claim, claim.asked) for claim in claims])
        except ColdMiss as miss:
            for claim in claims:
                claim.wait().fetch(miss)
            return
        if leasing.is_done:
            self._tell(name, leasing)
            return
        for claim in claims:
            claim.hold()
        leasing.when_done(partial(self._logged, name, leasing))

    def _tell(self, name: str, leasing: Pass) -> None:
        desk = self._desks.by_name.get(name)
        leasing.tell(None if desk is None else desk.note_claimed)

    def _logged(self, name: str, leasing: Pass) -> None:
        self._tell(name, leasing)
        desk = self._desks.by_name.get(name)
        if desk is not None:
            # Jobs may have come while the pass was on its way to the disk.
            desk.kick()
