"""Reading: what a cursor is told, whoever asks.

`tombstones` holds the one decision between tombstone and silence; `pages` cuts the bytes of a diff,
`ranges` those of a closed range; `watch` and `feeds` tell readers that stay, `scheduler` and
`priority` say who is next. Reading changes nothing.
"""
