"""Work beside the work: what a running engine does for itself, a slice at a time.

`maintenance` decides what is next; `checkpoint` moves records from the log into segments and the
rest into a snapshot, `trimming` removes what no snapshot needs, `relocation` moves old segments to
the cold store. `rewriting` writes segments anew without what is gone, `reclaiming` decides which
and when; `scrub` takes all of it off the disk, which `erasing` does for whoever asks. `flagging`
says when a delete flag may be written, `freezing` keeps what lives long from the garbage collector.
`backup` keeps what it copies from being removed, and `copying` copies it, in a thread.
Each is a generator whose steps are short; blocking calls run beside it. Nothing here changes what a
reader sees.
"""
