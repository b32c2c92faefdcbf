"""Operations: one module for each kind of change that the log can hold.

Each checks before it changes anything, says what its frame is, and applies it to memory once the
committer says so. An operation never fails while it is applied: what it needs, it has before its
seqs are assigned.
"""
