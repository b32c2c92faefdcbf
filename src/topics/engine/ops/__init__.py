"""Operations: one module for each kind of change that the log can hold.

Each checks before it changes anything, says what its frame is, and applies it to memory once the
committer says so. An operation never fails while it is applied: what it needs, it has before its
seqs are assigned.

`growth` is the rule that everything shares which takes seqs: they are assigned, counted as on
their way, published or given back. `append` is a write, `singles` those of one record that share a
frame, `told` who hears of them and how, `repeats` those that come again with the same key;
`ceilings` bounds what class `disk` may have acknowledged. `deleting` looks up what a delete is
about, `deletes` removes it. `catalog` is topics, `cursors` are those of readers, `lease_frames` is
what queues log. `stages` takes in what waits for a commit, `commits` decides what becomes of it,
`commit_frames` is how it becomes records. `resident` and `promotion` are for ephemeral topics: what
they write down at all, and how they become durable.
"""
