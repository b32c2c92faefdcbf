"""GET / and GET /v0: what is here, for whoever comes without a plan. GET /v0/docs: the document."""

from __future__ import annotations

import msgspec

from topics import __version__
from topics.server.api.call import Call
from topics.server.api.route import Route
from topics.server.api.shapes import Performance
from topics.server.http.message import Answer, Response
from topics.server.routes.openapi import Document
from topics.server.routes.page import html_of

HTML = "text/html; charset=utf-8"
# Nothing on the page comes from elsewhere, and nothing on it runs.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
LINKS = {
    "docs": "/v0/docs", "openapi": "/v0/openapi.json", "topics": "/v0/topics",
    "routers": "/v0/routers", "kv": "/v0/kv", "stages": "/v0/stages", "watch": "/v0/watch",
    "websocket": "/v0/ws",
    "connections": "/v0/connections", "metrics": "/v0/metrics", "health": "/v0/health",
    "ready": "/v0/ready",
}  # fmt: skip


class Index(msgspec.Struct, kw_only=True):
    name: str
    version: str
    links: dict[str, str]
    performance: Performance


class IndexRoutes:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._page = b""

    def routes(self) -> list[Route]:
        return [
            *(
                Route(
                    method="GET", path=path, handler=self.index, is_probe=True,
                    summary="A short index, with links.", answers={200: Index},
                    errors=("unauthorized",),
                )
                for path in ("/", "/v0")
            ),
            Route(
                method="GET", path="/v0/docs", handler=self.docs, is_probe=True,
                summary="This document as a page.", errors=("unauthorized",),
                others={200: ("text/html", "The page; it asks for nothing from elsewhere.")},
            ),
        ]  # fmt: skip

    def index(self, call: Call) -> Answer:
        return call.answer(
            Index(name="topics", version=__version__, links=LINKS, performance=call.performance())
        )

    def docs(self, _call: Call) -> Answer:
        if not self._page:
            self._page = html_of(self._document.content()).encode()
        return Response(self._page, 200, HTML, headers=(("Content-Security-Policy", _POLICY),))
