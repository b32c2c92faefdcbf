"""topics: a persistent event log whose every loss is explicit.

`Engine` is the log inside this process; the errors are those it raises. Names are loaded when
they are first used, so that `import topics` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
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
        RouterCycle,
        RouterNotFound,
        StorageError,
        StoreUnreachable,
        Throttled,
        TopicFull,
        TopicNotFound,
        TopicsError,
        Unreadable,
    )

__all__ = [
    "BatchTooLarge",
    "Closed",
    "Conflicting",
    "CorruptData",
    "CursorLeased",
    "CursorRegressed",
    "DirectoryLocked",
    "DiskFull",
    "Engine",
    "FormatMismatch",
    "Incompatible",
    "InvalidRequest",
    "NotAQueue",
    "NotEmpty",
    "NotFound",
    "NotReady",
    "OutcomeUnknown",
    "Overloaded",
    "PayloadTooLarge",
    "Poisoned",
    "RecordTooLarge",
    "RouterCycle",
    "RouterNotFound",
    "StorageError",
    "StoreUnreachable",
    "Throttled",
    "TopicFull",
    "TopicNotFound",
    "TopicsError",
    "Unreadable",
    "__version__",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "topics.engine.engine" if name == "Engine" else "topics.errors"
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
