"""Tools for a directory that no server has open: check, repair, salvage.

They read everything and trust nothing: every checksum is computed, every count is made again.
`check` changes nothing and says what it found (`findings`, `invariants`, `check_segments`).
`salvage` builds the best state that a damaged directory still proves, from its log (`salvage_log`)
and its segments (`salvage_segments`), and says what is missing (`salvaged`); `repair` writes that
down, and what it gives up as a loss. `traces` knows what erased records would look like in whatever
file, of a running server, too. They stand above the engine
because repair opens one at its end to show that the directory opens.
"""
