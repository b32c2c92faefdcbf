"""topics: a persistent event log whose every loss is explicit.

`Client` and `AsyncClient` speak to a server, and answer with the values of `topics.client.values`;
`Engine` is the log inside this process, and answers with those that are here. All raise the same
errors. Names are loaded when they are first used, so that `import topics` costs next to
nothing.
"""

from __future__ import annotations

__version__ = "0.1.0"

# Not from `typing`, which takes longer than all else here; type checkers know the name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from topics.client.async_client import AsyncClient
    from topics.client.client import Client
    from topics.client.follow import AsyncFollower
    from topics.client.kv import AsyncKv, Kv
    from topics.client.producer import AsyncProducer, Producer
    from topics.client.retries import RetryPolicy
    from topics.client.sync_follow import Follower
    from topics.client.values import Gap, Job
    from topics.client.worker import AsyncWorker, Worker
    from topics.engine.engine import Engine
    from topics.engine.reading.ranges import RangePage
    from topics.errors import (
        BatchTooLarge,
        BucketNotFound,
        Closed,
        Compacted,
        Conflicting,
        CorruptData,
        CursorLeased,
        CursorRegressed,
        DirectoryLocked,
        DiskFull,
        Forbidden,
        FormatMismatch,
        Incompatible,
        InvalidRequest,
        KeyNotFound,
        NotAQueue,
        NotEmpty,
        NotFound,
        NotReady,
        OutcomeUnknown,
        Overloaded,
        PayloadTooLarge,
        Poisoned,
        RecordTooLarge,
        Refused,
        RouterCycle,
        RouterNotFound,
        SnapshotNotFound,
        StageExpired,
        StorageError,
        StoreUnreachable,
        Throttled,
        TopicFull,
        TopicNotFound,
        TopicsError,
        Unauthorized,
        Unreachable,
        Unreadable,
        WrongThread,
    )
    from topics.settings import Settings
    from topics.types import (
        Appended,
        ConfigInput,
        CursorState,
        Deleted,
        Hold,
        Page,
        Record,
        Tombstone,
        TopicConfig,
        TopicState,
    )

__all__ = [
    "Appended",
    "AsyncClient",
    "AsyncFollower",
    "AsyncKv",
    "AsyncProducer",
    "AsyncWorker",
    "BatchTooLarge",
    "BucketNotFound",
    "Client",
    "Closed",
    "Compacted",
    "ConfigInput",
    "Conflicting",
    "CorruptData",
    "CursorLeased",
    "CursorRegressed",
    "CursorState",
    "Deleted",
    "DirectoryLocked",
    "DiskFull",
    "Engine",
    "Follower",
    "Forbidden",
    "FormatMismatch",
    "Gap",
    "Hold",
    "Incompatible",
    "InvalidRequest",
    "Job",
    "KeyNotFound",
    "Kv",
    "NotAQueue",
    "NotEmpty",
    "NotFound",
    "NotReady",
    "OutcomeUnknown",
    "Overloaded",
    "Page",
    "PayloadTooLarge",
    "Poisoned",
    "Producer",
    "RangePage",
    "Record",
    "RecordTooLarge",
    "Refused",
    "RetryPolicy",
    "RouterCycle",
    "RouterNotFound",
    "Settings",
    "SnapshotNotFound",
    "StageExpired",
    "StorageError",
    "StoreUnreachable",
    "Throttled",
    "Tombstone",
    "TopicConfig",
    "TopicFull",
    "TopicNotFound",
    "TopicState",
    "TopicsError",
    "Unauthorized",
    "Unreachable",
    "Unreadable",
    "Worker",
    "WrongThread",
    "__version__",
]


# Where a name is that is not an error.
_HOMES = {
    "Appended": "topics.types",
    "AsyncClient": "topics.client.async_client",
    "AsyncFollower": "topics.client.follow",
    "AsyncKv": "topics.client.kv",
    "AsyncProducer": "topics.client.producer",
    "AsyncWorker": "topics.client.worker",
    "Client": "topics.client.client",
    "ConfigInput": "topics.types",
    "CursorState": "topics.types",
    "Deleted": "topics.types",
    "Engine": "topics.engine.engine",
    "Follower": "topics.client.sync_follow",
    "Gap": "topics.client.values",
    "Hold": "topics.types",
    "Job": "topics.client.values",
    "Kv": "topics.client.kv",
    "Page": "topics.types",
    "Producer": "topics.client.producer",
    "RangePage": "topics.engine.reading.ranges",
    "Record": "topics.types",
    "RetryPolicy": "topics.client.retries",
    "Settings": "topics.settings",
    "Tombstone": "topics.types",
    "TopicConfig": "topics.types",
    "TopicState": "topics.types",
    "Worker": "topics.client.worker",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(_HOMES.get(name, "topics.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
