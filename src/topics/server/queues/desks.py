"""The desks of all queues that have one, and the leases of workers that went away."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from topics.engine.commit.ticket import Ticket
from topics.engine.queues.handle import QueueHandle
from topics.errors import Poisoned, TopicsError
from topics.server.loop.services import Services
from topics.server.queues.desk import Desk


class Desks:
    def __init__(self, services: Services) -> None:
        self.services = services
        self.by_name: dict[str, Desk] = {}
        services.on_deleted.append(self._records_deleted)

    def of(self, queue: QueueHandle) -> Desk:
        """The desk of this instance of a queue."""
        desk = self.by_name.get(queue.name)
        if desk is not None and desk.queue != queue:
            desk.wake()
            desk = None
        if desk is None:
            desk = self.by_name[queue.name] = Desk(self.services, self.by_name, queue)
        return desk

    def release(self, name: str, leases: Sequence[tuple[int, str]]) -> None:
        """Gives leases back whose worker is gone."""
        driver = self.services.driver
        if not leases or not driver.is_ready:
            return
        try:
            ticket = driver.engine.submit_release(name, leases)
        except Poisoned as error:
            driver.fail(error)
            return
        except TopicsError:
            # The topic is gone, and the leases with it.
            return
        if ticket.done:
            self._released(name, ticket)
        else:
            ticket.callback = partial(self._released, name)
            driver.flush_soon()

    def _released(self, name: str, _ticket: Ticket[int]) -> None:
        desk = self.by_name.get(name)
        if desk is not None:
            desk.kick()

    def _records_deleted(self, name: str) -> None:
        """Records of a topic were deleted: streams may have held some of them."""
        desk = self.by_name.get(name)
        if desk is not None:
            desk.drop_gone_jobs()
            desk.kick()
