"""Exit codes of every command."""

from __future__ import annotations

OK = 0
# What was asked about is not so: a check found something, a lock is held, a name is unknown.
NOT_SO = 1
USAGE = 2
# The server or the store can not be reached.
UNREACHABLE = 3
INTERRUPTED = 130
