"""Bytes on disk and in the cold tier: synchronous, and knowing nothing of HTTP or event loops.

A data directory, and the modules that know its bytes:

    LOCK FORMAT POISONED    datadir     the owner, the version, that a sync has failed
    MARKS                   marks       which log files there are, and how far each was durable
    wal/*.wal               wal_files   their names, and how one is made
                            wal         writing: shards of files that only grow at their end
                            wal_reader  reading: what is valid, torn, corrupt or missing
                            wal_salvage reading what is left of a damaged one
                            frames      the bytes of groups and frames, for all three
                            footing     what a shard's bytes stand on in another shard
    seg/*.seg               segment     sealed records; flags: which of them were deleted since
    seg/*.cold              cold        the local side of a segment in the cold store
    snap/*.snap             snapshot    every topic without its records
    SESSIONS                register    small values by name: the watch sessions of a server
    stage/*.stage           stage_file  records that wait for a commit, or that one names

`columns` is the one codec for a run of records, in log, memory and segments. `tiers` is the cold
store, a directory or, with `objects`, a bucket; `vault` is such a place with backups in it. All of
it goes through `fs`, the only door to the disk (`readonly` is that door for those who only look);
`prefetch` reads ahead, `heap` asks the system for memory.

What is always true on disk: a log file is named in MARKS before its first group, and MARKS is
never ahead of the log, nor of another shard that this one's bytes stand on. A segment, a snapshot,
a stage and the MARKS of a start are written whole under another name, synced and renamed. A
segment never changes but for its flags. What neither of the two newest snapshots needs is removed
only after both were read in full. After a failed sync nothing more is written.
"""
