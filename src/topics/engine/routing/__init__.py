"""Routers: what is appended to one topic becomes copies in another, off the write path.

`definitions` is how a router comes, changes and goes; `planning` picks the next bounded piece of a
source; `forwarding` turns pieces into operations. Copies are derived, not logged: one map frame
says which source seqs became which seqs of the destination, and recovery makes them again
(`recovery.rederive`). Where the source's bytes may not be there for as long as the map is, the
copies are logged as any append. Routers know nothing of queues.
"""
