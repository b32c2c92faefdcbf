"""What is in memory: topics, blocks, tags, leases, routers, and the form of a record.

Plain objects that are changed by calls and keep their own counts true. They know neither the log
nor the clock: whoever changes them has both.

A `topic` is made of blocks (`block`), runs of seqs whose records are `Columns` in memory, bytes in
a segment, or both; its `holes` are what can never be read. Below its floor the `account` says what
became of every seq, and `explaining` what became of any; a `ceiling` bounds what may have been
acknowledged. `retention` moves the floor for caps and TTLs, and never back. `segments` knows where
sealed bytes are and keeps a bounded cache of blocks. `tags` finds seqs by tag, `idempotency` writes
by key, `names` topics in order; `cursors` are the places of named readers; `numbers` are those that
are given once, `unsealed` is what waits for a checkpoint, `tally` counts what happened. A `queue`
is who holds which job (`queue_values` is what its calls take and give); `kinds` are what records
are to a bucket, `lacking` what it lacks of its past; `routers` is who copies from where to where
(`router_frames` is what they log); `stages` are records that wait for a commit, `producers` who
committed what last (`stage_request` is how both are asked for). `write_request` decodes what a
client sent, `batch` makes records of it, rendered once for every reader; `record` is their form,
`places` where its parts are in many of them, and nobody else looks into it; `copies` gives them
other seqs, `reblocking` puts runs together anew.
"""
