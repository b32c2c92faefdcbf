"""Exit codes of every command, and the error for a server or store that does not answer."""

from __future__ import annotations

from topics.errors import TopicsError

OK = 0
# What was asked about is not so: a check found something, a lock is held, a name is unknown.
NOT_SO = 1
USAGE = 2
UNREACHABLE = 3
INTERRUPTED = 130


class Unreachable(TopicsError):
    """The server or the store can not be reached; nothing is known about what it holds."""

    code = "unreachable"
    status = 503
