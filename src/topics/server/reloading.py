"""What is read again on SIGHUP: the keys of a file, and the certificate.

What can not be used is said in the log, and what was in use stays so.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl

from topics.errors import InvalidRequest
from topics.server import tls
from topics.server.api.auth import read_keys
from topics.server.app import App

LOG = logging.getLogger("topics.server")


class Reloading:
    """Installed where there is something to read again: without it SIGHUP ends the process."""

    def __init__(self, app: App, context: ssl.SSLContext | None) -> None:
        self._app = app
        self._options = app.config.options
        self._context = context
        self._task: asyncio.Task[None] | None = None

    def install(self) -> None:
        if self._options.api_keys_file or self._context is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._caught)

    def _caught(self) -> None:
        before = self._task
        self._task = asyncio.get_running_loop().create_task(self._reload(before))

    async def _reload(self, before: asyncio.Task[None] | None) -> None:
        """One after the other; files are read in a thread."""
        if before is not None:
            await before
        if self._options.api_keys_file:
            await self._reload_keys(self._options.api_keys_file)
        if self._context is not None:
            await self._reload_certificate(self._context)

    async def _reload_keys(self, path: str) -> None:
        try:
            keys = await asyncio.to_thread(read_keys, path)
        except InvalidRequest as error:
            LOG.error("SIGHUP: the keys stay as they were: %s", error)
            return
        gone = self._app.change_keys(keys)
        LOG.info("SIGHUP: keys were read again", extra={"keys": len(keys), "removed": gone})

    async def _reload_certificate(self, context: ssl.SSLContext) -> None:
        try:
            await asyncio.to_thread(tls.load, context, self._options)
        except InvalidRequest as error:
            LOG.error("SIGHUP: the certificate stays as it was: %s", error)
            return
        LOG.info("SIGHUP: the certificate was read again")
