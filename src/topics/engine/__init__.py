"""The rules of the log: one state machine driven by calls, a clock and a filesystem.

An engine owns one data directory. One thread opens, drives and closes it:

    engine = Engine.open("./data")                # or `opening`, a step at a time
    ticket = engine.submit_append("t", request)   # checked and staged; nothing is written yet
    engine.flush()                                # one group per shard; what may be seen now, is
    engine.poll()                                 # ends the tickets of what has become durable
    engine.maintain()                             # a slice of the work beside the work
    engine.close()

`append`, `delete` and the other calls without `submit_` do all of that for themselves.

Every change is a frame of the log, and state in memory is always the fold of a prefix of it: a
frame is applied after it was written, or, when it is gated, after it was synced, in one order for
each topic. That is why recovery is the same fold, and why a snapshot may be taken while writes go
on. Records are in the log until a checkpoint seals them into segments; a snapshot then says where
the log begins, and what is in front of that is trimmed.

Who owns what, from the bottom up. Each room knows only those below it:

    state      topics and what is in them: blocks, floors, tags, leases, routers
    commit     the log, the order in which operations take effect, and `Core`, which all share
    ops        every kind of change: how it is checked, logged, applied and taken back
    reading    what a cursor is told; the one decision between tombstone and silence
    queues     leases over the records of a topic
    routing    copies from topic to topic
    recovery   from a directory to the state that was acknowledged
    upkeep     checkpoints, trimming, relocation, scrubbing
    offline    check, repair and restore of a directory that nobody has open

`engine`, `queue_calls`, `reader_calls`, `stage_calls`, `backup_calls`, `serving` and `lifecycle`
are the calls of the one class `Engine`; `gauges` is what it counts.
Nothing here knows an event loop; whoever drives an engine decides when to flush and to maintain.
"""
