"""The key-value store on the log: a bucket is a topic, and these are its rules, beside the engine.

The rules need no engine: `sorted_keys` has keys in byte order, `index` what the records of a bucket
say of every key, `past` what can still be said of earlier times, `compaction` what may go and why
the rest stays, `snapshots` who sees what until when.

With one: `bucket` is a topic with its index, `assigned` what is on its way to it, `buckets` all of
them and what can be asked of them, `reading` the answers, `compactor` who compacts. `embedded` is a
bucket for the process that has the engine.
"""
