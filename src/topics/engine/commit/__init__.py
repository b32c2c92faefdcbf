"""Commit: operations become bytes in the log, then state in memory, in one order for each topic.

    frame      what every operation is: its bytes, its effect, its answer, how it is undone
    committer  stages frames, writes them in groups, applies them, ends their tickets
    lanes      the shards of the log, with what is staged and what waits for each
    preparing  operations that are too much for a turn before there is a frame of them
    log        the shards of this generation, who syncs them, and MARKS
    syncing    syncs inline, or in one thread for each shard
    ticket     who is told, and what when it ended badly
    background blocking calls beside the engine's thread
    stage_files the files of stages, beside the engine's thread
    tiering    the calls to the cold store, one at a time
    leaving    names that were given up by a frame which is not durable yet
    core       what all parts of one engine share

A frame is *staged* by an operation, *written* with its neighbours by `flush`, and *applied* at
once, or, when it is *gated*, by `poll` after a sync. What could not be written is undone; what may
have been, when storage fails, is unknown. docs/architecture.md has the drawing. Above this room
nobody writes to the log in another way.
"""
