"""TLS in the process: a certificate and its key from files, and HTTP/2 for those who ask for it."""

from __future__ import annotations

import ssl

from topics.errors import InvalidRequest
from topics.server.config import ServerOptions

# In the order of our preference; WebSockets come over the second.
PROTOCOLS = ["h2", "http/1.1"]


def context_of(options: ServerOptions) -> ssl.SSLContext | None:
    """What connections are encrypted by; None where they are not. Raises InvalidRequest."""
    if not options.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # What follows a renegotiation would be the work of a client, and ours.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(PROTOCOLS)
    load(context, options)
    return context


def load(context: ssl.SSLContext, options: ServerOptions) -> None:
    """Reads the certificate, for handshakes from now on. Raises InvalidRequest.

    A pair that does not fit leaves a context unusable, so it is tried with another one first.
    """
    for each in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):
        try:
            each.load_cert_chain(options.tls_cert, options.tls_key, _no_password)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise InvalidRequest(
                f"TOPICS_TLS_CERT and TOPICS_TLS_KEY can not be used: {_why(error)}; "
                f"they are {options.tls_cert} and {options.tls_key}",
                setting="tls_cert",
            ) from None


def _no_password() -> bytes:
    """Nobody is there to be asked."""
    raise ValueError("the key is encrypted")


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "no PEM file").replace("_", " ").lower()
    return getattr(error, "strerror", None) or str(error)
