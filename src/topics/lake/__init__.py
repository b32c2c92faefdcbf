"""The lake: topics as Delta tables, with every loss as a row, and an audit that can fail.

The promise: every seq of every epoch of a synced topic is exactly once a record's row, inside one
gap's row, or deleted by the server's own account, whatever crashes, repeats or runs twice.

- `layout`: where things lie in a lake, and the small files beside the tables.
- `table`: one topic's table: its columns, where it stands, queries, upkeep.
- `spans`: runs of seqs, and what is left of them.
- `accounts`: what the server said was deleted, kept for when its epoch is over.
- `schemas`: columns that users ask for beyond those of every table.
- `dead_letters`: what a user's schema has rejected, a table of its own.
- `sessions`: the session of Spark that commits.
- `sync`: from the log to the table, rows and position in one commit.
- `loop`: which topics, how often, for how long without the server.
- `freshness`: how old rows get before they are in a table.
- `deletes`: what the log deleted leaves the table, too.
- `latest`: the latest value of each tag, a table of its own.
- `audit`: holds the table against the server's account.
- `reports`: gaps and status.
- `erasing`: tagged records leave a table and its files, and the proof of it.

Only `sync` needs Spark; everything else reads and writes the tables without a JVM.
"""
