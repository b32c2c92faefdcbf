"""How many connections there may be, so that storage can always open its files.

Everything that a process has open counts against one limit. Each peer could take the whole of it
without having shown a key, and a log that can not begin its next file ends the server. So what
storage may need is kept back, and connections share the rest.
"""

from __future__ import annotations

import resource

from topics.engine.state.segments import OPEN_FILES_MAX
from topics.errors import TopicsError

# For each shard: the file written to, the next one, and rotated ones that wait for their sync.
SHARD_FILES = 8
# A checkpoint and a relocation under way, the cold store's connections, the loop, the sockets that
# listen, standard streams, and peers that are told that there is no room for them.
OTHER_FILES = 96
CONNECTIONS_MIN = 16
# Nobody needs more; some systems set the limit so high that it counts as none.
FILES_MAX = 1 << 20


def connections_max(wal_shards: int) -> int:
    """Raises the process's limit as far as it may; what storage leaves of it to connections.

    Raises TopicsError where that is next to nothing.
    """
    kept = OPEN_FILES_MAX + SHARD_FILES * wal_shards + OTHER_FILES
    soft, hard = (
        FILES_MAX if limit == resource.RLIM_INFINITY else min(limit, FILES_MAX)
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    if soft < hard:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (hard, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        )
    found = max(soft, hard) - kept
    if found < CONNECTIONS_MIN:
        raise TopicsError(
            f"this process may open {max(soft, hard)} files, and topics needs "
            f"{kept + CONNECTIONS_MIN}: raise the limit (ulimit -n) and start again"
        )
    return found
