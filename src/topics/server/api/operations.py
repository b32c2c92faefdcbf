"""What each operation is called, and where it belongs: names that read well in a client."""

from __future__ import annotations

import re

from topics.server.api.route import Route

TAGS = {
    "Topics": "Topics: created, configured, looked at, deleted.",
    "Records": "Records: written, read, deleted, explained.",
    "Cursors": "Durable, named places of readers.",
    "Stages": "Batches of writes that become visible at once or never.",
    "Buckets": "The key-value store on the log.",
    "Routers": "Derived copies from topic to topic.",
    "Queues": "Jobs under lease.",
    "Streams": "Events as they happen.",
    "Server": "The server itself.",
}

_TOPIC, _CURSOR, _ROUTER = "/v0/topics/:topic", "/v0/topics/:topic/cursors/:cursor", "/v0/routers"
_BUCKET, _KEY = "/v0/kv/:bucket", "/v0/kv/:bucket/keys/:key"

OPERATIONS = {
    f"PUT {_TOPIC}": ("putTopic", "Topics"),
    f"PATCH {_TOPIC}": ("patchTopic", "Topics"),
    f"GET {_TOPIC}": ("getTopic", "Topics"),
    f"DELETE {_TOPIC}": ("deleteTopic", "Topics"),
    "GET /v0/topics": ("listTopics", "Topics"),
    f"POST {_TOPIC}/rewrite": ("rewriteTopic", "Topics"),
    f"POST {_TOPIC}": ("writeRecords", "Records"),
    f"POST {_TOPIC}/diff": ("diff", "Records"),
    f"POST {_TOPIC}/range": ("readRange", "Records"),
    f"GET {_TOPIC}/seq-at": ("seqAt", "Records"),
    f"POST {_TOPIC}/delete": ("deleteRecords", "Records"),
    f"GET {_TOPIC}/explain": ("explainSeqs", "Records"),
    f"PUT {_CURSOR}": ("putCursor", "Cursors"),
    f"GET {_CURSOR}": ("getCursor", "Cursors"),
    f"DELETE {_CURSOR}": ("deleteCursor", "Cursors"),
    f"GET {_TOPIC}/cursors": ("listCursors", "Cursors"),
    "POST /v0/stages": ("stageRecords", "Stages"),
    "POST /v0/stages/commit": ("commitStages", "Stages"),
    "DELETE /v0/stages": ("dropStages", "Stages"),
    "GET /v0/kv": ("listBuckets", "Buckets"),
    f"PUT {_BUCKET}": ("putBucket", "Buckets"),
    f"GET {_BUCKET}": ("getBucket", "Buckets"),
    f"DELETE {_BUCKET}": ("deleteBucket", "Buckets"),
    f"POST {_BUCKET}/compact": ("compactBucket", "Buckets"),
    f"POST {_BUCKET}/snapshots": ("openSnapshot", "Buckets"),
    f"DELETE {_BUCKET}/snapshots/:snapshot": ("closeSnapshot", "Buckets"),
    f"PUT {_KEY}": ("putKey", "Buckets"),
    f"GET {_KEY}": ("getKey", "Buckets"),
    f"DELETE {_KEY}": ("deleteKey", "Buckets"),
    f"GET {_BUCKET}/keys": ("listKeys", "Buckets"),
    f"POST {_BUCKET}/delete": ("deleteKeys", "Buckets"),
    f"PUT {_ROUTER}/:router": ("putRouter", "Routers"),
    f"GET {_ROUTER}/:router": ("getRouter", "Routers"),
    f"DELETE {_ROUTER}/:router": ("deleteRouter", "Routers"),
    f"GET {_ROUTER}": ("listRouters", "Routers"),
    f"POST {_TOPIC}/claim": ("claimJobs", "Queues"),
    f"POST {_TOPIC}/ack": ("ackJobs", "Queues"),
    f"POST {_TOPIC}/nack": ("nackJobs", "Queues"),
    f"POST {_TOPIC}/extend": ("extendLeases", "Queues"),
    f"GET {_TOPIC}/leases": ("listLeases", "Queues"),
    f"GET {_TOPIC}/work": ("streamJobs", "Queues"),
    "POST /v0/watch": ("createWatch", "Streams"),
    "GET /v0/watch/:wid": ("streamWatch", "Streams"),
    f"GET {_TOPIC}/stream": ("streamTopic", "Streams"),
    "GET /v0/ws": ("openWebSocket", "Streams"),
    "GET /v0/connections": ("listConnections", "Server"),
    "POST /v0/backup": ("beginBackup", "Server"),
    "GET /v0/backup": ("getBackup", "Server"),
    "GET /v0/health": ("getHealth", "Server"),
    "GET /healthz": ("getHealthz", "Server"),
    "GET /v0/ready": ("getReady", "Server"),
    "GET /readyz": ("getReadyz", "Server"),
    "GET /v0/metrics": ("getMetrics", "Server"),
    "GET /metrics": ("getMetricsAtRoot", "Server"),
    "GET /v0/openapi.json": ("getDocument", "Server"),
    "GET /v0/docs": ("getDocs", "Server"),
    "GET /v0": ("getIndex", "Server"),
    "GET /": ("getRoot", "Server"),
}


def name_of(route: Route) -> str:
    """The id of a route's operation."""
    return _entry(route)[0]


def tag_of(route: Route) -> str:
    return _entry(route)[1]


def _entry(route: Route) -> tuple[str, str]:
    # A route without a name is a mistake that tests find, and no reason to have no document.
    unnamed = re.sub(r"\W+", "_", f"{route.method} {route.path}").lower()
    return OPERATIONS.get(f"{route.method} {route.path}", (unnamed, "Server"))
