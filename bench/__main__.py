"""`python -m bench [suite …] [--json]`: runs the suites and prints figures beside their targets."""

from __future__ import annotations

import sys

from bench import (
    backup,
    churn,
    client,
    cold,
    engine,
    kv,
    peers,
    queues,
    ranges,
    rewrite,
    routers,
    shapes,
    spark,
    sse,
    stages,
)
from bench.report import Report

SUITES = {
    "engine": ("The engine in-process", engine.run),
    "cold": ("Appends beside reads from a cold tier on S3", cold.run),
    "peers": ("The server beside Redis Streams", peers.run),
    "shapes": ("Single writes as people send them", shapes.run),
    "routers": ("Routers: from a write to its copies", routers.run),
    "ranges": ("Ranges as columns, and beside writes", ranges.run),
    "churn": ("Topics that come, are written and are trimmed", churn.run),
    "rewrite": ("Rewriting beside writes, and what an overwritten topic takes", rewrite.run),
    "backup": ("A backup beside writes", backup.run),
    "queues": ("Queues beside a Redis Streams consumer group", queues.run),
    "kv": ("The key-value store", kv.run),
    "stages": ("Stages: batches that are there at once", stages.run),
    "spark": ("Spark beside the server", spark.run),
    "client": ("The Python client beside redis-py", client.run),
    "sse": ("Watching over server-sent events", sse.run),
}


def main(arguments: list[str]) -> int:
    names = [a for a in arguments if not a.startswith("-")] or list(SUITES)
    unknown = [name for name in names if name not in SUITES]
    if unknown:
        print(f"unknown suite: {', '.join(unknown)}; there are: {', '.join(SUITES)}")
        return 2
    report = Report(as_json="--json" in arguments)
    for name in names:
        title, suite = SUITES[name]
        report.run(title, suite)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
