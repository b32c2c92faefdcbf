"""The latest value of each tag, as a table of its own: `latest/<name>` beside `topics/<name>`.

It is made of the topic's table alone, as a whole and in one commit, whenever that has a version it
was not made of yet: so it follows deletes, restores and new epochs without rules of its own. Of a
bucket's topic (docs/kv.md) it holds the keys that are live: a marker hides its key, a range marker
the keys of its prefix that were put before it.
"""

from __future__ import annotations

import json

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction, write_deltalake
from deltalake.exceptions import TableNotFoundError

from topics.lake.layout import Lake
from topics.lake.table import RECORD, SCHEMA, Snapshot, Stored, Table

APP_ID = "topics-lake-latest"
COLUMNS = ("topic", "epoch", "seq", "ts", "node", "tag", "meta", "data")
_SCHEMA = pa.schema([SCHEMA.field(name) for name in COLUMNS])
_MARK = "map_extract(meta, 'kv')[1]"


def refresh(lake: Lake, topic: str) -> bool:
    """Brings the table of latest values to where the topic's is; whether it was behind."""
    uri = lake.latest_uri(topic)
    now = Table(lake, topic).snapshot()
    try:
        made_of = DeltaTable(uri).transaction_version(APP_ID)
    except TableNotFoundError:
        made_of = None
    # One more than the version, because 0 is one.
    if made_of == now.version + 1:
        return False
    write_deltalake(
        uri, _latest(now), mode="overwrite",
        configuration={"delta.dataSkippingStatsColumns": "epoch,seq,ts"},
        commit_properties=CommitProperties(
            app_transactions=[Transaction(APP_ID, now.version + 1)]
        ),
    )  # fmt: skip
    return True


def purge(lake: Lake, topic: str) -> int:
    """Brings it up to date and removes the files of its older versions; how many."""
    table = Stored(lake.latest_uri(topic), topic)
    if not table.is_there:
        return 0
    refresh(lake, topic)
    return table.vacuum(0, is_dry=False)


def _latest(now: Snapshot) -> pa.Table:
    epoch = max(now.ends(), key=int, default=None)
    if epoch is None:
        return _SCHEMA.empty_table()
    told = f"_kind = '{RECORD}' AND epoch = '{epoch}'"
    hidden = "".join(
        f" AND NOT (seq < {seq} AND starts_with(tag, '{prefix}'))"
        for seq, prefix in _range_markers(now, told)
    )
    names = ", ".join(COLUMNS)
    found = QueryBuilder().register("t", now.table).execute(
        f"SELECT {names} FROM (SELECT {names}, row_number() OVER "
        f"(PARTITION BY tag ORDER BY seq DESC) AS place FROM t WHERE {told} AND tag IS NOT NULL) "
        f"WHERE place = 1 AND {_MARK} IS NULL{hidden}"
    )  # fmt: skip
    return pa.table(found.read_all()).cast(_SCHEMA)


def _range_markers(now: Snapshot, told: str) -> list[tuple[int, str]]:
    rows = now.rows("seq, data", f"{told} AND tag IS NULL AND {_MARK} = 'delete_prefix'")
    prefixes = [(row["seq"], json.loads(row["data"])["prefix"]) for row in rows]
    return [(seq, prefix.replace("'", "''")) for seq, prefix in prefixes]
