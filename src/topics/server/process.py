"""One server as a process: listen, recover, serve, and end in order on a signal.

The directory is locked before the port is opened, and the port is open before recovery begins:
probes and metrics are answered from the first moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import ssl
import sys
from typing import Any

from topics.engine.engine import Engine
from topics.errors import TopicsError
from topics.server import descriptors, tls
from topics.server.app import App
from topics.server.config import Config, ServerOptions
from topics.server.http.connections import HttpServer
from topics.server.http.limits import HttpLimits
from topics.server.reloading import Reloading
from topics.storage import heap
from topics.storage.fs import Fs

LOG = logging.getLogger("topics.server")
# Whoever needs the interpreter waits at most so long for a thread that goes on and on. A write
# needs it several times, beside syncs and beside ranges that are rendered.
SWITCH_INTERVAL_S = 0.0001
# After a storage failure: time for the answers that say so.
LAST_WORDS_S = 0.2
# Why a port can not be opened, and what to try.
_NO_DOOR = {
    errno.EADDRINUSE: "the port is in use; stop what listens there, or choose another port with "
    "--port (0 lets the system choose)",
    errno.EADDRNOTAVAIL: "this machine has no such address; choose another with --host",
    errno.EACCES: "this user may not open it; choose a port above 1023 with --port",
}


async def serve(config: Config, *, fs: Fs | None = None) -> None:
    """Serves until SIGTERM or SIGINT. Raises what made it impossible to go on."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    heap.use_one_heap()
    options = config.options
    connections_max = descriptors.connections_max(config.settings.wal_shards)
    context = tls.context_of(options)
    stop = _stop_on_signals()
    steps = Engine.opening(options.data_dir, settings=config.settings, fs=fs)
    next(steps)
    # The directory is ours: a port file that is still there is that of a server which was killed.
    _forget_port(options.port_file)
    app = App(config)
    bytes_max = config.settings.max_body_bytes
    limits = HttpLimits(
        body_bytes_max=bytes_max, message_bytes_max=bytes_max, connections_max=connections_max,
        inflight_body_bytes_max=options.max_inflight_body_bytes,
        unsent_bytes_max=options.max_unsent_bytes,
    )  # fmt: skip
    server = app.http_server(limits)
    try:
        port = await _listen(server, options, context)
        app.services.start(server, steps)
        Reloading(app, context).install()
        _announce(config, port)
        if options.port_file:
            _write_port(options.port_file, port)
        ends: set[asyncio.Future[Any]] = {stop, app.services.driver.failed}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if app.services.driver.failed.done():
            await asyncio.sleep(LAST_WORDS_S)
            raise app.services.driver.failed.result()
        await _drain(app, server)
    finally:
        steps.close()
        app.services.close()
        _forget_port(options.port_file)
    LOG.info("stopped")


async def _listen(
    server: HttpServer, options: ServerOptions, context: ssl.SSLContext | None
) -> int:
    try:
        return await server.listen(options.host.strip("[]"), options.port, context)
    except OSError as error:
        if isinstance(error, socket.gaierror):
            why = "no host of that name is known; choose another with --host"
        else:
            why = _NO_DOOR.get(error.errno or 0) or error.strerror or str(error)
        raise TopicsError(f"can not listen on {_address(options, options.port)}: {why}") from None


def _address(options: ServerOptions, port: int) -> str:
    host = options.host
    return f"[{host.strip('[]')}]:{port}" if ":" in host else f"{host}:{port}"


def _stop_on_signals() -> asyncio.Future[None]:
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[None] = loop.create_future()

    def caught(name: str) -> None:
        if stop.done():
            LOG.warning("%s again: ending now", name)
            os._exit(1)
        LOG.info("%s: draining", name)
        stop.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, caught, number.name)
    return stop


async def _drain(app: App, server: HttpServer) -> None:
    options = app.config.options
    app.services.drain()
    if options.drain_notice_ms:
        await asyncio.sleep(options.drain_notice_ms / 1000)
    await server.shutdown(options.drain_ms / 1000)


def _announce(config: Config, port: int) -> None:
    options = config.options
    auth = f"on, {len(config.keys)} keys" if config.keys else "OFF: everybody may do everything"
    LOG.log(
        logging.INFO if config.keys else logging.WARNING,
        "topics listens on %s://%s, data in %s, auth %s",
        "https" if options.tls_cert else "http", _address(options, port),
        os.path.abspath(options.data_dir), auth,
    )  # fmt: skip


def _write_port(path: str, port: int) -> None:
    """Atomically: who sees the file sees the whole number."""
    # A device or a pipe is written to: a file in the place of /dev/stdout would be nobody's.
    scratch = f"{path}.{os.getpid()}" if _is_file(path) else path
    try:
        with open(scratch, "w") as file:
            file.write(f"{port}\n")
        if scratch != path:
            os.replace(scratch, path)
    except OSError as error:
        raise TopicsError(f"TOPICS_PORT_FILE can not be written: {error}") from None


def _forget_port(path: str) -> None:
    if path and _is_file(path):
        with contextlib.suppress(OSError):
            os.unlink(path)


def _is_file(path: str) -> bool:
    """Whether it is a plain file, or can become one."""
    return os.path.isfile(path) or not os.path.exists(path)
