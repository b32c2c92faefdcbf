"""Is it alive, and may it be sent requests? For load balancers, at the root as well."""

from __future__ import annotations

from topics import __version__
from topics.errors import Closed
from topics.server.api.call import Call
from topics.server.api.route import Route
from topics.server.api.shapes import Health, Ready
from topics.server.http.message import Answer
from topics.server.loop.services import Services


class Probes:
    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        alive = "Whether the process can serve."
        ready = "Whether requests may be sent: recovery has ended and no shutdown has begun."
        return [
            *(
                Route(
                    method="GET", path=path, handler=self.health, is_probe=True, summary=alive,
                    answers={200: Health}, errors=("unauthorized",),
                )
                for path in ("/v0/health", "/healthz")
            ),
            *(
                Route(
                    method="GET", path=path, handler=self.ready, is_probe=True, summary=ready,
                    answers={200: Ready}, errors=("unauthorized", "not_ready"),
                )
                for path in ("/v0/ready", "/readyz")
            ),
        ]  # fmt: skip

    def health(self, call: Call) -> Answer:
        return call.answer(
            Health(
                status="ok", version=__version__, uptime_ms=self._services.uptime_ms,
                performance=call.performance(),
            )
        )  # fmt: skip

    def ready(self, call: Call) -> Answer:
        services = self._services
        if services.is_draining:
            raise Closed("the server is shutting down; send requests elsewhere")
        if not services.driver.is_ready:
            raise services.unready()
        return call.answer(
            Ready(
                status="ready",
                wal_replay_complete=not services.engine.is_recovering,
                topics=services.engine.topic_count,
                performance=call.performance(),
            )
        )
