"""What every setting is for, in a line: shown by `topics serve --help` and in docs/server.md."""

from __future__ import annotations

# By panel of the help, in its order.
PANELS = {
    "Where it is": {
        "host": "Address to listen on.",
        "port": "Port to listen on; 0 lets the system choose.",
        "port_file": "File that gets the port once it is open.",
        "data_dir": "Directory of the log.",
        "tls_cert": "Certificate (PEM, with its chain): serves TLS. Read again on SIGHUP.",
        "tls_key": "Its private key (PEM, not encrypted).",
    },
    "What it says": {
        "log_level": "debug, info, warning or error.",
        "access_log": "Log every request.",
        "slow_request_ms": "Log requests that took at least so long; 0: none.",
    },
    "Who may come in": {
        "api_keys": "Keys, comma-separated. Better set in the environment: other users of the "
        "machine can read command lines.",
        "api_keys_file": "File of keys, read again on SIGHUP.",
        "allow_insecure_no_auth": "Serve other machines without keys.",
        "probe_auth": "Ask for a key on health and readiness too.",
        "cors_origins": "Web origins that may call, comma-separated; * for all.",
    },
    "What clients may hold open": {
        "max_inflight_body_bytes": "Bytes of request bodies that are on their way, all together; "
        "0 for any number.",
        "max_unsent_bytes": "Bytes of answers that clients have not taken, all together; 0 for "
        "any number.",
        "max_inflight_per_key": "Requests a key may have in flight; 0 for any number.",
        "max_watch_sessions": "Watch sessions; 0 for any number.",
        "max_sse_connections": "Open streams and sockets; 0 for any number.",
        "max_sse_connections_per_key": "Those of one key; 0 for any number.",
        "max_watch_topics": "Topics in one watch.",
    },
    "Streams, and the end": {
        "session_ttl_ms": "How long a watch session outlives its stream.",
        "buffer_grace_ms": "A stream full for longer is told its losses as `from_seq_too_old`.",
        "slow_consumer_timeout_ms": "After how long a stream that is not read is closed.",
        "drain_notice_ms": "How long readiness is denied before the door closes.",
        "drain_ms": "How long requests in flight may take at the end.",
    },
    "One write, one read": {
        "max_batch_records": "Records in one write.",
        "max_record_bytes": "Bytes of data and meta of one record.",
        "max_body_bytes": "Bytes of one request body, decoded.",
        "max_meta_bytes": "Bytes of one record's meta.",
        "max_meta_keys": "Keys of one record's meta.",
        "max_tag_bytes": "Bytes of a tag.",
        "max_node_bytes": "Bytes of a node.",
        "max_idempotency_key_chars": "Characters of an idempotency key.",
        "max_limit": "Records in one read.",
        "max_claim": "Jobs in one claim.",
    },
    "All of it": {
        "max_topics": "Topics; 0 for any number.",
        "max_routers": "Routers; 0 for any number.",
        "max_total_bytes": "Bytes of all live records; 0 for any number.",
        "max_idempotency_keys": "Idempotency keys remembered; 0 for any number.",
        "max_staged_bytes": "Bytes of stages that were not committed; 0 for any number.",
        "max_producers": "Producers whose last batch a topic remembers.",
        "stage_ttl_ms": "After how long a stage that was not committed expires.",
        "kv_tombstones_warn": "Markers in a bucket from which on the log warns; 0: never.",
    },
    "Storage": {
        "wal_shards": "Shards of the write-ahead log.",
        "wal_file_bytes": "Size of one log file.",
        "wal_reserve_bytes": "Room kept in each for deletes on a full disk.",
        "sync_interval_ms": "How often what nobody waits for is synced.",
        "idle_close_ms": "After how long without writes a disk topic is settled.",
        "seal_bytes": "Unsealed bytes that start a checkpoint.",
        "seal_records": "Unsealed records that start one.",
        "seal_age_ms": "Age of a checkpoint after which a new one starts.",
        "rewrite_age_ms": "How long deleted bytes may stay on the disk; 0 for any time.",
        "own_segment_bytes": "From this size on a topic has segments of its own.",
        "segment_bytes": "Size of one segment.",
        "block_bytes": "Size of one block, the unit that a read verifies.",
        "cold_dir": "Second tier: a directory, s3://, gs:// or az://.",
        "hot_bytes": "Segment bytes that stay in the data directory.",
        "resident_bytes": "Sealed bytes that stay in memory.",
        "block_cache_bytes": "Blocks read back from segments that stay in memory.",
        "threads": "Sync in threads of their own.",
        "gc_freeze": "Keep long-lived state out of the garbage collector.",
    },
}
ABOUT = {name: words for panel in PANELS.values() for name, words in panel.items()}


def settings_table(defaults: dict[str, object]) -> str:
    """The table of docs/server.md."""
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for name, default in defaults.items():
        shown = str(default).lower() if isinstance(default, bool) else default
        about = ABOUT[name].replace("|", r"\|")
        rows.append(f"| `TOPICS_{name.upper()}` | {shown or '–'} | {about} |")
    return "\n".join(rows)
