"""The way in for writes, whatever brought them: a request of HTTP or a message of a WebSocket.

Everything that arrives in one turn of the loop is one group, and single records of one topic are
one frame of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from topics.engine.commit.ticket import Owner
from topics.engine.ops.told import Teller
from topics.engine.state.kinds import META
from topics.engine.state.write_request import PlainRecord, RecordInput, Request
from topics.server.api.auth import ADMIN, DELETE, Key
from topics.server.loop.delivery import Delivery
from topics.server.loop.driver import Driver
from topics.types import bucket_of

Records = Sequence[RecordInput] | Sequence[PlainRecord]


class Writes:
    def __init__(self, driver: Driver, delivery: Delivery) -> None:
        self._driver = driver
        self._delivery = delivery

    def check_config(self, key: Key | None, name: str, request: Request) -> None:
        """Raises Forbidden for the config of a topic that this key may not create so."""
        if key is None or request.config is None:
            return
        if not self._driver.engine.has_topic(name):
            key.require_scopes(ADMIN)
            key.require_config(request.config)

    def check_pressure(self, what: str, name: str, request: Request) -> None:
        """Raises Throttled where there is too much to do, for a write that may be refused."""
        if self._delivery.pressure.is_refusing and not request.disable_backpressure:
            self._delivery.refuse(what, name)

    def check_busy(self, what: str, name: str) -> None:
        """Raises Throttled where there is too much to do."""
        if self._delivery.pressure.is_refusing:
            self._delivery.refuse(what, name)

    def check_markers(self, key: Key, name: str, records: Records) -> None:
        """Raises Forbidden for a record that deletes keys of a bucket, of one who may not."""
        if bucket_of(name) is not None and any(
            record.meta is not None and META in record.meta for record in records
        ):
            key.require_scopes(DELETE)

    def submit(self, name: str, request: Request, owner: Owner, teller: Teller) -> None:
        """Stages a write; its owner is told now, or when this turn has been written."""
        driver = self._driver
        driver.engine.submit_write(name, request, owner, teller)
        if not driver.is_flush_due:
            driver.flush_soon()
