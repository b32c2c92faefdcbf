"""Reading: what a cursor is told, whoever asks.

`tombstones` holds the one decision between tombstone and silence; every read begins there. `pages`
then cuts the bytes after a cursor, `ranges` those of a closed range, gaps included, in `stretches`
that refer to the records and copy none. `watch` is one read for a reader that stays, and `feeds`
who stays at which place of which topic; `scheduler` says who is served next, `priority` how much a
topic matters. Records are rendered when they are written: a read is mostly slices. Reading changes
nothing but when a topic was last read.
"""
