"""Every bound of the protocol layer, with its unit in its name and one default."""

from __future__ import annotations

import msgspec

KIB = 1024
MIB = 1024 * KIB


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one connection may ask of the server. The defaults suit a server on its own machine."""

    # Connections at a time; 0 for any number.
    connections_max: int = 0
    # One request.
    target_bytes_max: int = 16 * KIB
    head_bytes_max: int = 64 * KIB
    headers_max: int = 128
    # Holds for the bytes received and for what they decode to.
    body_bytes_max: int = 64 * MIB
    # All connections together: bodies that are on their way in, and answers that clients have not
    # taken yet. Past them the slowest are cut; 0 for any number.
    inflight_body_bytes_max: int = 256 * MIB
    unsent_bytes_max: int = 256 * MIB
    # Requests of one connection that wait for their answer; what is beyond waits unstarted.
    pending_max: int = 256
    # Answers are handed to the transport in portions of about this size.
    out_bytes_max: int = 256 * KIB
    # Time. A body may take `body_s` plus what its bytes need at the slowest rate we accept, and
    # may rest for `body_s`.
    head_s: float = 10.0
    body_s: float = 20.0
    body_bytes_per_s_min: int = 16 * KIB
    idle_s: float = 75.0
    # A client that takes nothing of a waiting answer for this long is cut off.
    write_stall_s: float = 30.0
    # How long a connection that we have ended may take to go away.
    linger_s: float = 3.0
    # Every connection is looked at once in this time; timeouts are that coarse.
    scan_s: float = 1.0
    # Compression of answers; above `gzip_thread_bytes` it happens beside the loop.
    gzip_bytes_min: int = 1 * KIB
    gzip_thread_bytes: int = 64 * KIB
    # WebSocket.
    message_bytes_max: int = 64 * MIB
    ping_s: float = 20.0
    pong_s: float = 20.0
