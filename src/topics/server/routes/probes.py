"""Is it alive, and may it be sent requests? For load balancers, at the root as well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topics import __version__
from topics.errors import Closed
from topics.server.api.call import Call
from topics.server.api.route import Route
from topics.server.api.shapes import Health, Ready
from topics.server.http.message import Answer

if TYPE_CHECKING:
    from topics.server.app import App


class Probes:
    def __init__(self, app: App) -> None:
        self._app = app

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
                status="ok", version=__version__, uptime_ms=uptime_ms(self._app),
                performance=call.performance(),
            )
        )  # fmt: skip

    def ready(self, call: Call) -> Answer:
        app = self._app
        if app.is_draining:
            raise Closed("the server is shutting down; send requests elsewhere")
        if not app.driver.is_ready:
            raise app.unready()
        return call.answer(
            Ready(
                status="ready",
                wal_replay_complete=not app.engine.is_recovering,
                topics=len(app.engine.core.by_name),
                performance=call.performance(),
            )
        )


def uptime_ms(app: App) -> int:
    return int((app.clock.monotonic_s() - app.started_s) * 1000)
