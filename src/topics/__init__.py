"""topics: a persistent event log whose every loss is explicit.

`Client` and `AsyncClient` speak to a server; `Engine` is the log inside this process. All raise the
same errors. Names are loaded when they are first used, so that `import topics` costs next to
nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from topics.client.async_client import AsyncClient
    from topics.client.client import Client
    from topics.client.retries import RetryPolicy
    from topics.client.values import Gap, Job
    from topics.engine.engine import Engine
    from topics.errors import (
        BatchTooLarge,
        Closed,
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
    )

__all__ = [
    "AsyncClient",
    "BatchTooLarge",
    "Client",
    "Closed",
    "Conflicting",
    "CorruptData",
    "CursorLeased",
    "CursorRegressed",
    "DirectoryLocked",
    "DiskFull",
    "Engine",
    "Forbidden",
    "FormatMismatch",
    "Gap",
    "Incompatible",
    "InvalidRequest",
    "Job",
    "NotAQueue",
    "NotEmpty",
    "NotFound",
    "NotReady",
    "OutcomeUnknown",
    "Overloaded",
    "PayloadTooLarge",
    "Poisoned",
    "RecordTooLarge",
    "Refused",
    "RetryPolicy",
    "RouterCycle",
    "RouterNotFound",
    "StageExpired",
    "StorageError",
    "StoreUnreachable",
    "Throttled",
    "TopicFull",
    "TopicNotFound",
    "TopicsError",
    "Unauthorized",
    "Unreachable",
    "Unreadable",
    "__version__",
]


# Where a name is that is not an error.
_HOMES = {
    "AsyncClient": "topics.client.async_client",
    "Client": "topics.client.client",
    "Engine": "topics.engine.engine",
    "Gap": "topics.client.values",
    "Job": "topics.client.values",
    "RetryPolicy": "topics.client.retries",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES.get(name, "topics.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
