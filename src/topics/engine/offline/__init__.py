"""Tools for a directory that no server has open: check, repair, salvage, restore.

They read everything and trust nothing: every checksum is computed, every count is made again.
`check` changes nothing and says what it found (`findings`, `invariants`, `check_segments`).
`salvage` builds the best state that a damaged directory still proves, from its log (`salvage_log`)
and its segments (`salvage_segments`), and says what is missing (`salvaged`); `repair` writes that
down, and what it gives up as a loss. `traces` knows what erased records would look like in whatever
file, of a running server, too. `backups` looks through the place where backups lie, `moments` cuts
the log of one at a moment, `layout` puts its files where recovery finds them, and `restore` makes a
directory of that. They stand above the engine because repair and restore open one at their ends to
show that the directory opens.
"""
