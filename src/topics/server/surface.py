"""The pieces of the surface, in the order in which the document shows them."""

from __future__ import annotations

from typing import Protocol

from topics.server.api.route import Route
from topics.server.live.stream_routes import StreamRoutes
from topics.server.live.watch_routes import WatchRoutes
from topics.server.live.ws_routes import WsRoutes
from topics.server.loop.services import Services
from topics.server.queues.desks import Desks
from topics.server.queues.lease_routes import QueueRoutes
from topics.server.queues.work_routes import WorkRoutes
from topics.server.routes.backups import BackupRoutes
from topics.server.routes.buckets import BucketRoutes
from topics.server.routes.cursors import CursorRoutes
from topics.server.routes.diff import ReadRoutes
from topics.server.routes.index import IndexRoutes
from topics.server.routes.keys import KeyRoutes
from topics.server.routes.listing import Listing
from topics.server.routes.looking import LookingRoutes
from topics.server.routes.metrics import MetricsRoute
from topics.server.routes.openapi import Document
from topics.server.routes.probes import Probes
from topics.server.routes.ranges import RangeRoutes
from topics.server.routes.records import RecordRoutes
from topics.server.routes.routers import RouterRoutes
from topics.server.routes.stages import StageRoutes
from topics.server.routes.topics import TopicRoutes
from topics.server.routes.write import WriteRoute


class Part(Protocol):
    """A piece of the surface."""

    def routes(self) -> list[Route]: ...


def routes_of(services: Services, desks: Desks) -> list[Route]:
    """The table of all routes. The document is of the table that it is itself in."""
    table: list[Route] = []
    document = Document(services.config, table)
    parts: list[Part] = [
        TopicRoutes(services), Listing(services), WriteRoute(services), ReadRoutes(services),
        RangeRoutes(services), RecordRoutes(services), CursorRoutes(services),
        StageRoutes(services), BucketRoutes(services), KeyRoutes(services),
        RouterRoutes(services), QueueRoutes(services, desks),
        WorkRoutes(services, desks), WatchRoutes(services), StreamRoutes(services),
        WsRoutes(services),
        LookingRoutes(services), BackupRoutes(services), Probes(services),
        MetricsRoute(services), document, IndexRoutes(document),
    ]  # fmt: skip
    table.extend(route for part in parts for route in part.routes())
    return table
