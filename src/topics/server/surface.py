"""The pieces of the surface, in the order in which the document shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from topics.server.live.watch_routes import WatchRoutes
from topics.server.live.ws_routes import WsRoutes
from topics.server.queues.lease_routes import QueueRoutes
from topics.server.queues.work_routes import WorkRoutes
from topics.server.routes.cursors import CursorRoutes
from topics.server.routes.diff import ReadRoutes
from topics.server.routes.listing import Listing
from topics.server.routes.metrics import MetricsRoute
from topics.server.routes.openapi import Document
from topics.server.routes.probes import Probes
from topics.server.routes.ranges import RangeRoutes
from topics.server.routes.records import RecordRoutes
from topics.server.routes.routers import RouterRoutes
from topics.server.routes.topics import TopicRoutes
from topics.server.routes.write import WriteRoute

if TYPE_CHECKING:
    from topics.server.app import App, Part

PARTS: list[Callable[[App], Part]] = [
    TopicRoutes, Listing, WriteRoute, ReadRoutes, RangeRoutes, RecordRoutes, CursorRoutes,
    RouterRoutes, QueueRoutes, WorkRoutes, WatchRoutes, WsRoutes, Probes, MetricsRoute, Document,
]  # fmt: skip
