"""The pieces of the surface, in the order in which the document shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from topics.server.cursor_routes import CursorRoutes
from topics.server.listing import Listing
from topics.server.metrics_route import MetricsRoute
from topics.server.openapi import Document
from topics.server.probes import Probes
from topics.server.queue_routes import QueueRoutes
from topics.server.range_routes import RangeRoutes
from topics.server.read_routes import ReadRoutes
from topics.server.record_routes import RecordRoutes
from topics.server.router_routes import RouterRoutes
from topics.server.topic_routes import TopicRoutes
from topics.server.watch_routes import WatchRoutes
from topics.server.work_routes import WorkRoutes
from topics.server.write_route import WriteRoute
from topics.server.ws_routes import WsRoutes

if TYPE_CHECKING:
    from topics.server.app import App, Part

PARTS: list[Callable[[App], Part]] = [
    TopicRoutes, Listing, WriteRoute, ReadRoutes, RangeRoutes, RecordRoutes, CursorRoutes,
    RouterRoutes, QueueRoutes, WorkRoutes, WatchRoutes, WsRoutes, Probes, MetricsRoute, Document,
]  # fmt: skip
