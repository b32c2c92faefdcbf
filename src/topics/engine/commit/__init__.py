"""Commit: operations become bytes in the log, then state in memory, in one order for each topic.

`committer` stages, writes and applies groups, `syncing` makes them durable (inline or in threads),
`ticket` is who is told. `core` is what all parts of one engine share. Above this room nobody writes
to the log in another way.
"""
